"""What the Laplace and LILA estimators share: networks, priors and linearised predictions."""

from math import prod
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from skbayes_sym.base.model_factory import (
    NETWORK_CONSTRAINTS,
    OBJECT_CONSTRAINTS,
    PriorParameter,
    bind_prior,
    require_normal_prior,
    scale_array,
)
from skbayes_sym.base.progress import RUN_CONSTRAINTS
from skbayes_sym.base.requirements import ANY_PRIOR, RECORDED_LAYERS, refuse_parameters
from skbayes_sym.base.scikit_learn import Interval, StrOptions
from skbayes_sym.laplace.evidence import AveragedNetwork
from skbayes_sym.laplace.invariance_parameters import Transformations
from skbayes_sym.laplace.posterior import LaplacePosterior, LinearisedNetwork
from skbayes_sym.models.augmentations.augmentation import ImageShape
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import GaussianPrior, LayerScales, Prior, UnboundPrior

NETWORK_NAMES = frozenset(ARCHITECTURES)  # values of ``network`` besides "mlp"
# Initial scale of learned priors. From 3.0, networks with two layers of 50 units collapse onto a
# constant on 5 tables of 10, on which they predict 0.4 to 1.2 nats per row better from 1.0. With
# one layer it makes no difference.
INITIAL_SCALE = 1.0


def recording(network: Network | Any) -> RecordingNetwork:
    """Return the network, if it can record its layers.

    Raises
    ------
    TypeError
        If it can't.
    """
    RECORDED_LAYERS.require(network, "network")
    return network  # type: ignore[return-value]


def resolve_network(
    spec: Any, n_features: int, image_shape: ImageShape | None, n_outputs: int
) -> RecordingNetwork:
    """Return the network for values of ``network`` other than "mlp".

    Parameters
    ----------
    spec : str, torch.nn.Module or RecordingNetwork
        Name of an architecture, a module or a network.
    n_features : int
        Number of columns of ``X``.
    image_shape : tuple of int or None
        Shape (C, H, W) of the images that the rows hold.
    n_outputs : int
        Number of outputs that the network must have.

    Returns
    -------
    RecordingNetwork

    Raises
    ------
    ValueError
        If the shapes of inputs or outputs don't fit, or no weights are trained.
    TypeError
        If a network can't record its layers.
    """
    if isinstance(spec, str):
        if image_shape is None:
            raise ValueError(
                f"network={spec!r} takes images: give image_shape=(H, W) or (C, H, W), or use "
                "network='mlp'."
            )
        return ARCHITECTURES[spec](image_shape, n_outputs)
    if isinstance(spec, nn.Module):
        network: RecordingNetwork = ModuleNetwork(spec, image_shape or (n_features,))
    else:
        network = recording(spec)
    if not network.weight_layers:
        raise ValueError(
            "network has no Linear or Conv2d layer whose weights are trained (requires_grad): "
            "there is nothing to approximate the posterior of. Leave one of them unfrozen."
        )
    shape = tuple(network.input_shape)
    if prod(shape) != n_features:
        raise ValueError(f"network takes inputs of shape {shape}, but X has {n_features} columns.")
    theta = torch.zeros(network.layout.n_params)
    try:
        outputs = tuple(network.record(theta, torch.zeros(1, *shape)).outputs.shape)
    except RuntimeError as error:
        raise ValueError(
            f"network doesn't take inputs of shape {shape}: {error}. Set image_shape or the "
            "module's own sizes."
        ) from error
    if outputs != (1, n_outputs):
        raise ValueError(f"network must give {n_outputs} outputs per row, got shape {outputs}.")
    return network


