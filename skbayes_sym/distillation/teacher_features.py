"""Hidden units of a teacher's networks as features of its student."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag
from sklearn.base import BaseEstimator

from skbayes_sym.base.classifier import BayesianClassifierMixin
from skbayes_sym.base.columns import OpenRows
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.distillation.student_training import StudentConfig
from skbayes_sym.inspection._fitted import unwrap_fitted
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.student import FEATURE_ACTIVATIONS, Student, apply_activations


class _HiddenUnits(NamedTuple):
    """Hidden units of all networks side by side, sorted by activation.

    Attributes
    ----------
    activation_ends : ndarray of shape (2,)
        Ends of the units with the first and the second of `FEATURE_ACTIVATIONS`.
    input_weights : ndarray of shape (D + 1, H)
        Weights from the columns and, last, biases.
    output_weights : ndarray of shape (H, M)
        Weights to every network's output.
    network_weights : ndarray of shape (M,)
        Weights of the networks in the teacher's mixture, with sum 1.
    """

    activation_ends: Array
    input_weights: Array
    output_weights: Array
    network_weights: Array

    def values(self, columns: Array) -> Array:
        """Activations (N, H) for columns (N, D + 1)."""
        return apply_activations(columns @ self.input_weights, self.activation_ends)


def extract_features(
    model: BaseEstimator, rows: Any, arrays: dict[str, Array], config: StudentConfig
) -> dict[str, Array]:
    """Extract hidden units of the teacher's networks as functions of the student's columns.

    The features are the weighted mean of the networks' outputs and the directions in which the
    outputs differ most, each scaled to standard deviation 1. Units that contribute to none of them
    are removed.

    Parameters
    ----------
    model : fitted estimator
        Teacher.
    rows : array or frame
        Rows at which the networks are evaluated.
    arrays : dict of str to ndarray
        Encoding of the columns, see `Student`.
    config : StudentConfig
        Numbers of rows, networks and features.

    Returns
    -------
    dict of str to ndarray
        Arrays of the student. Empty if the teacher has no networks with at most one hidden layer,
        or if their inputs aren't linear in the student's columns.
    """
    n_rows = min(config.n_probe_rows, num_samples(rows))
    probe_rows = safe_indexing(rows, np.arange(n_rows))
    columns = Student(arrays).encode_columns(probe_rows)
    columns = np.hstack([columns, np.ones((len(columns), 1))])
    units = _collect_units(model, probe_rows, columns)
    if units is None or len(units.network_weights) > config.max_networks:
        return {}

    # Directions in which the networks differ from their mean: principal components of the outputs,
    # with the networks' weights.
    p = units.network_weights
    values = units.values(columns)
    to_deviations = (np.eye(len(p)) - p[:, None]) * np.sqrt(p)
    network_outputs = values @ units.output_weights
    deviations = network_outputs @ to_deviations
    min_spread = 1e-6 * network_outputs.std()
    centred = deviations - deviations.mean(axis=0)
    _, spread, axes = np.linalg.svd(centred, full_matrices=False)
    is_relevant = spread[: config.n_directions] > max(0.01 * spread[0], min_spread)
    n_directions = int(is_relevant.sum())
    directions = np.hstack([p[:, None], to_deviations @ axes[:n_directions].T])
    output_weights = units.output_weights @ directions
    feature_scale = (values @ output_weights).std(axis=0)
    if not feature_scale.all():  # a constant
        return {}
    output_weights = output_weights / feature_scale

    # Units that move no feature are removed.
    effects = values.std(axis=0)[:, None] * np.abs(output_weights)
    is_used = effects.max(axis=1) > 1e-5
    input_weights = units.input_weights[:, is_used]
    output_weights = output_weights[is_used]
    values = values[:, is_used]
    if input_weights.size + output_weights.size > config.max_feature_weights:
        return {}
    features = {
        "units": input_weights[:-1],
        "unit_bias": input_weights[-1],
        "features": output_weights,
        "feature_bias": -(values @ output_weights).mean(axis=0),
    }
    features = {name: array.astype(np.float32) for name, array in features.items()}
    activation_ends = np.array([is_used[:end].sum() for end in units.activation_ends])
    return features | {"activation_ends": activation_ends}


def _collect_units(model: BaseEstimator, rows: Any, columns: Array) -> _HiddenUnits | None:
    """Hidden units of all networks, or None if there are none.

    The inputs of the networks at ``rows`` are regressed on ``columns`` (N, D + 1), whose last
    column is 1. Networks whose inputs aren't linear in the columns are left out.
    """
    inner, prepare = unwrap_fitted(model)
    if not isinstance(inner, BayesianRegressorMixin | BayesianClassifierMixin):
        return None
    checked = inner.check_inputs(prepare(rows))
    if isinstance(checked, OpenRows):  # rows with unknown levels have several sets of inputs
        columns = columns[checked.known_index]
        checked = checked.known
    blocks = [*inner.input_blocks(checked)]
    components_by_block = [inner.predictor(block).networks(block) for block in blocks]

    input_weights = []
    output_weights = []
    activations = []
    network_weights = []
    for components in zip(*components_by_block, strict=True):
        _, network, theta, weight = components[0]
        if not (isinstance(network, MLP) and network.n_layers < 3 and network.n_outputs == 1):
            continue
        inputs = torch.cat([component.x for component in components]).double().cpu().numpy()
        activation = network.activation.name
        coef = np.linalg.lstsq(columns, inputs, rcond=None)[0]
        is_overdetermined = len(columns) > 2 * len(coef)
        is_linear = is_overdetermined and np.abs(columns @ coef - inputs).max() < 1e-5
        if activation not in FEATURE_ACTIVATIONS or not is_linear:
            continue
        (w, b), *last_layer = network.layers(theta.double().cpu())
        weights = np.tensordot(coef, w.numpy(), (1, 2))
        weights[-1] += b.numpy()
        input_weights.append(weights.reshape(len(coef), -1))
        if last_layer:
            output_weights += [*last_layer[0][0].mT.numpy()]
        else:  # a linear model is its own hidden unit
            output_weights += [np.ones((1, 1))] * len(w)
        n_units = input_weights[-1].shape[1]
        activations += [FEATURE_ACTIVATIONS.index(activation)] * n_units
        network_weights += weight.tolist()
    if not network_weights:
        return None

    order = np.argsort(activations, kind="stable")
    activation_ends = np.searchsorted(np.array(activations)[order], [1, 2])
    return _HiddenUnits(
        activation_ends,
        np.hstack(input_weights)[:, order],
        block_diag(*output_weights)[order],
        np.array(network_weights) / np.sum(network_weights),
    )
