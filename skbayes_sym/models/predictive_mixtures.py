r"""Posterior predictive distributions, shared by every estimator, and their CRPS.

A posterior made of draws (of weights, or of hidden units) predicts by a mixture of what the
likelihood says given each draw: `NormalMixture` in closed form, `TargetMixture` of any law of real
targets or counts, `CategoricalMixture`. Everything a user asks for is a functional of it, such as

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - \mathbf 1[x \ge y])^2 \, dx

(Gneiting & Raftery 2007, eq. 20, with the sign that makes less better), in the unit of the target.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import cholesky

if TYPE_CHECKING:
    from skbayes_sym.models.likelihoods.likelihood import TargetLikelihood


class Uncertainty(NamedTuple):
    """Uncertainty by whether more data would help: total = epistemic + aleatoric."""

    total: Tensor
    epistemic: Tensor
    aleatoric: Tensor


class Predictive:
    """Distribution of the targets (or the class) of N rows: a mixture of S draws with weights."""

    log_weights: Tensor | None

    @property
    def _like(self) -> Tensor:
        """Any tensor that the draws lead, (S, ...)."""
        raise NotImplementedError

    @cached_property
    def _weights(self) -> Tensor:
        """(S, 1, 1), adding up to one."""
        if self.log_weights is None:
            return self._like.new_full((len(self._like), 1, 1), 1.0 / len(self._like))
        return self.log_weights.to(self._like).softmax(0).reshape(-1, 1, 1)

    @property
    def weights(self) -> Tensor:
        """Weights of the draws, (S,), adding up to one."""
        return self._weights.flatten()

    @property
    def means(self) -> Tensor:
        """Expected targets (S, N, T), or class probabilities (S, N, C), given each draw."""
        raise NotImplementedError

    def mean(self) -> Tensor:
        """Expected targets (N, T), or class probabilities (N, C)."""
        return (self._weights * self.means).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Uncertainty of every target (variances) or row of classes (entropies, nats)."""
        raise NotImplementedError

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Log density or probability of a row's targets given each of the draws, (S, N) nats."""
        raise NotImplementedError

    def log_prob(self, y: Tensor) -> Tensor:
        """Joint over the targets of a row, ``log sum_s w_s p(y | s)``, (N,) nats.

        The targets of one row are independent given a draw, not across draws.
        """
        return torch.logsumexp(self.log_prob_per_draw(y) + self._weights[:, :, 0].log(), dim=0)

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """``n`` data sets, the rows of each of one draw; these are taken with replacement."""
        weights = self.weights.double().cpu().numpy()
        chosen = rng.choice(len(weights), size=n, p=weights / weights.sum())
        return self._sample(torch.as_tensor(chosen, device=self._like.device), rng)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Data set of every draw, (S, N, T)."""
        return self._sample(torch.arange(len(self._like), device=self._like.device), rng)

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        raise NotImplementedError


class TargetPredictive(Predictive):
    """Distribution of T real targets or counts of N rows."""

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        return False

    @property
    def scales(self) -> Tensor:
        """Standard deviation of a target given each draw, (S, N, T)."""
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
        """Location and scale of discrete targets: they are ``location + scale * count``."""
        return 0.0, 1.0

    def take(self, rows: np.ndarray) -> Self:
        """Distributions of some of the rows, by their positions."""
        raise NotImplementedError

    def rescale(self, mean: Tensor, scale: Tensor) -> Self:
        """Law of ``mean + scale * target``; both (T,)."""
        raise NotImplementedError

    def std(self) -> Tensor:
        """Standard deviation of a new target, noise included, (N, T)."""
        return self.uncertainty().total.sqrt()

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), each target by itself, (N, T)."""
        raise NotImplementedError

    def quantile(self, probability: float) -> Tensor:
        """Quantiles by bisection, (N, T), to rounding; of counts the least at or above it."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class NormalMixture(TargetPredictive):
    """Mixture over S draws of normals, for every row and output.

    Parameters
    ----------
    loc : Tensor of shape (S, N, T)
        Mean of the function values of every draw.
    variance : Tensor broadcastable to (S, N, T)
        Their variance given the draw (0 if a draw fixes the function).
    noise_variance : Tensor broadcastable to (S, N, T)
        Variance of the observation noise.
    log_weights : Tensor of shape (S,), optional
        Normalised log weights of the draws; equal by default.
    covariance : Tensor of shape (S, N, T, T), optional
        Of the function values given the draw, where targets depend on each other; its diagonal is
        ``variance``.
    """

    loc: Tensor
    variance: Tensor
    noise_variance: Tensor
    log_weights: Tensor | None = None
    covariance: Tensor | None = None

    @property
    def _like(self) -> Tensor:
        return self.loc

    @cached_property
    def scales(self) -> Tensor:
        return (self.variance + self.noise_variance).sqrt().expand_as(self.loc)

    @cached_property
    def _root(self) -> Tensor | None:
        """Cholesky factors (S, N, T, T) of a row's targets together; None if independent."""
        if self.covariance is None or self.loc.shape[-1] == 1:
            return None
        noise = torch.diag_embed(self.noise_variance.expand_as(self.loc))
        return cholesky(
            self.covariance + noise,
            name="The covariance of a row's targets",
            remedy="Standardise X, or give X as float64.",
        )

    def take(self, rows: np.ndarray) -> "NormalMixture":
        places = torch.as_tensor(rows, device=self.loc.device)
        return replace(
            self,
            loc=self.loc[:, places],
            variance=self.variance.expand_as(self.loc)[:, places],
            noise_variance=self.noise_variance.expand_as(self.loc)[:, places],
            covariance=None if self.covariance is None else self.covariance[:, places],
        )

    def rescale(self, mean: Tensor, scale: Tensor) -> "NormalMixture":
        return replace(
            self,
            loc=self.loc * scale + mean,
            variance=self.variance * scale**2,
            noise_variance=self.noise_variance * scale**2,
            covariance=None if self.covariance is None else self.covariance * scale.outer(scale),
        )

    @property
    def means(self) -> Tensor:
        return self.loc

    def uncertainty(self) -> Uncertainty:
        """Variances (N, T): of the mean function (epistemic) and of the noise (aleatoric)."""
        spread = (self.loc - self.mean()) ** 2 + self.variance
        epistemic = (self._weights * spread).sum(0)
        aleatoric = (self._weights * self.noise_variance.expand_as(self.loc)).sum(0)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        if self._root is not None:
            away = (y - self.loc).unsqueeze(-1)
            z = torch.linalg.solve_triangular(self._root, away, upper=False).squeeze(-1)
            log_scale = self._root.diagonal(dim1=-2, dim2=-1).log()
        else:
            z = (y - self.loc) / self.scales
            log_scale = self.scales.log()
        return -(0.5 * z * z + log_scale + 0.5 * log(2 * pi)).sum(-1)

    def cdf(self, y: Tensor) -> Tensor:
        z = (y - self.loc) / self.scales
        return (self._weights * torch.special.ndtr(z)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        z = float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))
        ends = self.loc + z * self.scales  # each component's own quantile brackets the mixture's
        return _bisect(self.cdf, probability, ends.amin(0), ends.amax(0))

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        shape = len(chosen), *self.loc.shape[1:]
        noise = torch.as_tensor(rng.standard_normal(shape)).to(self.loc)
        if self._root is not None:
            return self.loc[chosen] + (self._root[chosen] @ noise.unsqueeze(-1)).squeeze(-1)
        return self.loc[chosen] + self.scales[chosen] * noise


