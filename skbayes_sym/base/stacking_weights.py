r"""Several predictive distributions as one, by the rows that each of them leaves out.

**Weights.** Stacking (Yao et al. 2018, eq. 8) maximises the log score of left-out rows, here with a
Dirichlet prior of concentrations :math:`1 + c_k` whose logarithm is added; concave in p:

.. math:: \max_{p \in \Delta} \sum_n w_n \log \sum_k p_k e^{a_{kn}} + \sum_k c_k \log p_k .

**Left-out rows.** A model that is linear in its weights, with normal noise and prior, leaves rows
out in closed form, with the residual :math:`r_n` and the leverage :math:`h_n = \beta\, j_n' C j_n`,

.. math:: y_n \mid y_{-n} \sim N\big(y_n - r_n / (1 - h_n),\; \beta^{-1} / (1 - h_n)\big)

(Rasmussen & Williams 2006, eqs. 5.10 to 5.12). A row of weight w stands for w repetitions, all of
which are left out: then :math:`1 - w_n h_n` takes the place of :math:`1 - h_n` in the residual, and
the variance is :math:`\beta^{-1} (1 + h_n / (1 - w_n h_n))`. For a linearised network
it is an approximation, and too favourable: the features themselves have seen the row.

**Noise.** Targets that can't be negative scatter more where they are large; counts of rare events
and faults of instruments have tails. With the noise :math:`s` of training and the pooled mean
:math:`m(x)`, in standard deviations of the training rows' and kept within their range,

.. math:: y \mid x \sim (1 - p) N(f(x), v_0 \sigma^2) + p N(f(x), v_1 \sigma^2), \quad
          \sigma = s \exp(o + g\, m(x)),

where the two variances average to :math:`\sigma^2` (the contaminated normal of Tukey 1960). o, g, p
and :math:`v_1 / v_0` have the highest density of the left-out rows under priors, and are kept where
the Bayesian information criterion (Schwarz 1978) prefers them to one noise of any level.
Predictions of points have no noise of their own: its level is free, and the shape always kept.

**Classes.** Scores s (logarithms of probabilities, or a regression of one-hot labels) become

.. math:: p_k(x) = (1 - \epsilon)\, \mathrm{softmax}_k(b\, s(x)) + \epsilon f_k,

with an inverse temperature b (Guo et al. 2017) and a share of the class frequencies f.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, isnan, log
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import (
    MAX_FREEDOMS,
    cell_levels,
    level_weights,
    log_level_grid,
    log_level_prior,
    sample_spread,
    with_surprises,
)
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, LinearPool, NormalMixture
from skbayes_sym.numerics.optimise import lbfgs, with_gradient
from skbayes_sym.numerics.random import generator_from

Array = npt.NDArray[np.float64]


def stacking_weights(log_density: Tensor, weight: Tensor, *, prior: Tensor | None = None) -> Tensor:
    """Weights (K,) of the parts that maximise the log score of left-out rows.

    The two parts of steepest and least slope exchange their weight, exactly each time, until the
    largest slope promises no more; 0 and 1 are reached. Equal parts leave all to the last.

    ``log_density`` (K, N): of every row by the parts that leave it out, nats; ``weight`` (N,);
    ``prior`` (K,): rows c that each part is worth beforehand, 0 by default.
    """
    density = (log_density - log_density.amax(0)).clamp_min(-500.0).exp()
    p = torch.zeros(len(density)).to(density)
    pull = torch.zeros_like(p) if prior is None else prior.to(density)
    p[-1] = 1.0
    for _ in range(100 * len(p)):
        slopes = density @ (weight / (p @ density)) + torch.where(pull > 0.0, pull / p, 0.0)
        first = int(slopes.argmax())
        second = int(torch.where(p > 0.0, slopes, torch.inf).argmin())
        gain = slopes[first] - p @ slopes.nan_to_num(0.0, posinf=0.0)
        if first == second or gain <= 1e-10 * weight.sum():
            break
        both = float(p[first] + p[second])
        p[[first, second]] = 0.0
        pulls = float(pull[first]), float(pull[second])
        share = _exchanged(density[first], density[second], p @ density, both, weight, pulls)
        p[first], p[second] = share, both - share
    return p


def _exchanged(
    first: Tensor, second: Tensor, rest: Tensor, both: float, weight: Tensor,
    pulls: tuple[float, float],
) -> float:  # fmt: skip
    """Share of ``both`` that the first of two parts takes, where the score's slope changes sign."""
    less = first - second
    (up, down) = pulls

    def rises(share: float) -> bool:
        slope = float((weight * less / (rest + both * second + share * less)).sum())
        return (
            slope
            + (up / max(share, 1e-300) if up else 0.0)
            - (down / max(both - share, 1e-300) if down else 0.0)
            > 0.0
        )

    if not up and not rises(0.0):
        return 0.0
    if not down and rises(both):
        return both
    low = 0.0
    high = both
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rises(middle) else (low, middle)
    return 0.5 * (low + high)


