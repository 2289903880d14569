r"""Noise whose width depends on the predicted mean, fitted to leave-one-out predictions.

Targets that can't be negative scatter more where they are large. Counts of rare events and faults
of instruments have heavy tails. With the noise :math:`s` of the fitted model and the predicted mean
:math:`m(x)`, standardised by the training rows' predictions and clipped to their range,

.. math:: y \mid x \sim (1 - p) N(f(x), v_0 \sigma^2) + p N(f(x), v_1 \sigma^2), \quad
          \sigma = s \exp(o + g \operatorname{arsinh} m(x)),

where the two variances average to :math:`\sigma^2` (the contaminated normal of Tukey 1960). Far
from the centre the noise is proportional to a power of the mean. Few rows determine it there, and
for skewed targets an exponential function would exceed them by orders of magnitude. The
parameters o, g, p and :math:`v_1 / v_0` maximise the posterior density of the leave-one-out
predictions. They are used if the Bayesian information criterion (Schwarz 1978) prefers them to a
constant noise level. Point predictions have no noise of their own: their noise level is free, and
the shape is always used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import exp, log
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
    mix_with_prior,
    noise_prior,
    sample_spread,
)
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.optimise import lbfgs
from skbayes_sym.numerics.random import generator_from

Array = npt.NDArray[np.float64]

CENTRAL_PROBABILITY = 0.6827  # of a normal distribution within one standard deviation


@dataclass(frozen=True)
class NoisePrior:
    """Prior of the noise shape, and settings of its maximisation.

    Noise proportional to the target has a slope equal to the target's coefficient of variation,
    which rarely exceeds 1. The prior keeps the noise level near that of training, because the
    leave-one-out predictions of linearised networks are too favourable to determine it. Whether a
    shape is used is decided with a free level, because otherwise tails would compensate for a wrong
    level.

    Attributes
    ----------
    slope_std, offset_std, free_std, tails_std : float
        Prior standard deviations of the slope, of the offset, of the offset when models are
        compared, and of the two tail parameters of point predictions.
    max_wide_weight : float
        Upper bound of the weight p of the wide component. Above one half, the components would
        exchange their roles.
    bounds : tuple of (float, float)
        Bounds of the logit of p / ``max_wide_weight`` and of the logarithm of
        :math:`v_1 / v_0 - 1`.
    offset_bounds : (float, float)
        Bounds of the offset. The noise of a Gaussian process can be four orders of magnitude
        smaller than its leave-one-out residuals.
    steps : int
        Maximum number of optimiser steps.
    """

    slope_std: float = 0.5
    offset_std: float = 0.1
    free_std: float = 1.0
    tails_std: float = 3.0
    max_wide_weight: float = 0.5
    bounds: tuple[tuple[float, float], ...] = ((-6.0, 6.0), (-3.0, 5.0))
    offset_bounds: tuple[float, float] = (-5.0, 12.0)
    steps: int = 100


@dataclass(frozen=True, eq=False)
class NoiseShape:
    """Noise with two normal components, whose width depends on the predicted mean.

    Attributes
    ----------
    offset, slope : ndarray of shape (T,)
        Logarithm of the factor on the standard deviation at the centre, and its change with the
        level ``arsinh((mean - centre) / spread)``.
    centre, spread : ndarray of shape (T,)
        Median of the predicted means of the training rows, and half the width of their central
        68 %.
    lowest, highest : ndarray of shape (T,)
        Range of the levels of the training rows. The factor is constant outside the range.
    wide_weight : float
        Weight p of the component with the larger variance.
    wide_ratio : float
        Ratio of the larger variance to the smaller one.
    mean_square : ndarray of shape (T,)
        Mean square of the factor over the training rows.
    levels : ndarray of shape (K,) or None
        Factors on the standard deviation that represent the posterior of the noise level of few
        rows (see `noise_levels`).
    """

    offset: Array
    slope: Array
    centre: Array
    spread: Array
    lowest: Array
    highest: Array
    wide_weight: float
    wide_ratio: float
    mean_square: Array
    levels: Array | None = None

    def __str__(self) -> str:
        text = "noise: constant width"
        if self.slope.any():
            growth = ", ".join(f"{exp(g):.2g}" for g in self.slope)
            text = f"noise: {growth} times as wide per standard deviation of the predicted mean"
        ratio = self.wide_ratio**0.5
        if ratio < 1.5:  # narrower tails aren't noticeable
            return text
        return f"{text}, {100 * self.wide_weight:.0f} % of rows {ratio:.2g} times as wide"

    def factor(self, mean: Tensor) -> Tensor:
        """Return the factor on the standard deviation for predicted means (N, T)."""
        arrays = (self.centre, self.spread, self.lowest, self.highest, self.offset, self.slope)
        centre, spread, low, high, offset, slope = torch.as_tensor(np.array(arrays)).to(mean)
        level = ((mean - centre) / spread).asinh().clamp(low, high)
        return (offset + slope * level).exp()

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Factors on the variance, (2,), which average to 1, and their weights, (2,)."""
        variances, weights = _states(self.wide_weight, self.wide_ratio)
        states = torch.tensor([variances, weights], dtype=torch.float64)
        return states[0], states[1]

    def shaped(self, distribution: NormalMixture) -> NormalMixture:
        """Replace noise of constant width by this noise.

        Each component of the mixture is split into two, and into two per noise level if there are
        several levels.

        Parameters
        ----------
        distribution : NormalMixture
            Mixture of S components with noise of constant width.

        Returns
        -------
        NormalMixture
            Mixture of 2 S or 2 K S components.
        """
        variances, weights = self.states
        if self.levels is not None:
            squares = torch.as_tensor(self.levels).square()
            variances = torch.outer(squares, variances).flatten()
            weights = torch.outer(level_weights(), weights).flatten()
        return _split_noise(distribution, self.factor(distribution.mean()), variances, weights)


