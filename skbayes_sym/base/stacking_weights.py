r"""Combine predictive distributions by their leave-one-out log densities.

**Weights.** Stacking (Yao et al. 2018, eq. 8) maximises the leave-one-out log score. Here the
logarithm of a Dirichlet prior with concentrations :math:`1 + c_k` is added. The sum is concave in
p:

.. math:: \max_{p \in \Delta} \sum_n w_n \log \sum_k p_k e^{a_{kn}} + \sum_k c_k \log p_k .

**Leave-one-out predictions.** For a model that is linear in its weights, with normal noise and a
normal prior, they have a closed form. With the residual :math:`r_n` and the leverage
:math:`h_n = \beta\, j_n' C j_n`,

.. math:: y_n \mid y_{-n} \sim N\big(y_n - r_n / (1 - h_n),\; \beta^{-1} / (1 - h_n)\big)

(Rasmussen & Williams 2006, eqs. 5.10 to 5.12). A row of weight w stands for w repetitions, all of
which are left out. Then :math:`1 - w_n h_n` replaces :math:`1 - h_n` in the residual, and the
variance is :math:`\beta^{-1} (1 + h_n / (1 - w_n h_n))`. For a linearised network this is an
approximation, and too favourable, because the network's features were fitted to the row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, log
from typing import Any, TypeVar

import numpy as np
import torch
from scipy.optimize import brentq
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.base.rows import Array
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, LinearPool, NormalMixture

Mixture = TypeVar("Mixture", NormalMixture, CategoricalMixture)

# Nats per row that stacking weights may lack, and Newton steps that look for them.
_GAP_TOLERANCE = 1e-10
_MAX_NEWTON_STEPS = 50


def stacking_weights(log_density: Tensor, weight: Tensor, *, prior: Tensor | None = None) -> Tensor:
    """Return the weights of components that maximise the leave-one-out log score.

    Parameters
    ----------
    log_density : Tensor of shape (K, N)
        Leave-one-out log density of each row under each component, in nats.
    weight : Tensor of shape (N,)
        Sample weights.
    prior : Tensor of shape (K,), optional
        Prior concentrations c of the components, in rows. The default is 0.

    Returns
    -------
    Tensor of shape (K,)
        Weights, which add up to 1. Among equal components the last one has all the weight.

    Notes
    -----
    If all components have a prior, Newton steps find the weights. Otherwise, and if the steps don't
    suffice, the two components with the largest and the smallest slope exchange weight, each time
    with an exact line search, until the largest slope promises no further gain. Weights of exactly
    0 and 1 are possible.
    """
    density = (log_density - log_density.amax(0)).clamp_min(-500.0).exp().numpy(force=True)
    row_weight = weight.numpy(force=True)
    pull = np.zeros(len(density))
    if prior is not None:
        pull[:] = prior.numpy(force=True)
    has_prior = pull > 0.0
    p = np.zeros(len(density))
    p[-1] = 1.0
    if len(p) > 1 and has_prior.all():
        p = _interior_weights(density, row_weight, pull)
    for _ in range(100 * len(p)):
        slopes = density @ (row_weight / (p @ density))
        with np.errstate(divide="ignore"):
            slopes[has_prior] += pull[has_prior] / p[has_prior]
        first = int(slopes.argmax())
        second = int(np.where(p > 0.0, slopes, np.inf).argmin())
        gain = slopes[first] - p[p > 0.0] @ slopes[p > 0.0]
        if first == second or gain <= _GAP_TOLERANCE * row_weight.sum():
            break
        total = p[first] + p[second]
        p[[first, second]] = 0.0
        p[first] = _exchange_weight(
            density[[first, second]], p @ density, total, row_weight, pull[[first, second]]
        )
        p[second] = total - p[first]
    return torch.as_tensor(p).to(log_density)


def _interior_weights(density: Array, weight: Array, concentrations: Array) -> Array:
    """Maximise the score of components that all have a prior by damped Newton steps.

    Parameters
    ----------
    density : ndarray of shape (K, N)
        Densities under the components.
    weight : ndarray of shape (N,)
        Sample weights.
    concentrations : ndarray of shape (K,)
        Positive prior concentrations of the components.

    Returns
    -------
    ndarray of shape (K,)
        Positive weights with sum 1. They aren't optimal if the steps don't suffice.

    Notes
    -----
    Steps are relative to the weights, in which the curvature of the prior is the concentration.
    """

    def score(p: Array) -> float:
        return float(weight @ np.log(p @ density) + concentrations @ np.log(p))

    p = np.full(len(density), 1.0 / len(density))
    value = score(p)
    for _ in range(_MAX_NEWTON_STEPS):
        relative = p[:, None] * (density / (p @ density))
        slopes = relative @ weight + concentrations
        if (slopes / p).max() - slopes.sum() <= _GAP_TOLERANCE * weight.sum():
            break
        curvature = (relative * weight) @ relative.T + np.diag(concentrations)
        system = np.block([[curvature, p[:, None]], [p, 0.0]])
        try:
            step = np.linalg.solve(system, [*slopes, 0.0])[:-1]
        except np.linalg.LinAlgError:
            break
        size = min(1.0, 0.99 / max(1e-300, -step.min()))
        increase = float(step @ slopes)
        # Steps that don't raise the score are rounding errors.
        while size > 1e-6 and not score(p * (1.0 + size * step)) > value + 0.01 * size * increase:
            size *= 0.5
        if size <= 1e-6:
            break
        p = p * (1.0 + size * step)
        value = score(p)
    return p / p.sum()


def _exchange_weight(
    densities: Array, rest: Array, total: float, weight: Array, concentrations: Array
) -> float:
    """Divide the weight of two components so that the log score is largest.

    Parameters
    ----------
    densities : ndarray of shape (2, N)
        Densities under the two components.
    rest : ndarray of shape (N,)
        Weighted density of the other components.
    total : float
        Weight of the two components together.
    weight : ndarray of shape (N,)
        Sample weights.
    concentrations : ndarray of shape (2,)
        Prior concentrations of the two components.

    Returns
    -------
    float
        Weight of the first component, the root of the derivative of the score.
    """
    difference = densities[0] - densities[1]

    def scaled_derivative(p: float) -> float:
        """Derivative times the weights of the components that have a prior, which is finite."""
        mixture = rest + p * densities[0] + (total - p) * densities[1]
        value = weight @ (difference / mixture)
        factors = np.where(concentrations > 0.0, (p, total - p), 1.0)
        prior = concentrations[0] * factors[1] - concentrations[1] * factors[0]
        return float(value * factors[0] * factors[1] + prior)

    if scaled_derivative(0.0) <= 0.0:
        return 0.0
    if scaled_derivative(total) >= 0.0:
        return float(total)
    return float(brentq(scaled_derivative, 0.0, total, xtol=1e-300, maxiter=1000))


def select_components(
    baseline: Tensor, components: Mapping[str, Tensor], weight: Tensor, min_relative_gain: float
) -> list[str]:
    """Select components whose gain over a baseline is close to the largest gain.

    Parameters
    ----------
    baseline : Tensor of shape (N,)
        Leave-one-out log densities of the baseline in nats.
    components : mapping of str to Tensor of shape (N,)
        Leave-one-out log densities of each component.
    weight : Tensor of shape (N,)
        Sample weights.
    min_relative_gain : float
        Least gain, relative to the largest gain.

    Returns
    -------
    list of str
        Names of the selected components: the best one alone if none gains.
    """
    gains = {name: float(weight @ (density - baseline)) for name, density in components.items()}
    # The density of a component without noise isn't a number.
    gains = {name: gain for name, gain in gains.items() if not isnan(gain)}
    best = max(gains.values())
    return [name for name, gain in gains.items() if gain >= min(min_relative_gain * best, best)]


def fit_baseline_weight(
    baseline: Tensor | None,
    components: Mapping[str, Tensor],
    proportions: Mapping[str, float],
    weight: Tensor,
) -> float:
    """Return the stacking weight of a baseline next to a mixture of components.

    Parameters
    ----------
    baseline : Tensor of shape (N,) or None
        Leave-one-out log densities of the baseline in nats.
    components : mapping of str to Tensor of shape (N,)
        Leave-one-out log densities of each component.
    proportions : mapping of str to float
        Proportions of the components in their mixture, which add up to 1.
    weight : Tensor of shape (N,)
        Sample weights.

    Returns
    -------
    float
        Weight of the baseline; 0 without a baseline.
    """
    if baseline is None:
        return 0.0
    terms = [components[name] + log(p) for name, p in proportions.items()]
    together = torch.stack(terms).logsumexp(0)
    return float(stacking_weights(torch.stack([baseline, together]), weight)[0])


def leave_one_out(distribution: NormalMixture, y: Tensor, weight: Tensor) -> NormalMixture:
    """Predict each row from all others.

    A row of weight w stands for w repetitions. All of them are left out, or the prediction would
    be made by a model that has seen the same row.

    Parameters
    ----------
    distribution : NormalMixture
        Predictive distributions of the training rows, (S, N, T): function values and noise.
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.

    Returns
    -------
    NormalMixture
        Leave-one-out predictive distribution of one repetition of each row, (S, N, T).
    """
    noise = distribution.noise_variance
    leverage = distribution.variance / noise  # of one repetition
    remaining = (1.0 - weight.unsqueeze(1) * leverage).clamp(1e-6, 1.0)
    loc = y - (y - distribution.loc) / remaining
    return NormalMixture(loc, distribution.variance / remaining, noise, distribution.log_weights)


def merge_components(distribution: NormalMixture) -> NormalMixture:
    """Return a single normal with the mean and the variances of a mixture.

    The number of components can differ between folds.
    """
    if len(distribution.loc) == 1:
        return distribution
    weights = distribution.broadcast_weights
    mean = (weights * distribution.loc).sum(0, keepdim=True)
    spread = distribution.variance + (distribution.loc - mean).square()
    noise = distribution.noise_variance.expand_as(distribution.loc)
    return NormalMixture(
        mean, (weights * spread).sum(0, keepdim=True), (weights * noise).sum(0, keepdim=True)
    )


@dataclass(frozen=True, eq=False)
class PooledPredictor(BasePredictor):
    """Mixture of predictors. Predictors of weight 0 are never evaluated.

    Attributes
    ----------
    parts : mapping of str to Predictor
        Predictors by name.
    weights : mapping of str to float
        Their weights, which add up to 1.
    """

    parts: Mapping[str, Predictor]
    weights: Mapping[str, float]

    def distribution(self, x: Tensor) -> Any:
        """Return the distribution of targets at rows (N, ...)."""
        names = [name for name in self.parts if self.weights[name]]
        distributions: list[Any] = [self.parts[name].distribution(x) for name in names]
        return mixture(distributions, [self.weights[name] for name in names])

    def mean(self, x: Tensor) -> Tensor:
        """Return the expected targets, (N, T)."""
        means = [w * self.parts[name].mean(x) for name, w in self.weights.items() if w]
        return torch.stack(means).sum(0)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Return the networks of all parts with their weights in the mixture."""
        for name, weight in self.weights.items():
            if weight:
                for network in self.parts[name].networks(x):
                    yield network._replace(weight=weight * network.weight)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Return the distribution of targets given each of ``n`` joint draws of functions.

        Each function is drawn from one of the parts.
        """
        weights = torch.tensor([self.weights[name] for name in self.parts], dtype=torch.float64)
        part_index = torch.multinomial(weights, n, replacement=True, generator=generator)
        counts = part_index.bincount().tolist()
        distributions: list[Any] = [
            part.sample_conditionals(x, count, generator=generator)
            for part, count in zip(self.parts.values(), counts, strict=False)
            if count
        ]
        order = part_index.argsort(stable=True).argsort().to(x.device)
        if all(isinstance(distribution, CategoricalMixture) for distribution in distributions):
            log_probs = torch.cat([distribution.log_probs for distribution in distributions])
            return CategoricalMixture(log_probs[order])
        if not all(isinstance(distribution, NormalMixture) for distribution in distributions):
            return PooledDraws(distributions, order)
        loc = torch.cat([distribution.loc for distribution in distributions])[order]
        noise = torch.cat([d.noise_variance.expand_as(d.loc) for d in distributions])[order]
        return NormalMixture(loc, torch.zeros_like(loc[:, :1]), noise)


def shift_draws(draws: Any, shift: Tensor) -> Any:
    """Add a number to the targets of every sampled function and row.

    Parameters
    ----------
    draws : NormalMixture or object with ``shift``
        Distributions of the targets given each of n functions.
    shift : Tensor of shape (n, N, T)
        Numbers to add.
    """
    if isinstance(draws, NormalMixture):
        return replace(draws, loc=draws.loc + shift.to(draws.loc))
    return draws.shift(shift)


class PooledDraws:
    """Draws of several predictors, some of which aren't mixtures of normals.

    Parameters
    ----------
    distributions : sequence
        Results of the predictors' ``sample_conditionals``.
    order : Tensor of shape (n,)
        Position of each draw in the concatenation of their draws, some of which may be left out.
    """

    def __init__(self, distributions: Sequence[Any], order: Tensor) -> None:
        self._distributions = distributions
        self._order = order

    @property
    def means(self) -> Tensor:
        """Noise-free functions, (n, N, 1)."""
        return torch.cat([distribution.means for distribution in self._distributions])[self._order]

    def shift(self, amount: Tensor) -> "PooledDraws":
        """Add a number (n, N, 1) to the targets of every draw and row."""
        counts = [len(distribution.means) for distribution in self._distributions]
        concatenated = amount.new_zeros(sum(counts), *amount.shape[1:])
        concatenated[self._order] = amount
        amounts = concatenated.split(counts)
        pairs = zip(self._distributions, amounts, strict=True)
        return PooledDraws([shift_draws(*pair) for pair in pairs], self._order)

    def sample_per_draw(self, rng: np.random.Generator) -> Tensor:
        """Return one target per draw and row, (n, N, 1)."""
        targets = [distribution.sample_per_draw(rng) for distribution in self._distributions]
        return torch.cat(targets)[self._order]


def mixture(distributions: Sequence[Mixture], weights: Sequence[float]) -> Mixture:
    """Return the mixture of several mixtures of the same kind.

    Parameters
    ----------
    distributions : sequence of NormalMixture, CategoricalMixture or TargetPredictive
        Distributions of the same rows and targets.
    weights : sequence of float
        Weights. They are normalised.

    Returns
    -------
    NormalMixture, CategoricalMixture or LinearPool
        `LinearPool` if a distribution isn't a mixture of normals or of class probabilities.
    """
    total = sum(weights)
    parts: Sequence[Any] = distributions
    if not all(isinstance(part, NormalMixture | CategoricalMixture) for part in parts):
        return LinearPool(parts, [weight / total for weight in weights])  # type: ignore[return-value]
    if len(parts) == 1:
        return distributions[0]

    is_categorical = isinstance(parts[0], CategoricalMixture)
    log_weights = []
    for part, weight in zip(parts, weights, strict=True):
        if is_categorical:
            components = part.log_probs
        else:
            components = part.loc
        equal = components.new_full((len(components),), -log(len(components)))
        if part.log_weights is None:
            within = equal
        else:
            within = part.log_weights
        log_weights.append(within + log(weight / total))

    pooled: Any
    if is_categorical:
        log_probs = torch.cat([part.log_probs for part in parts])
        pooled = CategoricalMixture(log_probs, torch.cat(log_weights))
    else:
        variances = [part.variance.expand_as(part.loc) for part in parts]
        covariance = None
        if any(part.covariance is not None for part in parts):
            covariances = [
                torch.diag_embed(variance) if part.covariance is None else part.covariance
                for variance, part in zip(variances, parts, strict=True)
            ]
            covariance = torch.cat(covariances)
        pooled = NormalMixture(
            torch.cat([part.loc for part in parts]),
            torch.cat(variances),
            torch.cat([part.noise_variance.expand_as(part.loc) for part in parts]),
            torch.cat(log_weights),
            covariance,
        )
    return pooled  # type: ignore[no-any-return]


def join_rows(distributions: Sequence[Mixture]) -> Mixture:
    """Join the distributions of consecutive blocks of rows.

    All must have the same components. Those of single targets have no covariances of targets.
    """
    blocks: Sequence[Any] = distributions
    first = blocks[0]
    if len(blocks) == 1:
        return distributions[0]
    joined: Any
    if isinstance(first, CategoricalMixture):
        log_probs = torch.cat([block.log_probs for block in blocks], 1)
        joined = CategoricalMixture(log_probs, first.log_weights)
        return joined  # type: ignore[no-any-return]
    joined = NormalMixture(
        torch.cat([block.loc for block in blocks], 1),
        torch.cat([block.variance.expand_as(block.loc) for block in blocks], 1),
        torch.cat([block.noise_variance.expand_as(block.loc) for block in blocks], 1),
        first.log_weights,
    )
    return joined  # type: ignore[no-any-return]
