r"""Integrate predictions over the noise level of small samples.

With few rows a model explains nearly all of the targets' variance, and the noise level that
maximises the evidence can be arbitrarily small. The standard deviation :math:`\sigma` of the noise
therefore has a half-t prior. Its degrees of freedom are :math:`d = \max(W - 1, 1)` for rows of
total weight W, and its scale is twice the sample standard deviation s of the targets. With the
residual sum of squares R and :math:`\nu` residual degrees of freedom, the posterior is

.. math:: p(\sigma \mid y) \propto \Big(1 + \frac{\sigma^2}{4 s^2 d}\Big)^{-(d + 1) / 2}
          \sigma^{-\nu} e^{-R / 2 \sigma^2} .

The predictive distribution is close to a Student's t distribution. It is represented as a mixture
of nine normals: the posterior is divided into cells of fixed probability, each with the mean
variance of its cell, so that the total variance is exact. With more than `MAX_FREEDOMS` residual
degrees of freedom the mixture is indistinguishable from one normal distribution.

`asv_bench/studies/few_rows.py` measures the coverage of the resulting intervals.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import NormalMixture

MAX_FREEDOMS = 30.0
PRIOR_SCALE = 2.0  # in sample standard deviations of the targets
# Edges of the cells, as probabilities of a larger noise; narrow ones for the tails.
_EDGES = (0.0, 0.0005, 0.003, 0.012, 0.04, 0.1, 0.22, 0.42, 0.7, 1.0)
# of the grid, in sample standard deviations
_LOWEST = 1e-5
_HIGHEST = 100.0
_N_NODES = 350


def level_weights() -> Tensor:
    """Return the probabilities (K,) of the levels, the largest noise first."""
    return torch.tensor(_EDGES, dtype=torch.float64).diff()


def sample_spread(spread: Tensor, total_weight: float) -> Tensor:
    """Return unbiased standard deviations of the targets (T,), of at least two rows."""
    n = max(total_weight, 2.0)
    return spread * (n / (n - 1.0)) ** 0.5


def log_level_grid(spread: Tensor) -> Tensor:
    """Return logarithms of noise standard deviations, (G, T), for targets that spread so (T,)."""
    grid = torch.linspace(log(_LOWEST), log(_HIGHEST), _N_NODES, dtype=torch.float64)
    return grid.to(spread.device)[:, None] + spread.log()


def prior_degrees(total_weight: float) -> float:
    """Degrees of freedom of the prior for rows of a total weight."""
    return max(total_weight - 1.0, 1.0)


def prior_scale(y: Tensor, weight: Tensor) -> Tensor:
    """Return the scale of the prior for targets (N, T) of weights (N,), (T,); 2 for equal ones."""
    y = y.double()
    weight = weight.double()
    total = float(weight.sum())
    variance = weight @ (y - weight @ y / total).square() / total
    spread = torch.where(variance > 0.0, variance, 1.0).sqrt()
    return PRIOR_SCALE * sample_spread(spread, total)


class HalfTPrior(NamedTuple):
    """Half-t prior of standard deviations.

    Attributes
    ----------
    scale : Tensor of shape (T,)
        Scales of the prior.
    degrees : float
        Degrees of freedom.
    """

    scale: Tensor
    degrees: float

    def log_density(self, log_std: Tensor) -> Tensor:
        """Return the log densities of logarithms of standard deviations, up to a constant."""
        square = (log_std.exp() / self.scale.to(log_std)).square()
        return log_std - 0.5 * (self.degrees + 1.0) * (square / self.degrees).log1p()

    def log_density_slope(self, log_std: Tensor) -> Tensor:
        """Return the derivatives of the log densities by the logarithms."""
        square = (log_std.exp() / self.scale.to(log_std)).square()
        return 1.0 - (self.degrees + 1.0) * square / (self.degrees + square)


def noise_prior(spread: Tensor, total_weight: float) -> HalfTPrior:
    """Return the prior of the noise of targets with unbiased standard deviations (T,)."""
    return HalfTPrior(PRIOR_SCALE * spread, prior_degrees(total_weight))


def log_level_prior(log_std: Tensor, spread: Tensor, total_weight: float) -> Tensor:
    """Return the log prior density of the logarithm of the noise, up to a constant.

    Parameters
    ----------
    log_std : Tensor
        Logarithms of standard deviations of the noise.
    spread : Tensor
        Unbiased standard deviations of the targets.
    total_weight : float
        Sum of the sample weights.
    """
    return noise_prior(spread, total_weight).log_density(log_std)


def mix_with_prior(log_posterior: Tensor, log_prior: Tensor, total_weight: float) -> Tensor:
    """Mix the posterior of constant targets with the prior, (G, ...).

    Equal targets have no residuals, and the posterior would be a spike at 0. After W of them
    the next one differs with probability 1 / (W + 1) (Laplace's rule of succession).

    Parameters
    ----------
    log_posterior, log_prior : Tensor of shape (G, ...)
        Unnormalised log densities at the nodes of a grid.
    total_weight : float
        Sum W of the sample weights.
    """
    share = 1.0 / (total_weight + 1.0)
    posterior = log_posterior.log_softmax(0)
    prior = log_prior.log_softmax(0)
    return torch.logaddexp(posterior + log(1.0 - share), prior + log(share))


def cell_levels(log_std: Tensor, log_posterior: Tensor) -> Tensor:
    """Root mean variances of the noise in the cells of its posterior, (K, ...).

    Parameters
    ----------
    log_std : Tensor of shape (G, ...)
        Logarithms of standard deviations, rising.
    log_posterior : Tensor of shape (G, ...)
        Log weights of the nodes, not normalised.
    """
    log_std = log_std.flip(0)
    probability = log_posterior.softmax(0).flip(0)
    upper = probability.cumsum(0)
    lower = upper - probability
    variances = (2.0 * log_std).exp()
    levels = []
    for low, high in pairwise(_EDGES):
        overlap = (upper.clamp_max(high) - lower.clamp_min(low)).clamp_min(0.0)
        levels.append(((overlap * variances).sum(0) / overlap.sum(0).clamp_min(1e-300)).sqrt())
    return torch.stack(levels)


def are_determined(freedoms: Tensor, is_constant: Tensor) -> bool:
    """Whether the rows determine the noise of all targets, so that its level is no average."""
    return float(freedoms.min()) > MAX_FREEDOMS and not bool(is_constant.any())


def posterior_levels(
    log_likelihood: Callable[[Tensor], Tensor],
    spread: Tensor,
    total_weight: float,
    is_constant: Tensor,
) -> Tensor:
    """Standard deviations of the noise that stand for its posterior, (S, K, T).

    Parameters
    ----------
    log_likelihood : callable
        Maps logarithms of standard deviations (G, 1, T) to log likelihoods (G, S, T) of S models.
    spread : Tensor of shape (T,)
        Standard deviations of the targets; a scale for them where they are constant.
    total_weight : float
        Sum of the sample weights.
    is_constant : Tensor of shape (T,)
        Whether all values of a target are equal.
    """
    spread = sample_spread(spread, total_weight)
    log_std = log_level_grid(spread).unsqueeze(1)
    log_prior = log_level_prior(log_std, spread, total_weight)
    log_posterior = log_prior + log_likelihood(log_std)
    if bool(is_constant.any()):
        mixed = mix_with_prior(log_posterior, log_prior, total_weight)
        log_posterior = torch.where(is_constant.to(spread.device), mixed, log_posterior)
    return cell_levels(log_std.expand_as(log_posterior), log_posterior).movedim(0, 1)


def noise_levels(
    squares: Tensor, freedoms: Tensor, spread: Tensor, total_weight: float, is_constant: Tensor
) -> Tensor | None:
    """Standard deviations of the noise that stand for its posterior, (S, K, T).

    Parameters
    ----------
    squares : Tensor of shape (S, T)
        Weighted residual sums of squares of S models.
    freedoms : Tensor of shape (S, T)
        Total weight of the rows less the effective number of parameters.
    spread : Tensor of shape (T,)
        Standard deviations of the targets; a scale for them where they are constant.
    total_weight : float
        Sum of the sample weights.
    is_constant : Tensor of shape (T,)
        Whether all values of a target are equal.

    Returns
    -------
    Tensor or None
        None where the rows determine the noise.
    """

    def log_likelihood(log_std: Tensor) -> Tensor:
        residual = 0.5 * squares * (-2.0 * log_std).exp()
        return -(freedoms.clamp_min(0.0) * log_std + residual)

    if are_determined(freedoms, is_constant):
        return None
    return posterior_levels(log_likelihood, spread.to(squares), total_weight, is_constant)


def known_error_levels(
    squares: Tensor, known_variance: Tensor, weight: Tensor, freedoms: Tensor, spread: Tensor,
    is_constant: Tensor,
) -> Tensor | None:  # fmt: skip
    r"""Standard deviations of the noise of rows with known errors, (1, K, T), or None.

    The factor :math:`\sigma^{-\nu} e^{-R / 2 \sigma^2}` of the posterior becomes

    .. math:: \prod_i (\sigma^2 + e_i^2)^{-w_i \nu / 2 W} e^{-w_i r_i^2 / 2 (\sigma^2 + e_i^2)}

    for residuals :math:`r_i`, known errors :math:`e_i` and sample weights :math:`w_i` of sum W.

    Parameters
    ----------
    squares, known_variance : Tensor of shape (N, T)
        Squared residuals, and squares of the known errors.
    weight : Tensor of shape (N,)
        Sample weights.
    freedoms : Tensor of shape (T,)
        Total weight of the rows less the effective number of parameters.
    spread : Tensor of shape (T,)
        Standard deviations of the targets.
    is_constant : Tensor of shape (T,)
        Whether all values of a target are equal.

    Returns
    -------
    Tensor or None
        None if the rows determine the noise.
    """
    total_weight = float(weight.sum())

    def log_likelihood(log_std: Tensor) -> Tensor:
        variance = (2.0 * log_std).exp() + known_variance
        terms = freedoms.clamp_min(0.0) / total_weight * variance.log() + squares / variance
        return -0.5 * torch.einsum("n,gnt->gt", weight, terms).unsqueeze(1)

    if are_determined(freedoms, is_constant):
        return None
    return posterior_levels(log_likelihood, spread.to(squares), total_weight, is_constant)


def at_levels(distribution: NormalMixture, levels: Tensor) -> NormalMixture:
    """Replace the noise of S components by K levels each.

    Parameters
    ----------
    law : NormalMixture
        Mixture of S components.
    levels : Tensor of shape (S, K, T)
        Standard deviations of the noise, in the unit of the targets.
    """
    levels, n_levels = levels.to(distribution.loc), levels.shape[1]
    log_weights = distribution.log_weights
    if log_weights is None:
        log_weights = distribution.loc.new_full(
            (len(distribution.loc),), -log(len(distribution.loc))
        )
    each = log_weights.unsqueeze(1) + level_weights().to(distribution.loc).log()
    variance = distribution.variance.expand_as(distribution.loc).repeat_interleave(n_levels, dim=0)
    covariance = distribution.covariance
    if covariance is not None:
        covariance = covariance.repeat_interleave(n_levels, dim=0)
    return replace(
        distribution,
        loc=distribution.loc.repeat_interleave(n_levels, dim=0),
        variance=variance,
        noise_variance=levels.flatten(0, 1).unsqueeze(1).square(),
        log_weights=each.flatten(),
        covariance=covariance,
    )


def spread_levels(levels: Tensor, n_draws: int) -> Tensor:
    """Distribute the levels of one model over equally weighted draws of it, (n, 1, T).

    Parameters
    ----------
    levels : Tensor of shape (1, K, T)
        Standard deviations of the noise.
    n_draws : int
        Number of draws n.
    """
    position = (torch.arange(n_draws, dtype=torch.float64) + 0.5) / n_draws
    index = torch.searchsorted(level_weights().cumsum(0), position)
    return levels[0, index.clamp_max(levels.shape[1] - 1)].unsqueeze(1)


def draw_levels(levels: Tensor, component: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw the noise variance of every draw of a function, (n, 1, T).

    Parameters
    ----------
    levels : Tensor of shape (S, K, T)
        Standard deviations of the noise.
    component : Tensor of shape (n,)
        Component that every function was drawn from.
    generator : torch.Generator
        Source of randomness.
    """
    chosen = level_weights().multinomial(len(component), replacement=True, generator=generator)
    return levels[component.to(levels.device), chosen.to(levels.device)].square().unsqueeze(1)


def assign_levels(levels: Tensor, *, generator: torch.Generator) -> Tensor:
    """Assign every model one of its levels, in proportion to their probabilities, (S, T).

    Parameters
    ----------
    levels : Tensor of shape (S, K, T)
        Standard deviations of the noise of S equally weighted models.
    generator : torch.Generator
        Source of randomness.
    """
    n_models, _, n_targets = levels.shape
    ordered = (torch.arange(n_models, dtype=torch.float64) + 0.5) / n_models
    order = [torch.randperm(n_models, generator=generator) for _ in range(n_targets)]
    probability = ordered[torch.stack(order, 1)]
    index = torch.searchsorted(level_weights().cumsum(0), probability)
    index = index.clamp_max(levels.shape[1] - 1)
    return levels.gather(1, index.unsqueeze(1).to(levels.device)).squeeze(1)
