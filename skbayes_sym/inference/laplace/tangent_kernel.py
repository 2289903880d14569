r"""Gauss-Newton curvature through the rows: the neural tangent kernel instead of P by P matrices.

With :math:`\Phi_l` the derivatives of M = K N root-weighted directions in the parameters of layer
l, Sylvester's identity turns a determinant of the size of the weights into one of the size of the
rows,

.. math:: \log\det(H + \Delta) = \sum_l P_l \log\delta_l
          + \log\det\Big(I_M + \sum_l \Phi_l \Phi_l' / \delta_l\Big),

the same number as `Full`'s at a cost that is linear in P (Immer, van der Ouderaa, van der Wilk,
Raetsch & Schoelkopf 2023, eq. 7). Rows couple, so the factors of two minibatches don't add up: the
rows have to come in one piece, which is what `SubsetEvidence` has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.curvature import Factors, LogDet
from skbayes_sym.inference.laplace.jacobian import AveragedJacobian, layer_jacobians
from skbayes_sym.models.networks.recording import WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import cholesky, log_det


@dataclass(frozen=True, eq=False)
class TangentKernel:
    """Gram matrices (M, M) of the Jacobian, one per layer; a `Structure` of rows in one piece.

    Parameters
    ----------
    layers : sequence of WeightLayer
        The L layers that the Laplace approximation covers.
    layout : ParamLayout

    Notes
    -----
    Time O(K N S P + M^2 P + M^3), memory O(M P + L M^2).
    """

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        return [phi @ phi.mT for phi in _weighted(jacobian, weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        pairs = zip(_weighted(jacobian, weight), preconditioners, strict=True)
        return torch.stack([((p @ phi) * phi).sum() for phi, p in pairs]).sum()

    def spectrum(self, factors: Factors, total_weight: float) -> "TangentSpectrum":
        sizes = [
            sum(self.layout.positions(n).numel() for n in (layer.weight, layer.bias) if n)
            for layer in self.layers
        ]
        return TangentSpectrum(tuple(factors), tuple(sizes))


def _weighted(jacobian: AveragedJacobian, weight: Tensor) -> Iterator[Tensor]:
    """Derivatives (K N, P_l) of every layer, rows times the root of their weight."""
    root = weight.sqrt()[:, None]
    for pieces in layer_jacobians(jacobian):
        yield torch.cat([root * piece for piece in pieces], -1).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class TangentSpectrum:
    """A kernel per layer, (M, M), and the number of its parameters."""

    kernels: tuple[Tensor, ...]
    sizes: tuple[int, ...]

    def log_det(self, precision: Tensor) -> LogDet:
        factor = self._cholesky(precision)
        inverse = torch.cholesky_inverse(factor)
        sizes = precision.new_tensor(self.sizes)
        overlaps = torch.stack([(inverse * k).sum() for k in self.kernels]).to(precision)
        value = (sizes * precision.log()).sum() + log_det(factor).to(precision)
        return LogDet(value, (sizes - overlaps / precision) / precision)

    def preconditioners(self, precision: Tensor) -> Factors:
        inverse = torch.cholesky_inverse(self._cholesky(precision))
        return [(inverse / d).to(k) for k, d in zip(self.kernels, precision.double(), strict=True)]

    def _cholesky(self, precision: Tensor) -> Tensor:
        """Lower factor of the identity and the kernels, float64."""
        matrix = torch.eye(len(self.kernels[0])).to(self.kernels[0].double())
        for kernel, delta in zip(self.kernels, precision.double(), strict=True):
            matrix = matrix + kernel.double() / delta
        return cholesky(
            matrix,
            what="The tangent kernel of a subset of rows",
            remedy="Standardize the data, lower learning_rate, or lower prior_scale.",
        )
