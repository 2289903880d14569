"""Gaussian posterior approximations with samples and densities."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import (
    kl_elementwise,
    multivariate_normal_log_prob,
    normal_log_prob,
)
from skbayes_sym.numerics.linalg import cholesky, log_det
from skbayes_sym.numerics.random import float64_normal


@dataclass(frozen=True, eq=False)
class MeanFieldGaussian:
    """Independent normals over the flat parameter vector.

    Parameters
    ----------
    loc, scale : ndarray of shape (P,)
        Means and standard deviations, in the flat order of the network's layout.
    """

    loc: npt.NDArray[Any]
    scale: npt.NDArray[Any]

    def __repr__(self) -> str:
        return f"<independent normals of {len(self.loc):,} parameters>"

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors, (n, P), on the generator's device."""
        loc = torch.as_tensor(self.loc, device=generator.device)
        scale = torch.as_tensor(self.scale, device=generator.device)
        noise = float64_normal((n, len(loc)), generator=generator)
        return loc + scale * noise.to(loc.dtype)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Return the log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta)
        loc = torch.as_tensor(self.loc).to(theta)
        scale = torch.as_tensor(self.scale).to(theta)
        return normal_log_prob((theta - loc).square(), scale.log()).sum(-1)

    def kl_from(self, prior_scale: npt.ArrayLike) -> float:
        """Return KL[q || N(0, prior_scale^2)] in nats, in closed form."""
        loc = torch.as_tensor(self.loc)
        log_variance = 2.0 * torch.as_tensor(self.scale).log()
        log_prior_variance = 2.0 * torch.as_tensor(prior_scale).log()
        return float(kl_elementwise(loc, log_variance, log_prior_variance).sum())


class GaussianRows(NamedTuple):
    """Independent Gaussian rows of one factor.

    Parameters
    ----------
    mean : ndarray of shape (n, k)
        Means of n rows of k components.
    cov : ndarray of shape (n, k, k)
        Covariances of the rows.
    """

    mean: npt.NDArray[Any]
    cov: npt.NDArray[Any]

    def __repr__(self) -> str:
        n_rows, n_components = self.mean.shape
        return f"<{n_rows:,} Gaussian rows of {n_components} components>"


class MatrixPosterior(NamedTuple):
    """Independent Gaussian rows of the factors U and V of a matrix, in scaled units.

    As a `Posterior` its flat parameter vector ``theta`` has the rows of U first, then those of V.

    Parameters
    ----------
    rows, columns : GaussianRows
        Rows of U, which belong to rows of the matrix, and of V, which belong to its columns.
    """

    rows: GaussianRows
    columns: GaussianRows

    def __repr__(self) -> str:
        n_rows, n_components = self.rows.mean.shape
        n_columns = len(self.columns.mean)
        return (
            f"<posterior of a {n_rows:,} x {n_columns:,} matrix of {n_components} components: "
            "independent Gaussian rows of both factors>"
        )

    @property
    def mean(self) -> Tensor:
        """Means of all rows, (n + m, k), float64."""
        return torch.cat([torch.as_tensor(factor.mean).double() for factor in self])

    @property
    def cov(self) -> Tensor:
        """Covariances of all rows, (n + m, k, k), float64."""
        return torch.cat([torch.as_tensor(factor.cov).double() for factor in self])

    @property
    def is_isotropic(self) -> bool:
        """Whether every covariance is a multiple of the identity, up to rounding."""
        cov = self.cov
        variance = cov.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None]
        return self._rounds_to_zero(cov / variance - torch.eye(cov.shape[-1], dtype=cov.dtype))

    @property
    def is_elementwise(self) -> bool:
        """Whether every covariance is diagonal, up to rounding."""
        variance = self.cov.diagonal(dim1=-2, dim2=-1)
        scale = (variance.unsqueeze(-1) * variance.unsqueeze(-2)).sqrt()
        return self._rounds_to_zero((self.cov - torch.diag_embed(variance)) / scale)

    def _rounds_to_zero(self, correlation: Tensor) -> bool:
        """Whether relative deviations are no larger than the square root of the precision."""
        eps = torch.finfo(torch.as_tensor(self.rows.cov).dtype).eps
        return bool((correlation.abs() <= eps**0.5).all())

    def factors(self, n_components: int) -> "MatrixPosterior":
        """Return views of the first ``n_components`` components of every row."""
        k = n_components
        return MatrixPosterior(*(GaussianRows(f.mean[:, :k], f.cov[:, :k, :k]) for f in self))

    def rotated(self, axes: npt.NDArray[Any]) -> "MatrixPosterior":
        """Return the posterior in other axes, the rows of an orthogonal matrix (k, k)."""
        return MatrixPosterior(
            *(GaussianRows(f.mean @ axes.T, axes @ f.cov @ axes.T) for f in self)
        )

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` parameter vectors, (n, P), float64 on the generator's device; O(n P k)."""
        mean = self.mean.to(generator.device)
        cov = self.cov.to(generator.device)
        noise = float64_normal((n, *mean.shape, 1), generator=generator)
        return (mean + (self._root(cov) @ noise).squeeze(-1)).flatten(1)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Return the log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta, dtype=torch.float64)
        mean = self.mean.to(theta.device)
        root = self._root(self.cov).to(theta.device)
        deviation = (theta.unflatten(-1, mean.shape) - mean).unsqueeze(-1)
        z = torch.linalg.solve_triangular(root, deviation, upper=False).squeeze(-1)
        # Rows of the mean are independent, and their log densities are summed.
        return multivariate_normal_log_prob((z * z).sum(-1), log_det(root), mean.shape[1]).sum(-1)

    @staticmethod
    def _root(cov: Tensor) -> Tensor:
        """Return Cholesky factors of covariances."""
        return cholesky(
            cov,
            name="The covariance of a row",
            remedy="A point estimate (solver='map') has no draws and no density.",
        )
