"""Sampled posteriors condensed to a few Gaussians."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.inference.multimodal.mixture_of_laplace import (
    MixtureOfLaplace,
    fit_mixture_of_laplace,
)
from skbayes_sym.inference.multimodal.modes import find_modes
from skbayes_sym.inference.multimodal.weights import LEAST_WEIGHT
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.models.data import Data
from skbayes_sym.numerics.random import generator_from


def mixture_of_laplace(estimator: Any, posterior: NetworkPosterior, n: int, seed: int) -> Any:
    """A copy of a fitted estimator whose draws come from a mixture of Laplace approximations."""
    position = _positions(estimator, posterior)
    mixture = _fit(estimator, posterior, position)
    drawn = mixture.sample(n, generator=generator_from(seed))
    theta, noise_std = posterior.split(drawn)
    approximate = copy.copy(estimator)
    approximate.__dict__.pop("_cache", None)
    approximate.samples_ = theta.numpy()[None].astype(estimator.samples_.dtype)
    approximate.chain_weights_ = np.ones(1)
    approximate.posterior_ = mixture
    offset = 0.0
    if hasattr(estimator, "noise_std_samples_"):
        approximate.noise_std_samples_ = noise_std.numpy()[None] * estimator.y_scale_
        offset = -float(posterior.data.weight.sum() * np.log(estimator.y_scale_).sum())
    approximate.log_posterior_samples_ = posterior(drawn).numpy()[None] + offset
    return approximate


def reference_posterior(estimator: Any, likelihood: Any, prior: Any) -> NetworkPosterior:
    """The posterior that a fitted estimator sampled, in float64 on the CPU."""
    x, y, weight = (torch.as_tensor(a) for a in estimator._training_data_)
    targets = y.double() if y.is_floating_point() else y
    return NetworkPosterior(
        estimator.network_, likelihood, prior, Data(x.double(), targets, weight.double()),
        float(getattr(estimator, "noise_prior_scale", 1.0)),
    )  # fmt: skip


def _positions(estimator: Any, posterior: NetworkPosterior) -> Tensor:
    """All draws as the sampler had them, (C, S, D)."""
    parts = [torch.as_tensor(estimator.samples_).double()]
    if hasattr(estimator, "noise_std_samples_"):
        parts.append(torch.as_tensor(estimator.noise_std_samples_ / estimator.y_scale_).log())
    return torch.cat(parts, dim=-1)


def _fit(estimator: Any, posterior: NetworkPosterior, position: Tensor) -> MixtureOfLaplace:
    """One Gaussian for every mode that the draws have weight in, at its best draw."""
    n_chains, n_draws, _ = position.shape
    chains = torch.arange(n_chains).repeat_interleave(n_draws)
    flat = position.flatten(0, 1)
    values = posterior(flat)
    labels = find_modes(flat, values, chains, posterior.network.symmetry()).labels
    share = torch.as_tensor(np.repeat(estimator.chain_weights_ / n_draws, n_draws))
    weights = torch.zeros(int(labels.max()) + 1, dtype=torch.float64).index_add_(0, labels, share)
    used = (weights >= LEAST_WEIGHT).nonzero().flatten().tolist()
    best = [values.masked_fill(labels != k, -torch.inf).argmax() for k in used]
    return fit_mixture_of_laplace(posterior, flat[torch.stack(best)], weights[used].log())
