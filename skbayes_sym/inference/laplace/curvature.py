r"""Gauss-Newton curvature of an averaged network: Kronecker-factored, diagonal and full.

The generalised Gauss-Newton matrix is :math:`H = \sum_n w_n J_n' \Lambda_n J_n` with the Jacobian
of the averaged outputs (Immer et al. 2022, eqs. 11-15). A structure turns minibatches into
*factors* that add up over them, and the sum into a *spectrum*, from which everything follows:

.. math::

    \log\det(H + \Delta), \qquad
    \frac{\partial \log\det}{\partial \delta_l}, \qquad
    \frac{\partial \log\det}{\partial F_i} \text{ (the preconditioner of eqs. 22-23)}

for a prior precision :math:`\delta_l` a layer. The preconditioners make the gradient in anything
that the factors depend on a sum over minibatches, :math:`\sum_i \langle P_i, dF_i \rangle`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.jacobian import (
    AveragedJacobian,
    LayerAverages,
    dense_jacobian,
    parameter_layers,
)
from skbayes_sym.models.networks.recording import WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import cholesky, log_det

# Below this width a float32 factor is decomposed in float64, which costs little there.
_DOUBLE_WIDTH = 512

Factors = list[Tensor]


class LogDet(NamedTuple):
    """log det(H + Delta) and its derivative in the prior precision of every layer."""

    value: Tensor
    d_precision: Tensor  # (L,)


class Spectrum(Protocol):
    """A decomposed curvature."""

    def log_det(self, precision: Tensor) -> LogDet:
        """At prior precisions (L,)."""

    def preconditioners(self, precision: Tensor) -> Factors:
        """d log det / d factor, one a factor."""


class Structure(Protocol):
    """A part of the curvature that is kept."""

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        """A minibatch's part, differentiable if the jacobian is; ``weight`` (N,)."""

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        """sum_i <P_i, F_i> of a minibatch, differentiable; the factors aren't formed."""

    def spectrum(self, factors: Factors, total_weight: float) -> Spectrum:
        """Decompose the sum over all minibatches."""


def averaged_vectors(layer: LayerAverages) -> tuple[Tensor, Tensor]:
    """Mean inputs (N, T, D) and summed gradients (K, N, T, G) at the positions of a layer."""
    patches = layer.layer.patches(layer.inputs)  # linear, so that the mean could come first
    gradients = layer.layer.positions(layer.gradients.flatten(0, 1))
    return patches, gradients.unflatten(0, layer.gradients.shape[:2])


@dataclass(frozen=True, eq=False)
class Kronecker:
    r"""Block-diagonal :math:`H_l \approx G_l \otimes A_l / N` a layer, and G_l for its bias.

    :math:`A_l = \frac1T \sum_{nt} w_n \bar a_{nt} \bar a_{nt}'` from the mean inputs and
    :math:`G_l = \sum_{ntr} w_n \hat g_{ntr} \hat g_{ntr}'` from the gradients summed over the
    samples (eq. 15, with 1/N on one factor only and not on the bias), T the positions of a
    convolution. Exact for a linear model with constant :math:`\Lambda`.

    Cost a pass O(N (D^2 + K G^2)) beside the network's own, O(D^3 + G^3) for the spectrum.
    """

    layers: Sequence[WeightLayer]

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

    def spectrum(self, factors: Factors, total_weight: float) -> "KroneckerSpectrum":
        pairs = zip(factors[::2], factors[1::2], strict=True)
        spectra = tuple(
            LayerSpectrum(
                *_decompose(a / total_weight), *_decompose(g), has_bias=layer.bias is not None
            )
            for layer, (a, g) in zip(self.layers, pairs, strict=True)
        )
        return KroneckerSpectrum(spectra, total_weight)


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
    values[alive], vectors[alive[:, None], alive] = _eigen(wide[alive][:, alive])
    return vectors.to(matrix), values.clamp_min(0.0).to(matrix)


def _eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors, the matrix positive semidefinite."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:
        vectors, values, _ = torch.linalg.svd(matrix)
    return values, vectors


class LayerSpectrum(NamedTuple):
    """Eigenvectors and eigenvalues of a layer's A/N and G."""

    input_basis: Tensor  # (D, D)
    input_values: Tensor  # (D,)
    output_basis: Tensor  # (G, G)
    output_values: Tensor  # (G,)
    has_bias: bool

    def products(self) -> Tensor:
        """Eigenvalues of the weight block, (G, D)."""
        return torch.outer(self.output_values, self.input_values)


