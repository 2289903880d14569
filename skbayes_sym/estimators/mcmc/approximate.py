"""Draws condensed to a few Gaussians."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.modes.find import find_modes
from skbayes_sym.inference.modes.mixtures import (
    LowRankMixture,
    MixtureOfLaplace,
    fit_low_rank_mixture,
    fit_mixture_of_laplace,
)
from skbayes_sym.inference.modes.weigh import LEAST_WEIGHT
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.base import SymmetryGroup


class Approximation(NamedTuple):
    """A few Gaussians, and draws from them in scaled units."""

    posterior: MixtureOfLaplace | LowRankMixture
    theta: Array  # (n, P)
    noise_std: Array  # (n, T)
    likelihood_params: Array  # (n, n_params)
    log_posterior: Array  # (n,), of the posterior that is approximated, nats


def approximate(
    posterior: NetworkPosterior, mixture: MixtureOfLaplace | LowRankMixture, n: int, seed: int
) -> Approximation:
    """``n`` draws of an approximation of ``posterior``, which is in float64, on the CPU."""
    drawn = mixture.sample(n, generator=generator_from(seed))
    theta, noise_std = posterior.split(drawn)
    own = drawn[:, theta.shape[-1] :]
    values = (theta, noise_std, own, posterior(drawn))
    return Approximation(mixture, *(t.numpy() for t in values))


def a_gaussian_a_chain(
    position: Tensor, chain_weights: Array, group: SymmetryGroup
) -> LowRankMixture:
    """Of each chain's draws (C, S, D), each moved to the copy nearest the draw before.

    Labels that were chosen draw by draw are undone by that: a chain moves by less than its units
    are apart. Towards one draw of the chain they wouldn't be.
    """
    along = [position[:, 0]]
    for draw in position.unbind(1)[1:]:
        along.append(group.align(draw, along[-1])[0])
    return fit_low_rank_mixture(torch.stack(along, 1), torch.as_tensor(chain_weights).log())


def a_gaussian_a_mode(
    posterior: NetworkPosterior, position: Tensor, chain_weights: Array
) -> MixtureOfLaplace:
    """One Gaussian for every mode that the draws have weight in, at its best draw."""
    n_chains, n_draws, _ = position.shape
    chains = torch.arange(n_chains).repeat_interleave(n_draws)
    flat = position.flatten(0, 1)
    values = posterior(flat)
    labels = find_modes(flat, values, chains, posterior.network.symmetry()).labels
    share = torch.as_tensor(np.repeat(chain_weights / n_draws, n_draws))
    weights = torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, share)
    used = (weights >= LEAST_WEIGHT).nonzero().flatten().tolist()
    best = [values.masked_fill(labels != k, -torch.inf).argmax() for k in used]
    return fit_mixture_of_laplace(posterior, flat[torch.stack(best)], weights[used].log())
