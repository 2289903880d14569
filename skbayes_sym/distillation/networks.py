"""Hidden units that a student takes over from the networks of its teacher."""

from typing import Any

import numpy as np
import torch
from scipy.linalg import block_diag
from sklearn.base import BaseEstimator

from skbayes_sym.distillation.schooling import Schooling
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import num_samples, safe_indexing
from skbayes_sym.estimators.base import RowEstimator
from skbayes_sym.inspection._fitted import fitted_model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.student import KINDS, Student, hidden


def units_of_networks(
    model: BaseEstimator, rows: Any, arrays: dict[str, Array], size: Schooling
) -> dict[str, Array]:
    """Hidden units of the teacher's networks, as a student's columns enter them.

    Their outputs are the networks' mean and the directions in which they differ most, each with
    spread 1. Units that move none of these go. Nothing where there are no networks of at most one
    hidden layer, or what they read is no linear map of the columns.
    """
    inner, prepare = fitted_model(model)
    if not isinstance(inner, RowEstimator):
        return {}
    some = safe_indexing(rows, np.arange(min(size.n_probed, num_samples(rows))))
    columns = Student(arrays).columns(some)
    columns = np.hstack([columns, np.ones((len(columns), 1))])
    blocks = [*inner._input_blocks(inner._check_inputs(prepare(some)))]
    by_block = [inner._predictor(block).networks(block) for block in blocks]
    into, out, names, shares = [], [], [], []
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
        names += [kind] * into[-1].shape[1]
        shares += weight.tolist()
    if not 0 < len(shares) <= size.most_networks:
        return {}
    kinds, p = np.array([KINDS.index(name) for name in names]), np.array(shares) / np.sum(shares)
    order = np.argsort(kinds, kind="stable")
    kinds, entering, outputs = kinds[order], np.hstack(into)[:, order], block_diag(*out)[order]
    units = hidden(columns @ entering, np.searchsorted(kinds, [1, 2]))
    # From outputs to what sets each apart from their mean, where shares are their variances.
    apart = (np.eye(len(p)) - p[:, None]) * np.sqrt(p)
    away, least = units @ outputs @ apart, 1e-6 * (units @ outputs).std()
    _, spread, axes = np.linalg.svd(away - away.mean(axis=0), full_matrices=False)
    n = int((spread[: size.n_differences] > max(0.01 * spread[0], least)).sum())
    outputs = outputs @ np.hstack([p[:, None], apart @ axes[:n].T])
    moved = (units @ outputs).std(axis=0)
    if not moved.all():  # a constant
        return {}
    outputs = outputs / moved
    kept = (units.std(axis=0)[:, None] * np.abs(outputs)).max(axis=1) > 1e-5
    entering, outputs, units = entering[:, kept], outputs[kept], units[:, kept]
    if entering.size + outputs.size > size.most_numbers:
        return {}
    learned = {
        "units": entering[:-1], "unit_bias": entering[-1],
        "features": outputs, "feature_bias": -(units @ outputs).mean(axis=0),
    }  # fmt: skip
    learned = {name: array.astype(np.float32) for name, array in learned.items()}
    return learned | {"ends": np.searchsorted(kinds[kept], [1, 2])}