_Real = TypeVar("_Real", float, Tensor)


def _states(wide_weight: _Real, ratio: _Real) -> tuple[list[_Real], list[_Real]]:
    """Return factors on the variance, which average to 1, and their weights."""
    mean_factor = 1.0 + wide_weight * (ratio - 1.0)
    return [1.0 / mean_factor, ratio / mean_factor], [1.0 - wide_weight, wide_weight]


def _split_noise(
    distribution: NormalMixture, factor: Tensor, variances: Tensor, weights: Tensor
) -> NormalMixture:
    """Split each component into one per noise state.

    Parameters
    ----------
    distribution : NormalMixture
        Mixture of S components for N rows and T targets.
    factor : Tensor of shape (N, T)
        Factor on the standard deviation of the noise.
    variances : Tensor of shape (K,)
        Factors of the states on the variance.
    weights : Tensor of shape (K,)
        Weights of the states.

    Returns
    -------
    NormalMixture
        Mixture of K S components.
    """
    n = len(weights)
    noise = (distribution.noise_variance * factor.square()).expand_as(distribution.loc)
    log_weights = distribution.log_weights
    if log_weights is None:
        log_weights = noise.new_full((len(distribution.loc),), -log(len(distribution.loc)))
    variance = distribution.variance.expand_as(distribution.loc)
    covariance = distribution.covariance
    if covariance is not None:
        covariance = torch.cat([covariance] * n)
    return NormalMixture(
        torch.cat([distribution.loc] * n),
        torch.cat([variance] * n),
        torch.cat([noise * v for v in variances.to(noise).unbind()]),
        (weights.to(noise).log().unsqueeze(1) + log_weights).flatten(),
        covariance,
    )