def gaining(
    baseline: Tensor, kinds: Mapping[str, Tensor], weight: Tensor, least: float
) -> list[str]:
    """Kinds that gain at least the share ``least`` of the best kind's gain over the baseline.

    By log densities (N,) of left-out rows, nats. Where no kind gains, the best one is kept.
    """
    gains = {kind: float(weight @ (density - baseline)) for kind, density in kinds.items()}
    gains = {kind: gain for kind, gain in gains.items() if not isnan(gain)}  # a density needs noise
    best = max(gains.values())
    return [kind for kind, gain in gains.items() if gain >= min(least * best, best)]


def fit_baseline_weight(
    baseline: Tensor | None, kinds: Mapping[str, Tensor], inner: Mapping[str, float], weight: Tensor
) -> float:
    """Stacking weight of a baseline beside kinds in the proportions ``inner``, which add up to 1.

    By log densities (N,) of left-out rows, nats; without a baseline 0.
    """
    if baseline is None:
        return 0.0
    together = torch.stack([kinds[kind] + log(p) for kind, p in inner.items()]).logsumexp(0)
    return float(stacking_weights(torch.stack([baseline, together]), weight)[0])


def leave_one_out(distribution: NormalMixture, y: Tensor, weight: Tensor) -> NormalMixture:
    """Predict every row from all others.

    A row of weight w stands for w repetitions. All of them are left out, or the prediction would
    be made by a model that has seen the same row.

    Parameters
    ----------
    law : NormalMixture
        Predictive distributions of the training rows, (S, N, T): function values and noise.
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.

    Returns
    -------
    NormalMixture
        Leave-one-out predictive distribution of one repetition of every row, (S, N, T).
    """
    noise = distribution.noise_variance
    leverage = distribution.variance / noise  # of one repetition
    remaining = (1.0 - weight.unsqueeze(1) * leverage).clamp(1e-6, 1.0)
    loc = y - (y - distribution.loc) / remaining
    return NormalMixture(loc, distribution.variance / remaining, noise, distribution.log_weights)


