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
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from skbayes_sym.inference.site_terms import SiteLikelihood
from skbayes_sym.inference.sites import (
    Acceleration,
    LinearData,
    Sites,
    State,
    solve,
    update,
    weighted_precision,
)

# Sites are close enough for a round of learning if outputs move by less than this many std, or
# than this share of the last round's step.
_CLOSE, _SHARE = 0.3, 0.1
# First look, as offsets of the log variance of the prior and of the log noise.
_PRIOR_GRID = np.linspace(-9.0, 9.0, 13)
_NOISE_GRID = np.array([0.0, -1.0, -2.0, -3.5])


class Hyper(NamedTuple):
    """What may be learned beside the posterior."""

    log_prior_variance: float
    log_noise: tuple[float, ...]  # the likelihood's params


class Range(NamedTuple):
    """Bounds of one hyperparameter."""

    low: float
    high: float


class Learning(NamedTuple):
    """Which hyperparameters are learned, and between which ends."""

    prior: Range | None
    noise: Range  # used if the likelihood has params


class SitesFit(NamedTuple):
    """Result of `fit_sites`."""

    state: State
    n_iter: int
    elbo_curve: list[float]  # after every update
    change: float  # of the last update, see `sites.Update`
    stopped: str  # "tol", "max_iter", "on_step" or "interrupted"


def elbo_at_sites(data: LinearData, state: State) -> Callable[[Tensor, Tensor], Tensor]:
    """The ELBO as a function of log prior variance (0-d) and likelihood params, sites given.

    One eigendecomposition, O((C r)^3); then O(N C^2 r) a value, differentiable.
    """
    n_outputs, r = data.n_outputs, data.features.shape[1]
    values, vectors = torch.linalg.eigh(weighted_precision(data, state.sites))
    basis = torch.einsum("nr,crk->nck", data.features, vectors.reshape(n_outputs, r, -1))
    offset = torch.einsum("ncd,d->nc", state.sites.precision, state.intercept)
    shift = data.weight[:, None] * (state.sites.shift - offset)
    right = torch.einsum("nck,nc->k", basis, shift)
    likelihood, start = state.likelihood, state.likelihood.params

    def elbo(log_variance: Tensor, params: Tensor) -> Tensor:
        scale = (2.0 * (start - params)).exp().prod()  # of the sites' precisions; 1 without params
        variance = (1.0 / (log_variance.neg().exp() + scale * values)).clamp_min(0.0)
        loc = variance * scale * right
        mean = state.intercept + basis @ loc
        covariance = torch.einsum("nck,k,ndk->ncd", basis, variance, basis)
        terms = likelihood.at(params)(mean, covariance, data.y)
        ratio = variance * log_variance.neg().exp()
        quadratic = (loc * loc).sum() * log_variance.neg().exp()
        kl = 0.5 * ((ratio - 1.0 - ratio.log()).sum() + quadratic)
        return terms.value @ data.weight - kl

    return elbo


def learn_at_sites(
    data: LinearData,
    state: State,
    hyper: Hyper,
    learning: Learning,
    *,
    explore: bool,
) -> Hyper:
    """Maximise `elbo_at_sites` by L-BFGS, from the best point of a grid if ``explore``."""
    elbo = elbo_at_sites(data, state)
    like = data.features
    learn_prior = learning.prior is not None

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.tensor(x, dtype=like.dtype, device=like.device, requires_grad=True)
        with torch.enable_grad():
            prior = at[0] if learn_prior else like.new_tensor(hyper.log_prior_variance)
            value = -elbo(prior, at[1:] if learn_prior else at)
            (gradient,) = torch.autograd.grad(value, at)
        finite = bool(torch.isfinite(value)) and bool(torch.isfinite(gradient).all())
        if not finite:  # off the map: the line search turns back
            return 1e100, np.zeros_like(x)
        return float(value.detach()), gradient.cpu().numpy().astype(np.float64)

    ranges = [learning.prior] if learning.prior is not None else []
    ranges += [learning.noise] * len(hyper.log_noise)
    start = np.array([hyper.log_prior_variance] * learn_prior + list(hyper.log_noise))
    starts = [start]
    if explore:
        grids = [_PRIOR_GRID] * learn_prior + [_NOISE_GRID] * len(hyper.log_noise)
        starts += [start + np.array(offset) for offset in product(*grids)]
    low, high = np.array(ranges).T
    starts = [np.clip(x, low, high) for x in starts]
    best = min(starts, key=lambda x: loss(x)[0])
    found = minimize(
        loss, best, jac=True, method="L-BFGS-B", bounds=ranges,
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 200},
    ).x  # fmt: skip
    if learn_prior:
        return Hyper(float(found[0]), tuple(map(float, found[1:])))
    return Hyper(hyper.log_prior_variance, tuple(map(float, found)))


