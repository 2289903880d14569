"""More entries for a fit: what was seen so far, and the posterior that sweeps go on from."""

from typing import Any

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.factorization.entries import Observed
from skbayes_sym.estimators.factorization.fitted import FittedFactors
from skbayes_sym.estimators.factorization.training import MatrixTraining
from skbayes_sym.inference.factorization.predictive import law_cov
from skbayes_sym.inference.factorization.problem import Factorisation, FactorState


def joined(old: tuple[Any, ...], new: Observed) -> tuple[Array, Array, Array, Array]:
    """Rows, columns, values and weights of both, by label; the fields of a list of entries."""
    rows, columns = (
        at if labels is None else labels[at]
        for at, labels in ((new.rows, new.row_labels), (new.columns, new.column_labels))
    )
    weights = np.ones(len(new.values)) if new.weights is None else new.weights
    parts: tuple[Array, ...] = (rows, columns, new.values, weights)
    if new.row_labels is None and new.column_labels is None:
        # Missing entries say that rows and columns of a matrix are there.
        n, m = new.shape
        i = np.concatenate([np.arange(n), np.zeros(m, dtype=np.int64)])
        j = np.concatenate([np.zeros(n, dtype=np.int64), np.arange(m)])
        missing = (i, j, np.full(n + m, np.nan), np.ones(n + m))
        parts = tuple(np.concatenate(pair) for pair in zip(parts, missing, strict=True))
    if not old:
        old = tuple(part[:0] for part in parts)
    first, second, third, fourth = (np.concatenate(pair) for pair in zip(old, parts, strict=True))
    return first, second, third, fourth


def warm_state(
    fitted: FittedFactors,
    laws: tuple[tuple[Array, Array], ...],
    data: MatrixTraining,
    model: Factorisation,
    labels: tuple[Array, Array],
) -> FactorState:
    """The posterior of a fit over the rows and columns there are now; new ones at their prior.

    Parameters
    ----------
    fitted : FittedFactors
        Of the entries so far.
    laws : ((precision, coefficients), (precision, coefficients))
        Of its rows and columns.
    data, model
        Of all entries, with the same number of components and the same offsets.
    labels : (ndarray, ndarray)
        Of the rows and columns of ``fitted``.
    """
    means, covs, found = [], [], []
    now = (data.observed.row_labels, data.observed.column_labels)
    ratio = fitted.units.scale / data.scale
    start = model.priors(data.shape, torch.zeros(1, dtype=torch.float64))
    for side, prior, law, old, new, free in zip(
        fitted.posterior, start, laws, labels, now, model.coordinates.sides, strict=True
    ):
        if new is None:
            raise ValueError("entries that are added to others have labels.")
        held = prior.held(free.pin**2)._replace(
            precision=torch.as_tensor(law[0]), coefficients=torch.as_tensor(law[1])
        )
        found.append(held)
        mean = torch.full((len(new), model.coordinates.n_coordinates), free.pin).double()
        cov = torch.zeros(*mean.shape, mean.shape[1], dtype=torch.float64)
        at = torch.tensor(free.free)
        mean[:, at] = prior.means(held)
        cov[:, at.unsqueeze(-1), at] = law_cov(held)
        place = torch.as_tensor(np.searchsorted(new, old))
        mean[place] = torch.as_tensor(side.mean).double()
        cov[place] = torch.as_tensor(side.cov).double()
        means.append(mean)
        covs.append(cov)
    mean, cov = (torch.cat(parts).to(data.device, data.dtype) for parts in (means, covs))
    rows, columns = (
        held._replace(
            precision=held.precision.to(data.device), coefficients=held.coefficients.to(data.device)
        )
        for held in found
    )
    noise_variance = fitted.noise.variance * ratio**2
    return FactorState(mean, cov, noise_variance, (rows, columns), fitted.noise.cuts)
