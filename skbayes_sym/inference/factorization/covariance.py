"""Families of row covariances: how free the Gaussian of each row is."""

from typing import ClassVar

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.symmetry.gaps.rotations import row_root


class CovarianceFamily:
    """The best covariances of the family for given precisions.

    ``project`` maximises ``-1/2 tr(P_i S_i) + 1/2 log det S_i`` summed over the rows of one side;
    ``is_isotropic`` says that every S_i is a multiple of the identity, ``is_elementwise`` that it
    is diagonal.
    """

    is_isotropic: ClassVar[bool] = False
    is_elementwise: ClassVar[bool] = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        """(n, k, k) precisions and their Cholesky factors -> (n, k, k) covariances."""
        raise NotImplementedError

    def pool(self, cov: Tensor) -> Tensor:
        """Multiples (n,) of each row's covariance that agree with the others'."""
        return cov.new_ones(len(cov))

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        """Entropy of rows with these variances (n, d), nats; 0 of points, which have none.

        ``log_det_precision`` is that of all precisions they were projected from together.
        """
        log_dets = float(variances.log().sum(-1).double().sum())
        return 0.5 * (log_dets + variances.numel() * (1.0 + LOG_2PI))


class FullCovariance(CovarianceFamily):
    """Any covariance, ``S_i = P_i^-1``."""

    is_elementwise = False

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.cholesky_inverse(factor)

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        return 0.5 * (variances.numel() * (1.0 + LOG_2PI) - log_det_precision)


class DiagonalCovariance(CovarianceFamily):
    """Independent entries, ``S_i = diag(P_i)^-1``."""

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.diag_embed(precision.diagonal(dim1=-2, dim2=-1).reciprocal())


class RowCovariance(CovarianceFamily):
    """A variance a row, ``S_i = k / tr P_i``."""

    is_isotropic = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        variance = precision.diagonal(dim1=-2, dim2=-1).mean(-1).reciprocal()
        identity = torch.eye(precision.shape[-1], dtype=variance.dtype, device=variance.device)
        return variance[:, None, None] * identity


class IsotropicCovariance(RowCovariance):
    """The same variance for all rows of a side: the harmonic mean of theirs."""

    def pool(self, cov: Tensor) -> Tensor:
        variance = cov[:, 0, 0]
        return 1.0 / (variance * variance.reciprocal().mean())


class PointMass(CovarianceFamily):
    """No spread at all: the sweeps are alternating least squares and end at the MAP.

    The objective is then the log joint density, which bounds nothing. Fully observed, the product
    is the SVD of R with its values lowered by ``noise^2 sqrt(k) / prior_scale^2`` (Srebro, Rennie
    & Jaakkola 2005).
    """

    is_isotropic = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.zeros_like(precision)

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        return 0.0


def row_entropy(cov: Tensor) -> float:
    """Entropy of independent normal rows, (n, d, d) -> nats."""
    log_dets = float(log_det(row_root(cov)).double().sum())
    return 0.5 * (log_dets + cov.shape[0] * cov.shape[1] * (1.0 + LOG_2PI))


def project_free(
    family: CovarianceFamily, precision: Tensor, factor: Tensor, n_components: int
) -> Tensor:
    """The best covariances of rows that have an offset too; independent of it unless full."""
    k = n_components
    if precision.shape[-1] == k or not family.is_elementwise:
        return family.project(precision, factor)
    cov = torch.zeros_like(precision)
    for part in (slice(k), slice(k, None)):
        cov[:, part, part] = family.project(precision[:, part, part], factor[:, part, part])
    return cov
