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
from functools import partial
from math import exp, isnan, log
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture
from skbayes_sym.numerics.optimise import by_autograd, lbfgs
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
    less, (up, down) = first - second, pulls

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
    low, high = 0.0, both
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


def baseline_share(
    baseline: Tensor | None, kinds: Mapping[str, Tensor], inner: Mapping[str, float], weight: Tensor
) -> float:
    """Stacking weight of a baseline beside kinds in the proportions ``inner``, which add up to 1.

    By log densities (N,) of left-out rows, nats; without a baseline 0.
    """
    if baseline is None:
        return 0.0
    together = torch.stack([kinds[kind] + log(p) for kind, p in inner.items()]).logsumexp(0)
    return float(stacking_weights(torch.stack([baseline, together]), weight)[0])


def left_out(law: NormalMixture, y: Tensor, weight: Tensor) -> NormalMixture:
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
    noise = law.noise_variance
    leverage = law.variance / noise  # of one repetition
    remaining = (1.0 - weight.unsqueeze(1) * leverage).clamp(1e-6, 1.0)
    loc = y - (y - law.loc) / remaining
    return NormalMixture(loc, law.variance / remaining, noise, law.log_weights)


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
    wide_share: float  # share p of the noise that has the larger variance
    wide_ratio: float  # by how much the larger variance exceeds the smaller
    mean_square: Array  # (T,); mean square of the factor over the training rows

    def __str__(self) -> str:
        growth = ", ".join(f"{exp(g):.2g}" for g in self.slope)
        text = f"noise {growth} times as wide per standard deviation of the mean"
        if not self.slope.any():
            text = "noise of one width"
        wide = self.wide_ratio**0.5
        if wide < 1.5:  # from where tails are worth a word
            return text
        return f"{text}, and {wide:.2g} times as wide again in {self.wide_share:.2g} of the rows"

    def factor(self, mean: Tensor) -> Tensor:
        """Factor on the noise's standard deviation, given predicted means (N, T)."""
        arrays = (self.centre, self.spread, self.lowest, self.highest, self.offset, self.slope)
        centre, spread, low, high, offset, slope = (torch.as_tensor(a).to(mean) for a in arrays)
        level = ((mean - centre) / spread).clamp(low, high)
        return (offset + slope * level).exp()

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Factors (2,) on the variance, which average to 1, and their shares (2,)."""
        return _states(*torch.tensor([self.wide_share, self.wide_ratio], dtype=torch.float64))

    def shaped(self, law: NormalMixture) -> NormalMixture:
        """The distribution with this noise in place of noise of one width: two states a draw."""
        return _widened(law, self.factor(law.mean()), *self.states)


def _states(share: Tensor, ratio: Tensor) -> tuple[Tensor, Tensor]:
    variances = torch.stack([torch.ones_like(ratio), ratio]) / (1.0 + share * (ratio - 1.0))
    return variances, torch.stack([1.0 - share, share])


def _widened(
    law: NormalMixture, factor: Tensor, variances: Tensor, shares: Tensor
) -> NormalMixture:
    """Every draw once for each state, its noise widened by ``factor`` (N, T)."""
    n, noise = len(shares), (law.noise_variance * factor.square()).expand_as(law.loc)
    log_weights = law.log_weights
    if log_weights is None:
        log_weights = noise.new_full((len(law.loc),), -log(len(law.loc)))
    return replace(
        law,
        loc=law.loc.repeat(n, 1, 1),
        variance=law.variance.expand_as(law.loc).repeat(n, 1, 1),
        noise_variance=torch.cat([noise * v for v in variances.to(noise).unbind()]),
        log_weights=(shares.to(noise).log().unsqueeze(1) + log_weights).flatten(),
        covariance=None if law.covariance is None else law.covariance.repeat(n, 1, 1, 1),
    )


def fit_noise_shape(
    law: NormalMixture, y: Tensor, weight: Tensor, *, is_free: bool = False,
    prior: NoisePrior = NoisePrior(),
) -> NoiseShape | None:  # fmt: skip
    """The shape that left-out rows like best; None where one noise does as well.

    ``law``: of every row given all others: S models, N rows, T targets; ``y`` (N, T); ``weight``
    (N,); ``is_free``: whether the law's noise is a guess: its level is free then, and the shape is
    never None.

    O(S N T) an evaluation, some hundred of them.
    """
    total, mean, n = float(weight.sum()), law.mean(), y.shape[1]
    centre = weight @ mean / total
    spread = (weight @ (mean - centre).square() / total).sqrt()
    if not bool((spread > 0.0).all()):
        if not is_free:
            return None
        spread = torch.where(spread > 0.0, spread, 1.0)
    level = (mean - centre) / spread
    # Where the search of share and ratio begins, and the centre of their prior.
    tails_start, free = level.new_tensor([-1.0, 1.0]), prior.free_std

    def tails_at(position: Tensor) -> tuple[Tensor, Tensor]:
        """Share of the wide state, and the ratio of the variances."""
        return prior.most_wide * position[0].sigmoid(), 1.0 + position[1].exp()

    def loss(position: Tensor, offset_std: float) -> Tensor:
        """Minus the log density of rows and prior; of an offset alone for one noise."""
        offset, slope, tails = position.tensor_split([n, 2 * n])
        log_factor, states = offset, (offset.new_ones(1), offset.new_ones(1))
        squares = (offset / offset_std).square().sum() + (slope / prior.slope_std).square().sum()
        if len(slope):
            log_factor, states = offset + slope * level, _states(*tails_at(tails))
            if is_free:
                squares = squares + ((tails - tails_start) / prior.tails_std).square().sum()
        return 0.5 * squares - weight @ _widened(law, log_factor.exp(), *states).log_prob(y)

    def lowest(start: Tensor, offset_std: float) -> Tensor:
        bounds = None if len(start) == n else [*[(-5.0, 5.0)] * (2 * n), *prior.bounds]
        of_std = by_autograd(partial(loss, offset_std=offset_std))
        return lbfgs(of_std, start, max_iter=prior.steps, bounds=bounds)

    plain = lowest(level.new_zeros(n), free)
    shaped = lowest(torch.cat([plain, plain.new_zeros(n), tails_start]), free)
    if not is_free:
        if float(loss(plain, free) - loss(shaped, free)) < 0.5 * (n + 2) * log(max(total, 1.0)):
            return None
        shaped = lowest(shaped, prior.offset_std)
    offset, slope, tails = shaped.tensor_split([n, 2 * n])
    share, ratio = (float(t) for t in tails_at(tails))
    mean_square = weight @ (2.0 * (offset + slope * level)).exp() / total
    columns = (offset, slope, centre, spread, level.amin(0), level.amax(0), mean_square)
    *shape, square = (np.asarray(t.double().cpu().numpy()) for t in columns)
    return NoiseShape(*shape, share, ratio, square)  # type: ignore[call-arg, arg-type]


def noise_of_few(law: NormalMixture, y: Tensor, weight: Tensor) -> NoiseShape:
    """Noise as it is, but of one row in N + 1 at least as wide as the targets' spread.

    Weights explain nearly all of a few rows: no freedom is left to tell the noise by, and hundreds
    of nats per row are lost where its width is wrong. Where it is right this costs at most
    ``log(1 + 1 / N)``.
    """
    total, mean = float(weight.sum()), law.mean()
    spread = weight @ (y - weight @ y / total).square() / total
    ratio = max(1.0, float((spread / law.noise_variance.amin((0, 1))).max()))
    share, zero = 1.0 / (total + 1.0), np.zeros(y.shape[1])
    square = zero + 1.0 + share * (ratio - 1.0)
    centre = np.asarray((weight @ mean / total).double().cpu())
    return NoiseShape(
        0.5 * np.log(square), zero, centre, zero + 1.0, zero, zero, share, ratio, square
    )


Law = TypeVar("Law", NormalMixture, CategoricalMixture)


@dataclass(frozen=True, eq=False)
class PooledPredictor(BasePredictor):
    """Mixture of parts; parts of weight zero are never asked, and may have no density."""

    parts: Mapping[str, Predictor]
    weights: Mapping[str, float]  # by the names of the parts, adding up to 1

    def law(self, x: Tensor) -> Any:
        """Distribution of targets at rows (N, ...)."""
        counting = [name for name in self.parts if self.weights[name]]
        laws: list[Any] = [self.parts[name].law(x) for name in counting]
        return mixture(laws, [self.weights[name] for name in counting])

    def mean(self, x: Tensor) -> Tensor:
        means = [w * self.parts[name].mean(x) for name, w in self.weights.items() if w]
        return torch.stack(means).sum(0)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        for name, share in self.weights.items():
            some = self.parts[name].networks(x) if share else ()
            yield from (each._replace(weight=share * each.weight) for each in some)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Distribution of targets given each of ``n`` joint draws of functions, of chosen parts."""
        weights = torch.tensor([self.weights[name] for name in self.parts], dtype=torch.float64)
        which = torch.multinomial(weights, n, replacement=True, generator=generator)
        parts, counts = list(self.parts.values()), which.bincount().tolist()
        laws: list[Any] = [
            parts[k].drawn(x, m, generator=generator) for k, m in enumerate(counts) if m
        ]
        order = which.argsort(stable=True).argsort().to(x.device)
        if isinstance(laws[0], CategoricalMixture):
            return CategoricalMixture(torch.cat([law.log_probs for law in laws])[order])
        loc = torch.cat([law.loc for law in laws])[order]
        noise = torch.cat([law.noise_variance.expand_as(law.loc) for law in laws])[order]
        return NormalMixture(loc, torch.zeros_like(loc[:, :1]), noise)