def fit_sites(
    data: LinearData,
    likelihood: SiteLikelihood,
    sites: Sites,
    log_prior_variance: float,
    learning: Learning,
    *,
    tol: float,
    max_iter: int,
    on_step: Callable[[State], bool],
) -> SitesFit:
    """Site updates, and hyperparameters between them once the sites have settled.

    Parameters
    ----------
    sites : Sites
        Starting point, see `skbayes_sym.inference.sites.first_sites`.
    tol : float
        An update converged if it moves no output by as many standard deviations, and a round of
        learning if it changes no log scale by as much.
    max_iter : int
        Updates.
    on_step : callable
        Told the state after every update; True stops.

    Raises
    ------
    ArithmeticError
        If the starting point has no finite ELBO.
    """
    hyper = Hyper(log_prior_variance, tuple(likelihood.params.tolist()))
    variance = data.features.new_tensor(log_prior_variance).exp()
    state = _solved(data, sites, variance, likelihood)
    learns = learning.prior is not None or bool(hyper.log_noise)
    curve: list[float] = []
    explore, change, stopped = True, float("inf"), "max_iter"
    close, acceleration = _CLOSE, Acceleration()
    try:
        for _ in range(max_iter):
            moved = update(data, state, acceleration=acceleration)
            state, change, settled = moved.state, moved.change, not learns
            if learns and change < close:
                new = learn_at_sites(data, state, hyper, learning, explore=explore)
                steps = np.subtract(_flat(new), _flat(hyper))
                step, explore = float(np.abs(steps).max()), False
                settled, close = step < tol, min(_CLOSE, max(_SHARE * step, tol))
                acceleration = Acceleration()  # another map from here on
                state, hyper = _moved(data, state, new, float(steps[1:].sum())), new
            curve.append(float(state.elbo))
            if on_step(state):
                stopped = "on_step"
                break
            if change < tol and settled:
                stopped = "tol"
                break
    except KeyboardInterrupt:
        stopped = "interrupted"
    return SitesFit(state, len(curve), curve, change, stopped)


def _flat(hyper: Hyper) -> tuple[float, ...]:
    return (hyper.log_prior_variance, *hyper.log_noise)


def _moved(data: LinearData, state: State, hyper: Hyper, log_noise_step: float) -> State:
    """The state at new hyperparameters; the sites' variances go with the square of the noise."""
    like = data.features
    factor = float(np.exp(-2.0 * log_noise_step))
    sites = Sites(state.sites.shift * factor, state.sites.precision * factor)
    likelihood = state.likelihood.at(like.new_tensor(hyper.log_noise))
    return _solved(data, sites, like.new_tensor(hyper.log_prior_variance).exp(), likelihood)


def _solved(data: LinearData, sites: Sites, variance: Tensor, likelihood: SiteLikelihood) -> State:
    state = solve(data, sites, variance, likelihood)
    if state is None or not bool(torch.isfinite(state.elbo)):
        raise ArithmeticError(
            "the starting point has no finite ELBO: standardize the features, or lower prior_scale."
        )
    return state
