"""Learn prior scale and noise of a linear model by maximising the ELBO at given sites.

If the sites are fixed instead of the posterior, the bound as a function of the hyperparameters is
tight to second order around the evidence (Adam, Chang, Khan & Solin 2021, "dual parameterisation").
Alternating with updates of the sites then takes a few rounds, where expectation maximisation takes
hundreds. The sites of a location-scale likelihood change with the noise: their variances are
proportional to its square. For a Gaussian likelihood the function below is the log evidence itself,
and the first round ends at its maximum.

With few rows the prior scale of logits and log rates can have a hyperprior: two rows of two classes
are always separable, and their evidence rises with the scale without end.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import inf, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import HalfTPrior
from skbayes_sym.linear.sites import (
    LinearData,
    Sites,
    SiteState,
    scale_sites,
    solve_sites,
    sum_sites,
    update_sites,
)
from skbayes_sym.models.likelihoods.likelihood import SiteLikelihood
from skbayes_sym.numerics.gaussian import kl_elementwise
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.optimise import (
    AndersonMixing,
    DivergenceError,
    Loop,
    StopReason,
    lbfgs,
    with_gradient,
)

Floats = npt.NDArray[np.float64]

_BASIS_ELEMENTS = 1 << 22  # of outputs along the eigenvectors in a block: 32 MB


class Range(NamedTuple):
    """Limits of the logarithm of a hyperparameter."""

    low: float
    high: float


class LearnedRanges(NamedTuple):
    """Ranges of the learned hyperparameters.

    Parameters
    ----------
    prior : Range or None
        Range of the log prior variance; None if it isn't learned.
    noise : Range
        Range of the log noise level, used if the likelihood has parameters.
    scale_prior : HalfTPrior, optional
        Hyperprior of the prior standard deviation. It is flat by default.
    """

    prior: Range | None
    noise: Range
    scale_prior: HalfTPrior | None = None


class StoppingRule(NamedTuple):
    """Stopping rule of `fit_sites`.

    Parameters
    ----------
    tol : float
        Change of an output in standard deviations by an update, and of a log scale by a round.
    max_iter : int
        Largest number of updates.
    on_step : callable (SiteState) -> bool
        Called after every update; returns whether to stop.
    """

    tol: float
    max_iter: int
    on_step: Callable[[SiteState], bool]


class SitesFit(NamedTuple):
    """Result of `fit_sites`.

    Parameters
    ----------
    state : SiteState
        Final sites, hyperparameters and posterior.
    n_iter : int
        Number of updates.
    elbo_curve : list of float
        ELBO after every update, nats.
    change : float
        Change by the last update, see `SiteUpdate`.
    stopped : StopReason
        Why the updates ended.
    """

    state: SiteState
    n_iter: int
    elbo_curve: list[float]
    change: float
    stopped: StopReason


class ElboAtSites:
    """The ELBO as a differentiable function of the hyperparameters at given sites.

    It takes one eigendecomposition, O((C r)^3), and then O(N C^2 r) per value. The outputs along
    the eigenvectors are kept if they fit into a block. Otherwise every value computes them again,
    block by block, in O(N C^2 r^2).

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    state : SiteState
        State with the sites.
    """

    def __init__(self, data: LinearData, state: SiteState) -> None:
        n_rows = len(data.features)
        sums = sum_sites(data, state.sites)
        self._data = data
        self._state = state
        self._eigenvalues, self._vectors = torch.linalg.eigh(sums.precision)
        self._projection = self._vectors.T @ (sums.projection - sums.coupling @ state.intercept)
        size = n_rows_per_block(_BASIS_ELEMENTS, data.n_outputs * len(self._vectors))
        self._blocks = [slice(start, start + size) for start in range(0, n_rows, size)]
        self._basis = None
        if len(self._blocks) == 1:
            self._basis = self._make_basis(self._blocks[0])

    @property
    def highest_log_variance(self) -> float:
        """Limit beyond which sites times prior aren't normalisable, with a margin of 0.1."""
        lowest = float(self._eigenvalues[0])
        if lowest < 0.0:
            return -log(-lowest) - 0.1
        return inf

    def __call__(self, log_variance: Tensor, params: Tensor) -> Tensor:
        """Return the ELBO in nats.

        Parameters
        ----------
        log_variance : Tensor of shape ()
            Log variance of the prior.
        params : Tensor of shape (n_params,)
            Parameters of the likelihood.

        Returns
        -------
        Tensor of shape ()
        """
        # Factor on the precisions of the sites; 1 for a likelihood without parameters.
        at_sites = self._state.likelihood.params.to(params)
        scale = (2.0 * (at_sites - params)).exp().prod()
        variance = 1.0 / (log_variance.neg().exp() + scale * self._eigenvalues)
        loc = variance * scale * self._projection
        value = sum_over_blocks(self._block_value, self._blocks, (variance, loc, params))
        return value - kl_elementwise(loc, variance.log(), log_variance).sum()

    def _block_value(self, rows: slice, variance: Tensor, loc: Tensor, params: Tensor) -> Tensor:
        """Return the expected log likelihood of a block of rows.

        Parameters
        ----------
        rows : slice
            Rows of the block.
        variance, loc : Tensor of shape (C r,)
            Moments of the weights along the eigenvectors.
        params : Tensor of shape (n_params,)
            Parameters of the likelihood.

        Returns
        -------
        Tensor of shape ()
            Nats.
        """
        data = self._data
        basis = self._basis
        if basis is None:
            basis = self._make_basis(rows)
        mean = self._state.intercept + basis @ loc
        if data.n_outputs == 1:
            covariance = (basis[:, 0].square() @ variance)[:, None, None]
        else:
            covariance = (basis * variance) @ basis.mT
        value = self._state.likelihood.at(params).value(mean, covariance, data.y[rows])
        return value @ data.weight[rows]

    def _make_basis(self, rows: slice) -> Tensor:
        """Return outputs (n, C, C r) along the eigenvectors."""
        n_outputs = self._data.n_outputs
        vectors = self._vectors.reshape(n_outputs, -1, len(self._vectors))
        return torch.einsum("nr,crk->nck", self._data.features[rows], vectors)


