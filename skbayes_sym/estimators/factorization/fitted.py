"""What a fitted factorisation predicts, in the units of the matrix."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.inference.factorization.coordinates import Coordinates
from skbayes_sym.inference.factorization.data import Incidence
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.likelihoods import EntryLikelihood, NoiseState, Seen
from skbayes_sym.inference.factorization.predictive import (
    Columns,
    Rows,
    draw_moments,
    entry_means,
    entry_variances,
    row_bound,
    row_log_densities,
    row_posterior,
)
from skbayes_sym.inference.posteriors import GaussianRows, MatrixPosterior


class Moments(NamedTuple):
    """Of entries without their noise, scaled units, float64; (E,) each."""

    mean: Tensor
    variance: Tensor


class Units(NamedTuple):
    """What entries were centred and divided by; the labels of ordinal ones."""

    mean: float
    scale: float
    classes: Array | None


@dataclass(frozen=True, eq=False)
class FittedFactors:
    """A fit, ready to be asked.

    Parameters
    ----------
    posterior : MatrixPosterior
        Rows in all coordinates, scaled units.
    coordinates : Coordinates
    law : RowLaw
        Prior of the rows.
    likelihood : EntryLikelihood
    noise : NoiseState
    units : Units
    draws : ndarray of shape (S, n + m, D), optional
        Of Gibbs sampling.
    """

    posterior: MatrixPosterior
    coordinates: Coordinates
    law: RowLaw
    likelihood: EntryLikelihood
    noise: NoiseState
    units: Units
    draws: Array | None = None

    @property
    def columns(self) -> Columns:
        """What new rows meet."""
        mean, cov = (torch.as_tensor(a).double() for a in self.posterior.columns)
        return Columns(mean, cov, self.coordinates, self.law, self.noise, self.likelihood)

    def new_rows(self, data: Incidence, features: Tensor) -> Rows:
        """Posterior of new rows given their entries, all coordinates, float64."""
        return row_posterior(data, self.columns, self.columns.prior_means(features))

    def row_log_density(self, data: Incidence, features: Tensor) -> float:
        """Log density of the entries of new rows, scaled units, nats; of others but normal ones a
        lower bound on it."""
        where = data, self.columns, self.columns.prior_means(features)
        if not self.likelihood.is_normal:
            return row_bound(*where)
        return float(row_log_densities(*where).sum())

    def moments(self, i: Tensor, j: Tensor, rows: Rows | None = None) -> Moments:
        """Of entries of the training matrix, or of new rows."""
        k = self.coordinates.n_components
        if self.draws is not None and rows is None:
            draws, n = torch.as_tensor(self.draws), len(self.posterior.rows.mean)
            return Moments(*(t.double() for t in draw_moments(draws, n, i, j, k)))
        own = (torch.as_tensor(a) for a in self.posterior.rows)
        mean, cov = own if rows is None else rows
        v, v_cov = (torch.as_tensor(a).to(mean) for a in self.posterior.columns)
        variance = entry_variances((mean, cov), (v, v_cov), i, j, k)
        return Moments(entry_means(mean, v, i, j, k).double(), variance.double())

    def means(self, i: Tensor, j: Tensor) -> Tensor:
        """Of entries of the training matrix, without the cost of variances."""
        if self.draws is not None:
            return self.moments(i, j).mean
        u, v = (torch.as_tensor(side.mean) for side in self.posterior)
        return entry_means(u, v, i, j, self.coordinates.n_components).double()

    def as_given(self, found: Moments) -> tuple[Array, Array]:
        """Mean and standard deviation of new observations, in the units of the matrix."""
        mean, variance = self.likelihood.new_moments(*found, self.noise)
        units = self.units
        return (mean * units.scale + units.mean).numpy(), (variance.sqrt() * units.scale).numpy()

    def mean_as_given(self, i: Tensor, j: Tensor) -> Array:
        """Mean of new observations of training entries."""
        if self.units.classes is not None:
            return self.as_given(self.moments(i, j))[0]
        return (self.means(i, j) * self.units.scale + self.units.mean).numpy()

    def log_densities(self, found: Moments, values: Array) -> Array:
        """Log densities of new observations as given, nats."""
        seen = Seen(torch.as_tensor(self.scaled(values)).double(), None, *found)
        density = self.likelihood.predictive_log_density(seen, self.noise)
        return (density - np.log(self.units.scale)).numpy()

    def scaled(self, values: Array) -> Array:
        """Values as the model has them: scaled, or positions among the labels.

        Raises
        ------
        ValueError
            If a value is no label that was seen.
        """
        mean, scale, classes = self.units
        if classes is None:
            return (np.asarray(values, dtype=np.float64) - mean) / scale
        place = np.searchsorted(classes, values).clip(max=len(classes) - 1)
        unknown = np.asarray(values)[classes[place] != values]
        if unknown.size:
            raise ValueError(f"{unknown[0]!r} is none of the labels {classes.tolist()}.")
        return place.astype(np.float64)

    def draws_of(
        self, i: Tensor, j: Tensor, rows: Rows | None, n_draws: int, rng: np.random.Generator
    ) -> Array:
        """Draws (S, E) of entries without their noise, in the units of the matrix.

        Rows and columns are drawn once a draw.
        """
        left, right = i.numpy(), j.numpy()
        if self.draws is not None and rows is None:
            n, chosen = len(self.posterior.rows.mean), rng.integers(len(self.draws), size=n_draws)
            pairs = ((self.draws[s, left], self.draws[s, n + right]) for s in chosen)
        else:
            own = self.posterior.rows
            if rows is not None:
                own = GaussianRows(rows.mean.numpy(), rows.cov.numpy())
            u, v = _Rows.of(own, left), _Rows.of(self.posterior.columns, right)
            pairs = ((u.draw(rng), v.draw(rng)) for _ in range(n_draws))
        root_k = np.sqrt(self.coordinates.n_components)
        products = [np.sum(one * other, axis=1) / root_k for one, other in pairs]
        return np.array(products) * self.units.scale + self.units.mean


class _Rows(NamedTuple):
    """The rows that entries are asked of, each once."""

    mean: Array  # (r, D)
    root: Array  # (r, D, D)
    place: Array  # (E,), of each entry's row among them

    @classmethod
    def of(cls, side: GaussianRows, at: Array) -> "_Rows":
        """Pinned coordinates have no variance, so roots are by eigenvalues."""
        distinct, place = np.unique(at, return_inverse=True)
        values, vectors = np.linalg.eigh(np.asarray(side.cov[distinct], dtype=np.float64))
        root = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]
        return cls(np.asarray(side.mean[distinct], dtype=np.float64), root, place)

    def draw(self, rng: np.random.Generator) -> Array:
        """(E, D)."""
        noise = rng.standard_normal((*self.mean.shape, 1))
        return np.asarray((self.mean + (self.root @ noise)[..., 0])[self.place])
