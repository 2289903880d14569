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
from skbayes_sym.inference.laplace.jacobian import AveragedJacobian, LayerProducts, layer_products
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
    With R = S transformations times T positions of a convolution, a layer of D inputs and G outputs
    takes the cheaper of O(M^2 R^2 (D + G)), from products of inputs and of gradients, and
    O(M^2 D G + M R D G), from the derivatives themselves. Memory O(M^2 R^2) or O(M D G).
    """

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        return list(_kernels(jacobian, weight))

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        pairs = zip(_kernels(jacobian, weight), preconditioners, strict=True)
        return torch.stack([(p * kernel).sum() for kernel, p in pairs]).sum()

    def spectrum(self, factors: Factors, total_weight: float) -> "TangentSpectrum":
        sizes = [
            sum(self.layout.positions(n).numel() for n in (layer.weight, layer.bias) if n)
            for layer in self.layers
        ]
        return TangentSpectrum(tuple(factors), tuple(sizes))


def _kernels(jacobian: AveragedJacobian, weight: Tensor) -> Iterator[Tensor]:
    """Gram matrix (M, M) of every layer, rows times the root of their weight."""
    root = weight.sqrt()[:, None, None]
    for layer in layer_products(jacobian):
        weighted = layer._replace(gradients=root * layer.gradients)
        inputs, gradients = weighted.inputs, weighted.gradients
        n_products, n_in, n_out = inputs.shape[1], inputs.shape[2], gradients.shape[3]
        is_short = n_products**2 * (n_in + n_out) < n_in * n_out
        kernel = _from_products(weighted) if is_short else _from_derivatives(weighted)
        if layer.layer.bias is not None:
            summed = gradients.sum(2).flatten(0, 1)
            kernel = kernel + summed @ summed.mT
        yield kernel


def _from_products(layer: LayerProducts) -> Tensor:
    """``sum_rs (g_r . g_s) (a_r . a_s)`` without the derivatives, (K N, K N)."""
    n_directions, n_rows, n_products = layer.gradients.shape[:3]
    inputs, gradients = layer.inputs.flatten(0, 1), layer.gradients.flatten(0, 2)
    similar = (inputs @ inputs.mT).repeat(n_directions, n_directions)
    shape = (n_directions * n_rows, n_products)
    return ((gradients @ gradients.mT) * similar).view(*shape, *shape).sum((1, 3))


def _from_derivatives(layer: LayerProducts) -> Tensor:
    """The same from the rows' derivatives, (K N, D G)."""
    derivatives = (layer.gradients.mT @ layer.inputs).flatten(2).flatten(0, 1)
    return derivatives @ derivatives.mT


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
            remedy="Standardize the data, lower learning_rate, or give a smaller prior.",
        )