@dataclass(frozen=True, eq=False)
class _ShapeProblem:
    """Posterior density of the parameters of a noise shape.

    A position holds T offsets, T slopes and two tail parameters, or T offsets alone for noise of
    constant width.

    Attributes
    ----------
    distribution : NormalMixture
        Leave-one-out predictive distributions of S models, (S, N, T).
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    level : Tensor of shape (N, T)
        Standardised predicted means.
    prior : NoisePrior
        Prior of the parameters.
    free_level : bool
        Whether the noise of ``distribution`` is arbitrary, so that the noise level has the prior of
        `noise_levels` in the units of the targets.
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
        """Initial values of the tail parameters, which are also the mean of their prior."""
        return self.level.new_tensor([-1.0, 1.0])

    @cached_property
    def total(self) -> float:
        """Total sample weight."""
        return float(self.weight.sum())

    @cached_property
    def spread(self) -> Tensor:
        """Sample standard deviations of the targets (T,); 1 for constant targets."""
        deviation = self.y - self.weight @ self.y / self.total
        spread = (self.weight @ deviation.square() / self.total).sqrt()
        return sample_spread(torch.where(spread > 0.0, spread, 1.0), self.total)

    @cached_property
    def log_typical_noise(self) -> Tensor:
        """Logarithm of the root mean noise variance of the distribution, (T,)."""
        variance = self.distribution.noise_variance.expand_as(self.distribution.loc)
        noise = (self.distribution.broadcast_weights * variance).sum(0)
        return 0.5 * (self.weight @ noise / self.total).log()

    def tails_at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weight of the wide component, and the ratio of the variances."""
        return self.prior.max_wide_weight * position[0].sigmoid(), 1.0 + position[1].exp()

    def shaped(self, position: Tensor) -> NormalMixture:
        """Return the predictive distributions with the noise at a position."""
        offset, slope, tails = position.tensor_split([self.n_targets, 2 * self.n_targets])
        if not len(slope):
            one = offset.new_ones(1)
            return _split_noise(self.distribution, offset.exp(), one, one)
        log_factor = offset + slope * self.level
        variances, weights = _states(*self.tails_at(tails))
        return _split_noise(
            self.distribution, log_factor.exp(), torch.stack(variances), torch.stack(weights)
        )

    def shape_at(self, position: Tensor, centre: Tensor, spread: Tensor) -> NoiseShape:
        """Return the noise shape at a position of all parameters.

        Parameters
        ----------
        position : Tensor of shape (2 T + 2,)
            Parameters of the noise.
        centre, spread : Tensor of shape (T,)
            Location and scale of the predicted means.

        Returns
        -------
        NoiseShape
            Shape that further predictions are given.
        """
        offset, slope, tails = position.tensor_split([self.n_targets, 2 * self.n_targets])
        wide_weight, ratio = self.tails_at(tails)
        variance = (2.0 * (offset + slope * self.level)).exp()
        return NoiseShape(
            offset=_to_array(offset),
            slope=_to_array(slope),
            centre=_to_array(centre),
            spread=_to_array(spread),
            lowest=_to_array(self.level.amin(0)),
            highest=_to_array(self.level.amax(0)),
            wide_weight=float(wide_weight),
            wide_ratio=float(ratio),
            mean_square=_to_array(self.weight @ variance / self.total),
        )

    def row_gradients(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log density of each row and its gradient.

        Parameters
        ----------
        position : Tensor of shape (2 T + 2,) or (T,)
            Parameters of the noise.

        Returns
        -------
        log_density : Tensor of shape (N,)
            Log densities in nats.
        gradient : Tensor of shape (N, 2 T + 2) or (N, T)
            Their derivatives by the parameters.

        Notes
        -----
        The derivative by a parameter is the sum over the components of their posterior
        probabilities times the derivatives of their log densities and log weights.
        """
        distribution = self.shaped(position)
        per_draw = distribution.log_prob_per_draw(self.y)
        per_draw = per_draw + distribution.broadcast_weights[:, :, 0].log()
        log_density = per_draw.logsumexp(0)
        probability = (per_draw - log_density).exp()
        noise_gradient = distribution.noise_variance * distribution.noise_variance_gradient(self.y)
        # By the logarithms of the noise variances, (K S, N, T).
        noise_gradient = probability.unsqueeze(2) * noise_gradient
        by_offset = 2.0 * noise_gradient.sum(0)
        if len(position) == self.n_targets:
            return log_density, by_offset

        # The logarithms of the variances are -log(a) and log(ratio) - log(a), where a is their
        # average, 1 + p (ratio - 1), and the logarithms of the weights are log(1 - p) and log(p).
        wide_weight, ratio = self.tails_at(position[2 * self.n_targets :])
        n_narrow = len(per_draw) // 2
        wide_probability = probability[n_narrow:].sum(0)
        by_wide_variance = noise_gradient[n_narrow:].sum((0, 2))
        by_mean_factor = -0.5 * by_offset.sum(1) / (1.0 + wide_weight * (ratio - 1.0))
        by_weight = wide_probability / wide_weight - (1.0 - wide_probability) / (1.0 - wide_weight)
        by_weight = by_weight + (ratio - 1.0) * by_mean_factor
        by_ratio = by_wide_variance / ratio + wide_weight * by_mean_factor
        weight_slope = wide_weight * (1.0 - wide_weight / self.prior.max_wide_weight)
        by_tails = torch.stack([by_weight * weight_slope, by_ratio * (ratio - 1.0)], 1)
        return log_density, torch.cat([by_offset, by_offset * self.level, by_tails], 1)

    def loss(self, position: Tensor, offset_std: float) -> tuple[Tensor, Tensor]:
        """Return the negative log posterior density of a position, and its gradient."""
        n = self.n_targets
        prior = self.prior
        offset, slope, tails = position.tensor_split([n, 2 * n])
        log_density, gradient = self.row_gradients(position)
        log_prior = -0.5 * (slope / prior.slope_std).square().sum()
        tails_gradient = torch.zeros_like(tails)
        if self.free_level:
            log_std = offset + self.log_typical_noise
            level_prior = noise_prior(self.spread, self.total)
            log_prior = log_prior + level_prior.log_density(log_std).sum()
            offset_gradient = level_prior.log_density_slope(log_std)
        else:
            log_prior = log_prior - 0.5 * (offset / offset_std).square().sum()
            offset_gradient = -offset / offset_std**2
        if self.free_level and len(tails):
            deviation = (tails - self.tails_start) / prior.tails_std
            log_prior = log_prior - 0.5 * deviation.square().sum()
            tails_gradient = -deviation / prior.tails_std
        prior_gradient = torch.cat([offset_gradient, -slope / prior.slope_std**2, tails_gradient])
        value = -log_prior - self.weight @ log_density
        return value, -prior_gradient - self.weight @ gradient

    def minimise(self, start: Tensor, offset_std: float) -> Tensor:
        """Return the position with the least loss, starting from ``start``."""
        n = self.n_targets
        bounds = [self.prior.offset_bounds] * n
        if len(start) > n:
            bounds += [*[(-5.0, 5.0)] * n, *self.prior.bounds]
        loss = partial(self.loss, offset_std=offset_std)
        return lbfgs(loss, start, max_iter=self.prior.steps, bounds=bounds)

    def influence(self, position: Tensor, offset_std: float) -> tuple[Tensor, Tensor]:
        r"""Return by how much the log density of a row falls if the shape is fitted without it.

        Parameters
        ----------
        position : Tensor of shape (2 T + 2,)
            The minimum of the loss.
        offset_std : float
            Prior standard deviation of the offset.

        Returns
        -------
        total, by_offset : Tensor of shape (N,)
            Decrease in nats, and the part of it that is due to the first offset.

        Notes
        -----
        To first order the decrease is :math:`w_n g_n' H^{-1} g_n` with the gradient g of the row's
        log density and the Hessian H of the loss. Parameters at a bound are held fixed.
        """
        step = 1e-4
        n = self.n_targets
        _, gradient = self.row_gradients(position)
        hessian = []
        for direction in step * torch.eye(len(position)).to(position):
            _, above = self.loss(position + direction, offset_std)
            _, below = self.loss(position - direction, offset_std)
            hessian.append((above - below) / (2.0 * step))
        curvature = torch.stack(hessian)
        is_free = torch.ones(len(position), dtype=torch.bool)
        for index, (low, high) in enumerate(self.prior.bounds, start=2 * n):
            is_free[index] = low < float(position[index]) < high
        curvature = 0.5 * (curvature + curvature.mT)[is_free][:, is_free]
        if not bool(curvature.isfinite().all() & gradient.isfinite().all()):
            # Equal targets have no residuals, and there is nothing to fit.
            return torch.zeros_like(self.weight), torch.zeros_like(self.weight)
        eigenvalues, eigenvectors = torch.linalg.eigh(curvature)
        # The priors alone have at least this curvature.
        scaled = gradient[:, is_free] @ eigenvectors / eigenvalues.clamp_min(0.1).sqrt()
        by_offset = self.weight * gradient[:, 0].square() / curvature[0, 0].clamp_min(0.1)
        return self.weight * scaled.square().sum(1), by_offset


class NoiseShapeFit(NamedTuple):
    """Result of `fit_noise_shape`.

    Attributes
    ----------
    shape : NoiseShape or None
        None if a constant noise level is as good.
    log_density : Tensor of shape (N,)
        Log density of each row in nats, with the shape fitted to all other rows.
    """

    shape: NoiseShape | None
    log_density: Tensor


def _location_and_scale(mean: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weighted median of predicted means, and half the width of their central 68 %.

    For a normal distribution they are the mean and the standard deviation. A few large means of
    skewed targets hardly change them. If the central means are all equal, the scale is the standard
    deviation.

    Parameters
    ----------
    mean : Tensor of shape (N, T)
        Predicted means.
    weight : Tensor of shape (N,)
        Weights of the rows.

    Returns
    -------
    location, scale : Tensor of shape (T,)
    """
    total = weight.sum()
    ordered, order = mean.sort(0)
    level = weight[order].cumsum(0) / total
    tail = 0.5 * (1.0 - CENTRAL_PROBABILITY)
    low, median, high = (
        ordered.gather(0, (level < p).sum(0, keepdim=True).clamp_max(len(mean) - 1))[0]
        for p in (tail, 0.5, 1.0 - tail)
    )
    average = weight @ mean / total
    std = (weight @ (mean - average).square() / total).sqrt()
    scale = 0.5 * (high - low)
    return median, torch.where(scale > 0.0, scale, std)


def fit_noise_shape(
    distribution: NormalMixture,
    y: Tensor,
    weight: Tensor,
    *,
    is_free: bool = False,
    floor: float = 0.0,
    n_fitted: float = 0.0,
    prior: NoisePrior = NoisePrior(),
) -> NoiseShapeFit:
    """Fit a noise shape to leave-one-out predictions.

    Parameters
    ----------
    distribution : NormalMixture
        Leave-one-out predictive distributions of S models, (S, N, T).
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Sample weights.
    is_free : bool, default=False
        Whether the noise of ``distribution`` is arbitrary, as that of point predictions. The noise
        level is free then, and a shape is always returned. The level of few rows is integrated out.
    floor : float, default=0.0
        Least standard deviation of the noise.
    n_fitted : float, default=0.0
        Number of parameters of the models that were fitted to all rows. As many rows carry no
        information on the noise.
    prior : NoisePrior
        Prior of the shape.

    Returns
    -------
    NoiseShapeFit
        The shape, or None if a constant noise level is as good, and log densities of the rows with
        the shape fitted to the others.

    Notes
    -----
    The noise level of few rows is left out exactly, by dividing its posterior by the density of a
    row. The other parameters are left out by influence functions, whose sum is the correction of
    Takeuchi's information criterion. The cost is O(S N T) per evaluation, with about a hundred
    evaluations.
    """
    total = float(weight.sum())
    mean = distribution.mean()
    n = y.shape[1]
    centre, spread = _location_and_scale(mean, weight)
    if not bool((spread > 0.0).all()):
        if not is_free:
            return NoiseShapeFit(None, distribution.log_prob(y))
        spread = torch.where(spread > 0.0, spread, 1.0)
    level = ((mean - centre) / spread).asinh()
    problem = _ShapeProblem(distribution, y, weight, level, prior, is_free)

    offset_std = prior.free_std
    if is_free:
        # The level of the residuals is close enough to begin with.
        mean_square = weight @ (y - mean).square() / total
        plain = 0.5 * mean_square.log() - problem.log_typical_noise
        plain = plain.clamp(*prior.offset_bounds)
    else:
        plain = problem.minimise(mean.new_zeros(n), offset_std)
    start = torch.cat([plain, plain.new_zeros(n), problem.tails_start])
    shaped = problem.minimise(start, offset_std)
    if not is_free:
        gain = float(problem.loss(plain, offset_std)[0] - problem.loss(shaped, offset_std)[0])
        if gain < 0.5 * (n + 2) * log(max(total, 1.0)):
            return NoiseShapeFit(None, distribution.log_prob(y))
        offset_std = prior.offset_std
        shaped = problem.minimise(shaped, offset_std)

    shape = problem.shape_at(shaped, centre, spread)

    # What each row's log density gains from having taken part in the fit is subtracted.
    influence, offset_influence = problem.influence(shaped, offset_std)
    if not is_free or n > 1 or total > MAX_FREEDOMS:
        log_density = limit_noise(shape.shaped(distribution), floor).log_prob(y)
        return NoiseShapeFit(shape, log_density - influence)
    informative = max(0.0, 1.0 - n_fitted / total)
    levels, log_density = _integrate_level(problem, shaped, floor, informative)
    factor = levels.square() @ level_weights().to(levels)
    shape = replace(
        shape, levels=levels.cpu().numpy(), mean_square=shape.mean_square * float(factor)
    )
    return NoiseShapeFit(shape, log_density - (influence - offset_influence).clamp_min(0.0))


def _to_array(tensor: Tensor) -> Array:
    return np.asarray(tensor.double().cpu().numpy())


def _integrate_level(
    problem: _ShapeProblem, position: Tensor, floor: float, informative: float
) -> tuple[Tensor, Tensor]:
    """Integrate over the noise level of a single target.

    Parameters
    ----------
    problem : _ShapeProblem
        Problem with one target.
    position : Tensor of shape (4,)
        Fitted parameters.
    floor : float
        Least standard deviation of the noise.
    informative : float
        Fraction of the rows that carry information on the noise.

    Returns
    -------
    levels : Tensor of shape (K,)
        Factors on the noise's standard deviation, relative to ``position``.
    log_density : Tensor of shape (N,)
        Log density of each row in nats, with the posterior of the level given the other rows.
    """
    log_std = log_level_grid(problem.spread)[:, 0]
    log_prior = log_level_prior(log_std, problem.spread, problem.total)
    offsets = log_std - problem.log_typical_noise
    weight = informative * problem.weight
    at_nodes = []
    for offset in offsets:
        distribution = problem.shaped(torch.cat([offset.reshape(1), position[1:]]))
        at_nodes.append(limit_noise(distribution, floor).log_prob(problem.y))
    log_density = torch.stack(at_nodes)  # (G, N)
    if len(weight) == 1:
        # Without the only row there is only the prior.
        weight = torch.zeros_like(weight)
    log_posterior = log_prior + log_density @ weight
    leave_one_out = log_posterior.unsqueeze(1) - weight * log_density
    if bool((problem.y == problem.y[0]).all()):
        log_posterior = mix_with_prior(log_posterior, log_prior, problem.total)
        prior = log_prior.unsqueeze(1).expand_as(leave_one_out)
        leave_one_out = mix_with_prior(leave_one_out, prior, problem.total)
    levels = cell_levels(log_std - problem.log_typical_noise - position[0], log_posterior)
    return levels, (leave_one_out.log_softmax(0) + log_density).logsumexp(0)


def limit_noise(distribution: NormalMixture, floor: float) -> NormalMixture:
    """Raise the standard deviation of the noise to ``floor`` where it is lower."""
    return replace(distribution, noise_variance=distribution.noise_variance.clamp_min(floor**2))


@dataclass(frozen=True, eq=False)
class ShapedPredictor(BasePredictor):
    """Predictor whose noise has a shape fitted to leave-one-out predictions.

    Attributes
    ----------
    base : Predictor
        Predictor with noise of constant width.
    noise : NoiseShape or None
        None leaves the noise as it is.
    floor : float
        Least standard deviation of the noise.
    """

    base: Predictor
    noise: NoiseShape | None
    floor: float = 0.0

    def distribution(self, x: Tensor) -> Any:
        """Return the distribution of targets at rows (N, ...)."""
        return self.shaped(self.base.distribution(x))

    def shaped(self, distribution: Any) -> Any:
        """Return a distribution of the base with this noise.

        Distributions that aren't mixtures of normals are returned unchanged.
        """
        if not isinstance(distribution, NormalMixture):
            return distribution
        if self.noise is not None:
            distribution = self.noise.shaped(distribution)
        return limit_noise(distribution, self.floor)

    def mean(self, x: Tensor) -> Tensor:
        """Return the expected targets, (N, T)."""
        return self.base.mean(x)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Return the networks of the base."""
        return self.base.networks(x)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Any:
        """Return the distribution given each of ``n`` functions, with one noise state per row."""
        # A separate stream for the states: the functions then don't depend on the number of rows.
        stream = generator_from(int(torch.randint(2**62, (), generator=generator)))
        distribution: Any = self.base.sample_conditionals(x, n, generator=generator)
        if not isinstance(distribution, NormalMixture):
            return distribution
        noise = distribution.noise_variance
        if self.noise is not None:
            (narrow, wide), (_, wide_weight) = self.noise.states
            # One noise level for all rows of a draw. It is drawn before the states of the rows, so
            # that it doesn't depend on their number.
            level = noise.new_ones(1)
            if self.noise.levels is not None:
                chosen = level_weights().multinomial(n, replacement=True, generator=stream)
                level = torch.as_tensor(self.noise.levels).square()[chosen].to(noise)
            uniform = torch.rand((n, len(x), 1), generator=stream, dtype=torch.float32)
            state = torch.where(uniform < float(wide_weight), wide, narrow).to(noise)
            state = state * level.reshape(-1, 1, 1)
            noise = noise * self.noise.factor(self.base.mean(x)).square() * state
        return replace(distribution, noise_variance=noise.clamp_min(self.floor**2))
