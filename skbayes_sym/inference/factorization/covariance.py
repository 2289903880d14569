"""Families of row covariances: how free the Gaussian of each row is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import LOG_2PI
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.symmetry.gaps.rotations import row_root


@dataclass(frozen=True)
class CovarianceFamily:
    """The best covariances of a family for given precisions ``P_i``.

    ``kind``: "full", any ``S_i = P_i^-1``; "diag", independent entries, ``diag(P_i)^-1``; "row", a
    variance a row, ``k / tr P_i``; "isotropic", one for all rows of a side, the harmonic mean of
    theirs; "none", points: sweeps are alternating least squares and end at the MAP, and their
    objective is the log joint density, which bounds nothing. Fully observed, the product is then
    the SVD of R with its values lowered by ``noise^2 sqrt(k) / prior_scale^2`` (Srebro, Rennie &
    Jaakkola 2005).
    """

    kind: str

    @property
    def is_isotropic(self) -> bool:
        """Whether every S_i is a multiple of the identity."""
        return self.kind in ("row", "isotropic", "none")

    @property
    def is_elementwise(self) -> bool:
        """Whether every S_i is diagonal."""
        return self.kind != "full"

    def project(self, precision: Tensor, factor: Tensor) -> Tensor:
        """Maximise ``-1/2 tr(P_i S_i) + 1/2 log det S_i`` in the family, all (n, k, k).

        ``factor``: Cholesky factors of the precisions.
        """
        if self.kind == "full":
            return torch.cholesky_inverse(factor)
        if self.kind == "none":
            return torch.zeros_like(precision)
        diagonal = precision.diagonal(dim1=-2, dim2=-1)
        if self.is_isotropic:
            diagonal = diagonal.mean(-1, keepdim=True).expand_as(diagonal)
        return torch.diag_embed(diagonal.reciprocal())

    def project_free(self, precision: Tensor, factor: Tensor, n_components: int) -> Tensor:
        """`project` rows that have an offset too; independent of the factors unless full."""
        k = n_components
        if precision.shape[-1] == k or not self.is_elementwise:
            return self.project(precision, factor)
        cov = torch.zeros_like(precision)
        for part in (slice(k), slice(k, None)):
            cov[:, part, part] = self.project(precision[:, part, part], factor[:, part, part])
        return cov

    def pool(self, cov: Tensor) -> Tensor:
        """Multiples (n,) of each row's covariance that agree with the others'."""
        if self.kind != "isotropic":
            return cov.new_ones(len(cov))
        variance = cov[:, 0, 0]
        return 1.0 / (variance * variance.reciprocal().mean())

    def entropy(self, variances: Tensor, log_det_precision: float) -> float:
        """Entropy of rows with these variances (n, d), nats; 0 of points, which have none.

        ``log_det_precision`` is that of all precisions they were projected from together.
        """
        if self.kind == "none":
            return 0.0
        log_dets = -log_det_precision
        if self.is_elementwise:
            log_dets = float(variances.log().sum(-1).double().sum())
        return 0.5 * (log_dets + variances.numel() * (1.0 + LOG_2PI))


def row_entropy(cov: Tensor) -> float:
    """Entropy of independent normal rows, (n, d, d) -> nats."""
    log_dets = float(log_det(row_root(cov)).double().sum())
    return 0.5 * (log_dets + cov.shape[0] * cov.shape[1] * (1.0 + LOG_2PI))
