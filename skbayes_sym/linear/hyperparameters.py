"""Prior scale and noise of a linear model by maximising the ELBO over them at given sites.

With the sites held fixed instead of the posterior, the bound as a function of the hyperparameters
is tight to second order around the evidence (Adam, Chang, Khan & Solin 2021, "dual
parameterisation"), so alternating with site updates takes a few rounds where expectation
maximisation takes hundreds. The sites of a location-scale likelihood move with the noise, their
variances proportional to its square: with a Gaussian likelihood the function below is the log
evidence itself and the first round ends at its maximum.
"""

from collections.abc import Callable
from itertools import product
from math import inf, log
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.linear.sites import (
    LinearData,
    Sites,
    SiteState,
    solve,
    update,
    weighted_precision,
)
from skbayes_sym.models.likelihoods.likelihood import SiteLikelihood
from skbayes_sym.numerics.gaussian import kl_elementwise
from skbayes_sym.numerics.optimise import (
    AndersonMixing,
    DivergenceError,
    Loop,
    StopReason,
    lbfgs,
    with_gradient,
)

Floats = npt.NDArray[np.float64]


class Range(NamedTuple):
    """Bounds of one hyperparameter."""

    low: float
    high: float


class Learning(NamedTuple):
    """Which hyperparameters are learned, and between which ends."""

    prior: Range | None
    noise: Range  # used if the likelihood has params


class StoppingRule(NamedTuple):
    """When `fit_sites` ends."""

    tol: float  # standard deviations of an output an update moves; log scales a round changes
    max_iter: int  # updates
    on_step: Callable[[SiteState], bool]  # told the state after every update; True stops


class SitesFit(NamedTuple):
    """Result of `fit_sites`."""

    state: SiteState
    n_iter: int
    elbo_curve: list[float]  # after every update
    change: float  # of the last update, see `sites.Update`
    stopped: StopReason


class ElboAtSites:
    """The ELBO as a function of log prior variance (0-d) and likelihood params, sites given.

    One eigendecomposition, O((C r)^3); then O(N C^2 r) a value, differentiable.
    """

    def __init__(self, data: LinearData, state: SiteState) -> None:
        n_outputs = data.n_outputs
        r = data.features.shape[1]
        self._data = data
        self._state = state
        self._values, vectors = torch.linalg.eigh(weighted_precision(data, state.sites))
        vectors = vectors.reshape(n_outputs, r, -1)
        self._basis = torch.einsum("nr,crk->nck", data.features, vectors)
        offset = torch.einsum("ncd,d->nc", state.sites.precision, state.intercept)
        shift = data.weight[:, None] * (state.sites.shift - offset)
        self._squares = self._basis[:, 0].square() if n_outputs == 1 else None
        self._right = torch.einsum("nck,nc->k", self._basis, shift)

    @property
    def highest_log_variance(self) -> float:
        """Log variance beyond which sites times prior aren't normalisable, with a margin of .1."""
        lowest = float(self._values[0])
        return -log(-lowest) - 0.1 if lowest < 0.0 else inf

    def __call__(self, log_variance: Tensor, params: Tensor) -> Tensor:
        data = self._data
        state = self._state
        basis = self._basis
        # Of the sites' precisions; 1 without params.
        scale = (2.0 * (state.likelihood.params.to(params) - params)).exp().prod()
        variance = 1.0 / (log_variance.neg().exp() + scale * self._values)
        loc = variance * scale * self._right
        mean = state.intercept + basis @ loc
        if data.n_outputs == 1:
            covariance = (self._squares @ variance)[:, None, None]
        else:
            covariance = (basis * variance) @ basis.mT
        value = state.likelihood.at(params).value(mean, covariance, data.y)
        return value @ data.weight - kl_elementwise(loc, variance.log(), log_variance).sum()


def learn_at_sites(
    data: LinearData, state: SiteState, hyper: Floats, learning: Learning, *, explore: bool
) -> Floats:
    """Maximise `ElboAtSites` by L-BFGS, from the best point of a grid if ``explore``.

    ``hyper``: the log variance of the prior, then the likelihood's params.
    """
    elbo = ElboAtSites(data, state)
    like = data.features
    n_held = int(learning.prior is None)
    held = like.new_tensor(hyper[:n_held])
    start = hyper[n_held:]

    def loss(scales: Tensor) -> Tensor:
        whole = torch.cat([held, scales])
        return -elbo(whole[0], whole[1:])

    ranges = [learning.noise] * (len(hyper) - 1)
    starts = [start]
    if learning.prior is not None:
        low, high = learning.prior
        ranges = [Range(low, min(high, elbo.highest_log_variance)), *ranges]
    if explore:  # by offsets of the log variance of the prior and of the log noise
        grids = [np.linspace(-9.0, 9.0, 10), *[np.array([0.0, -1.2, -3.0])] * (len(hyper) - 1)]
        starts += [start + np.array(offset) for offset in product(*grids[n_held:])]
    ends = np.array(ranges).T
    inside = [like.new_tensor(np.clip(x, *ends)) for x in starts]
    begin = min(inside, key=lambda scales: float(loss(scales).nan_to_num(inf)))
    best = lbfgs(with_gradient(loss), begin, max_iter=200, bounds=ranges, ftol=1e-15, gtol=1e-9)
    return np.concatenate([hyper[:n_held], best.cpu().numpy()])


