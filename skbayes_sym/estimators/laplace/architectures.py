"""Values of ``network``, and the prior of its layers."""

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skbayes_sym.estimators._fit.building import GivenPrior, scale_array
from skbayes_sym.estimators._fit.compatibility import RECORDED
from skbayes_sym.models.augmentations.augmentation import ImageShape
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.network import Network, RecordingNetwork
from skbayes_sym.models.priors import GaussianPrior

NAMES = frozenset(ARCHITECTURES)  # what ``network`` may be called beside "mlp"
START_SCALE = 3.0  # of priors that are learned: from a small one the network collapses


def recording(network: Network | Any) -> RecordingNetwork:
    """The same network, as one that shows its layers.

    Raises TypeError: naming what it lacks.
    """
    RECORDED.require(network, "network")
    return network  # type: ignore[return-value]


def chosen_network(
    given: Any, n_features: int, image_shape: ImageShape | None, n_outputs: int
) -> RecordingNetwork:
    """The network that ``network`` names or is, if it isn't "mlp"."""
    if isinstance(given, str):
        if image_shape is None:
            raise ValueError(
                f"network={given!r} takes images: give image_shape=(H, W) or (C, H, W), or use "
                "network='mlp'."
            )
        return ARCHITECTURES[given](image_shape, n_outputs)
    is_module = isinstance(given, nn.Module)
    network = ModuleNetwork(given, image_shape or (n_features,)) if is_module else recording(given)
    _check_shapes(network, n_features, n_outputs)
    return network


def _check_shapes(network: RecordingNetwork, n_features: int, n_outputs: int) -> None:
    """Raise unless it takes a row of ``X`` and gives as many outputs."""
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


def layer_prior(prior: GivenPrior, network: RecordingNetwork) -> GaussianPrior:
    """``prior`` for every parameter: one number, or one per weight layer.

    "learn" starts from `START_SCALE`. Parameters in no weight layer have the first one's.
    """
    layers, layout = network.weight_layers, network.layout
    given = START_SCALE if isinstance(prior, str) else prior
    per_layer = np.broadcast_to(scale_array(given, layers=len(layers)), (len(layers),))
    scale = torch.full((layout.n_params,), float(per_layer[0]), dtype=torch.float64)
    for layer, value in zip(layers, per_layer, strict=True):
        for name in (layer.weight, layer.bias):
            if name is not None:
                scale[layout.slices[name]] = float(value)
    return GaussianPrior(scale)


def layer_precisions(network: RecordingNetwork, precision: Tensor) -> Tensor:
    """Prior precisions (P,) as one for every weight layer."""
    layout = network.layout
    first = [layout.slices[layer.weight].start for layer in network.weight_layers]
    return precision[first]