@dataclass(frozen=True)
class NoisePrior:
    """Prior of a shape of noise, and how its maximum is found.

    Noise proportional to the target has a slope of about the target's coefficient of variation:
    rarely more than 1. The level of the noise is what training has said: left-out rows of
    linearised networks are too favourable to ask them. Whether there is a shape is decided beside a
    level that is free, or tails would stand in for it.
    """

    slope_std: float = 0.5  # prior standard deviations
    offset_std: float = 0.1
    free_std: float = 1.0
    tails_std: float = 3.0  # of the shape of point predictions
    most_wide: float = 0.5  # of the rows; beyond, the other state would be called the wide one
    # Bounds of the logit of the share (of `most_wide`), and of the logarithm of ratio - 1.
    bounds: tuple[tuple[float, float], ...] = ((-6.0, 6.0), (-3.0, 5.0))
    # Of the offset: the noise of a process may be four orders below that of left-out rows.
    offset_bounds: tuple[float, float] = (-5.0, 12.0)
    steps: int = 100


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """Noise whose width depends on the predicted mean, of two normals.

    ``offset``, ``slope`` (T,): of the logarithm of the factor on the standard deviation; slope per
    ``spread``. ``centre``, ``spread`` (T,): average and standard deviation of the predicted means
    of training rows. ``lowest``, ``highest`` (T,): ends of these means, in units of ``spread``:
    beyond, the factor stays what it is there.
    """

    offset: Array
    slope: Array
    centre: Array
    spread: Array
    lowest: Array
    highest: Array
    wide_weight: float  # share p of the noise that has the larger variance
    wide_ratio: float  # by how much the larger variance exceeds the smaller
    mean_square: Array  # (T,); mean square of the factor over the training rows
    levels: Array | None = None  # (K,), factors on the standard deviation, see `noise_levels`

    def __str__(self) -> str:
        growth = ", ".join(f"{exp(g):.2g}" for g in self.slope)
        text = f"noise {growth} times as wide per standard deviation of the mean"
        if not self.slope.any():
            text = "noise of one width"
        wide = self.wide_ratio**0.5
        if wide < 1.5:  # from where tails are worth a word
            return text
        return f"{text}, and {wide:.2g} times as wide again in {self.wide_weight:.2g} of the rows"

    def factor(self, mean: Tensor) -> Tensor:
        """Factor on the noise's standard deviation, given predicted means (N, T)."""
        arrays = (self.centre, self.spread, self.lowest, self.highest, self.offset, self.slope)
        centre, spread, low, high, offset, slope = (torch.as_tensor(a).to(mean) for a in arrays)
        level = ((mean - centre) / spread).clamp(low, high)
        return (offset + slope * level).exp()

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Factors (2,) on the variance, which average to 1, and their shares (2,)."""
        return _states(*torch.tensor([self.wide_weight, self.wide_ratio], dtype=torch.float64))

    def shaped(self, distribution: NormalMixture) -> NormalMixture:
        """The distribution with this noise in place of noise of one width: two states a draw.

        Every level of the noise, where there are some, has both states.
        """
        variances, shares = self.states
        if self.levels is not None:
            squares = torch.as_tensor(self.levels).square()
            variances = torch.outer(squares, variances).flatten()
            shares = torch.outer(level_weights(), shares).flatten()
        return _widened(distribution, self.factor(distribution.mean()), variances, shares)


def _states(share: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    variances = torch.stack([torch.ones_like(ratio), ratio]) / (1.0 + share * (ratio - 1.0))
    return variances, torch.stack([1.0 - share, share])


def _widened(
    distribution: NormalMixture, factor: Tensor, variances: Tensor, shares: Tensor
) -> NormalMixture:
    """Every draw once for each state, its noise widened by ``factor`` (N, T)."""
    n = len(shares)
    noise = (distribution.noise_variance * factor.square()).expand_as(distribution.loc)
    log_weights = distribution.log_weights
    if log_weights is None:
        log_weights = noise.new_full((len(distribution.loc),), -log(len(distribution.loc)))
    return replace(
        distribution,
        loc=distribution.loc.repeat(n, 1, 1),
        variance=distribution.variance.expand_as(distribution.loc).repeat(n, 1, 1),
        noise_variance=torch.cat([noise * v for v in variances.to(noise).unbind()]),
        log_weights=(shares.to(noise).log().unsqueeze(1) + log_weights).flatten(),
        covariance=None
        if distribution.covariance is None
        else distribution.covariance.repeat(n, 1, 1, 1),
    )


@dataclass(frozen=True, eq=False)
class _ShapeProblem:
    """Log density of left-out rows by the noise shape: offsets, slopes and two tail parameters.

    ``level`` (N, T): predicted means, standardised. ``free_level``: whether the law's noise is a
    guess, so that its level has the prior of `noise_levels`, in the targets' units.
    """

    distribution: NormalMixture
    y: Tensor
    weight: Tensor
    level: Tensor
    prior: NoisePrior
    free_level: bool

    @property
    def n_targets(self) -> int:
        return self.y.shape[1]

    @property
    def tails_start(self) -> Tensor:
        """Where the search of share and ratio begins, and the centre of their prior."""
        return self.level.new_tensor([-1.0, 1.0])

    @cached_property
    def total(self) -> float:
        return float(self.weight.sum())

    @cached_property
    def spread(self) -> Tensor:
        """Sample standard deviations of the targets (T,), 1 where they are constant."""
        away = self.y - self.weight @ self.y / self.total
        spread = (self.weight @ away.square() / self.total).sqrt()
        return sample_spread(torch.where(spread > 0.0, spread, 1.0), self.total)

    @cached_property
    def log_typical_noise(self) -> Tensor:
        """Logarithm of the root mean noise variance of the law, (T,)."""
        noise = (
            self.distribution._weights
            * self.distribution.noise_variance.expand_as(self.distribution.loc)
        ).sum(0)
        return 0.5 * (self.weight @ noise / self.total).log()

    def tails_at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Share of the wide state, and the ratio of the variances."""
        return self.prior.most_wide * position[0].sigmoid(), 1.0 + position[1].exp()

    def shaped(self, position: Tensor) -> NormalMixture:
        offset, slope, tails = position.tensor_split([self.n_targets, 2 * self.n_targets])
        if not len(slope):
            one = offset.new_ones(1)
            return _widened(self.distribution, offset.exp(), one, one)
        log_factor = offset + slope * self.level
        return _widened(self.distribution, log_factor.exp(), *_states(*self.tails_at(tails)))

    def log_density(self, position: Tensor) -> Tensor:
        """Log density of every row, (N,) nats."""
        return self.shaped(position).log_prob(self.y)

    def loss(self, position: Tensor, offset_std: float) -> Tensor:
        """Minus the log density of rows and prior; of an offset alone for one noise."""
        n = self.n_targets
        prior = self.prior
        offset, slope, tails = position.tensor_split([n, 2 * n])
        log_prior = -0.5 * (slope / prior.slope_std).square().sum()
        if self.free_level:
            log_std = offset + self.log_typical_noise
            log_prior = log_prior + log_level_prior(log_std, self.spread, self.total).sum()
        else:
            log_prior = log_prior - 0.5 * (offset / offset_std).square().sum()
        if self.free_level and len(tails):
            away = (tails - self.tails_start) / prior.tails_std
            log_prior = log_prior - 0.5 * away.square().sum()
        return -log_prior - self.weight @ self.log_density(position)

    def minimise(self, start: Tensor, offset_std: float) -> Tensor:
        n = self.n_targets
        bounds = [self.prior.offset_bounds] * n
        if len(start) > n:
            bounds += [*[(-5.0, 5.0)] * n, *self.prior.bounds]
        loss = with_gradient(partial(self.loss, offset_std=offset_std))
        return lbfgs(loss, start, max_iter=self.prior.steps, bounds=bounds)

    def influence(self, position: Tensor, offset_std: float) -> tuple[Tensor, Tensor]:
        r"""Loss of every row's log density where the shape is fitted without it, (N,) nats.

        To first order it is :math:`w_n g_n' H^{-1} g_n` with the gradient g of the row's log
        density and the Hessian H of the loss. The second result is the part due to the first
        offset alone. Parameters at a bound stay there.
        """
        step = 1e-4
        n = self.n_targets
        loss = with_gradient(partial(self.loss, offset_std=offset_std))
        gradients = []
        hessian = []
        for direction in step * torch.eye(len(position)).to(position):
            above = position + direction
            below = position - direction
            change = self.log_density(above) - self.log_density(below)
            gradients.append(change / (2.0 * step))
            hessian.append((loss(above)[1] - loss(below)[1]) / (2.0 * step))
        gradient = torch.stack(gradients, 1)
        curvature = torch.stack(hessian)
        is_free = torch.ones(len(position), dtype=torch.bool)
        for place, (low, high) in enumerate(self.prior.bounds):
            value = float(position[2 * n + place])
            is_free[2 * n + place] = low < value < high
        curvature = 0.5 * (curvature + curvature.mT)[is_free][:, is_free]
        if not bool(curvature.isfinite().all() & gradient.isfinite().all()):
            # Left-out rows without residuals, of equal targets: there is nothing to fit.
            return torch.zeros_like(self.weight), torch.zeros_like(self.weight)
        values, axes = torch.linalg.eigh(curvature)
        # The priors alone leave at least this curvature.
        along = gradient[:, is_free] @ axes / values.clamp_min(0.1).sqrt()
        of_offset = self.weight * gradient[:, 0].square() / curvature[0, 0].clamp_min(0.1)
        return self.weight * along.square().sum(1), of_offset


