"""Draws condensed to a few Gaussians."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.multimodal.mixture_of_laplace import (
    MixtureOfLaplace,
    fit_mixture_of_laplace,
)
from skbayes_sym.inference.multimodal.modes import find_modes
from skbayes_sym.inference.multimodal.weights import LEAST_WEIGHT
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.numerics.random import generator_from


class Approximation(NamedTuple):
    """Gaussians at the modes, and draws from them in scaled units."""

    posterior: MixtureOfLaplace
    theta: Array  # (n, P)
    noise_std: Array  # (n, T)
    likelihood_params: Array  # (n, n_params)
    log_posterior: Array  # (n,), of the posterior that is approximated, nats


def approximate(
    posterior: NetworkPosterior, position: Tensor, chain_weights: Array, n: int, seed: int
) -> Approximation:
    """A mixture of Laplace approximations of sampled modes, and ``n`` draws of it.

    Parameters
    ----------
    posterior : NetworkPosterior
        In float64, on the CPU.
    position : Tensor of shape (C, S, D)
        Draws on one representative of their orbits.
    chain_weights : ndarray of shape (C,)
    n, seed : int
    """
    mixture = _fit(posterior, position, chain_weights)
    drawn = mixture.sample(n, generator=generator_from(seed))
    theta, noise_std = posterior.split(drawn)
    own = drawn[:, theta.shape[-1] :]
    values = (theta, noise_std, own, posterior(drawn))
    return Approximation(mixture, *(t.numpy() for t in values))


def _fit(posterior: NetworkPosterior, position: Tensor, chain_weights: Array) -> MixtureOfLaplace:
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
