"""Posterior approximations as plain objects: arrays, draws, densities."""

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

    ``loc``, ``scale`` (P,): means and standard deviations, in the network's flat order.
    """

    loc: npt.NDArray[Any]
    scale: npt.NDArray[Any]

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P), on the generator's device."""
        loc, scale = (torch.as_tensor(a, device=generator.device) for a in (self.loc, self.scale))
        noise = float64_normal((n, len(loc)), generator=generator)
        return loc + scale * noise.to(loc.dtype)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta)
        loc, scale = (torch.as_tensor(a).to(theta) for a in (self.loc, self.scale))
        return normal_log_prob((theta - loc).square(), scale.log()).sum(-1)

    def kl_from(self, prior_scale: npt.ArrayLike) -> float:
        """KL[q || N(0, prior_scale^2)] in nats, closed form."""
        loc, scale, prior = (torch.as_tensor(a) for a in (self.loc, self.scale, prior_scale))
        return float(kl_elementwise(loc, 2.0 * scale.log(), 2.0 * prior.log()).sum())


class GaussianRows(NamedTuple):
    """Moments of the rows of one factor."""

    mean: npt.NDArray[Any]  # (n, k)
    cov: npt.NDArray[Any]  # (n, k, k)


class MatrixPosterior(NamedTuple):
    """Independent Gaussian rows of U and of V, in scaled units.

    As a `Posterior` its flat ``theta`` has the rows of U first, then those of V.
    """

    rows: GaussianRows
    columns: GaussianRows

    @property
    def mean(self) -> Tensor:
        """Means of all rows, (n + m, k), float64."""
        return torch.cat([torch.as_tensor(side.mean).double() for side in self])

    @property
    def cov(self) -> Tensor:
        """Covariances of all rows, (n + m, k, k), float64."""
        return torch.cat([torch.as_tensor(side.cov).double() for side in self])

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
        eps = torch.finfo(torch.as_tensor(self.rows.cov).dtype).eps
        return bool((correlation.abs() <= eps**0.5).all())

    def factors(self, n_components: int) -> "MatrixPosterior":
        """The first coordinates of every row alone; views."""
        k = n_components
        return MatrixPosterior(
            *(GaussianRows(side.mean[:, :k], side.cov[:, :k, :k]) for side in self)
        )

    def turned(self, axes: npt.NDArray[Any]) -> "MatrixPosterior":
        """The same in other axes, rows of an orthogonal (k, k)."""
        return MatrixPosterior(
            *(GaussianRows(side.mean @ axes.T, axes @ side.cov @ axes.T) for side in self)
        )

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P), float64 on the generator's device; O(n P k)."""
        mean, cov = (t.to(generator.device) for t in (self.mean, self.cov))
        noise = float64_normal((n, *mean.shape, 1), generator=generator)
        return (mean + (self._root(cov) @ noise).squeeze(-1)).flatten(1)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta, dtype=torch.float64)
        mean, root = (t.to(theta.device) for t in (self.mean, self._root(self.cov)))
        off = (theta.unflatten(-1, mean.shape) - mean).unsqueeze(-1)
        z = torch.linalg.solve_triangular(root, off, upper=False).squeeze(-1)
        return multivariate_normal_log_prob((z * z).sum(-1), log_det(root), mean.shape[1]).sum(-1)

    @staticmethod
    def _root(cov: Tensor) -> Tensor:
        return cholesky(
            cov,
            name="The covariance of a row",
            remedy="A point estimate (solver='map') has no draws and no density.",
        )
