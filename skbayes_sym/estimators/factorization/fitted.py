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

    def row_log_densities(self, data: Incidence, features: Tensor) -> Tensor:
        """Log densities of the entries of new rows, scaled units, nats."""
        return row_log_densities(data, self.columns, self.columns.prior_means(features))

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

    def draw(self, i: Tensor, j: Tensor, rows: Rows | None, rng: np.random.Generator) -> Array:
        """One draw of entries without their noise, rows and columns drawn once each, scaled."""
        if self.draws is not None and rows is None:
            n, one = len(self.posterior.rows.mean), self.draws[rng.integers(len(self.draws))]
            u, v = one[:n], one[n:]
        else:
            side = GaussianRows(*self.posterior.rows)
            if rows is not None:
                side = GaussianRows(*(t.numpy() for t in rows))
            u, i = _drawn(side, i, rng)
            v, j = _drawn(self.posterior.columns, j, rng)
        product = np.sum(u[i.numpy()] * v[j.numpy()], axis=1)
        return np.asarray(product / np.sqrt(self.coordinates.n_components))

    def observed(self, entries: Array, rng: np.random.Generator) -> Array:
        """New observations of drawn entries (S, E), in the units of the matrix."""
        drawn = self.likelihood.draw(entries, self.noise, rng)
        return drawn * self.units.scale + self.units.mean


def _drawn(side: GaussianRows, at: Tensor, rng: np.random.Generator) -> tuple[Array, Tensor]:
    """Draws of the rows that are asked for, and where each is among them."""
    distinct, place = torch.unique(at, return_inverse=True)
    mean, cov = side.mean[distinct], np.asarray(side.cov[distinct], dtype=np.float64)
    values, vectors = np.linalg.eigh(cov)  # pinned coordinates have none
    root = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]
    noise = rng.standard_normal((*mean.shape, 1))
    return mean + (root @ noise)[..., 0], place
