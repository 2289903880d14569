"""Posterior of a linear model with more weights than rows, without a K x K array."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import multivariate_normal_log_prob
from skbayes_sym.numerics.linalg import cholesky, log_det, try_cholesky
from skbayes_sym.numerics.random import float64_normal

Floats = npt.NDArray[np.float64]

# Largest covariance that is built on demand, in bytes. A request for more is usually a mistake, and
# the operating system would grant it before it runs out of memory.
MAX_COVARIANCE_BYTES = 1 << 32
_COVARIANCE = "The posterior covariance of the weights"
_REMEDY = "Standardize the features, or drop the ones that others determine."


@dataclass(frozen=True, eq=False)
class LowRankGaussian:
    """Normal posterior of C rows of K weights that differs from the prior in r directions only.

    Row c is ``loc[c] + scale * (Q u_c + z_c)``. The coordinates ``u ~ N(0, covariance)`` have the
    length C r. In the directions that the data don't inform, ``z_c`` is distributed as under the
    prior: independent normals of variance ``prior_variance``, orthogonal to the columns of Q.

    Parameters
    ----------
    loc : ndarray of shape (C, K)
        Mean.
    scale : ndarray of shape (K,)
        Unit of every weight.
    basis : ndarray of shape (K, r), or None
        Orthonormal columns Q; None for the identity (r = K).
    covariance : ndarray of shape (C r, C r)
        Covariance of the coordinates ``u``, row by row.
    prior_variance : float or ndarray of shape (C,)
        Variance of the prior in these units.
    """

    loc: Floats
    scale: Floats
    basis: Floats | None
    covariance: Floats
    prior_variance: float | Floats

    def __repr__(self) -> str:
        n_rows, n_weights = self.loc.shape
        n_directions = len(self.covariance) // n_rows
        return (
            f"<normal posterior of {n_rows:,} x {n_weights:,} coefficients, with a full covariance "
            f"in {n_directions:,} directions>"
        )

    @property
    def n_weights(self) -> int:
        """Number C K of weights in all rows."""
        return self.loc.size

    @property
    def _free_variance(self) -> Floats:
        """Variance of each row in the directions that the data don't inform, (C,)."""
        return np.ones(len(self.loc)) * self.prior_variance

    @cached_property
    def _blocks(self) -> Floats:
        """Covariance of the coordinates, (C, r, C, r)."""
        n_rows = len(self.loc)
        r = len(self.covariance) // n_rows
        return self.covariance.reshape(n_rows, r, n_rows, r)

    def _factor(self) -> Tensor:
        """Return the Cholesky factor of the covariance of the coordinates."""
        return cholesky(torch.as_tensor(self.covariance), name=_COVARIANCE, remedy=_REMEDY)

    def _root(self) -> Tensor:
        """Return a matrix F with ``F F'`` equal to the covariance of the coordinates.

        It is the Cholesky factor, unless the targets determine some coordinates so well that their
        variance vanishes in this arithmetic.
        """
        covariance = torch.as_tensor(self.covariance)
        factor = try_cholesky(covariance)
        if factor is not None:
            return factor
        eigenvalues, vectors = torch.linalg.eigh(covariance)
        return vectors * eigenvalues.clamp_min(0.0).sqrt()

    def variance(self) -> Floats:
        """Return the variance of every weight, (C, K); O(C K r^2)."""
        return self.scale**2 * self._diagonal(self._blocks, self._free_variance)

    def _diagonal(self, blocks: Floats, free: Floats) -> Floats:
        """Return the diagonal of ``Q blocks Q'`` plus ``free`` times the complement, (C, K)."""
        rows = [blocks[c, :, c] for c in range(len(self.loc))]
        if self.basis is None:
            return np.array([np.diag(row) for row in rows])
        seen = [np.einsum("kr,kr->k", self.basis @ row, self.basis) for row in rows]
        unseen = np.maximum(1.0 - np.square(self.basis).sum(axis=1), 0.0)
        return np.array(seen) + free[:, None] * unseen

    def dense_covariance(self) -> Floats:
        """Return the covariance of all weights, row by row.

        Returns
        -------
        ndarray of shape (C K, C K)

        Raises
        ------
        MemoryError
            If it would take more than ``MAX_COVARIANCE_BYTES``.
        """
        n_rows, k = self.loc.shape
        n_bytes = 8 * (n_rows * k) ** 2
        if n_bytes > MAX_COVARIANCE_BYTES:
            raise MemoryError(
                f"the covariance of {n_rows * k} coefficients would take {n_bytes} bytes. "
                "Use coef_std_, predict(X, return_std=True), or the factors in posterior_ "
                "(basis, covariance, prior_variance, scale)."
            )
        if self.basis is None:
            dense = self._blocks.copy()
        else:
            free = np.einsum(
                "cd,rs->crds", np.diag(self._free_variance), np.eye(self.basis.shape[1])
            )
            change = self._blocks - free
            dense = np.empty((n_rows, k, n_rows, k))
            for c in range(n_rows):
                for d in range(n_rows):
                    dense[c, :, d] = self.basis @ change[c, :, d] @ self.basis.T
                dense[c, :, c].flat[:: k + 1] += self._free_variance[c]
        dense *= self.scale[:, None, None] * self.scale
        return dense.reshape(n_rows * k, n_rows * k)

    def precision(self) -> Tensor:
        """Return the inverse of `dense_covariance`, (C K, C K)."""
        covariance = torch.as_tensor(self.dense_covariance())
        return torch.cholesky_inverse(cholesky(covariance, name=_COVARIANCE, remedy=_REMEDY))

    def precision_diagonal(self) -> Tensor:
        """Return the inverse variance of every weight given the others, (C K,); O(C K r^2)."""
        inverse = torch.cholesky_inverse(self._factor()).view(self._blocks.shape).numpy()
        diagonal = self._diagonal(inverse, 1.0 / self._free_variance)
        return torch.as_tensor((diagonal / self.scale**2).ravel())

    def log_det_precision(self) -> Tensor:
        """Return the log determinant of `precision`, 0-d."""
        # Number of directions of each row that the data don't inform.
        n_free = (self.n_weights - len(self.covariance)) / len(self.loc)
        units = 2.0 * len(self.loc) * float(np.log(self.scale).sum())
        return -(
            log_det(self._factor()) + n_free * float(np.log(self._free_variance).sum()) + units
        )

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Sample ``n`` weight vectors, (n, C K), float64 on the generator's device; O(n C K r)."""
        n_rows, k = self.loc.shape
        loc = self._tensor(self.loc, generator)
        scale = self._tensor(self.scale, generator)
        root = self._root().to(generator.device)
        noise = float64_normal((n, len(self.covariance)), generator=generator)
        inside = (noise @ root.T).reshape(n, n_rows, -1)
        if self.basis is not None:
            basis = self._tensor(self.basis, generator)
            std = self._tensor(self._free_variance, generator)[:, None].sqrt()
            free = float64_normal((n, n_rows, k), generator=generator) * std
            inside = free + (inside - free @ basis) @ basis.T
        return (loc + scale * inside).flatten(1)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Return the log density in nats, (*B, C K) -> (*B,)."""
        theta = torch.as_tensor(theta, dtype=torch.float64)
        loc = self._tensor(self.loc, theta)
        scale = self._tensor(self.scale, theta)
        standardized = (theta.unflatten(-1, self.loc.shape) - loc) / scale
        if self.basis is None:
            inside = standardized
        else:
            inside = standardized @ self._tensor(self.basis, theta)
        free = (standardized * standardized).sum(-1) - (inside * inside).sum(-1)
        factor = self._factor().to(theta.device)
        z = torch.linalg.solve_triangular(factor, inside.flatten(-2).unsqueeze(-1), upper=False)
        squares = z.square().sum((-1, -2)) + (free / self._tensor(self._free_variance, theta)).sum(
            -1
        )
        return multivariate_normal_log_prob(squares, -self.log_det_precision(), self.n_weights)

    def output_moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moments of the outputs ``x W'``.

        Parameters
        ----------
        x : Tensor of shape (N, K)
            Inputs, float64.

        Returns
        -------
        mean : Tensor of shape (N, C)
            Means of the outputs.
        covariance : Tensor of shape (N, C, C)
            Covariances of the outputs of every row.
        """
        loc = torch.as_tensor(self.loc).to(x)
        scale = torch.as_tensor(self.scale).to(x)
        scaled = x * scale
        if self.basis is None:
            inside = scaled
        else:
            inside = scaled @ torch.as_tensor(self.basis).to(x)
        free = ((scaled * scaled).sum(-1) - (inside * inside).sum(-1)).clamp_min(0.0)
        blocks = torch.as_tensor(self._blocks).to(x)
        covariance = torch.einsum("nr,crds,ns->ncd", inside, blocks, inside)
        if self.basis is not None:
            free_variance = torch.as_tensor(self._free_variance).to(x).diag()
            covariance = covariance + free[:, None, None] * free_variance
        return x @ loc.T, covariance

    def output_covariance(self, x: Tensor) -> Tensor:
        """Return the joint covariance (N, N, C) of every output at all inputs (N, K), float64."""
        scaled = x * torch.as_tensor(self.scale).to(x)
        if self.basis is None:
            inside = scaled
        else:
            inside = scaled @ torch.as_tensor(self.basis).to(x)
        blocks = torch.as_tensor(np.einsum("crcs->crs", self._blocks)).to(x)
        covariance = (inside @ blocks @ inside.T).movedim(0, -1)
        if self.basis is None:
            return covariance
        unseen = scaled @ scaled.T - inside @ inside.T
        return covariance + unseen[..., None] * torch.as_tensor(self._free_variance).to(x)

    def output_root(self, x: Tensor) -> Tensor:
        """Return a root F of the joint covariance ``F F'`` of a single output, (N, r)."""
        if self.basis is None:
            return x * torch.as_tensor(self.scale).to(x) @ self._root().to(x)
        # There are more weights than rows, so that this is the smaller matrix.
        eigenvalues, vectors = torch.linalg.eigh(self.output_covariance(x)[..., 0])
        return vectors * eigenvalues.clamp_min(0.0).sqrt()

    @staticmethod
    def _tensor(values: Any, on: torch.Generator | Tensor) -> Tensor:
        """Return values as float64 on the device of a generator or tensor."""
        return torch.as_tensor(values, dtype=torch.float64, device=on.device)