def fit_noise_shape(
    distribution: NormalMixture, y: Tensor, weight: Tensor, *, is_free: bool = False,
    prior: NoisePrior = NoisePrior(),
) -> NoiseShape | None:  # fmt: skip
    """The shape that left-out rows like best; None where one noise does as well.

    ``law``: of every row given all others: S models, N rows, T targets; ``y`` (N, T); ``weight``
    (N,); ``is_free``: whether the law's noise is a guess: its level is free then, and the shape is
    never None.

    O(S N T) an evaluation, some hundred of them.
    """
    return judge_noise_shape(distribution, y, weight, is_free=is_free, prior=prior).shape


class JudgedShape(NamedTuple):
    """A noise shape, and what it is worth."""

    shape: NoiseShape | None
    log_density: Tensor  # (N,), of every row by the shape fitted to all others, nats


def judge_noise_shape(
    distribution: NormalMixture,
    y: Tensor,
    weight: Tensor,
    *,
    is_free: bool = False,
    floor: float = 0.0,
    n_fitted: float = 0.0,
    prior: NoisePrior = NoisePrior(),
) -> JudgedShape:
    """Fit a noise shape, and leave every row out of this fit, too.

    Parameters
    ----------
    law : NormalMixture
        Leave-one-out predictive distributions of S models, (S, N, T).
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    is_free : bool
        Whether the law's noise is a guess. Its level is free then, and there is always a shape. Of
        few rows the level is integrated out.
    floor : float
        Least standard deviation of the noise.
    n_fitted : float
        Number of parameters of the models that have seen the rows. So many of few rows say
        nothing of the noise.
    prior : NoisePrior
        Prior of the shape.

    Returns
    -------
    JudgedShape
        The shape, None where one noise does as well, and log densities.

    Notes
    -----
    The level of few rows is left out exactly, by dividing its posterior by the density of a row.
    The other parameters are left out by influence functions, whose sum is the correction of
    Takeuchi's information criterion.
    """
    total = float(weight.sum())
    mean = distribution.mean()
    n = y.shape[1]
    centre = weight @ mean / total
    spread = (weight @ (mean - centre).square() / total).sqrt()
    if not bool((spread > 0.0).all()):
        if not is_free:
            return JudgedShape(None, distribution.log_prob(y))
        spread = torch.where(spread > 0.0, spread, 1.0)
    problem = _ShapeProblem(distribution, y, weight, (mean - centre) / spread, prior, is_free)

    offset_std = prior.free_std
    plain = problem.minimise(mean.new_zeros(n), offset_std)
    start = torch.cat([plain, plain.new_zeros(n), problem.tails_start])
    shaped = problem.minimise(start, offset_std)
    if not is_free:
        gain = float(problem.loss(plain, offset_std) - problem.loss(shaped, offset_std))
        if gain < 0.5 * (n + 2) * log(max(total, 1.0)):
            return JudgedShape(None, distribution.log_prob(y))
        offset_std = prior.offset_std
        shaped = problem.minimise(shaped, offset_std)

    offset, slope, tails = shaped.tensor_split([n, 2 * n])
    share, ratio = (float(t) for t in problem.tails_at(tails))
    level = problem.level
    mean_square = weight @ (2.0 * (offset + slope * level)).exp() / total
    columns = (offset, slope, centre, spread, level.amin(0), level.amax(0), mean_square)
    *places, square = (np.asarray(t.double().cpu().numpy()) for t in columns)
    shape = NoiseShape(*places, share, ratio, square)  # type: ignore[call-arg, arg-type]

    lost, lost_by_offset = problem.influence(shaped, offset_std)
    if not is_free or n > 1 or total > MAX_FREEDOMS:
        return JudgedShape(shape, _floored(shape.shaped(distribution), floor).log_prob(y) - lost)
    share = max(0.0, 1.0 - n_fitted / total)
    levels, log_density = _integrate_level(problem, shaped, floor, share)
    factor = levels.square() @ level_weights().to(levels)
    shape = replace(shape, levels=levels.cpu().numpy(), mean_square=square * float(factor))
    return JudgedShape(shape, log_density - (lost - lost_by_offset).clamp_min(0.0))