def sum_over_blocks(
    function: Callable[..., Tensor], blocks: Sequence[slice], inputs: Sequence[Tensor]
) -> Tensor:
    """Sum a function over blocks of rows, with its gradient in the memory of one block.

    Parameters
    ----------
    function : callable (slice, *inputs) -> Tensor of shape ()
        Differentiable value of a block.
    blocks : sequence of slice
        Rows of the blocks.
    inputs : sequence of Tensor
        Further arguments of the function.

    Returns
    -------
    Tensor of shape ()
        Sum, with first derivatives only.
    """
    if len(blocks) == 1 or not torch.is_grad_enabled():
        return torch.stack([function(rows, *inputs) for rows in blocks]).sum()
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    total = torch.zeros((), dtype=inputs[0].dtype, device=inputs[0].device)
    for rows in blocks:
        value = function(rows, *leaves)
        value.backward()
        total += value.detach()
    for tensor, leaf in zip(inputs, leaves, strict=True):
        if leaf.grad is not None:
            # The difference is zero. It carries the gradient to the inputs.
            total = total + ((tensor - tensor.detach()) * leaf.grad).sum()
    return total


def maximize_elbo_at_sites(
    data: LinearData, state: SiteState, hyper: Floats, ranges: LearnedRanges, *, explore: bool
) -> Floats:
    """Maximise `ElboAtSites` over the learned hyperparameters by L-BFGS.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    state : SiteState
        State with the sites.
    hyper : ndarray of shape (1 + n_params,)
        Initial log variance of the prior, followed by the parameters of the likelihood.
    ranges : LearnedRanges
        Ranges of the learned hyperparameters.
    explore : bool
        Whether to begin at the best point of a grid around the initial values.

    Returns
    -------
    ndarray of shape (1 + n_params,)
        Best hyperparameters.
    """
    elbo = ElboAtSites(data, state)
    like = data.features
    n_fixed = int(ranges.prior is None)
    fixed = like.new_tensor(hyper[:n_fixed])
    initial = hyper[n_fixed:]

    def loss(scales: Tensor) -> Tensor:
        all_scales = torch.cat([fixed, scales])
        value = elbo(all_scales[0], all_scales[1:])
        if ranges.scale_prior is not None:
            value = value + ranges.scale_prior.log_density(0.5 * all_scales[0]).sum()
        return -value

    bounds = [ranges.noise] * (len(hyper) - 1)
    if ranges.prior is not None:
        low, high = ranges.prior
        bounds = [Range(low, min(high, elbo.highest_log_variance)), *bounds]
    candidates = [initial]
    if explore:
        # Offsets of the log variance of the prior, and of the log noise.
        offsets = [np.linspace(-9.0, 9.0, 10), *[np.array([0.0, -1.2, -3.0])] * (len(hyper) - 1)]
        candidates += [initial + np.array(offset) for offset in product(*offsets[n_fixed:])]
    limits = np.array(bounds).T
    clipped = [like.new_tensor(np.clip(candidate, *limits)) for candidate in candidates]
    start = min(clipped, key=lambda scales: float(loss(scales).nan_to_num(inf)))
    best = lbfgs(with_gradient(loss), start, max_iter=200, bounds=bounds, ftol=0.0, gtol=1e-11)
    return np.concatenate([hyper[:n_fixed], best.cpu().numpy()])


