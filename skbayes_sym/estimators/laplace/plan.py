"""What the Laplace and LILA estimators decide before the first step: network, likelihood, plan."""

from numbers import Real
from typing import Any

import numpy as np
import torch
from sklearn.utils._param_validation import Interval, StrOptions

from skbayes_sym.estimators._fit.context import FitContext
from skbayes_sym.estimators._fit.model import hidden_layer_sizes, noise_stds
from skbayes_sym.estimators._fit.rows import Scaling, column_scaling
from skbayes_sym.estimators._fit.training import automatic_batch, rows_a_step
from skbayes_sym.estimators.laplace.recipe import Plan
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.models.augmentations.base import Identity
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.gaussian import Gaussian
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.models.networks.recording import RecordingNetwork

INITIAL_NOISE = 0.5  # in units of the target's standard deviation

NOISE_CONSTRAINTS: dict[str, list[Any]] = {
    "noise_std": [StrOptions({"learn"}), Interval(Real, 0, None, closed="neither"), "array-like"],
    "normalize_y": ["boolean"],
}


def noise_likelihood(estimator: Any, context: FitContext) -> tuple[Gaussian, Scaling, float]:
    """Gaussian likelihood and scaling of the targets, and the best constant's log likelihood."""
    y, weight = context.rows.y, context.rows.weight
    scaling = column_scaling(y, weight, enabled=estimator.normalize_y)
    spread = column_scaling(y, weight, enabled=True).scale / scaling.scale
    if isinstance(estimator.noise_std, str):
        noise, learn = INITIAL_NOISE * spread, True
    else:
        noise, learn = noise_stds(estimator, len(spread)) / scaling.scale, False
    level = spread if learn else noise
    baseline = -weight.sum() * np.sum(
        0.5 * (spread / level) ** 2 + np.log(level) + 0.5 * np.log(2 * np.pi)
    )
    likelihood = Gaussian(torch.as_tensor(np.log(noise)), learn=learn)
    return likelihood, scaling, float(baseline)


def class_likelihood(context: FitContext) -> tuple[Categorical, float]:
    """Softmax likelihood, and the log likelihood of the class frequencies."""
    counts = np.bincount(context.rows.y, weights=context.rows.weight)
    counts = counts[counts > 0]
    return Categorical(), float(np.sum(counts * np.log(counts / counts.sum())))


def table_network(estimator: Any, context: FitContext, n_outputs: int) -> RecordingNetwork:
    """The network for rows of a table."""
    n_features = context.rows.X.shape[1]
    if isinstance(estimator.network, torch.nn.Module):
        return checked_module(estimator.network, (n_features,), n_outputs)
    activation = ACTIVATIONS[estimator.activation]
    return MLP(n_features, hidden_layer_sizes(estimator), n_outputs, activation)


def checked_module(
    module: torch.nn.Module, input_shape: tuple[int, ...], n_outputs: int
) -> ModuleNetwork:
    """A module that takes these inputs and gives as many outputs."""
    network = ModuleNetwork(module, input_shape)
    theta = torch.zeros(network.layout.n_params)
    try:
        shape = tuple(network.record(theta, torch.zeros(1, *input_shape)).outputs.shape)
    except RuntimeError as error:
        raise ValueError(
            f"network doesn't take inputs of shape {input_shape}: {error}. Set image_shape or the "
            "module's own sizes."
        ) from error
    if shape != (1, n_outputs):
        raise ValueError(f"network must give {n_outputs} outputs a row, got shape {shape}.")
    return network


def table_plan(
    estimator: Any,
    context: FitContext,
    network: RecordingNetwork,
    likelihood: Likelihood,
    baseline: float,
) -> Plan:
    """The plan of a plain network: no transformations."""
    n_rows = len(context.rows.X)
    n_last = 1 if estimator.layers == "last" else None
    model = AveragedNetwork(network, Identity(), likelihood, 1, n_last)
    return Plan(
        model,
        rows_a_step(estimator, n_rows, automatic_batch(n_rows)),
        online=False,
        learn_precision=estimator.learn_prior,
        half_width_rate=0.0,
        reward=None,
        eta=torch.zeros(0, dtype=torch.float64),
        baseline=baseline,
    )