def _integrate_level(
    problem: _ShapeProblem, position: Tensor, floor: float, share: float
) -> tuple[Tensor, Tensor]:
    """Integrate over the level of the noise of one target, which ``share`` of the rows determine.

    Returns
    -------
    levels : Tensor of shape (K,)
        Factors on the noise's standard deviation, relative to ``position``.
    log_density : Tensor of shape (N,)
        Of every row by the levels that all others leave likely, nats.
    """
    log_std = log_level_grid(problem.spread)[:, 0]
    log_prior = log_level_prior(log_std, problem.spread, problem.total)
    offsets = log_std - problem.log_typical_noise
    weight = share * problem.weight
    at_nodes = []
    for offset in offsets:
        distribution = _floored(problem.shaped(torch.cat([offset.reshape(1), position[1:]])), floor)
        at_nodes.append(distribution.log_prob(problem.y))
    log_density = torch.stack(at_nodes)  # (G, N)
    # One row can't be left out: then the prior is all there is.
    weight = weight if len(weight) > 1 else torch.zeros_like(weight)
    log_posterior = log_prior + log_density @ weight
    without = log_posterior.unsqueeze(1) - weight * log_density
    if bool((problem.y == problem.y[0]).all()):
        log_posterior = with_surprises(log_posterior, log_prior, problem.total)
        prior = log_prior.unsqueeze(1).expand_as(without)
        without = with_surprises(without, prior, problem.total)
    levels = cell_levels(log_std - problem.log_typical_noise - position[0], log_posterior)
    return levels, (without.log_softmax(0) + log_density).logsumexp(0)