def layer_prior(prior: PriorParameter, network: RecordingNetwork) -> GaussianPrior:
    """Return the normal prior of every parameter, from one scale or one per weight layer.

    "learn" starts from `INITIAL_SCALE`. Parameters that belong to no weight layer have the scale of
    the first one. A ValueError is raised for an object that isn't such a prior.
    """
    layers = network.weight_layers
    if isinstance(prior, UnboundPrior):
        return _require_layer_scales(bind_prior(prior, LayerScales(), network), network)
    layout = network.layout
    prior_scale = INITIAL_SCALE if isinstance(prior, str) else prior
    per_layer = np.broadcast_to(scale_array(prior_scale, layers=len(layers)), (len(layers),))
    scale = torch.full((layout.n_params,), float(per_layer[0]), dtype=torch.float64)
    for layer, value in zip(layers, per_layer, strict=True):
        for name in (layer.weight, layer.bias):
            if name is not None:
                scale[layout.slices[name]] = float(value)
    return GaussianPrior(scale)


def _require_layer_scales(prior: Prior, network: RecordingNetwork) -> GaussianPrior:
    """Return a prior that Adam's curvature can take; else raise."""
    ANY_PRIOR.require(prior, "prior")
    if prior.learned_scales is not None:
        raise ValueError(
            "this prior learns its scales by Gauss-Newton steps, but the network is trained by "
            "Adam. Use prior='learn', a number, or LaplaceRegressor or LaplaceClassifier with "
            "optimizer='gauss-newton'."
        )
    normal = require_normal_prior(prior)
    slices = network.layout.slices
    first = [float(normal.scale[slices[layer.weight]][0]) for layer in network.weight_layers]
    if not torch.allclose(layer_prior(first, network).scale.to(normal.scale), normal.scale):
        raise ValueError(
            "Adam's curvature takes one prior scale per layer, of both weights and biases. Use "
            "Normal(scale) with one number or one per layer, or LaplaceRegressor or "
            "LaplaceClassifier with optimizer='gauss-newton'."
        )
    return normal


def layer_precisions(network: RecordingNetwork, precision: Tensor) -> Tensor:
    """Return the prior precision of every weight layer, from those of the parameters (P,)."""
    layout = network.layout
    first = [layout.slices[layer.weight].start for layer in network.weight_layers]
    return precision[first]


CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "likelihood": OBJECT_CONSTRAINTS["likelihood"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "random_state": ["random_state"],
}
CLASSIFIER_CONSTRAINTS: dict[str, list[Any]] = {
    "predictive": [StrOptions({"sampling", "plugin"}), Interval(Integral, 1, None, closed="left")]
}


def custom_network(
    estimator: BaseEstimator, n_features: int, image_shape: ImageShape | None, n_outputs: int
) -> RecordingNetwork:
    """Return the network for values of ``network`` other than "mlp".

    Parameters
    ----------
    estimator : BaseEstimator
        Estimator with the parameters ``network``, ``hidden_layer_sizes`` and ``activation``.
    n_features : int
        Number of columns of ``X``.
    image_shape : tuple of int or None
        Shape (C, H, W) of the images that the rows hold.
    n_outputs : int
        Number of outputs that the network must have.

    Returns
    -------
    RecordingNetwork

    Raises
    ------
    ValueError
        If widths or an activation are given, too.
    """
    names = ("hidden_layer_sizes", "activation")
    refuse_parameters(estimator, names, "network brings its own layers", "network='mlp'")
    network = estimator.get_params(deep=False)["network"]
    return resolve_network(network, n_features, image_shape, n_outputs)


def linearise(
    network: RecordingNetwork,
    posterior: LaplacePosterior,
    transformations: Transformations,
    n_layers: int,
    seed: int,
) -> LinearisedNetwork:
    """Linearise a network at its mode, averaged over transformations of the input.

    Parameters
    ----------
    network : RecordingNetwork
        Architecture.
    posterior : LaplacePosterior
        Posterior of its weights.
    transformations : Transformations
        Transformations over which the outputs are averaged.
    n_layers : int
        Number of layers that the posterior covers.
    seed : int
        Seed of the transformations' noise.

    Returns
    -------
    LinearisedNetwork
    """
    augmentation, eta, _ = transformations
    noise = transformations.noise(seed).to(eta)
    unused_likelihood = Categorical()
    model = AveragedNetwork(
        network, augmentation, unused_likelihood, n_samples=len(noise), n_last=n_layers
    )
    return LinearisedNetwork(model, posterior.tensors(eta), eta, noise)