def fit_sites(
    data: LinearData, likelihood: SiteLikelihood, sites: Sites, log_prior_variance: float,
    learning: Learning, until: StoppingRule,
) -> SitesFit:  # fmt: skip
    """Site updates, and hyperparameters between them once the sites have settled.

    ``sites``: starting point, see `skbayes_sym.linear.sites.first_sites`. Raises
    DivergenceError if the starting point has no finite ELBO.
    """
    hyper = np.array([log_prior_variance, *likelihood.params.tolist()])
    variance = data.features.new_tensor(log_prior_variance).exp()
    state = solve(data, sites, variance, likelihood)
    if state is None or not bool(torch.isfinite(state.elbo)):
        raise DivergenceError(
            "the starting point has no finite ELBO: use standardize=True, a smaller prior, "
            "or sample_weight of fewer orders of magnitude."
        )
    rounds = _Rounds(data, hyper, learning, until.tol)
    curve: list[float] = []
    change = inf
    acceleration = AndersonMixing()
    with Loop() as loop:
        for _ in loop.steps(range(until.max_iter)):
            moved = update(data, state, acceleration=acceleration)
            state = moved.state
            change = moved.change
            if rounds.learns and change < rounds.close:
                state = rounds.next(state)
                acceleration = AndersonMixing()  # another map from here on
            curve.append(float(state.elbo))
            loop.stop_if("callback", until.on_step(state))
            loop.stop_if("tol", change < until.tol and rounds.settled)
    return SitesFit(state, len(curve), curve, change, loop.stopped)


class _Rounds:
    """Rounds of learning with the step of a secant: they converge linearly by themselves.

    `AndersonMixing` isn't used: it mixes all coordinates and may step back, while here each
    scale has a stride of its own, from one to ten times the plain step, within its range.
    """

    def __init__(self, data: LinearData, hyper: Floats, learning: Learning, tol: float) -> None:
        self._data = data
        self._hyper = hyper
        self._learning = learning
        self._tol = tol
        self.learns = learning.prior is not None or len(hyper) > 1
        self.settled = not self.learns
        # How still the sites must be for the next round: outputs move by less than so many standard
        # deviations, or than a tenth of the last round's step.
        self.close = 0.3
        self._last: tuple[Floats, Floats] | None = None  # where it was, and plain step

    def next(self, state: SiteState) -> SiteState:
        """The state at better hyperparameters."""
        current = self._hyper
        first = self._last is None
        goal = learn_at_sites(self._data, state, current, self._learning, explore=first)
        plain = goal - current
        stride = np.ones_like(current)
        if self._last is not None:
            before, plain_before = self._last
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = -(current - before) / (plain - plain_before)
            stride = np.clip(np.nan_to_num(secant, nan=1.0, posinf=1.0, neginf=1.0), 1.0, 10.0)
        size = float(np.abs(plain).max())
        self.settled, self.close = size < self._tol, min(0.3, max(0.1 * size, self._tol))
        far = current + stride * plain
        prior = self._learning.prior
        noise = self._learning.noise
        low, high = np.array([prior or Range(-inf, inf)] + [noise] * (len(goal) - 1)).T
        far = np.where((far < low) | (far > high), goal, far)  # the plain goal where out of range
        self._last = current, plain
        for target in (far, goal, current):  # `current` always works: it is where we are
            moved = _moved(self._data, state, target, float((target - current)[1:].sum()))
            if moved is not None:
                self._hyper = target
                return moved
        raise ArithmeticError("the sites have no finite ELBO any more.")


def _moved(
    data: LinearData, state: SiteState, hyper: Floats, log_noise_step: float
) -> SiteState | None:
    """The state at new hyperparameters; the sites' variances go with the square of the noise."""
    like = data.features
    factor = float(np.exp(-2.0 * log_noise_step))
    sites = Sites(state.sites.shift * factor, state.sites.precision * factor)
    likelihood = state.likelihood.at(like.new_tensor(hyper[1:]))
    moved = solve(data, sites, like.new_tensor(hyper[0]).exp(), likelihood)
    return moved if moved is not None and bool(torch.isfinite(moved.elbo)) else None