@dataclass(frozen=True, eq=False)
class ShapedPredictor(BasePredictor):
    """Numbers with noise by left-out rows, nowhere narrower than ``floor``."""

    base: Predictor
    noise: NoiseShape | None
    floor: float = 0.0

    def law(self, x: Tensor) -> NormalMixture:
        law: Any = self.base.law(x)
        return self.shaped(law)

    def shaped(self, law: NormalMixture) -> NormalMixture:
        """A law of the base with this noise."""
        law = law if self.noise is None else self.noise.shaped(law)
        return replace(law, noise_variance=law.noise_variance.clamp_min(self.floor**2))

    def mean(self, x: Tensor) -> Tensor:
        return self.base.mean(x)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        return self.base.networks(x)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> NormalMixture:
        """Distribution given each of ``n`` functions: every row's noise is in one of its states."""
        # States have a stream of their own: functions don't depend on the rows that are asked for.
        stream = generator_from(int(torch.randint(2**62, (), generator=generator)))
        law: Any = self.base.drawn(x, n, generator=generator)
        noise = law.noise_variance
        if self.noise is not None:
            (narrow, wide), (_, share) = self.noise.states
            is_wide = torch.rand((n, len(x), 1), generator=stream, dtype=torch.float32) < float(
                share
            )
            state = torch.where(is_wide, wide, narrow).to(noise)
            noise = noise * self.noise.factor(self.base.mean(x)).square() * state
        return replace(law, noise_variance=noise.clamp_min(self.floor**2))