def fit_sites(
    data: LinearData,
    likelihood: SiteLikelihood,
    sites: Sites,
    log_prior_variance: float,
    ranges: LearnedRanges,
    stopping_rule: StoppingRule,
) -> SitesFit:
    """Update the sites, and learn hyperparameters whenever the sites have settled.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    likelihood : SiteLikelihood
        Likelihood with its initial parameters.
    sites : Sites
        Initial sites, see `skbayes_sym.linear.sites.initial_sites`.
    log_prior_variance : float
        Initial log variance of the prior.
    ranges : LearnedRanges
        Ranges of the learned hyperparameters.
    stopping_rule : StoppingRule
        When to stop.

    Returns
    -------
    SitesFit

    Raises
    ------
    DivergenceError
        If the initial state has no finite ELBO.
    """
    hyper = np.array([log_prior_variance, *likelihood.params.tolist()])
    variance = data.features.new_tensor(log_prior_variance).exp()
    state = solve_sites(data, sites, variance, likelihood)
    if state is None or not bool(torch.isfinite(state.elbo)):
        raise DivergenceError(
            "the starting point has no finite ELBO: use standardize=True, a smaller prior, "
            "or sample_weight of fewer orders of magnitude."
        )
    learner = _HyperparameterLearner(data, hyper, ranges, stopping_rule.tol)
    curve: list[float] = []
    change = inf
    acceleration = AndersonMixing()
    with Loop() as loop:
        for _ in loop.steps(range(stopping_rule.max_iter)):
            latest = update_sites(data, state, acceleration=acceleration)
            state = latest.state
            change = latest.change
            if learner.is_needed and change < learner.max_change:
                state = learner.update(state)
                # The fixed-point map of the sites is another one from here on.
                acceleration = AndersonMixing()
            curve.append(float(state.elbo))
            loop.stop_if("callback", stopping_rule.on_step(state))
            loop.stop_if("tol", change < stopping_rule.tol and learner.has_converged)
    return SitesFit(state, len(curve), curve, change, loop.stopped)


class _HyperparameterLearner:
    """Rounds of learning hyperparameters, accelerated by a secant method.

    Plain rounds converge linearly. `AndersonMixing` isn't used because it mixes all coordinates and
    may step back. Here each scale has its own step size within its range, from one to ten times the
    plain step.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    hyper : ndarray of shape (1 + n_params,)
        Initial log variance of the prior, followed by the parameters of the likelihood.
    ranges : LearnedRanges
        Ranges of the learned hyperparameters.
    tol : float
        Change of a log scale by a round from which the rounds have converged.

    Attributes
    ----------
    is_needed : bool
        Whether anything is learned.
    has_converged : bool
        Whether the last round changed less than the tolerance.
    max_change : float
        Change by an update of the sites below which the next round begins: 0.3 standard deviations
        of an output, or a tenth of the last round's step if that is less.
    """

    def __init__(self, data: LinearData, hyper: Floats, ranges: LearnedRanges, tol: float) -> None:
        self._data = data
        self._hyper = hyper
        self._ranges = ranges
        self._tol = tol
        self.is_needed = ranges.prior is not None or len(hyper) > 1
        self.has_converged = not self.is_needed
        self.max_change = 0.3
        # Hyperparameters before the last round, and its plain step.
        self._last: tuple[Floats, Floats] | None = None

    def update(self, state: SiteState) -> SiteState:
        """Make a round, and return the state at better hyperparameters."""
        current = self._hyper
        explore = self._last is None
        optimum = maximize_elbo_at_sites(self._data, state, current, self._ranges, explore=explore)
        plain_step = optimum - current
        factor = np.ones_like(current)
        if self._last is not None:
            last, last_plain_step = self._last
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = -(current - last) / (plain_step - last_plain_step)
            factor = np.clip(np.nan_to_num(secant, nan=1.0, posinf=1.0, neginf=1.0), 1.0, 10.0)
        largest_step = float(np.abs(plain_step).max())
        self.has_converged = largest_step < self._tol
        self.max_change = min(0.3, max(0.1 * largest_step, self._tol))

        # Where the accelerated step leaves the range of a scale, the plain step is made.
        accelerated = current + factor * plain_step
        prior = self._ranges.prior or Range(-inf, inf)
        low, high = np.array([prior] + [self._ranges.noise] * (len(optimum) - 1)).T
        is_outside = (accelerated < low) | (accelerated > high)
        accelerated = np.where(is_outside, optimum, accelerated)
        self._last = current, plain_step
        # The present hyperparameters always have a finite ELBO.
        for hyper in (accelerated, optimum, current):
            log_noise_step = float((hyper - current)[1:].sum())
            moved = _set_hyperparameters(self._data, state, hyper, log_noise_step)
            if moved is not None:
                self._hyper = hyper
                return moved
        raise ArithmeticError("the sites have no finite ELBO any more.")


def _set_hyperparameters(
    data: LinearData, state: SiteState, hyper: Floats, log_noise_step: float
) -> SiteState | None:
    """Return the state at other hyperparameters.

    Parameters
    ----------
    data : LinearData
        Rows in the row space of the inputs.
    state : SiteState
        State at the present hyperparameters.
    hyper : ndarray of shape (1 + n_params,)
        New log variance of the prior, followed by the parameters of the likelihood.
    log_noise_step : float
        Change of the log noise. The variances of the sites are scaled by the square of the noise.

    Returns
    -------
    SiteState or None
        None if the ELBO isn't finite.
    """
    like = data.features
    factor = float(np.exp(-2.0 * log_noise_step))
    sites = scale_sites(state.sites, factor)
    likelihood = state.likelihood.at(like.new_tensor(hyper[1:]))
    moved = solve_sites(data, sites, like.new_tensor(hyper[0]).exp(), likelihood)
    if moved is not None and bool(torch.isfinite(moved.elbo)):
        return moved
    return None
