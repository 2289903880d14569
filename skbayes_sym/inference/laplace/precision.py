r"""Posterior precisions H + Delta as distributions: draws, densities, and what they do to outputs.

For the Kronecker structure the derivative of an averaged output is taken as the product of the
summed gradient and the mean input, :math:`\sum_s g_s a_s' \approx \hat g \bar a'`, as its factors
take it (exact without transformations). A prediction then costs O(D^2 + G^2) a row and output
instead of O(D G) memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.jacobian import (
    AveragedJacobian,
    LayerAverages,
    dense_jacobian,
    parameter_layers,
)
from skbayes_sym.models.networks.network import WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.numerics.random import standard_normal

Convert = Callable[[Any], Any]
Factors = list[Tensor]


def averaged_vectors(layer: LayerAverages) -> tuple[Tensor, Tensor]:
    """Mean inputs (N, T, D) and summed gradients (K, N, T, G) at the positions of a layer."""
    patches = layer.layer.patches(layer.inputs)  # linear, so that the mean could come first
    gradients = layer.layer.positions(layer.gradients.flatten(0, 1))
    return patches, gradients.unflatten(0, layer.gradients.shape[:2])


class Precision(Protocol):
    """A posterior precision matrix over the P' covered parameters, in the layout's order."""

    @property
    def entries_per_output(self) -> int:
        """Numbers that one row's derivative of one output takes."""

    def map(self, convert: Convert) -> "Precision":
        """Copy with every array converted."""

    def log_det(self) -> Tensor: ...

    def slopes(self) -> Tensor:
        """Derivatives of log det in the prior precisions of the layers, (L,)."""

    def preconditioners(self) -> Factors:
        """Derivatives of log det in the factors."""

    def quadratic(self, away: Tensor) -> Tensor:
        """Squared Mahalanobis length of deviations (*B, P') from the mode, (*B,)."""

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Deviations from the mode, (n, P')."""

    def output_covariance(self, jacobian: AveragedJacobian) -> Tensor:
        """Covariance (N, K, K) of the outputs along the jacobian's directions."""
        root = self.output_root(jacobian)
        return torch.einsum("knp,jnp->nkj", root, root)

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        """A root R (K, N, P') of the covariance R_kn . R_jm of outputs k, j at rows n, m."""

    def output_draws(
        self, jacobian: AveragedJacobian, n: int, *, generator: torch.Generator
    ) -> Tensor:
        """Deviations of the outputs, (n, N, K)."""
        root = self.output_root(jacobian)
        z = standard_normal((n, root.shape[-1]), generator=generator, like=root)
        return torch.einsum("knp,sp->snk", root, z)


class LayerSpectrum(NamedTuple):
    """Eigenvectors and eigenvalues of a layer's A/N and G."""

    input_basis: Any  # (D, D)
    input_values: Any  # (D,)
    output_basis: Any  # (G, G)
    output_values: Any  # (G,)


@dataclass(frozen=True, eq=False)
class KroneckerPrecision:
    r"""Eigenvalues :math:`\lambda_a \lambda_g + \delta` of every layer in its own basis.

    Biases have :math:`\lambda_g + \delta`.
    """

    spectra: tuple[LayerSpectrum, ...]
    layers: tuple[WeightLayer, ...]
    layout: ParamLayout
    prior: Any  # (L,), the layers' prior precisions
    total_weight: float  # of the rows

    @property
    def entries_per_output(self) -> int:
        return sum(len(s.input_values) + len(s.output_values) for s in self.spectra)

    def map(self, convert: Convert) -> "KroneckerPrecision":
        spectra = tuple(LayerSpectrum(*map(convert, spectrum)) for spectrum in self.spectra)
        return replace(self, spectra=spectra, prior=convert(self.prior))

    def log_det(self) -> Tensor:
        blocks = (b for *_, weight, bias in self._blocks() for b in (weight, bias))
        return torch.stack([block.log().sum() for block in blocks]).sum()

    def slopes(self) -> Tensor:
        return torch.stack(
            [w.reciprocal().sum() + b.reciprocal().sum() for *_, w, b in self._blocks()]
        )

    def preconditioners(self) -> Factors:
        factors = []
        for _, s, weight, bias in self._blocks():
            inverse = weight.reciprocal().to(s.input_basis)
            on_inputs = s.output_values @ inverse / self.total_weight
            on_outputs = inverse @ s.input_values
            if len(bias):
                on_outputs = on_outputs + bias.reciprocal().to(on_outputs)
            factors += [
                (s.input_basis * on_inputs) @ s.input_basis.mT,
                (s.output_basis * on_outputs) @ s.output_basis.mT,
            ]
        return factors

    def _blocks(self) -> Iterator[tuple[WeightLayer, LayerSpectrum, Tensor, Tensor]]:
        """Layer, its spectrum, and the eigenvalues of its weight (G, D) and bias (G,) blocks.

        Eigenvalues in the prior's dtype: float64 sums of float32 ones. Without a bias, (0,).
        """
        for layer, s, delta in zip(self.layers, self.spectra, self.prior, strict=True):
            outputs = s.output_values.to(self.prior)
            weight = torch.outer(outputs, s.input_values.to(self.prior)) + delta
            yield layer, s, weight, outputs[: None if layer.bias else 0] + delta

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        names = {n for layer in self.layers for n in (layer.weight, layer.bias)}
        shapes = {n: s for n, s in self.layout.shapes.items() if n in names}
        return ParamLayout(shapes).unflatten(flat)

    def quadratic(self, away: Tensor) -> Tensor:
        parts = self._split(away)
        total = away.new_zeros(away.shape[:-1])
        for layer, s, weight, bias in self._blocks():
            rotated = s.output_basis.mT @ parts[layer.weight].flatten(away.ndim) @ s.input_basis
            total = total + (weight * rotated.square()).sum((-1, -2))
            if layer.bias is not None:
                total = total + (bias * (parts[layer.bias] @ s.output_basis).square()).sum(-1)
        return total

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        parts = {}
        for layer, s, weight, bias in self._blocks():
            z = standard_normal((n, *weight.shape), generator=generator, like=weight)
            parts[layer.weight] = (
                s.output_basis @ (z * weight.rsqrt()) @ s.input_basis.mT
            ).flatten(1)  # fmt: skip
            if layer.bias is not None:
                z = standard_normal((n, len(bias)), generator=generator, like=bias)
                parts[layer.bias] = (z * bias.rsqrt()) @ s.output_basis.mT
        return torch.cat([parts[n] for n in self.layout.shapes if n in parts], -1)

    def output_covariance(self, jacobian: AveragedJacobian) -> Tensor:
        total: Any = 0.0
        for (layer, s, weight, bias), layer_jacobian in zip(
            self._blocks(), jacobian.averages, strict=True
        ):
            inputs, gradients = _rotated(layer_jacobian, s)
            if inputs.shape[1] == 1:  # one position: the derivative is an outer product
                spread = inputs[:, 0].square() @ weight.reciprocal().mT  # (N, G)
                g = gradients[:, :, 0]
                total = total + torch.einsum("kng,ng,jng->nkj", g, spread, g)
            else:
                j = torch.einsum("kntg,ntd->kngd", gradients, inputs) * weight.rsqrt()
                total = total + torch.einsum("kngd,jngd->nkj", j, j)
            if layer.bias is not None:
                g = gradients.sum(2) * bias.rsqrt()
                total = total + torch.einsum("kng,jng->nkj", g, g)
        return total

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        roots = []
        for (layer, s, weight, bias), layer_jacobian in zip(
            self._blocks(), jacobian.averages, strict=True
        ):
            inputs, gradients = _rotated(layer_jacobian, s)
            j = torch.einsum("kntg,ntd->kngd", gradients, inputs)
            roots.append((j * weight.rsqrt()).flatten(2))
            if layer.bias is not None:
                roots.append(gradients.sum(2) * bias.rsqrt())
        return torch.cat(roots, -1)

    def output_draws(
        self, jacobian: AveragedJacobian, n: int, *, generator: torch.Generator
    ) -> Tensor:
        rotated = [
            _rotated(t, s)
            for t, (_, s, _, _) in zip(jacobian.averages, self._blocks(), strict=True)
        ]
        draws = []
        for _ in range(n):  # one draw's weights at a time
            total: Any = 0.0
            for (layer, _, weight, bias), (inputs, gradients) in zip(
                self._blocks(), rotated, strict=True
            ):
                z = standard_normal(weight.shape, generator=generator, like=inputs)
                moved = inputs @ (z * weight.rsqrt()).mT  # (N, T, G)
                total = total + torch.einsum("kntg,ntg->nk", gradients, moved)
                if layer.bias is not None:
                    z = standard_normal(bias.shape, generator=generator, like=inputs)
                    total = total + torch.einsum("kntg,g->nk", gradients, z * bias.rsqrt())
            draws.append(total)
        return torch.stack(draws)


def _rotated(layer: LayerAverages, s: LayerSpectrum) -> tuple[Tensor, Tensor]:
    """Mean inputs (N, T, D) and summed gradients (K, N, T, G) in the layer's eigenbasis."""
    inputs, gradients = averaged_vectors(layer)
    return inputs @ s.input_basis, gradients @ s.output_basis


@dataclass(frozen=True, eq=False)
class DiagonalPrecision(Precision):
    """Independent parameters."""

    values: Any  # (P',)
    layers: Sequence[WeightLayer]
    layout: ParamLayout

    @property
    def entries_per_output(self) -> int:
        return len(self.values)

    def map(self, convert: Convert) -> "DiagonalPrecision":
        return replace(self, values=convert(self.values))

    def log_det(self) -> Tensor:
        return self.values.log().sum()

    def slopes(self) -> Tensor:
        return _by_layer(self.values.reciprocal(), self.layers, self.layout)

    def preconditioners(self) -> Factors:
        return [self.values.reciprocal()]

    def quadratic(self, away: Tensor) -> Tensor:
        return (self.values * away.square()).sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        z = standard_normal((n, len(self.values)), generator=generator, like=self.values)
        return z * self.values.rsqrt()

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        return dense_jacobian(jacobian, self.layout) * self.values.rsqrt()


@dataclass(frozen=True, eq=False)
class FullPrecision(Precision):
    """A dense precision, by its lower Cholesky factor."""

    cholesky: Any  # (P', P')
    layers: Sequence[WeightLayer]
    layout: ParamLayout

    @property
    def entries_per_output(self) -> int:
        return len(self.cholesky)

    def map(self, convert: Convert) -> "FullPrecision":
        return replace(self, cholesky=convert(self.cholesky))

    def log_det(self) -> Tensor:
        return log_det(self.cholesky)

    def slopes(self) -> Tensor:
        return _by_layer(self.preconditioners()[0].diagonal(), self.layers, self.layout)

    def preconditioners(self) -> Factors:
        return [torch.cholesky_inverse(self.cholesky)]

    def quadratic(self, away: Tensor) -> Tensor:
        return (away @ self.cholesky).square().sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        z = standard_normal((n, len(self.cholesky)), generator=generator, like=self.cholesky)
        return torch.linalg.solve_triangular(self.cholesky.mT, z.mT, upper=True).mT

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        j = dense_jacobian(jacobian, self.layout)
        flat = torch.linalg.solve_triangular(self.cholesky, j.flatten(0, 1).mT, upper=False)
        return flat.mT.unflatten(0, j.shape[:2])


def _by_layer(values: Tensor, layers: Sequence[WeightLayer], layout: ParamLayout) -> Tensor:
    """Sums (L,) of values (P',) of every layer's parameters."""
    owner = parameter_layers(layers, layout).to(values.device)
    return values.new_zeros(len(layers)).index_add_(0, owner, values)