def mixture(laws: Sequence[Law], shares: Sequence[float]) -> Law:
    """Mixture of mixtures of one kind in the proportions ``shares``, whose sum doesn't matter."""
    every: Sequence[Any] = laws
    is_of_labels = isinstance(laws[0], CategoricalMixture)
    log_weights = []
    for law, share in zip(every, shares, strict=True):
        like = law.log_probs if is_of_labels else law.loc
        equal = like.new_full((len(like),), -log(len(like)))
        within = equal if law.log_weights is None else law.log_weights
        log_weights.append(within + log(share / sum(shares)))
    whole: Any
    if is_of_labels:
        whole = CategoricalMixture(
            torch.cat([law.log_probs for law in every]), torch.cat(log_weights)
        )
    else:
        covariances = [law.covariance for law in every]
        if any(covariance is None for covariance in covariances):
            covariances = [
                torch.diag_embed(law.variance.expand_as(law.loc)) if matrix is None else matrix
                for law, matrix in zip(every, covariances, strict=True)
            ]
        whole = NormalMixture(
            torch.cat([law.loc for law in every]),
            torch.cat([law.variance.expand_as(law.loc) for law in every]),
            torch.cat([law.noise_variance.expand_as(law.loc) for law in every]),
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
    frequency, rows = counts / counts.sum(), torch.arange(len(y))
    # Normal priors of log b and of the logit of the share, and where they may lie.
    mean, std = scores.new_tensor([0.0, -4.0]), scores.new_tensor([1.0, 2.0])
    bounds = [(-3.0, 4.0), (-9.0, 0.0)]

    def loss(position: Tensor) -> Tensor:
        log_probs = _log_probs(position, scores, frequency)[rows, y]
        return 0.5 * ((position - mean) / std).square().sum() - weight @ log_probs

    log_slope, logit = lbfgs(by_autograd(loss), mean, max_iter=100, bounds=bounds).tolist()
    share = float(1.0 / (1.0 + np.exp(-logit)))
    return Calibration(log_slope, share, frequency.cpu().numpy())
