"""Posterior predictive distributions, shared by every estimator.

A posterior that is represented by draws (of weights, or of hidden units) predicts a mixture of the
likelihood's distributions given each draw. `NormalMixture` does this in closed form,
`TargetMixture` for any likelihood of real targets or counts, and `CategoricalMixture` for classes.
All predictions of the estimators are functionals of these mixtures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log, pi
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.bisection import bisect_counts, invert_cdf, solve_bracket
from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import cholesky

if TYPE_CHECKING:
    from skbayes_sym.models.likelihoods.likelihood import TargetLikelihood


class Uncertainty(NamedTuple):
    """Uncertainty of a prediction, with ``total = epistemic + aleatoric``.

    Attributes
    ----------
    total : Tensor
        Uncertainty of a new target: a variance, or an entropy in nats.
    epistemic : Tensor
        Part that more data would reduce.
    aleatoric : Tensor
        Part that remains however many data there are.
    """

    total: Tensor
    epistemic: Tensor
    aleatoric: Tensor


class Predictive:
    """Distribution of the targets or classes of N rows: a weighted mixture over S draws.

    ``log_weights`` (S,) are unnormalised log weights of the draws. None means equal weights.
    """

    log_weights: Tensor | None

    @property
    def _like(self) -> Tensor:
        """Return any tensor whose first axis is that of the draws, (S, ...)."""
        raise NotImplementedError

    @cached_property
    def broadcast_weights(self) -> Tensor:
        """Normalised weights of the draws, (S, 1, 1)."""
        if self.log_weights is None:
            return self._like.new_full((len(self._like), 1, 1), 1.0 / len(self._like))
        return self.log_weights.to(self._like).softmax(0).reshape(-1, 1, 1)

    @property
    def weights(self) -> Tensor:
        """Normalised weights of the draws, (S,)."""
        return self.broadcast_weights.flatten()

    @property
    def means(self) -> Tensor:
        """Expected targets (S, N, T), or class probabilities (S, N, C), given each draw."""
        raise NotImplementedError

    def mean(self) -> Tensor:
        """Return the expected targets (N, T), or class probabilities (N, C)."""
        return (self.broadcast_weights * self.means).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets (N, T), or entropies of the classes in nats (N,)."""
        raise NotImplementedError

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the log density or log probability of each row given each draw, (S, N) nats."""
        raise NotImplementedError

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the joint log density of the targets of each row, (N,) nats.

        This is ``log sum_s w_s p(y | s)``. The targets of a row are independent given a draw, but
        not marginally.
        """
        return torch.logsumexp(
            self.log_prob_per_draw(y) + self.broadcast_weights[:, :, 0].log(), dim=0
        )

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, T) or (n, N).

        Each data set belongs to one draw. Draws are resampled with replacement.
        """
        weights = self.weights.double().cpu().numpy()
        draws = rng.choice(len(weights), size=n, p=weights / weights.sum())
        return self._sample(torch.as_tensor(draws, device=self._like.device), rng)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Sample one data set from each draw, (S, N, T) or (S, N)."""
        return self._sample(torch.arange(len(self._like), device=self._like.device), rng)

    def _sample(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one data set from each of the draws with these indices."""
        raise NotImplementedError


class TargetPredictive(Predictive):
    """Distribution of T real targets or counts for each of N rows."""

    @property
    def is_discrete(self) -> bool:
        """Whether the targets are integers."""
        return False

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        raise NotImplementedError

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return int(self.means.shape[1])

    @property
    def n_targets(self) -> int:
        """Number of targets T."""
        return int(self.means.shape[2])

    @property
    def units(self) -> tuple[float, float]:
        """Location and scale of discrete targets, which are ``location + scale * count``."""
        return 0.0, 1.0

    @property
    def density_jumps(self) -> tuple[float, ...]:
        """Values at which the density jumps."""
        return ()

    def take(self, rows: np.ndarray) -> Self:
        """Return the distributions of the rows with these indices."""
        raise NotImplementedError

    def rescale(self, mean: Tensor, scale: Tensor) -> Self:
        """Return the distribution of ``mean + scale * target``, where both have shape (T,)."""
        raise NotImplementedError

    def add_known_errors(self, noise_std: Tensor) -> Self:  # noqa: ARG002 -- an interface
        """Return the distribution of targets with further errors of known size (N, T)."""
        raise TypeError(
            f"noise_std is added to mixtures of normal distributions, which {type(self).__name__} "
            "isn't."
        )

    def multiply_rate(self, exposure: Tensor) -> Self:  # noqa: ARG002 -- an interface
        """Return the distribution of counts whose mean is ``exposure`` (N, T) times as large."""
        raise TypeError(
            f"exposure multiplies the mean of Poisson and negative binomial counts, which "
            f"{type(self).__name__} doesn't hold."
        )

    def std(self) -> Tensor:
        """Return the standard deviations of new targets, observation noise included, (N, T)."""
        return self.uncertainty().total.sqrt()

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        raise NotImplementedError

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T), accurate to rounding.

        A quantile of a discrete target is the smallest value whose cdf reaches ``probability``.
        """
        raise NotImplementedError

    def quantiles(self, levels: Sequence[float]) -> list[Tensor]:
        """Return quantiles of each target at several levels, each (N, T)."""
        return [self.quantile(level) for level in levels]


@dataclass(frozen=True, eq=False)
class NormalMixture(TargetPredictive):
    """Mixture over S draws of normal distributions, for every row and target.

    Parameters
    ----------
    loc : Tensor of shape (S, N, T)
        Mean of the function values given each draw.
    variance : Tensor broadcastable to (S, N, T)
        Variance of the function values given each draw; 0 if a draw determines the function.
    noise_variance : Tensor broadcastable to (S, N, T)
        Variance of the observation noise.
    log_weights : Tensor of shape (S,), optional
        Log weights of the draws; equal by default.
    covariance : Tensor of shape (S, N, T, T), optional
        Covariance of the function values of a row given each draw, if its targets are dependent.
        Its diagonal equals ``variance``.
    """

    loc: Tensor
    variance: Tensor
    noise_variance: Tensor
    log_weights: Tensor | None = None
    covariance: Tensor | None = None

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return self.loc

    @cached_property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        return (self.variance + self.noise_variance).sqrt().expand_as(self.loc)

    @cached_property
    def _root(self) -> Tensor | None:
        """Cholesky factors of the joint covariance of a row's targets, (S, N, T, T).

        None if the targets are independent.
        """
        if self.covariance is None or self.loc.shape[-1] == 1:
            return None
        noise = torch.diag_embed(self.noise_variance.expand_as(self.loc))
        return cholesky(
            self.covariance + noise,
            name="The covariance of a row's targets",
            remedy="Standardise X, or give X as float64.",
        )

    def take(self, rows: np.ndarray) -> "NormalMixture":
        """Return the distributions of the rows with these indices."""
        index = torch.as_tensor(rows, device=self.loc.device)
        return replace(
            self,
            loc=self.loc[:, index],
            variance=self.variance.expand_as(self.loc)[:, index],
            noise_variance=self.noise_variance.expand_as(self.loc)[:, index],
            covariance=None if self.covariance is None else self.covariance[:, index],
        )

    def rescale(self, mean: Tensor, scale: Tensor) -> "NormalMixture":
        """Return the distribution of ``mean + scale * target``."""
        return replace(
            self,
            loc=self.loc * scale + mean,
            variance=self.variance * scale**2,
            noise_variance=self.noise_variance * scale**2,
            covariance=None if self.covariance is None else self.covariance * scale.outer(scale),
        )

    def add_known_errors(self, noise_std: Tensor) -> "NormalMixture":
        """Return the distribution of targets with further errors of known size (N, T)."""
        known_variance = noise_std.to(self.loc).square().unsqueeze(0)
        return replace(self, noise_variance=self.noise_variance + known_variance)

    @property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, T)."""
        return self.loc

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, T).

        The variance of the function values is epistemic, and that of the noise is aleatoric.
        """
        spread = (self.loc - self.mean()) ** 2 + self.variance
        epistemic = (self.broadcast_weights * spread).sum(0)
        aleatoric = (self.broadcast_weights * self.noise_variance.expand_as(self.loc)).sum(0)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the log density of each row given each draw, (S, N) nats."""
        if self._root is not None:
            residual = (y - self.loc).unsqueeze(-1)
            z = torch.linalg.solve_triangular(self._root, residual, upper=False).squeeze(-1)
            log_scale = self._root.diagonal(dim1=-2, dim2=-1).log()
        else:
            z = (y - self.loc) / self.scales
            log_scale = self.scales.log()
        return -(0.5 * z * z + log_scale + 0.5 * log(2 * pi)).sum(-1)

    def noise_variance_gradient(self, y: Tensor) -> Tensor:
        r"""Return the derivatives of `log_prob_per_draw` by the noise variances, (S, N, T).

        Notes
        -----
        With the covariance :math:`\Sigma` of the targets of a row and the residual r they are
        :math:`([\Sigma^{-1} r]_t^2 - [\Sigma^{-1}]_{tt}) / 2`.
        """
        residual = y - self.loc
        if self._root is not None:
            precision = torch.cholesky_inverse(self._root)
            scaled = (precision @ residual.unsqueeze(-1)).squeeze(-1)
            return 0.5 * (scaled.square() - precision.diagonal(dim1=-2, dim2=-1))
        precision = self.scales.square().reciprocal()
        return 0.5 * precision * (precision * residual.square() - 1.0)

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        z = (y - self.loc) / self.scales
        return (self.broadcast_weights * torch.special.ndtr(z)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T)."""
        return self.quantiles([probability])[0]

    def quantiles(self, levels: Sequence[float]) -> list[Tensor]:
        """Return quantiles of each target at several levels, each (N, T)."""
        # The upper tail is solved as the lower tail of the negative target, whose small
        # probabilities aren't rounded.
        signs = [1.0 if level <= 0.5 else -1.0 for level in levels]
        lower_levels = [min(level, 1.0 - level) for level in levels]
        loc = self.loc.double().flatten(1)
        scale = self.scales.double().flatten(1)
        weight = self.broadcast_weights.double()[:, :, 0]
        probability = loc.new_tensor(lower_levels)

        # All levels of a block of targets are solved together.
        n_targets = max(1, _MIXTURE_BLOCK // (len(loc) * len(levels)))
        blocks = []
        for loc_block, scale_block in zip(
            loc.split(n_targets, 1), scale.split(n_targets, 1), strict=True
        ):
            solutions = solve_lower_quantile(
                torch.cat([sign * loc_block for sign in signs], 1),
                torch.cat([scale_block] * len(levels), 1),
                weight,
                probability.repeat_interleave(loc_block.shape[1]),
            )
            blocks.append(solutions.unflatten(0, (len(levels), -1)))
        values = torch.cat(blocks, 1).to(self.loc)
        pairs = zip(signs, values, strict=True)
        return [sign * value.reshape(self.loc.shape[1:]) for sign, value in pairs]

    def _sample(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one data set from each of the draws with these indices."""
        shape = len(draws), *self.loc.shape[1:]
        noise = torch.as_tensor(rng.standard_normal(shape)).to(self.loc)
        if self._root is not None:
            return self.loc[draws] + (self._root[draws] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.loc[draws] + self.scales[draws] * noise


# Numbers of components times targets whose quantiles are solved together; they fit into a cache.
_MIXTURE_BLOCK = 1 << 15

# Newton's method ends when a quantile moves by less than this part of the smallest standard
# deviation of a component. It converges quadratically, so that the error is far smaller.
_QUANTILE_TOLERANCE = 1e-10
_MAX_QUANTILE_STEPS = 100


def solve_lower_quantile(loc: Tensor, scale: Tensor, weight: Tensor, probability: Tensor) -> Tensor:
    r"""Solve for quantiles of mixtures of normals, at most the median.

    Parameters
    ----------
    loc, scale : Tensor of shape (S, M)
        Means and standard deviations of S components of M targets.
    weight : Tensor of shape (S, 1)
        Weights of the components.
    probability : Tensor of shape (M,)
        Levels, at most 0.5.

    Returns
    -------
    Tensor of shape (M,)

    Notes
    -----
    Newton's method for :math:`\log F(x) = \log p` starts from the quantile of the normal
    distribution with the same mean and variance. The logarithm of the cdf is nearly quadratic in
    the tail, where the cdf itself is nearly flat. The quantiles of the components bracket the
    quantile of the mixture. A step that leaves the bracket, or is longer than half of the previous
    step, is replaced by a bisection.
    """
    z = torch.special.ndtri(probability)
    component_quantiles = loc + z * scale
    lower = component_quantiles.amin(0)
    upper = component_quantiles.amax(0)
    mean = (weight * loc).sum(0)
    variance = (weight * (scale.square() + (loc - mean).square())).sum(0)
    x = torch.clamp(mean + z * variance.sqrt(), lower, upper)
    last_step = upper - lower
    tolerance = _QUANTILE_TOLERANCE * scale.amin(0)
    peak = weight * exp(-0.5 * LOG_2PI) / scale

    solution = torch.empty_like(x)
    index = torch.arange(len(x), device=x.device)
    for _ in range(_MAX_QUANTILE_STEPS):
        standardized = (x - loc) / scale
        cdf = (weight * torch.special.ndtr(standardized)).sum(0)
        density = (peak * (-0.5 * standardized.square()).exp()).sum(0)
        is_below = cdf < probability
        lower = torch.where(is_below, x, lower)
        upper = torch.where(is_below, upper, x)

        newton = x - (cdf / probability).log() * cdf / density
        is_inside = (newton >= lower) & (newton <= upper)
        is_fast = (newton - x).abs() <= 0.5 * last_step
        moved = torch.where(is_inside & is_fast, newton, 0.5 * (lower + upper))
        last_step = (moved - x).abs()
        x = moved

        # Continue with the targets that aren't solved; infinite ones have a step of nan.
        resolution = 4.0 * torch.finfo(x.dtype).eps * x.abs()
        is_open = last_step > torch.maximum(tolerance, resolution)
        open_index = is_open.nonzero().squeeze(1)
        if len(open_index) == len(x):
            continue
        solution[index] = x
        if not len(open_index):
            return solution
        state = (index, loc, scale, peak, probability, x, lower, upper, last_step, tolerance)
        index, loc, scale, peak, probability, x, lower, upper, last_step, tolerance = (
            values.index_select(-1, open_index) for values in state
        )
    solution[index] = x
    return solution


@dataclass(frozen=True, eq=False)
class TargetMixture(TargetPredictive):
    """Mixture over S values of the outputs, for any likelihood of real targets or counts.

    Parameters
    ----------
    likelihood : TargetLikelihood
        Distribution of the targets given the outputs. Its parameters can have a leading axis of
        draws, (S, 1, n_params).
    outputs : Tensor of shape (S, N, O)
        Outputs for each draw, or at the nodes of a quadrature.
    log_weights : Tensor of shape (S,), optional
        Log weights of the draws; equal by default.
    location, scale : Tensor of shape (T,), optional
        The mixture is the distribution of ``location + scale * target``; by default that of the
        target itself.
    """

    likelihood: "TargetLikelihood"
    outputs: Tensor
    log_weights: Tensor | None = None
    location: Tensor | None = None
    scale: Tensor | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether the targets are integers."""
        return self.likelihood.is_discrete

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return self.outputs

    @property
    def units(self) -> tuple[float, float]:
        """Location and scale of discrete targets, which are ``location + scale * count``."""
        location, scale = self._units
        return float(location.max()), float(scale.max())

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        """Location and scale, 0 and 1 by default."""
        zero = self.outputs.new_zeros(())
        if self.location is None:
            location = zero
        else:
            location = self.location
        return location, zero + 1.0 if self.scale is None else self.scale

    @cached_property
    def _means(self) -> Tensor:
        """Expected targets in the likelihood's own units given each draw, (S, N, T)."""
        return self.likelihood.mean(self.outputs)

    def take(self, rows: np.ndarray) -> "TargetMixture":
        """Return the distributions of the rows with these indices."""
        index = torch.as_tensor(rows, device=self.outputs.device)
        return replace(self, outputs=self.outputs[:, index])

    def rescale(self, mean: Tensor, scale: Tensor) -> "TargetMixture":
        """Return the distribution of ``mean + scale * target``."""
        location, unit = self._units
        location = mean + scale * location
        unit = scale * unit
        if self.is_discrete:
            # Counts that were standardised and are converted back are integers again.
            is_plain = ((unit - 1.0).abs() < 1e-9) & (location.abs() < 1e-6)
            location = torch.where(is_plain, 0.0, location)
            unit = torch.where(is_plain, 1.0, unit)
        return replace(self, location=location, scale=unit)

    def multiply_rate(self, exposure: Tensor) -> "TargetMixture":
        """Return the distribution of counts whose mean is ``exposure`` (N, T) times as large."""
        if self.likelihood.kind != "counts":
            return super().multiply_rate(exposure)
        return replace(self, outputs=self.outputs + exposure.log().to(self.outputs))

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        return self._units[1] * self.likelihood.variance(self.outputs).sqrt()

    @property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, T)."""
        location, scale = self._units
        return location + scale * self._means

    def mean(self) -> Tensor:
        """Return the expected targets, (N, T)."""
        location, scale = self._units
        return location + scale * (self.broadcast_weights * self._means).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, T).

        The variance of the conditional means is epistemic, and the mean of the conditional
        variances is aleatoric.
        """
        spread = (self._means - (self.broadcast_weights * self._means).sum(0)) ** 2
        square = self._units[1] ** 2
        epistemic = (self.broadcast_weights * spread).sum(0) * square
        aleatoric = (self.broadcast_weights * self.likelihood.variance(self.outputs)).sum(
            0
        ) * square
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the log density of each row given each draw, (S, N) nats."""
        y = self._inward(y)
        log_prob = self.likelihood.log_prob(self.outputs, y)
        if not self.is_discrete:
            return log_prob - self._units[1].log().expand(y.shape[-1]).sum()
        # Probabilities have no units.
        is_count = ((y >= 0.0) & (y == y.floor())).all(-1)
        return torch.where(is_count, log_prob, -torch.inf)

    def _inward(self, y: Tensor) -> Tensor:
        """Return targets in the likelihood's own units. Counts are free of rounding errors."""
        location, scale = self._units
        values = (y - location) / scale
        if self.is_discrete:
            return round_near_counts(values)
        return values

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        return self._cdf(self._inward(y))

    def _cdf(self, y: Tensor) -> Tensor:
        """Return the cdf of the targets in the likelihood's own units."""
        return (self.broadcast_weights * self.likelihood.cdf(y, self.outputs)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T)."""
        location, scale = self._units
        # The quantile of a normal distribution with the same moments is a guess.
        mean = ((self.mean() - location) / scale).nan_to_num()
        std = (self.std() / scale).nan_to_num(1.0, 1.0).clamp_min(1e-300)
        level = torch.full_like(mean, probability)
        guess = mean + std * torch.special.ndtri(level).clamp(-8.0, 8.0)
        value = invert_cdf(self._cdf, level, guess, 0.5 * std, self.is_discrete)
        return location + scale * value

    def _sample(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample one data set from each of the draws with these indices."""
        distribution = self.likelihood
        if distribution.params.ndim > 1:
            distribution = distribution.at(distribution.params[draws])
        location, scale = self._units
        return location + scale * distribution.sample(self.outputs[draws], rng)


def round_near_counts(values: Tensor) -> Tensor:
    """Return values that are integers up to rounding errors as integers."""
    nearest = values.round()
    is_integer = (values - nearest).abs() < 1e-7 * (1.0 + nearest.abs())
    return torch.where(is_integer, nearest, values)


def snap_to_counts(location: float, scale: float, is_discrete: bool = True) -> tuple[float, float]:
    """Return location and scale of counts, free of rounding errors if they are 0 and 1."""
    is_plain = is_discrete and abs(scale - 1.0) < 1e-9 and abs(location) < 1e-6
    if is_plain:
        return (0.0, 1.0)
    return (location, scale)


@dataclass(frozen=True, eq=False)
class LinearPool(TargetPredictive):
    """Mixture of distributions of any type (a linear opinion pool).

    Each component keeps its own density, cdf and quantiles.

    Parameters
    ----------
    components : sequence of TargetPredictive
        Distributions of the same rows and targets.
    component_weights : sequence of float
        Weights of the components, which sum to one.
    """

    components: "Sequence[TargetPredictive]"
    component_weights: "Sequence[float]"

    @property
    def is_discrete(self) -> bool:
        """Whether the targets are integers."""
        return all(component.is_discrete for component in self.components)

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return self.means

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return self.components[0].n_rows

    @property
    def n_targets(self) -> int:
        """Number of targets T."""
        return self.components[0].n_targets

    def take(self, rows: np.ndarray) -> "LinearPool":
        """Return the distributions of the rows with these indices."""
        return replace(self, components=[component.take(rows) for component in self.components])

    def rescale(self, mean: Tensor, scale: Tensor) -> "LinearPool":
        """Return the distribution of ``mean + scale * target``."""
        return replace(
            self, components=[component.rescale(mean, scale) for component in self.components]
        )

    def add_known_errors(self, noise_std: Tensor) -> "LinearPool":
        """Return the distribution of targets with further errors of known size (N, T)."""
        return replace(
            self, components=[part.add_known_errors(noise_std) for part in self.components]
        )

    def multiply_rate(self, exposure: Tensor) -> "LinearPool":
        """Return the distribution of counts whose mean is ``exposure`` (N, T) times as large."""
        return replace(self, components=[part.multiply_rate(exposure) for part in self.components])

    def _sum(self, values: Iterable[Tensor]) -> Tensor:
        """Return the weighted sum of a quantity over the components."""
        weighted = [
            weight * value for weight, value in zip(self.component_weights, values, strict=True)
        ]
        return torch.stack(weighted).sum(0)

    @cached_property
    def weights(self) -> Tensor:
        """Weights of all draws of all components, float64 (S,), which sum to one."""
        pairs = zip(self.component_weights, self.components, strict=True)
        return torch.cat([weight * component.weights.double() for weight, component in pairs])

    @property
    def means(self) -> Tensor:
        """Expected targets given each draw, (S, N, T)."""
        return torch.cat([component.means for component in self.components])

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets given each draw, (S, N, T)."""
        return torch.cat(
            [component.scales.expand_as(component.means) for component in self.components]
        )

    def mean(self) -> Tensor:
        """Return the expected targets, (N, T)."""
        return self._sum(component.mean() for component in self.components)

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets, (N, T).

        Differences between the components' means are epistemic.
        """
        mean = self.mean()
        within = [component.uncertainty() for component in self.components]
        between = [(component.mean() - mean).square() for component in self.components]
        pairs = zip(within, between, strict=True)
        epistemic = self._sum(variances.epistemic + square for variances, square in pairs)
        aleatoric = self._sum(variances.aleatoric for variances in within)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the joint log density of the targets of each row, (N,) nats."""
        self._require_common_measure()
        densities = [component.log_prob(y).double() for component in self.components]
        log_component_weights = (
            torch.tensor(self.component_weights, dtype=torch.float64).log().unsqueeze(1)
        )
        return torch.logsumexp(
            torch.stack(densities) + log_component_weights.to(densities[0].device), dim=0
        )

    def _require_common_measure(self) -> None:
        """Raise TypeError if some components have densities and others probabilities of counts."""
        discrete = [component for component in self.components if component.is_discrete]
        if discrete and len(discrete) < len(self.components):
            continuous = next(
                component for component in self.components if not component.is_discrete
            )
            raise TypeError(
                f"{discrete[0]!r} gives probabilities to whole numbers and {continuous!r} has a "
                "density: their mixture has neither, so log_prob and pdf don't exist. Its cdf, "
                "quantiles, moments, crps and draws do. PredictiveStackingRegressor turns both "
                "into probabilities of counts."
            )

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        return self._sum(component.cdf(y) for component in self.components)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T)."""
        quantiles = torch.stack([component.quantile(probability) for component in self.components])
        if not self.is_discrete:
            return solve_bracket(self.cdf, probability, quantiles.amin(0), quantiles.amax(0))
        location, scale = self.units
        lower = ((quantiles.amin(0) - location) / scale).round() - 1.0
        upper = ((quantiles.amax(0) - location) / scale).round()
        count = bisect_counts(
            lambda count: self.cdf(location + scale * count), probability, lower, upper
        )
        return location + scale * count

    @property
    def units(self) -> tuple[float, float]:
        """Location and scale of discrete targets, which are ``location + scale * count``."""
        return self.components[0].units

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, T)."""
        component_index = rng.choice(
            len(self.components), size=n, p=np.array(self.component_weights)
        )
        samples = torch.empty((n, self.n_rows, self.n_targets), dtype=torch.float64)
        for k, component in enumerate(self.components):
            index = torch.as_tensor(np.flatnonzero(component_index == k))
            if len(index):
                samples[index] = component.sample(len(index), rng).double().cpu()
        return samples


@dataclass(frozen=True, eq=False)
class CategoricalMixture(Predictive):
    """Mixture over S draws of class probabilities, for every row.

    Parameters
    ----------
    log_probs : Tensor of shape (S, N, C)
        Log probabilities of the classes given each draw.
    log_weights : Tensor of shape (S,), optional
        Log weights of the draws; equal by default.
    """

    log_probs: Tensor
    log_weights: Tensor | None = None

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return self.log_probs

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the log density of each row given each draw, (S, N) nats."""
        return self.log_probs[:, torch.arange(len(y)), y]

    @property
    def means(self) -> Tensor:
        """Class probabilities given each draw, (S, N, C)."""
        return self.log_probs.exp()

    def mean(self) -> Tensor:
        """Return class probabilities, (N, C); each row sums to one."""
        p = torch.tensordot(self.broadcast_weights.flatten(), self.log_probs.exp(), dims=1)
        return p / p.sum(-1, keepdim=True)

    def uncertainty(self) -> Uncertainty:
        """Return entropies in nats, (N,).

        The mutual information of class and weights is epistemic, and the expected entropy is
        aleatoric.
        """
        total = torch.special.entr(self.mean()).sum(-1)
        per_draw = -(self.log_probs.exp() * self.log_probs).nan_to_num(0.0).sum(-1)
        aleatoric = (self.broadcast_weights[:, :, 0] * per_draw).sum(0)
        epistemic = (total - aleatoric).clamp_min(0.0)  # non-negative up to rounding (Jensen)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def _sample(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Sample classes by the Gumbel-max method, int64 (n, N)."""
        log_probs = self.log_probs[draws]
        gumbel = rng.gumbel(size=tuple(log_probs.shape))
        return (log_probs + torch.as_tensor(gumbel).to(log_probs)).argmax(-1)