def _floored(distribution: NormalMixture, floor: float) -> NormalMixture:
    """Widen noise that is narrower than ``floor``."""
    return replace(distribution, noise_variance=distribution.noise_variance.clamp_min(floor**2))


Law = TypeVar("Law", NormalMixture, CategoricalMixture)


@dataclass(frozen=True, eq=False)
class PooledPredictor(BasePredictor):
    """Mixture of parts; parts of weight zero are never asked, and may have no density."""

    parts: Mapping[str, Predictor]
    weights: Mapping[str, float]  # by the names of the parts, adding up to 1

    def distribution(self, x: Tensor) -> Any:
        """Distribution of targets at rows (N, ...)."""
        counting = [name for name in self.parts if self.weights[name]]
        distributions: list[Any] = [self.parts[name].distribution(x) for name in counting]
        return mixture(distributions, [self.weights[name] for name in counting])

    def mean(self, x: Tensor) -> Tensor:
        means = [w * self.parts[name].mean(x) for name, w in self.weights.items() if w]
        return torch.stack(means).sum(0)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        for name, share in self.weights.items():
            some = self.parts[name].networks(x) if share else ()
            yield from (each._replace(weight=share * each.weight) for each in some)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Distribution of targets given each of ``n`` joint draws of functions, of chosen parts."""
        weights = torch.tensor([self.weights[name] for name in self.parts], dtype=torch.float64)
        which = torch.multinomial(weights, n, replacement=True, generator=generator)
        parts = list(self.parts.values())
        counts = which.bincount().tolist()
        distributions: list[Any] = [
            parts[k].sample_conditionals(x, m, generator=generator)
            for k, m in enumerate(counts)
            if m
        ]
        order = which.argsort(stable=True).argsort().to(x.device)
        if not all(
            isinstance(distribution, CategoricalMixture | NormalMixture)
            for distribution in distributions
        ):
            return PooledDraws(distributions, order)
        if isinstance(distributions[0], CategoricalMixture):
            return CategoricalMixture(
                torch.cat([distribution.log_probs for distribution in distributions])[order]
            )
        loc = torch.cat([distribution.loc for distribution in distributions])[order]
        noise = torch.cat(
            [
                distribution.noise_variance.expand_as(distribution.loc)
                for distribution in distributions
            ]
        )[order]
        return NormalMixture(loc, torch.zeros_like(loc[:, :1]), noise)


class PooledDraws:
    """Draws of several parts, some of which aren't made of normals, in the order of the draws.

    Parameters
    ----------
    laws : sequence
        What the parts' ``drawn`` returned.
    order : Tensor of shape (n,)
        Place of every draw among theirs.
    """

    def __init__(self, distributions: Sequence[Any], order: Tensor) -> None:
        self._laws = distributions
        self._order = order

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1)."""
        return torch.cat([distribution.means for distribution in self._laws])[self._order]

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Targets, (n, N, 1)."""
        return torch.cat([distribution.sample_per_draw(rng) for distribution in self._laws])[
            self._order
        ]


@dataclass(frozen=True, eq=False)
class ShapedPredictor(BasePredictor):
    """Numbers with noise by left-out rows, nowhere narrower than ``floor``."""

    base: Predictor
    noise: NoiseShape | None
    floor: float = 0.0

    def distribution(self, x: Tensor) -> Any:
        return self.shaped(self.base.distribution(x))

    def shaped(self, distribution: Any) -> Any:
        """A law of the base with this noise; one that isn't made of normals as it is."""
        if not isinstance(distribution, NormalMixture):
            return distribution
        distribution = distribution if self.noise is None else self.noise.shaped(distribution)
        return _floored(distribution, self.floor)

    def mean(self, x: Tensor) -> Tensor:
        return self.base.mean(x)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        return self.base.networks(x)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Distribution given each of ``n`` functions: every row's noise is in one of its states."""
        # States have a stream of their own: functions don't depend on the rows that are asked for.
        stream = generator_from(int(torch.randint(2**62, (), generator=generator)))
        distribution: Any = self.base.sample_conditionals(x, n, generator=generator)
        if not isinstance(distribution, NormalMixture):
            return distribution
        noise = distribution.noise_variance
        if self.noise is not None:
            (narrow, wide), (_, share) = self.noise.states
            # One noise level for all rows of a draw. It is drawn before the states of the rows, so
            # that it doesn't depend on their number.
            level = noise.new_ones(1)
            if self.noise.levels is not None:
                chosen = level_weights().multinomial(n, replacement=True, generator=stream)
                level = torch.as_tensor(self.noise.levels).square()[chosen].to(noise)
            uniform = torch.rand((n, len(x), 1), generator=stream, dtype=torch.float32)
            state = torch.where(uniform < float(share), wide, narrow).to(noise)
            state = state * level.reshape(-1, 1, 1)
            noise = noise * self.noise.factor(self.base.mean(x)).square() * state
        return replace(distribution, noise_variance=noise.clamp_min(self.floor**2))


