r"""Gauss-Newton curvature of an averaged network: Kronecker-factored and full.

The generalised Gauss-Newton matrix is :math:`H = \sum_n w_n J_n' \Lambda_n J_n` with the Jacobian
of the averaged outputs (Immer et al. 2022, eqs. 11-15). A structure turns minibatches into
*factors* that add up over them, and the sum and a prior precision :math:`\delta_l` a layer into a
`Precision`, :math:`H + \Delta`: draws, densities, and what they do to outputs. Its preconditioners

.. math:: P_i = \partial \log\det(H + \Delta) / \partial F_i

(eqs. 22-23) make the gradient in anything that the factors depend on a sum over minibatches,
:math:`\sum_i \langle P_i, dF_i \rangle`.

The Kronecker structure takes the derivative of an averaged output as the product of the summed
gradient and the mean input, :math:`\sum_s g_s a_s' \approx \hat g \bar a'` (exact without
transformations): a prediction costs O(D^2 + G^2) a row and output instead of O(D G) memory.

The gradients are those of the averaged network :math:`\hat f(x_n) = \frac1S \sum_s f(x_{ns})` in
its pre-activations: one recorded forward pass and K backward passes, which never reach the weights
or the inputs. Where it ends in an elementwise activation :math:`\phi` and a linear layer W, those
of the last two layers, summed over the samples, need no backward passes:

.. math::

    \sum_s \frac{\partial\, \hat f_n \cdot r}{\partial z_{ns}}
        = \Big[\frac1S \sum_s \phi'(z_{ns})\Big] \circ W' r

for the hidden layer, and r for the last one. All K directions then share one mean of
:math:`\phi'`, and no array has N S K rows.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Recording, WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import cholesky, log_det
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.numerics.runtime import import_symbolic_shapes


class LayerSamples(NamedTuple):
    """A weight layer on a minibatch, sample by sample."""

    layer: WeightLayer
    inputs: Tensor  # (N, S, *I)
    gradients: list[Tensor]  # K times d(f_hat . r_k)/dz, (N, S, *Z)


class LayerAverages(NamedTuple):
    """A weight layer on a minibatch, over the samples."""

    layer: WeightLayer
    inputs: Tensor  # (N, *I), the mean
    gradients: Tensor  # (K, N, *Z), the sum of d(f_hat . r_k)/dz


@dataclass(frozen=True, eq=False)
class AveragedJacobian:
    """The last weight layers of an averaged network on a minibatch, seen along K directions.

    Ask it once, for `samples` or for `averages`: unless a graph is created, so that the gradients
    can be differentiated in what made the inputs, the recording's graph is gone afterwards.
    """

    recording: Recording  # of N * S inputs, the samples of a row next to each other
    layers: Sequence[WeightLayer]  # all weight layers of the network, or its last few
    n_samples: int  # S
    averaged: Tensor  # (N, O), the averaged outputs, computed from ``recording.outputs``
    directions: Tensor  # (K, N, O)
    create_graph: bool = False

    @cached_property
    def samples(self) -> list[LayerSamples]:
        """The layers in the order of the forward pass; memory O(K N S) times their widths."""
        with torch.set_grad_enabled(self.create_graph):
            passes = self._passes(len(self.layers))
            rows = zip(self.layers, self._inputs(), zip(*passes, strict=True), strict=True)
            return [
                LayerSamples(layer, inputs, [self._by_sample(g) for g in gradients])
                for layer, inputs, gradients in rows
            ]

    @cached_property
    def averages(self) -> list[LayerAverages]:
        """The layers in the order of the forward pass; memory O(N (K + S)) times their widths."""
        with torch.set_grad_enabled(self.create_graph):
            tail = self._tail()
            n_others = len(self.layers) - len(tail)
            summed = [
                [self._by_sample(g).sum(1) for g in passed] for passed in self._passes(n_others)
            ]
            gradients = [torch.stack(g) for g in zip(*summed, strict=True)] + tail
            rows = zip(self.layers, self._inputs(), gradients, strict=True)
            return [LayerAverages(layer, self._mean(inputs), g) for layer, inputs, g in rows]

    def _inputs(self) -> list[Tensor]:
        """Inputs (N, S, *I) of every layer."""
        recorded = self.recording.inputs[-len(self.layers) :]
        return [self._by_sample(self._fixed(inputs)) for inputs in recorded]

    def _mean(self, rows: Tensor) -> Tensor:
        """Mean over the samples; divided last, so that its gradient is a view and no copy."""
        return rows.sum(1) / self.n_samples

    def _by_sample(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.n_samples))

    def _fixed(self, value: Tensor) -> Tensor:
        return value if self.create_graph else value.detach()

    def _passes(self, n_layers: int) -> Iterator[tuple[Tensor, ...]]:
        """K backward passes to the first ``n_layers`` layers' pre-activations, (N * S, *Z)."""
        import_symbolic_shapes()
        first = len(self.recording.preactivations) - len(self.layers)
        preactivations = self.recording.preactivations[first : first + n_layers]
        directions = self._fixed(self.directions)[: None if n_layers else 0]
        for k, direction in enumerate(directions, start=1):
            # The average's own factor 1/S is in `averaged`.
            yield torch.autograd.grad(
                self.averaged, preactivations, direction, create_graph=self.create_graph,
                retain_graph=self.create_graph or k < len(directions),
            )  # fmt: skip

    def _tail(self) -> list[Tensor]:
        """Sums over the samples that take no backward pass through the outputs, (K, N, *Z)."""
        if self.recording.head is None:
            return []
        directions = self._fixed(self.directions)
        if len(self.layers) == 1:
            return [directions]
        import_symbolic_shapes()
        hidden = self.recording.inputs[-1]
        preactivations = self.recording.preactivations[-2]
        slopes = torch.autograd.grad(
            hidden, preactivations, hidden.new_ones(()).expand_as(hidden), retain_graph=True,
            create_graph=self.create_graph,
        )[0]  # fmt: skip
        mean = self._mean(self._by_sample(slopes))
        return [mean * (directions @ self._fixed(self.recording.head)), directions]


