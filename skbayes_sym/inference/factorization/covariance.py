"""Families of row covariances: how free the Gaussian of each row is."""

from dataclasses import dataclass
from math import log, pi
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.data import ROW_BLOCK
from skbayes_sym.numerics.gaussian import kl_from_standard
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.symmetry.gaps.rotations import row_root


class CovarianceFamily(Protocol):
    """The best covariances of the family for given precisions.

    ``project`` maximises ``-1/2 tr(P_i S_i) + 1/2 log det S_i`` summed over the rows of one side;
    ``is_isotropic`` says that every S_i is a multiple of the identity, ``is_elementwise`` that it
    is diagonal.
    """

    @property
    def is_isotropic(self) -> bool: ...

    @property
    def is_elementwise(self) -> bool: ...

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        """(n, k, k) precisions and their Cholesky factors -> (n, k, k) covariances."""
        ...

    def pool(self, cov: Tensor) -> Tensor:
        """What each row's covariance is to be multiplied by to agree with the others, (n,)."""
        ...

    def cost(self, mean: Tensor, cov: Tensor, prior_scale: float) -> float:
        """What the sweeps' objective subtracts from the log likelihood, nats."""
        ...


class _Gaussian:
    """What the Gaussian families share: rows that know nothing of each other, and the KL."""

    def pool(self, cov: Tensor) -> Tensor:
        return cov.new_ones(len(cov))

    def cost(self, mean: Tensor, cov: Tensor, prior_scale: float) -> float:
        return kl_from_prior(mean, cov, prior_scale)


@dataclass(frozen=True)
class FullCovariance(_Gaussian):
    """Any covariance, ``S_i = P_i^-1``."""

    is_isotropic: bool = False
    is_elementwise: bool = False

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.cholesky_inverse(factor)


@dataclass(frozen=True)
class DiagonalCovariance(_Gaussian):
    """Independent entries, ``S_i = diag(P_i)^-1``."""

    is_isotropic: bool = False
    is_elementwise: bool = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.diag_embed(precision.diagonal(dim1=-2, dim2=-1).reciprocal())


@dataclass(frozen=True)
class RowCovariance(_Gaussian):
    """One variance a row, ``S_i = k / tr P_i``."""

    is_isotropic: bool = True
    is_elementwise: bool = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        variance = precision.diagonal(dim1=-2, dim2=-1).mean(-1).reciprocal()
        identity = torch.eye(precision.shape[-1], dtype=variance.dtype, device=variance.device)
        return variance[:, None, None] * identity


@dataclass(frozen=True)
class IsotropicCovariance(RowCovariance):
    """One variance for all rows of a side: the harmonic mean of theirs."""

    def pool(self, cov: Tensor) -> Tensor:
        variance = cov[:, 0, 0]
        return 1.0 / (variance * variance.reciprocal().mean())


@dataclass(frozen=True)
class PointMass:
    """No spread at all: the sweeps are alternating least squares and end at the MAP.

    The objective is then the log joint density, which bounds nothing. Fully observed, the product
    is the SVD of R with its values lowered by ``noise^2 sqrt(k) / prior_scale^2`` (Srebro, Rennie
    & Jaakkola 2005).
    """

    is_isotropic: bool = True
    is_elementwise: bool = True

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        return torch.zeros_like(precision)

    def pool(self, cov: Tensor) -> Tensor:
        return cov.new_ones(len(cov))

    def cost(self, mean: Tensor, cov: Tensor, prior_scale: float) -> float:
        squares = float((mean.double() / prior_scale).square().sum())
        return 0.5 * squares + 0.5 * mean.numel() * log(2.0 * pi * prior_scale**2)


def kl_from_prior(mean: Tensor, cov: Tensor, prior_scale: float) -> float:
    """KL[q || N(0, prior_scale^2)] of all rows, nats."""
    variances = cov.diagonal(dim1=-2, dim2=-1)
    log_dets = torch.cat([log_det(row_root(c)) for c in cov.split(ROW_BLOCK)]).double()
    trace, squares = (
        t.double().sum() / prior_scale**2 for t in (variances, mean.double().square())
    )
    log_ratio = log_dets.sum() - mean.numel() * 2.0 * log(prior_scale)
    return float(kl_from_standard(trace, squares, log_ratio, mean.numel()))