def mixture(distributions: Sequence[Law], shares: Sequence[float]) -> Law:
    """Mixture of mixtures of one kind in the proportions ``shares``, whose sum doesn't matter."""
    every: Sequence[Any] = distributions
    if not all(
        isinstance(distribution, NormalMixture | CategoricalMixture)
        for distribution in distributions
    ):
        total = sum(shares)
        return LinearPool(distributions, [share / total for share in shares])  # type: ignore[arg-type, return-value]
    is_of_labels = isinstance(distributions[0], CategoricalMixture)
    log_weights = []
    for distribution, share in zip(every, shares, strict=True):
        like = distribution.log_probs if is_of_labels else distribution.loc
        equal = like.new_full((len(like),), -log(len(like)))
        within = equal if distribution.log_weights is None else distribution.log_weights
        log_weights.append(within + log(share / sum(shares)))
    whole: Any
    if is_of_labels:
        whole = CategoricalMixture(
            torch.cat([distribution.log_probs for distribution in every]), torch.cat(log_weights)
        )
    else:
        covariances = [distribution.covariance for distribution in every]
        if any(covariance is None for covariance in covariances):
            covariances = [
                torch.diag_embed(distribution.variance.expand_as(distribution.loc))
                if matrix is None
                else matrix
                for distribution, matrix in zip(every, covariances, strict=True)
            ]
        whole = NormalMixture(
            torch.cat([distribution.loc for distribution in every]),
            torch.cat(
                [distribution.variance.expand_as(distribution.loc) for distribution in every]
            ),
            torch.cat(
                [distribution.noise_variance.expand_as(distribution.loc) for distribution in every]
            ),
            torch.cat(log_weights),
            torch.cat(covariances),
        )
    return whole  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Calibration:
    """``log_slope`` is log b; ``share`` is epsilon; ``frequency`` (K,): of the classes."""

    log_slope: float
    share: float
    frequency: npt.NDArray[np.float64]

    def log_probs(self, scores: Tensor) -> Tensor:
        """Log probabilities (N, K) of scores (N, K)."""
        position = scores.new_tensor([self.log_slope, np.log(self.share) - np.log1p(-self.share)])
        return _log_probs(position, scores, torch.as_tensor(self.frequency).to(scores))


