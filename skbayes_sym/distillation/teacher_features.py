"""Hidden units that a student takes over from the networks of its teacher."""

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import block_diag
from sklearn.base import BaseEstimator

from skbayes_sym.base.columns import OpenRows
from skbayes_sym.base.estimator import RowEstimator
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import num_samples, safe_indexing
from skbayes_sym.distillation.student_training import StudentConfig
from skbayes_sym.inspection._fitted import fitted_model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.student import KINDS, Student, hidden


class _Units(NamedTuple):
    """Hidden units of all networks side by side, those of one activation together."""

    ends: Array  # (2,), of the first and of the second kind
    entering: Array  # (D + 1, H), weights from the columns and from 1
    outputs: Array  # (H, M), weights to every network's output
    share: Array  # (M,), of the networks, which add up to 1

    def values(self, columns: Array) -> Array:
        """(N, H), of columns (N, D + 1)."""
        return hidden(columns @ self.entering, self.ends)


def network_units(
    model: BaseEstimator, rows: Any, arrays: dict[str, Array], size: StudentConfig
) -> dict[str, Array]:
    """Hidden units of the teacher's networks, as a student's columns enter them.

    Their outputs are the networks' mean and the directions in which they differ most, each with
    spread 1. Units that move none of these go. Nothing where there are no networks of at most one
    hidden layer, or what they read is no linear map of the columns.
    """
    some = safe_indexing(rows, np.arange(min(size.n_probed, num_samples(rows))))
    columns = Student(arrays).columns(some)
    columns = np.hstack([columns, np.ones((len(columns), 1))])
    units = _units(model, some, columns)
    if units is None or len(units.share) > size.most_networks:
        return {}
    p = units.share
    values = units.values(columns)
    # From outputs to what sets each apart from their mean, where shares are their variances.
    apart = (np.eye(len(p)) - p[:, None]) * np.sqrt(p)
    said = values @ units.outputs
    away = said @ apart
    least = 1e-6 * said.std()
    _, spread, axes = np.linalg.svd(away - away.mean(axis=0), full_matrices=False)
    n = int((spread[: size.n_differences] > max(0.01 * spread[0], least)).sum())
    outputs = units.outputs @ np.hstack([p[:, None], apart @ axes[:n].T])
    moved = (values @ outputs).std(axis=0)
    if not moved.all():  # a constant
        return {}
    outputs = outputs / moved
    kept = (values.std(axis=0)[:, None] * np.abs(outputs)).max(axis=1) > 1e-5
    entering = units.entering[:, kept]
    outputs = outputs[kept]
    values = values[:, kept]
    if entering.size + outputs.size > size.most_numbers:
        return {}
    learned = {
        "units": entering[:-1], "unit_bias": entering[-1],
        "features": outputs, "feature_bias": -(values @ outputs).mean(axis=0),
    }  # fmt: skip
    learned = {name: array.astype(np.float32) for name, array in learned.items()}
    return learned | {"ends": np.array([kept[:end].sum() for end in units.ends])}


def _units(model: BaseEstimator, rows: Any, columns: Array) -> _Units | None:
    """The units at some rows, whose ``columns`` (N, D + 1) end with 1; None without networks."""
    inner, prepare = fitted_model(model)
    if not isinstance(inner, RowEstimator):
        return None
    checked = inner.check_inputs(prepare(rows))
    if isinstance(checked, OpenRows):  # rows with unknown levels have no inputs of their own
        columns = columns[checked.known_index]
        checked = checked.known
    blocks = [*inner.input_blocks(checked)]
    by_block = [inner.predictor(block).networks(block) for block in blocks]
    into = []
    out = []
    kinds = []
    shares = []
    for alike in zip(*by_block, strict=True):
        _, network, theta, weight = alike[0]
        if not (isinstance(network, MLP) and network.n_layers < 3 and network.n_outputs == 1):
            continue
        inputs = torch.cat([each.x for each in alike]).double().cpu().numpy()
        kind = network.activation.name
        read = np.linalg.lstsq(columns, inputs, rcond=None)[0]
        is_linear = len(columns) > 2 * len(read) and np.abs(columns @ read - inputs).max() < 1e-5
        if kind not in KINDS or not is_linear:
            continue
        (w, b), *last = network.layers(theta.double().cpu())
        enters = np.tensordot(read, w.numpy(), (1, 2))
        enters[-1] += b.numpy()
        into.append(enters.reshape(len(read), -1))
        out += [*last[0][0].mT.numpy()] if last else [np.ones((1, 1))] * len(w)
        kinds += [KINDS.index(kind)] * into[-1].shape[1]
        shares += weight.tolist()
    if not shares:
        return None
    order = np.argsort(kinds, kind="stable")
    ends = np.searchsorted(np.array(kinds)[order], [1, 2])
    entering = np.hstack(into)[:, order]
    outputs = block_diag(*out)[order]
    return _Units(ends, entering, outputs, np.array(shares) / np.sum(shares))
