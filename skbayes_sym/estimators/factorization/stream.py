"""More entries for a fit: what was seen so far, and the posterior that sweeps go on from."""

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.factorization.entries import Observed
from skbayes_sym.estimators.factorization.matrix_training import MatrixTraining
from skbayes_sym.inference.factorization.entry_predictor import FactorPredictor, law_cov
from skbayes_sym.inference.factorization.entry_sites import with_scale
from skbayes_sym.inference.factorization.factor_model import FactorModel, FactorState
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
    fitted: FactorPredictor,
    data: MatrixTraining,
    model: FactorModel,
    labels: tuple[Array, Array],
    ratio: float,
) -> FactorState:
    """The posterior of a fit over the rows and columns there are now; new ones at their prior.

    ``fitted``: of the entries so far; ``data``, ``model``: of all entries, with the same number of
    components and the same offsets; ``labels``: of the rows and columns of ``fitted``; ``ratio``:
    unit of its entries over that of all.
    """
    now = (data.observed.row_labels, data.observed.column_labels)
    start = model.prior.sides(data.shape, model.network, torch.zeros(1, dtype=torch.float64))
    means, covs, held = [], [], list[RowLaw]()
    sides = fitted.rows, fitted.columns
    for side, prior, law, old, new, free in zip(
        sides, start, fitted.laws, labels, now, model.network.sides, strict=True
    ):
        assert new is not None  # entries that are added to others have labels
        mean = torch.full((len(new), model.network.n_coordinates), free.pin).double()
        cov = torch.zeros(*mean.shape, mean.shape[1], dtype=torch.float64)
        place = torch.tensor(free.free)
        mean[:, place], cov[:, place.unsqueeze(-1), place] = prior.means(law), law_cov(law)
        known = torch.as_tensor(np.searchsorted(new, old))
        mean[known], cov[known] = side
        means.append(mean)
        covs.append(cov)
        held.append(RowLaw(law.precision.to(data.device), law.coefficients.to(data.device)))
    mean, cov = (torch.cat(parts).to(data.device, data.dtype) for parts in (means, covs))
    likelihood, scale = fitted.likelihood, fitted.likelihood.noise_scale
    if len(scale):
        likelihood = with_scale(likelihood, float(scale[0]) * ratio)
    return FactorState(mean, cov, likelihood, (held[0], held[1]))