def _log_probs(position: Tensor, scores: Tensor, frequency: Tensor) -> Tensor:
    softmax = (position[0].exp() * scores).log_softmax(-1)
    kept, mixed = -torch.nn.functional.softplus(torch.stack([position[1], -position[1]]))
    return torch.logaddexp(kept + softmax, mixed + frequency.log())


def fit_calibration(scores: Tensor, y: Tensor, weight: Tensor) -> Calibration:
    """The calibration that left-out rows like best.

    ``scores`` (N, K): of every row without itself; ``y`` (N,): codes of the classes; ``weight``
    (N,). Half a row of every class is added to the frequencies.
    """
    n_classes = scores.shape[1]
    counts = torch.bincount(y, weight, minlength=n_classes).to(scores) + 0.5
    frequency = counts / counts.sum()
    rows = torch.arange(len(y))
    # Normal priors of log b and of the logit of the share, and where they may lie.
    mean = scores.new_tensor([0.0, -4.0])
    std = scores.new_tensor([1.0, 2.0])
    bounds = [(-3.0, 4.0), (-9.0, 0.0)]

    def loss(position: Tensor) -> Tensor:
        log_probs = _log_probs(position, scores, frequency)[rows, y]
        return 0.5 * ((position - mean) / std).square().sum() - weight @ log_probs

    log_slope, logit = lbfgs(with_gradient(loss), mean, max_iter=100, bounds=bounds).tolist()
    share = float(1.0 / (1.0 + np.exp(-logit)))
    return Calibration(log_slope, share, frequency.cpu().numpy())