@dataclass(frozen=True, eq=False)
class KroneckerSpectrum:
    r"""Eigenvalues :math:`\lambda_a \lambda_g` of weight blocks, :math:`\lambda_g` of biases."""

    layers: tuple[LayerSpectrum, ...]
    total_weight: float

    def log_det(self, precision: Tensor) -> LogDet:
        value, slopes = precision.new_zeros(()), []
        for layer, delta in zip(self.layers, precision, strict=True):
            # In the precision of `precision`: float64 sums of float32 eigenvalues.
            blocks = [layer.products().to(precision) + delta]
            if layer.has_bias:
                blocks.append(layer.output_values.to(precision) + delta)
            value = value + torch.stack([b.log().sum() for b in blocks]).sum()
            slopes.append(torch.stack([b.reciprocal().sum() for b in blocks]).sum())
        return LogDet(value, torch.stack(slopes).to(precision))

    def preconditioners(self, precision: Tensor) -> Factors:
        preconditioners = []
        for layer, delta in zip(self.layers, precision.to(self.layers[0].input_basis), strict=True):
            inverse = (layer.products() + delta).reciprocal()
            on_inputs = layer.output_values @ inverse / self.total_weight
            on_outputs = inverse @ layer.input_values
            if layer.has_bias:
                on_outputs = on_outputs + (layer.output_values + delta).reciprocal()
            preconditioners += [
                _rotated(layer.input_basis, on_inputs),
                _rotated(layer.output_basis, on_outputs),
            ]
        return preconditioners


def _rotated(basis: Tensor, values: Tensor) -> Tensor:
    return (basis * values) @ basis.mT


@dataclass(frozen=True, eq=False)
class Diagonal:
    """The diagonal of H, exact. Cost and memory O(K N P) a minibatch of N rows."""

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        j = dense_jacobian(jacobian, self.layout)
        return [torch.einsum("knp,n->p", j.square(), weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        return (preconditioners[0] * self.factors(jacobian, weight)[0]).sum()

    def spectrum(self, factors: Factors, total_weight: float) -> "DiagonalSpectrum":
        return DiagonalSpectrum(factors[0], parameter_layers(self.layers, self.layout))


@dataclass(frozen=True, eq=False)
class DiagonalSpectrum:
    """The diagonal itself."""

    values: Tensor  # (P',)
    owner: Tensor  # (P',) layer of every parameter

    def log_det(self, precision: Tensor) -> LogDet:
        owner = self.owner.to(precision.device)
        total = self.values.to(precision) + precision[owner]
        slopes = torch.zeros_like(precision).index_add_(0, owner, total.reciprocal())
        return LogDet(total.log().sum(), slopes)

    def preconditioners(self, precision: Tensor) -> Factors:
        delta = precision.to(self.values)[self.owner.to(self.values.device)]
        return [(self.values + delta).reciprocal()]


@dataclass(frozen=True, eq=False)
class Full:
    """All of H. Memory O(P^2 + K N P), spectrum O(P^3)."""

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        j = dense_jacobian(jacobian, self.layout)
        return [_second_moment(j.flatten(0, 1), weight.repeat(len(j)))]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        j = dense_jacobian(jacobian, self.layout)
        return _inner_moment(j.flatten(0, 1), weight.repeat(len(j)), preconditioners[0])

    def spectrum(self, factors: Factors, total_weight: float) -> "FullSpectrum":
        return FullSpectrum(factors[0], parameter_layers(self.layers, self.layout))


@dataclass(frozen=True, eq=False)
class FullSpectrum:
    """The matrix; with a precision a layer there is no one decomposition for all precisions."""

    matrix: Tensor  # (P', P')
    owner: Tensor

    def cholesky(self, precision: Tensor) -> Tensor:
        """Lower factor of H + Delta, float64."""
        delta = precision.double()[self.owner.to(precision.device)]
        return cholesky(
            self.matrix.double() + delta.diag(),
            what="The posterior precision of the weights",
            remedy="Standardize the data, lower learning_rate, or give a smaller prior.",
        )

    def log_det(self, precision: Tensor) -> LogDet:
        factor = self.cholesky(precision)
        inverse = torch.cholesky_inverse(factor).diagonal()
        slopes = torch.zeros_like(precision, dtype=torch.float64)
        slopes.index_add_(0, self.owner.to(precision.device), inverse)
        return LogDet(log_det(factor).to(precision), slopes.to(precision))

    def preconditioners(self, precision: Tensor) -> Factors:
        return [torch.cholesky_inverse(self.cholesky(precision)).to(self.matrix)]
