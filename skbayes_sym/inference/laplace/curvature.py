r"""Gauss-Newton curvature of an averaged network: Kronecker-factored, diagonal and full.

The generalised Gauss-Newton matrix is :math:`H = \sum_n w_n J_n' \Lambda_n J_n` with the Jacobian
of the averaged outputs (Immer et al. 2022, eqs. 11-15). A structure turns minibatches into
*factors* that add up over them, and the sum and a prior precision :math:`\delta_l` a layer into
`~skbayes_sym.inference.laplace.precision.Precision`, :math:`H + \Delta`. Its preconditioners

.. math:: P_i = \partial \log\det(H + \Delta) / \partial F_i

(eqs. 22-23) make the gradient in anything that the factors depend on a sum over minibatches,
:math:`\sum_i \langle P_i, dF_i \rangle`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.jacobian import (
    AveragedJacobian,
    dense_jacobian,
    parameter_layers,
)
from skbayes_sym.inference.laplace.precision import (
    DiagonalPrecision,
    Factors,
    FullPrecision,
    KroneckerPrecision,
    LayerSpectrum,
    Precision,
    averaged_vectors,
)
from skbayes_sym.models.networks.network import WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import cholesky

# Below this width a float32 factor is decomposed in float64, which costs little there.
_DOUBLE_WIDTH = 512


class Structure(Protocol):
    """A part of the curvature that is kept."""

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        """A minibatch's part, differentiable if the jacobian is; ``weight`` (N,)."""

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        """sum_i <P_i, F_i> of a minibatch, differentiable; the factors aren't formed."""

    def precision(self, factors: Factors, total_weight: float, prior: Tensor) -> Precision:
        """H + Delta of the sum over all minibatches, at prior precisions (L,), float64."""


@dataclass(frozen=True, eq=False)
class Kronecker:
    r"""Block-diagonal :math:`H_l \approx G_l \otimes A_l / N` a layer, and G_l for its bias.

    :math:`A_l = \frac1T \sum_{nt} w_n \bar a_{nt} \bar a_{nt}'` from the mean inputs and
    :math:`G_l = \sum_{ntr} w_n \hat g_{ntr} \hat g_{ntr}'` from the gradients summed over the
    samples (eq. 15, with 1/N on one factor only and not on the bias), T the positions of a
    convolution. Exact for a linear model with constant :math:`\Lambda`.

    Cost a pass O(N (D^2 + K G^2)) beside the network's own, O(D^3 + G^3) for the decomposition.
    """

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        return [_second_moment(v, w) for v, w in self._weighted(jacobian, weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        pairs = zip(self._weighted(jacobian, weight), preconditioners, strict=True)
        return torch.stack([_inner_moment(v, w, p) for (v, w), p in pairs]).sum()

    def _weighted(
        self, jacobian: AveragedJacobian, weight: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Vectors (M, D) whose weighted second moments are the factors, and weights (M,)."""
        for layer in jacobian.averages:
            patches, gradients = averaged_vectors(layer)
            n_positions = patches.shape[1]
            each = weight.repeat_interleave(n_positions)
            yield patches.flatten(0, 1), each / n_positions
            yield gradients.flatten(0, 2), each.repeat(len(gradients))

    def precision(self, factors: Factors, total_weight: float, prior: Tensor) -> KroneckerPrecision:
        spectra = tuple(
            LayerSpectrum(*_decompose(a / total_weight), *_decompose(g))
            for a, g in zip(factors[::2], factors[1::2], strict=True)
        )
        return KroneckerPrecision(spectra, tuple(self.layers), self.layout, prior, total_weight)


def _second_moment(vectors: Tensor, weight: Tensor) -> Tensor:
    """sum_m w_m v_m v_m' of (M, D)."""
    return (vectors * weight[:, None]).mT @ vectors


def _inner_moment(vectors: Tensor, weight: Tensor, preconditioner: Tensor) -> Tensor:
    """sum_m w_m v_m' P v_m of (M, D) and a symmetric P, differentiable in the vectors.

    Its gradient is 2 w P v, so that the product made for the value serves for it as well: with
    ``f`` the detached copy of v, ``w f' P (2 v - f)`` has the value ``w v' P v`` at f = v and the
    gradient ``2 w P f``. First derivatives only: the second is 0, not ``2 w P``.
    """
    fixed = vectors.detach()
    slope = (fixed @ preconditioner) * weight[:, None]
    return (slope * (2.0 * vectors - fixed)).sum()


def _decompose(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvectors and eigenvalues, the latter at least 0 as they would be without rounding.

    Dead units leave rows of zeros. They are eigenvectors as they are, and LAPACK's divide and
    conquer may fail to converge where there are many, and on some matrices that are mostly zero.
    """
    wide = matrix.double() if len(matrix) <= _DOUBLE_WIDTH else matrix
    alive = (wide.diagonal() != 0.0).nonzero().squeeze(1)
    values, vectors = torch.zeros_like(wide[0]), torch.eye(len(wide)).to(wide)
    living = wide[alive][:, alive]
    try:
        values[alive], vectors[alive[:, None], alive] = torch.linalg.eigh(living)
    except torch.linalg.LinAlgError:
        vectors[alive[:, None], alive], values[alive], _ = torch.linalg.svd(living)
    return vectors.to(matrix), values.clamp_min(0.0).to(matrix)


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The diagonal of H, exact. Cost and memory O(K N P) a minibatch of N rows."""

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        j = dense_jacobian(jacobian, self.layout)
        return [torch.einsum("knp,n->p", j.square(), weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        (diagonal,) = self.factors(jacobian, weight)
        return (preconditioners[0].to(diagonal) * diagonal).sum()

    def precision(self, factors: Factors, total_weight: float, prior: Tensor) -> DiagonalPrecision:
        owner = parameter_layers(self.layers, self.layout).to(prior.device)
        return DiagonalPrecision(factors[0].to(prior) + prior[owner], self.layers, self.layout)


@dataclass(frozen=True, eq=False)
class Full:
    """All of H. Memory O(P^2 + K N P), factor O(P^3)."""

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        j = dense_jacobian(jacobian, self.layout)
        return [_second_moment(j.flatten(0, 1), weight.repeat(len(j)))]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        j = dense_jacobian(jacobian, self.layout)
        return _inner_moment(j.flatten(0, 1), weight.repeat(len(j)), preconditioners[0].to(j))

    def precision(self, factors: Factors, total_weight: float, prior: Tensor) -> FullPrecision:
        owner = parameter_layers(self.layers, self.layout).to(prior.device)
        factor = cholesky(
            factors[0].double() + prior.double()[owner].diag(),
            what="The posterior precision of the weights",
            remedy="Standardize the data, lower learning_rate, or give a smaller prior.",
        )
        return FullPrecision(factor, self.layers, self.layout)