@dataclass(frozen=True, eq=False)
class TargetMixture(TargetPredictive):
    """Mixture over S values of the outputs of any likelihood of real targets or counts.

    Parameters
    ----------
    likelihood : TargetLikelihood
        Law of the targets given their outputs; its parameters may lead with an axis of draws,
        (S, 1, n_params).
    outputs : Tensor of shape (S, N, O)
        Draws, or nodes of a quadrature.
    log_weights : Tensor of shape (S,), optional
        Their normalised log weights; equal by default.
    location, scale : Tensor of shape (T,), optional
        The mixture is the law of ``location + scale * target``; of the target by default.
    """

    likelihood: "TargetLikelihood"
    outputs: Tensor
    log_weights: Tensor | None = None
    location: Tensor | None = None
    scale: Tensor | None = None

    @property
    def is_discrete(self) -> bool:
        return self.likelihood.is_discrete

    @property
    def _like(self) -> Tensor:
        return self.outputs

    @cached_property
    def _units(self) -> tuple[Tensor, Tensor]:
        zero = self.outputs.new_zeros(())
        location = zero if self.location is None else self.location
        return location, zero + 1.0 if self.scale is None else self.scale

    @cached_property
    def _means(self) -> Tensor:
        return self.likelihood.mean(self.outputs)

    def take(self, rows: np.ndarray) -> "TargetMixture":
        places = torch.as_tensor(rows, device=self.outputs.device)
        return replace(self, outputs=self.outputs[:, places])

    def rescale(self, mean: Tensor, scale: Tensor) -> "TargetMixture":
        own_location, own_scale = self._units
        return replace(self, location=mean + scale * own_location, scale=scale * own_scale)

    @property
    def scales(self) -> Tensor:
        return self._units[1] * self.likelihood.variance(self.outputs).sqrt()

    @property
    def means(self) -> Tensor:
        location, scale = self._units
        return location + scale * self._means

    def mean(self) -> Tensor:
        location, scale = self._units
        return location + scale * (self._weights * self._means).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Variances (N, T): of the target's mean (epistemic) and around it (aleatoric)."""
        spread = (self._means - (self._weights * self._means).sum(0)) ** 2
        square = self._units[1] ** 2
        epistemic = (self._weights * spread).sum(0) * square
        aleatoric = (self._weights * self.likelihood.variance(self.outputs)).sum(0) * square
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        location, scale = self._units
        jacobian = scale.log().expand(y.shape[-1]).sum()
        y = (y - location) / scale
        log_prob = self.likelihood.log_prob(self.outputs, y) - jacobian
        if not self.is_discrete:
            return log_prob
        is_count = ((y >= 0.0) & (y == y.floor())).all(-1)
        return torch.where(is_count, log_prob, -torch.inf)

    def cdf(self, y: Tensor) -> Tensor:
        location, scale = self._units
        return self._cdf((y - location) / scale)

    def _cdf(self, y: Tensor) -> Tensor:
        return (self._weights * self.likelihood.cdf(y, self.outputs)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        location, scale = self._units
        middle = self._means.mean(0).nan_to_num()
        value = invert_cdf(self._cdf, torch.full_like(middle, probability), middle)
        return location + scale * (value.round() if self.likelihood.is_discrete else value)

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        distribution = self.likelihood
        if distribution.params.ndim > 1:
            distribution = distribution.at(distribution.params[chosen])
        location, scale = self._units
        return location + scale * distribution.sample(self.outputs[chosen], rng)


def snap_to_counts(location: float, scale: float, is_discrete: bool = True) -> tuple[float, float]:
    """Units of counts, without rounding errors where they are those of the counts themselves."""
    is_plain = is_discrete and abs(scale - 1.0) < 1e-9 and abs(location) < 1e-6
    return (0.0, 1.0) if is_plain else (location, scale)


@dataclass(frozen=True, eq=False)
class LinearPool(TargetPredictive):
    """Mixture of distributions of any kind, each with its own density and quantiles.

    Parameters
    ----------
    parts : sequence of TargetPredictive
        Of the same rows and targets.
    shares : sequence of float
        Their weights, adding up to one.
    """

    parts: "Sequence[TargetPredictive]"
    shares: "Sequence[float]"

    @property
    def is_discrete(self) -> bool:
        return all(part.is_discrete for part in self.parts)

    @property
    def _like(self) -> Tensor:
        return self.parts[0]._like

    @property
    def n_rows(self) -> int:
        return self.parts[0].n_rows

    @property
    def n_targets(self) -> int:
        return self.parts[0].n_targets

    def take(self, rows: np.ndarray) -> "LinearPool":
        return replace(self, parts=[part.take(rows) for part in self.parts])

    def rescale(self, mean: Tensor, scale: Tensor) -> "LinearPool":
        return replace(self, parts=[part.rescale(mean, scale) for part in self.parts])

    def _sum(self, values: Iterable[Tensor]) -> Tensor:
        weighted = [share * value for share, value in zip(self.shares, values, strict=True)]
        return torch.stack(weighted).sum(0)

    @cached_property
    def weights(self) -> Tensor:
        pairs = zip(self.shares, self.parts, strict=True)
        return torch.cat([share * part.weights.double() for share, part in pairs])

    @property
    def means(self) -> Tensor:
        return torch.cat([part.means for part in self.parts])

    @property
    def scales(self) -> Tensor:
        return torch.cat([part.scales.expand_as(part.means) for part in self.parts])

    def mean(self) -> Tensor:
        return self._sum(part.mean() for part in self.parts)

    def uncertainty(self) -> Uncertainty:
        """Variances (N, T): differences of the parts' means are epistemic."""
        mean = self.mean()
        inside = [part.uncertainty() for part in self.parts]
        between = [(part.mean() - mean).square() for part in self.parts]
        pairs = zip(inside, between, strict=True)
        epistemic = self._sum(variances.epistemic + away for variances, away in pairs)
        aleatoric = self._sum(variances.aleatoric for variances in inside)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def log_prob(self, y: Tensor) -> Tensor:
        self._require_common_measure()
        densities = [part.log_prob(y).double() for part in self.parts]
        log_class_frequencies = torch.tensor(self.shares, dtype=torch.float64).log().unsqueeze(1)
        return torch.logsumexp(
            torch.stack(densities) + log_class_frequencies.to(densities[0].device), dim=0
        )

    def _require_common_measure(self) -> None:
        discrete = [part for part in self.parts if part.is_discrete]
        if discrete and len(discrete) < len(self.parts):
            continuous = next(part for part in self.parts if not part.is_discrete)
            raise TypeError(
                f"{discrete[0]!r} gives probabilities to whole numbers and {continuous!r} has a "
                "density: their mixture has neither, so log_prob and pdf don't exist. Its cdf, "
                "quantiles, moments, crps and draws do. PredictiveStackingRegressor turns both "
                "into probabilities of counts."
            )

    def cdf(self, y: Tensor) -> Tensor:
        return self._sum(part.cdf(y) for part in self.parts)

    def quantile(self, probability: float) -> Tensor:
        ends = torch.stack([part.quantile(probability) for part in self.parts])
        if not self.is_discrete:
            return _bisect(self.cdf, probability, ends.amin(0), ends.amax(0))
        location, scale = self.units
        low = ((ends.amin(0) - location) / scale).round() - 1.0
        high = ((ends.amax(0) - location) / scale).round()
        while bool((high - low > 1.0).any()):  # the counts in between, halved
            middle = ((low + high) / 2.0).floor()
            below = self.cdf(location + scale * middle) < probability
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        return location + scale * high

    @property
    def units(self) -> tuple[float, float]:
        return self.parts[0].units

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        which = rng.choice(len(self.parts), size=n, p=np.array(self.shares))
        drawn = torch.empty((n, self.n_rows, self.n_targets), dtype=torch.float64)
        for k, part in enumerate(self.parts):
            places = torch.as_tensor(np.flatnonzero(which == k))
            if len(places):
                drawn[places] = part.sample(len(places), rng).double().cpu()
        return drawn


_MOST_STEPS = 512  # counts that the moments of a rounded target are summed over, one by one


@dataclass(frozen=True, eq=False)
class RoundedTargets(TargetPredictive):
    """The nearest count, 0 at least, of a real target: ``max(0, round(x))``.

    It gives densities and probabilities of counts a common measure: a count k has the probability
    ``P(k - 1/2 < x <= k + 1/2)``, and 0 has that of ``x <= 1/2``.

    Parameters
    ----------
    base : TargetPredictive
        Distribution of x, (N, 1), in the units of the counts.
    location, scale : float
        The target is ``location + scale * count``.
    """

    base: TargetPredictive
    location: float = 0.0
    scale: float = 1.0
    log_weights: Tensor | None = None

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _like(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    @property
    def n_rows(self) -> int:
        return self.base.n_rows

    @property
    def n_targets(self) -> int:
        return 1

    def take(self, rows: np.ndarray) -> "RoundedTargets":
        return replace(self, base=self.base.take(rows))

    def rescale(self, mean: Tensor, scale: Tensor) -> "RoundedTargets":
        units = float(mean) + float(scale) * self.location, float(scale) * self.scale
        location, own_scale = snap_to_counts(*units)
        return replace(self, location=location, scale=own_scale)

    @property
    def units(self) -> tuple[float, float]:
        return self.location, self.scale

    def _counts(self, y: Tensor) -> Tensor:
        """Numbers of counts that targets are; whole ones without rounding errors."""
        counts = (y - self.location) / self.scale
        whole = counts.round()
        return torch.where((counts - whole).abs() < 1e-7 * (1.0 + whole.abs()), whole, counts)

    def cdf(self, y: Tensor) -> Tensor:
        counts = self._counts(y).floor()
        return torch.where(counts >= 0.0, self.base.cdf(counts.clamp_min(0.0) + 0.5), 0.0)

    def log_prob(self, y: Tensor) -> Tensor:
        counts = self._counts(y)
        inside = ((counts >= 0.0) & (counts == counts.floor()))[:, 0]
        counts = counts.clamp_min(0.0).round()
        return torch.where(inside, self._log_mass(counts), -torch.inf)

    def _log_mass(self, counts: Tensor) -> Tensor:
        """Log probability of whole numbers (N, 1) from 0 on, (N,)."""
        base = self.base
        if isinstance(base, NormalMixture):
            upper = (counts + 0.5 - base.loc) / base.scales
            lower = (counts - 0.5 - base.loc) / base.scales
            lower = torch.where(counts == 0.0, -torch.inf, lower)
            # In the upper tail both probabilities are near 1, and their complements aren't.
            swap = lower > 0.0
            high = torch.where(swap, -lower, upper)
            low = torch.where(swap, -upper, lower)
            log_high = torch.special.log_ndtr(high)
            log_mass = log_high + torch.log1p(-(torch.special.log_ndtr(low) - log_high).exp())
            return torch.logsumexp(log_mass + base._weights.log(), dim=0)[:, 0]
        below = torch.where(counts == 0.0, 0.0, base.cdf(counts - 0.5))
        mass = (base.cdf(counts + 0.5) - below)[:, 0]
        # Where the difference is rounding, the density at the count times 1.
        return torch.where(mass > 1e-10, mass.log(), base.log_prob(counts))

    def quantile(self, probability: float) -> Tensor:
        value = self.base.quantile(probability)
        counts = (value - 0.5 - 1e-9 * (1.0 + value.abs())).ceil().clamp_min(0.0)
        return self.location + self.scale * counts

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the count, (N, 1), by sums of ``P(count > k)``."""
        top = self.base.quantile(1.0 - 1e-10).clamp_min(0.0)

        def above(x: Tensor) -> Tensor:
            return 1.0 - self.base.cdf(x)

        highest = float(top.max())
        if highest > _MOST_STEPS:  # steps of 1 are too fine to see
            zero = torch.zeros_like(top)
            mean = _integral(above, zero, top)
            square = _integral(lambda x: 2.0 * x * above(x), zero, top)
        else:
            mean = torch.zeros_like(top)
            square = torch.zeros_like(top)
            for k in range(int(highest) + 2):
                probability = above(torch.full_like(top, k + 0.5))
                mean = mean + probability
                square = square + (2.0 * k + 1.0) * probability
        return mean, (square - mean.square()).clamp_min(0.0)

    def mean(self) -> Tensor:
        return self.location + self.scale * self._moments[0]

    @property
    def means(self) -> Tensor:
        return self.mean().unsqueeze(0)

    @property
    def scales(self) -> Tensor:
        return self.scale * self._moments[1].sqrt().unsqueeze(0)

    def uncertainty(self) -> Uncertainty:
        """Variances (N, 1): epistemic is that of x, as far as the count varies."""
        total = self._moments[1]
        epistemic = torch.minimum(self.base.uncertainty().epistemic, total)
        square = self.scale**2
        return Uncertainty(square * total, square * epistemic, square * (total - epistemic))

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        counts = self.base.sample(n, rng).round().clamp_min(0.0)
        return self.location + self.scale * counts


@dataclass(frozen=True, eq=False)
class CategoricalMixture(Predictive):
    """Mixture over S draws of class probabilities, for every row.

    Parameters
    ----------
    log_probs : Tensor of shape (S, N, C)
    log_weights : Tensor of shape (S,), optional
        Normalised log weights of the draws; equal by default.
    """

    log_probs: Tensor
    log_weights: Tensor | None = None

    @property
    def _like(self) -> Tensor:
        return self.log_probs

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        return self.log_probs[:, torch.arange(len(y)), y]

    @property
    def means(self) -> Tensor:
        return self.log_probs.exp()

    def mean(self) -> Tensor:
        """Probabilities (N, C); each row sums to one."""
        p = torch.tensordot(self._weights.flatten(), self.log_probs.exp(), dims=1)
        return p / p.sum(-1, keepdim=True)

    def uncertainty(self) -> Uncertainty:
        """Entropies in nats (N,): mutual information with the weights, and expected entropy."""
        total = torch.special.entr(self.mean()).sum(-1)
        per_draw = -(self.log_probs.exp() * self.log_probs).nan_to_num(0.0).sum(-1)
        aleatoric = (self._weights[:, :, 0] * per_draw).sum(0)
        epistemic = (total - aleatoric).clamp_min(0.0)  # >= 0 up to rounding (Jensen)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def _sample(self, chosen: Tensor, rng: np.random.Generator) -> Tensor:
        """Classes (n, N), int64."""
        log_probs = self.log_probs[chosen]
        gumbel = rng.gumbel(size=tuple(log_probs.shape))
        return (log_probs + torch.as_tensor(gumbel).to(log_probs)).argmax(-1)


def invert_cdf(cdf: Callable[[Tensor], Tensor], probability: Tensor, middle: Tensor) -> Tensor:
    """Find where ``cdf`` reaches ``probability``, entry by entry, to rounding.

    The bracket around ``middle`` doubles until it holds the place, then it is halved.
    """
    width = torch.ones_like(middle)
    lower = middle - width
    upper = middle + width
    while bool((cdf(lower) >= probability).any() | (cdf(upper) < probability).any()):
        width = 2.0 * width
        lower = torch.where(cdf(lower) >= probability, middle - width, lower)
        upper = torch.where(cdf(upper) < probability, middle + width, upper)
    return _bisect(cdf, probability, lower, upper)


def _bisect(
    cdf: Callable[[Tensor], Tensor], probability: Tensor | float, lower: Tensor, upper: Tensor
) -> Tensor:
    for _ in range(60):  # the bracket then ends below float64's resolution
        middle = 0.5 * (lower + upper)
        below = cdf(middle) < probability
        lower = torch.where(below, middle, lower)
        upper = torch.where(below, upper, middle)
    return 0.5 * (lower + upper)


_TAIL = 1e-8  # beyond which the integrand is below 1e-16


def crps(distribution: TargetPredictive, y: Tensor) -> Tensor:
    """CRPS of every row and target, (N, T), in target units; less is better.

    ``law``: of whole numbers the integral is a sum; ``y`` (N, T): observed targets.

    Of up to 200 normals it is exact, O(S^2) a row. Else the relative error is about 1e-6 in
    float64: panels are halved where that still changes the integral. 192 evaluations of the cdf at
    least, 32 more a halved panel; of counts as many as there are between the quantiles, at most
    4,096: beyond, steps of 1 are too fine to see, and the sum is an integral.
    """
    if isinstance(distribution, NormalMixture) and len(distribution.loc) <= 200:
        return _normal_mixture_crps(distribution, y)
    low = distribution.quantile(_TAIL)
    high = distribution.quantile(1.0 - _TAIL)
    if distribution.is_discrete:
        # Between two counts the score is linear in y.
        count = y.floor()
        part = y - count
        score = _sum_over_counts(distribution, count, low, high)
        if not bool(part.any()):
            return score
        return (1.0 - part) * score + part * _sum_over_counts(distribution, count + 1.0, low, high)
    low = torch.minimum(low, y)
    high = torch.maximum(high, y)
    below = _integral(lambda x: distribution.cdf(x).square(), low, y)
    return below + _integral(lambda x: (1.0 - distribution.cdf(x)).square(), y, high)


def _normal_mixture_crps(distribution: NormalMixture, y: Tensor) -> Tensor:
    """``E|Y - y| - E|Y - Y'| / 2`` (Grimit, Gneiting, Berrocal & Johnson 2006, eq. 5)."""
    loc = distribution.loc
    variance = distribution.scales.square()
    weights = distribution._weights

    def distance(mean: Tensor, variance: Tensor) -> Tensor:
        """Mean of ``|N(mean, variance)|``, averaged over the normals."""
        std = variance.sqrt().clamp_min(torch.finfo(mean.dtype).tiny)
        z = mean / std
        density = torch.exp(-0.5 * (z.square() + LOG_2PI))
        return (weights * (2.0 * std * density + mean * torch.erf(z / 2**0.5))).sum(0)

    pairs = zip(weights.expand_as(loc), loc, variance, strict=True)
    each = [w * distance(loc - m, variance + v) for w, m, v in pairs]
    return distance(loc - y, variance) - 0.5 * torch.stack(each).sum(0)


def _integral(f: Callable[[Tensor], Tensor], start: Tensor, end: Tensor) -> Tensor:
    """Integral of ``f`` from ``start`` to ``end``, entry by entry, by adaptive Gauss-Lobatto.

    In every entry the panel that differs most from its two halves is halved, later several at once,
    until those differences together are 1e-8 of the integral, 100 times at most. A cdf is monotone,
    so that no step hides between nodes of which two are the panel's ends.
    """
    ends = start + (end - start) * torch.linspace(0.0, 1.0, 5).to(start).reshape(-1, 1, 1)
    low = ends[:-1]
    high = ends[1:]
    whole = _panels(f, low, high)
    (left_half, right) = _halves(f, low, high)
    accuracy = max(1e-8, 8.0 * torch.finfo(start.dtype).eps)
    for step in range(100):
        error = (whole - left_half - right).abs()
        if bool((error.sum(0) <= accuracy * (left_half + right).sum(0)).all()):
            break
        worst = error.topk(1 + step // 8, dim=0).indices
        a, b, first, second = (t.gather(0, worst) for t in (low, high, left_half, right))
        middle = 0.5 * (a + b)
        parts = [_halves(f, a, middle), _halves(f, middle, b)]
        low = low.scatter(0, worst, a)
        high = high.scatter(0, worst, middle)
        low = torch.cat([low, middle])
        high = torch.cat([high, b])
        whole = torch.cat([whole.scatter(0, worst, first), second])
        left_half = torch.cat([left_half.scatter(0, worst, parts[0][0]), parts[1][0]])
        right = torch.cat([right.scatter(0, worst, parts[0][1]), parts[1][1]])
    return (left_half + right).sum(0)


def _halves(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    middle = 0.5 * (low + high)
    return _panels(f, low, middle), _panels(f, middle, high)


def _panels(f: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Gauss-Lobatto of every panel with eight nodes, (P, N, T); ``f`` takes (N, T)."""
    legendre = np.polynomial.Legendre.basis(7)
    # Of a complex dtype from NumPy 2.5 on.
    nodes = np.concatenate([[-1.0], legendre.deriv().roots().real, [1.0]])
    weights = 2.0 / (8 * 7 * legendre(nodes) ** 2)
    half = 0.5 * (high - low)
    total = torch.zeros_like(low)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        x = low + half * (node + 1.0)
        total += weight * half * torch.stack([f(row) for row in x])
    return total


def _sum_over_counts(
    distribution: TargetPredictive, y: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    # Beyond the quantiles every count up to y costs 1.
    beyond = (y - high).clamp_min(0.0) + (low - y).clamp_min(0.0)
    inside = torch.minimum(torch.maximum(y, low), high)
    if float((high - low).max()) > 4096:
        below = _integral(lambda x: distribution.cdf(x).square(), low, inside)
        return (
            beyond + below + _integral(lambda x: (1.0 - distribution.cdf(x)).square(), inside, high)
        )
    total = torch.zeros_like(y)
    for step in range(int((high - low).max()) + 1):
        count = low + step
        counted = (distribution.cdf(count) - (count >= inside).to(y)).square()
        total += torch.where(count <= high, counted, torch.zeros_like(y))
    return beyond + total