@dataclass(frozen=True)
class Directions:
    r"""Output directions r whose squares sum to the curvature :math:`\Lambda` of the likelihood.

    "exact": all columns of a root R of it, K = O: the Gauss-Newton curvature itself. "sketch":
    random signs times the columns, :math:`r = R\varepsilon`, unbiased as :math:`E[rr'] = RR'`, K =
    ``n_sketches``; unlike labels drawn from the model they stay differentiable.
    """

    kind: Literal["exact", "sketch"]
    n_sketches: int = 1

    def columns(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """Directions (K, N, O) at the averaged outputs (N, O), differentiable in them."""
        root = likelihood.hessian_root(outputs, y)
        if self.kind == "exact":
            return root
        shape = (self.n_sketches, *root.shape[:2])
        signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        signs = (2 * signs - 1).to(root)
        return torch.einsum("jkn,kno->jno", signs, root) / self.n_sketches**0.5


def dense_jacobian(jacobian: AveragedJacobian, layout: ParamLayout) -> Tensor:
    r"""Derivatives of the averaged outputs along the directions, (K, N, P') in the layout's order.

    P' counts the parameters of the jacobian's layers, see `parameter_positions`. The sum over the
    samples is exact: :math:`J = \sum_s g_s a_s'`. Memory is O(K N P').
    """
    pieces: dict[str, Tensor] = {}
    for layer, inputs, gradients in jacobian.samples:
        n, s = inputs.shape[:2]
        patches = layer.patches(inputs.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2)
        slopes = torch.stack([
            layer.positions(g.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2) for g in gradients
        ])  # fmt: skip
        pieces[layer.weight] = (slopes.mT @ patches).flatten(2)
        if layer.bias is not None:
            pieces[layer.bias] = slopes.sum(2)
    return torch.cat([pieces[name] for name in layout.shapes if name in pieces], -1)


def parameter_positions(layers: Sequence[WeightLayer], layout: ParamLayout) -> Tensor:
    """Places in ``theta`` of the layers' parameters, in the layout's order, (P',) int64."""
    names = {name for layer in layers for name in (layer.weight, layer.bias)}
    return torch.cat([layout.positions(n).flatten() for n in layout.shapes if n in names])


def parameter_layers(layers: Sequence[WeightLayer], layout: ParamLayout) -> Tensor:
    """Number of the layer that each of `parameter_positions` belongs to, (P',) int64."""
    owner = {n: i for i, layer in enumerate(layers) for n in (layer.weight, layer.bias) if n}
    names = [n for n in layout.shapes if n in owner]
    return torch.cat([torch.full((layout.positions(n).numel(),), owner[n]) for n in names])


Convert = Callable[[Any], Any]
Factors = list[Tensor]


def averaged_vectors(layer: LayerAverages) -> tuple[Tensor, Tensor]:
    """Mean inputs (N, T, D) and summed gradients (K, N, T, G) at the positions of a layer."""
    patches = layer.layer.patches(layer.inputs)  # linear, so that the mean could come first
    gradients = layer.layer.positions(layer.gradients.flatten(0, 1))
    return patches, gradients.unflatten(0, layer.gradients.shape[:2])


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
        """Numbers that one row's derivative of one output takes."""
        return sum(len(s.input_values) + len(s.output_values) for s in self.spectra)

    def map(self, convert: Convert) -> "KroneckerPrecision":
        """Copy with every array converted."""
        spectra = tuple(LayerSpectrum(*map(convert, spectrum)) for spectrum in self.spectra)
        return replace(self, spectra=spectra, prior=convert(self.prior))

    def log_det(self) -> Tensor:
        blocks = (b for *_, weight, bias in self._blocks() for b in (weight, bias))
        return torch.stack([block.log().sum() for block in blocks]).sum()

    def slopes(self) -> Tensor:
        """Derivatives of log det in the prior precisions of the layers, (L,)."""
        return torch.stack(
            [w.reciprocal().sum() + b.reciprocal().sum() for *_, w, b in self._blocks()]
        )

    def preconditioners(self) -> Factors:
        """Derivatives of log det in the factors."""
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
        """Squared Mahalanobis length of deviations (*B, P') from the mode, (*B,)."""
        parts = self._split(away)
        total = away.new_zeros(away.shape[:-1])
        for layer, s, weight, bias in self._blocks():
            rotated = s.output_basis.mT @ parts[layer.weight].flatten(away.ndim) @ s.input_basis
            total = total + (weight * rotated.square()).sum((-1, -2))
            if layer.bias is not None:
                total = total + (bias * (parts[layer.bias] @ s.output_basis).square()).sum(-1)
        return total

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Deviations from the mode, (n, P')."""
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
        """Covariance (N, K, K) of the outputs along the jacobian's directions."""
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
        """A root R (K, N, P') of the covariance R_kn . R_jm of outputs k, j at rows n, m."""
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
        """Deviations of the outputs, (n, N, K)."""
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
class FullPrecision:
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
        values = self.preconditioners()[0].diagonal()
        owner = parameter_layers(self.layers, self.layout).to(values.device)
        return values.new_zeros(len(self.layers)).index_add_(0, owner, values)

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

    def output_covariance(self, jacobian: AveragedJacobian) -> Tensor:
        root = self.output_root(jacobian)
        return torch.einsum("knp,jnp->nkj", root, root)

    def output_draws(
        self, jacobian: AveragedJacobian, n: int, *, generator: torch.Generator
    ) -> Tensor:
        root = self.output_root(jacobian)
        z = standard_normal((n, root.shape[-1]), generator=generator, like=root)
        return torch.einsum("knp,sp->snk", root, z)


Precision = KroneckerPrecision | FullPrecision  # of P' covered parameters, in the layout's order


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
        """A minibatch's part, differentiable if the jacobian is; ``weight`` (N,)."""
        return [_second_moment(v, w) for v, w in self._weighted(jacobian, weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        """sum_i <P_i, F_i> of a minibatch, differentiable; the factors aren't formed."""
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
        """H + Delta of the sum over all minibatches, at prior precisions (L,), float64."""
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
    wide = matrix.double() if len(matrix) <= 512 else matrix  # costs little there
    alive = (wide.diagonal() != 0.0).nonzero().squeeze(1)
    values = torch.zeros_like(wide[0])
    vectors = torch.eye(len(wide)).to(wide)
    living = wide[alive][:, alive]
    try:
        values[alive], vectors[alive[:, None], alive] = torch.linalg.eigh(living)
    except torch.linalg.LinAlgError:
        vectors[alive[:, None], alive], values[alive], _ = torch.linalg.svd(living)
    return vectors.to(matrix), values.clamp_min(0.0).to(matrix)


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
            name="The posterior precision of the weights",
            remedy="Standardize the data, lower learning_rate, or give a smaller prior.",
        )
        return FullPrecision(factor, self.layers, self.layout)


Structure = Kronecker | Full  # of the curvature that is kept
