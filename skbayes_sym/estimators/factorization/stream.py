"""More entries for a fit: what was seen so far, and the posterior that sweeps go on from."""

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.factorization.entries import Observed
from skbayes_sym.estimators.factorization.matrix_training import MatrixTraining
from skbayes_sym.inference.factorization.entry_predictor import FactorPredictor
from skbayes_sym.inference.factorization.entry_sites import with_scale
from skbayes_sym.inference.factorization.factor_model import FactorState
from skbayes_sym.inference.factorization.hyperpriors import RowLaw

Listed = tuple[Array, Array, Array, Array]  # rows, columns, values and weights, by label


def joined(old: Listed | None, new: Observed) -> Listed:
    """Rows, columns, values and weights of both, by label; the fields of a list of entries.

    What is new replaces what was there of the same row and column.

    Raises ValueError if labels that were numbers are words now, or the other way round.
    """
    rows, columns = new.labelled
    weights = np.ones(len(new.values)) if new.weights is None else new.weights
    parts: tuple[Array, ...] = (rows, columns, new.values, weights)
    if new.row_labels is None and new.column_labels is None:
        # Missing entries say that rows and columns of a matrix are there.
        n, m = new.shape
        i = np.concatenate([np.arange(n), np.zeros(m, dtype=np.int64)])
        j = np.concatenate([np.zeros(n, dtype=np.int64), np.arange(m)])
        missing = (i, j, np.full(n + m, np.nan), np.ones(n + m))
        parts = tuple(np.concatenate(pair) for pair in zip(parts, missing, strict=True))
    if old is None:
        return parts[0], parts[1], parts[2], parts[3]
    for name, before, now in zip(("rows", "columns"), old, parts, strict=False):
        if (before.dtype.kind in "US") != (now.dtype.kind in "US"):
            raise ValueError(
                f"{name} of partial_fit are {now.dtype}, but were {before.dtype} before: give one "
                "kind of label throughout."
            )
    n_old = len(old[0])
    codes = [
        np.unique(np.concatenate(pair), return_inverse=True)[1]
        for pair in zip(old[:2], parts[:2], strict=True)
    ]
    place = codes[0].astype(np.int64) * (codes[1].max(initial=0) + 1) + codes[1]
    is_new = np.concatenate([np.zeros(n_old, dtype=bool), ~np.isnan(parts[2])])
    stays = ~np.isin(place[:n_old], place[is_new])
    first, second, third, fourth = (
        np.concatenate([before[stays], now]) for before, now in zip(old, parts, strict=True)
    )
    return first, second, third, fourth


def warm_state(
    fitted: FactorPredictor, data: MatrixTraining, labels: tuple[Array, Array], ratio: float
) -> FactorState:
    """The posterior of a fit over the rows and columns there are now; new ones at their prior.

    ``fitted``: of the entries so far, with as many components and the offsets of now; ``data``: of
    all entries; ``labels``: of the rows and columns of ``fitted``; ``ratio``: unit of its entries
    over that of all.
    """
    order, n_new, observed = list[Tensor](), list[int](), data.observed
    for old, new in zip(labels, (observed.row_labels, observed.column_labels), strict=True):
        assert new is not None  # entries that are added to others have labels
        place = np.full(len(new), -1)
        place[np.searchsorted(new, old)] = np.arange(len(old))
        is_new = place < 0
        place[is_new] = len(old) + np.arange(np.count_nonzero(is_new))
        order.append(torch.as_tensor(place))
        n_new.append(int(np.count_nonzero(is_new)))
    wider = fitted.with_unknown(*n_new)
    sides = [
        [part[places].to(data.device, data.dtype) for part in side]
        for side, places in zip((wider.rows, wider.columns), order, strict=True)
    ]
    mean, cov = (torch.cat(parts) for parts in zip(*sides, strict=True))
    first, second = (
        RowLaw(law.precision.to(data.device), law.coefficients.to(data.device))
        for law in fitted.laws
    )
    likelihood, scale = fitted.likelihood, fitted.likelihood.noise_scale
    if len(scale):
        likelihood = with_scale(likelihood, float(scale[0]) * ratio)
    return FactorState(mean, cov, likelihood, (first, second))
