"""Posteriors that are weighted draws of a network's weights: predictions and export."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.predictor import DrawsPredictor
from skbayes_sym.base.rows import Array
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import CLASSIFICATION_SCALES, HalfNormal, LayerScales


def noise_prior_scale(noise_std: Any) -> float:
    """Return the scale of the half-normal prior of the noise level, in scaled units."""
    if isinstance(noise_std, HalfNormal):
        return noise_std.scale
    return 1.0


def require_noise(likelihood: Likelihood, noise_std: Any) -> Likelihood:
    """Return a regression likelihood; a ValueError if a prior is given for noise it lacks."""
    if isinstance(noise_std, HalfNormal) and not likelihood.n_params:
        raise ValueError(
            f"noise_std={noise_std!r} does not apply: the likelihood has no noise to "
            "learn. Leave noise_std at its default, or use another likelihood."
        )
    return likelihood


def refuse_free_parameters(likelihood: Likelihood) -> Likelihood:
    """Return a class likelihood; a ValueError if it has free parameters."""
    if likelihood.n_params:
        raise ValueError(
            f"likelihood={likelihood!r} has free parameters, which classifiers don't sample: "
            "fix them."
        )
    return likelihood


def learned_class_prior(network: Network) -> LayerScales:
    """Return the prior of "learn" for classifiers.

    Networks with hidden units need a stronger hyperprior, because the scales of separable classes
    would otherwise grow without limit.
    """
    if network.symmetry().factors:
        return CLASSIFICATION_SCALES
    return LayerScales()


def draws_predictor(
    network: Network,
    samples: Array,
    likelihood: Likelihood,
    weights: Array | None,
    like: Tensor,
) -> DrawsPredictor:
    """Return the predictor of all draws, on the device and in the precision of ``like``.

    Parameters
    ----------
    network : Network
        Architecture.
    samples : ndarray of shape (n_chains, ..., P)
        Draws of the network's weights.
    likelihood : Likelihood
        Likelihood with the parameters of every draw.
    weights : ndarray of shape (S,), optional
        Weight of every draw; equal weights by default.
    like : Tensor
        Tensor whose device and precision the predictor has.

    Returns
    -------
    DrawsPredictor
    """
    if weights is None:
        log_weights = None
    else:
        log_weights = torch.as_tensor(np.log(weights)).to(like)
    theta = torch.as_tensor(samples).flatten(0, -2).to(like)
    return DrawsPredictor(network, theta, likelihood.to(like), log_weights)


def to_arviz(
    network: Network,
    samples: Array,
    log_posterior: Array,
    noise_std: Array | None,
    feature_names: Sequence[str] | None = None,
) -> Any:
    """Export draws for ArviZ.

    Parameters
    ----------
    network : Network
        Architecture, whose layout names the weights.
    samples : ndarray of shape (n_chains, n_draws, P)
        Draws of the network's weights.
    log_posterior : ndarray of shape (n_chains, n_draws)
        Log posterior density of the draws.
    noise_std : ndarray of shape (n_chains, n_draws, n_targets), optional
        Noise level of every draw.
    feature_names : sequence of str, optional
        Names of the columns of ``X``, by which the inputs of an MLP are labelled.

    Returns
    -------
    xarray.DataTree
        Groups ``posterior`` and ``sample_stats``.

    Raises
    ------
    ImportError
        Without the package arviz-base (extra ``arviz``).
    """
    try:
        from arviz_base import from_dict
    except ImportError as error:
        raise ImportError("to_arviz needs arviz-base: pip install arviz-base.") from error
    theta = torch.as_tensor(samples)
    draws = {name: values.numpy() for name, values in network.layout.unflatten(theta).items()}
    if noise_std is not None:
        draws["noise_std"] = noise_std
    dims = {"noise_std": ["target"]}
    coords: dict[str, Any] = {}
    if isinstance(network, MLP):
        hidden = [f"unit_{i}" for i in range(1, network.n_layers)]
        axes = ["input", *hidden, "output"]
        for i in range(1, network.n_layers + 1):
            dims[f"W{i}"] = [axes[i], axes[i - 1]]
            dims[f"b{i}"] = [axes[i]]
        if feature_names is not None and len(feature_names) == network.n_inputs:
            coords["input"] = list(feature_names)
    groups = {"posterior": draws, "sample_stats": {"lp": log_posterior}}
    # Without this check: ArviZ suspects swapped dimensions if there are more chains than draws,
    # which is common here.
    return from_dict(groups, dims=dims, coords=coords, check_conventions=False)
