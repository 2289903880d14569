r"""Gauss-Newton curvature of an averaged network: Kronecker-factored and full.

The generalised Gauss-Newton matrix is :math:`H = \sum_n w_n J_n' \Lambda_n J_n` with the Jacobian
of the averaged outputs (Immer et al. 2022, eqs. 11-15). A structure computes *factors* of
minibatches. Their sum and a prior precision :math:`\delta_l` for each layer give the `Precision`
:math:`H + \Delta`, which has draws, densities, and the covariances of outputs. Its preconditioners

.. math:: P_i = \partial \log\det(H + \Delta) / \partial F_i

(eqs. 22-23) turn the gradient in any parameter of the factors into a sum over minibatches,
:math:`\sum_i \langle P_i, dF_i \rangle`.

The Kronecker structure takes the derivative of an averaged output as the product of the summed
gradient and the mean input, :math:`\sum_s g_s a_s' \approx \hat g \bar a'` (exact without
transformations). A prediction then costs O(D^2 + G^2) per row and output, instead of O(D G) memory.

The gradients are those of the averaged network :math:`\hat f(x_n) = \frac1S \sum_s f(x_{ns})` in
its pre-activations. They take one recorded forward pass and K backward passes, which don't reach
the weights or the inputs. If the network ends in an elementwise activation :math:`\phi` and a
linear layer W, those of the last two layers, summed over the samples, need no backward passes:

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

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Recording, WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import cholesky, log_det
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.numerics.runtime import import_symbolic_shapes

_MIN_LOW_RANK_SIZE = 512  # of matrices whose eigenvectors take longer than to find their rank


class LayerSamples(NamedTuple):
    """Inputs and gradients of a weight layer on a minibatch, for every sample.

    Attributes
    ----------
    layer : WeightLayer
    inputs : Tensor of shape (N, S, *I)
    gradients : list of Tensor of shape (N, S, *Z)
        d(f_hat . r_k)/dz for each of K directions.
    """

    layer: WeightLayer
    inputs: Tensor
    gradients: list[Tensor]


class LayerAverages(NamedTuple):
    """Inputs and gradients of a weight layer on a minibatch, averaged over the samples.

    Attributes
    ----------
    layer : WeightLayer
    inputs : Tensor of shape (N, *I)
        Means over the samples.
    gradients : Tensor of shape (K, N, *Z)
        Sums of d(f_hat . r_k)/dz over the samples.
    """

    layer: WeightLayer
    inputs: Tensor
    gradients: Tensor


@dataclass(frozen=True, eq=False)
class AveragedJacobian:
    """Jacobian of an averaged network on a minibatch along K output directions.

    Use either `samples` or `averages`, and only once. The graph of the recording is freed
    afterwards, unless ``create_graph`` keeps the gradients differentiable.

    Attributes
    ----------
    recording : Recording
        Recorded pass of N * S inputs, with the samples of a row next to each other.
    layers : sequence of WeightLayer
        All weight layers of the network, or its last ones.
    n_samples : int
        Number of samples S.
    averaged : Tensor of shape (N, O)
        Averaged outputs, computed from ``recording.outputs``.
    directions : Tensor of shape (K, N, O)
    create_graph : bool, default=False
        Whether gradients must be differentiable in the parameters of the inputs.
    """

    recording: Recording
    layers: Sequence[WeightLayer]
    n_samples: int
    averaged: Tensor
    directions: Tensor
    create_graph: bool = False

    @cached_property
    def samples(self) -> list[LayerSamples]:
        """Every sample's values, in the order of the layers; O(K N S) memory times their widths."""
        with torch.set_grad_enabled(self.create_graph):
            passes = self._passes(len(self.layers))
            rows = zip(self.layers, self._inputs(), zip(*passes, strict=True), strict=True)
            return [
                LayerSamples(layer, inputs, [self._by_sample(g) for g in gradients])
                for layer, inputs, gradients in rows
            ]

    @cached_property
    def averages(self) -> list[LayerAverages]:
        """Averages, in the order of the layers; O(N (K + S)) memory times their widths."""
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
        """Return the inputs (N, S, *I) of every layer."""
        recorded = self.recording.inputs[-len(self.layers) :]
        return [self._by_sample(self._fixed(inputs)) for inputs in recorded]

    def _mean(self, rows: Tensor) -> Tensor:
        """Average over the samples. The division comes last, so that the gradient is a view."""
        return rows.sum(1) / self.n_samples

    def _by_sample(self, rows: Tensor) -> Tensor:
        return rows.unflatten(0, (-1, self.n_samples))

    def _fixed(self, value: Tensor) -> Tensor:
        return value if self.create_graph else value.detach()

    def _passes(self, n_layers: int) -> Iterator[tuple[Tensor, ...]]:
        """Make K backward passes to the pre-activations (N * S, *Z) of the first layers."""
        import_symbolic_shapes()
        first = len(self.recording.preactivations) - len(self.layers)
        preactivations = self.recording.preactivations[first : first + n_layers]
        if not n_layers:
            return
        directions = self._fixed(self.directions)
        for k, direction in enumerate(directions, start=1):
            # The factor 1/S of the average is contained in `averaged`.
            yield torch.autograd.grad(
                self.averaged,
                preactivations,
                direction,
                create_graph=self.create_graph,
                retain_graph=self.create_graph or k < len(directions),
            )

    def _tail(self) -> list[Tensor]:
        """Return the sums (K, N, *Z) that need no backward pass, of up to two last layers."""
        if self.recording.head is None:
            return []
        directions = self._fixed(self.directions)
        if len(self.layers) == 1:
            return [directions]
        import_symbolic_shapes()
        hidden = self.recording.inputs[-1]
        preactivations = self.recording.preactivations[-2]
        slopes = torch.autograd.grad(
            hidden,
            preactivations,
            hidden.new_ones(()).expand_as(hidden),
            retain_graph=True,
            create_graph=self.create_graph,
        )[0]
        mean = self._mean(self._by_sample(slopes))
        return [mean * (directions @ self._fixed(self.recording.head)), directions]


@dataclass(frozen=True)
class Directions:
    r"""Output directions r whose squares sum to the curvature :math:`\Lambda` of the likelihood.

    Attributes
    ----------
    kind : {"exact", "sketch"}
        "exact" takes all columns of a root R of the curvature, K = O, which gives the Gauss-Newton
        curvature itself. "sketch" takes random combinations of the columns,
        :math:`r = R\varepsilon` with random signs. It is unbiased, because :math:`E[rr'] = RR'`,
        and unlike classes drawn from the model it is differentiable.
    n_sketches : int, default=1
        Number K of random combinations.
    """

    kind: Literal["exact", "sketch"]
    n_sketches: int = 1

    def columns(
        self, likelihood: Likelihood, outputs: Tensor, y: Tensor, *, generator: torch.Generator
    ) -> Tensor:
        """Return directions, which are differentiable in the outputs.

        Parameters
        ----------
        likelihood : Likelihood
        outputs : Tensor of shape (N, O)
            Averaged outputs.
        y : Tensor
            Targets (N, T) or classes (N,).
        generator : torch.Generator
            Source of the signs.

        Returns
        -------
        Tensor of shape (K, N, O)
        """
        root = likelihood.hessian_root(outputs, y)
        if self.kind == "exact":
            return root
        shape = (self.n_sketches, *root.shape[:2])
        signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        signs = (2 * signs - 1).to(root)
        return torch.einsum("jkn,kno->jno", signs, root) / self.n_sketches**0.5


def dense_jacobian(jacobian: AveragedJacobian, layout: ParamLayout) -> Tensor:
    r"""Return derivatives (K, N, P') of the averaged outputs, in the layout's order.

    P' is the number of parameters of the Jacobian's layers, see `parameter_positions`. The sum over
    the samples is exact, :math:`J = \sum_s g_s a_s'`. Memory is O(K N P').
    """
    pieces: dict[str, Tensor] = {}
    for layer, inputs, gradients in jacobian.samples:
        n, s = inputs.shape[:2]
        patches = layer.patches(inputs.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2)
        slopes = torch.stack(
            [layer.positions(g.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2) for g in gradients]
        )
        pieces[layer.weight] = (slopes.mT @ patches).flatten(2)
        if layer.bias is not None:
            pieces[layer.bias] = slopes.sum(2)
    return torch.cat([pieces[name] for name in layout.shapes if name in pieces], -1)


def parameter_positions(layers: Sequence[WeightLayer], layout: ParamLayout) -> Tensor:
    """Return the indices in ``theta`` of the layers' parameters, in its order, (P',) int64."""
    names = {name for layer in layers for name in (layer.weight, layer.bias)}
    return torch.cat([layout.positions(n).flatten() for n in layout.shapes if n in names])


def parameter_layers(layers: Sequence[WeightLayer], layout: ParamLayout) -> Tensor:
    """Return the index of the layer of each of `parameter_positions`, (P',) int64."""
    owner = {n: i for i, layer in enumerate(layers) for n in (layer.weight, layer.bias) if n}
    names = [n for n in layout.shapes if n in owner]
    return torch.cat([torch.full((layout.positions(n).numel(),), owner[n]) for n in names])


Convert = Callable[[Any], Any]
Factors = list[Tensor]


def averaged_vectors(layer: LayerAverages) -> tuple[Tensor, Tensor]:
    """Return mean inputs (N, T, D) and summed gradients (K, N, T, G) at a layer's T positions."""
    patches = layer.layer.patches(layer.inputs)  # linear, so that the mean may come first
    gradients = layer.layer.positions(layer.gradients.flatten(0, 1))
    return patches, gradients.unflatten(0, layer.gradients.shape[:2])


class LayerSpectrum(NamedTuple):
    """Eigenvectors and eigenvalues of a layer's A/N and G.

    Attributes
    ----------
    input_basis : array of shape (D, D)
    input_values : array of shape (D,)
    output_basis : array of shape (G, G)
    output_values : array of shape (G,)
    """

    input_basis: Any
    input_values: Any
    output_basis: Any
    output_values: Any


@dataclass(frozen=True, eq=False)
class KroneckerPrecision:
    r"""Precision with eigenvalues :math:`\lambda_a \lambda_g + \delta` in every layer's eigenbasis.

    Biases have :math:`\lambda_g + \delta`.

    Attributes
    ----------
    spectra : tuple of LayerSpectrum
    layers : tuple of WeightLayer
    layout : ParamLayout
        Layout of all parameters of the network.
    prior : array of shape (L,)
        Prior precisions of the layers.
    total_weight : float
        Sum of the rows' weights.
    """

    spectra: tuple[LayerSpectrum, ...]
    layers: tuple[WeightLayer, ...]
    layout: ParamLayout
    prior: Any
    total_weight: float

    @property
    def entries_per_output(self) -> int:
        """Number of entries of one row's derivative of one output."""
        return sum(len(s.input_values) + len(s.output_values) for s in self.spectra)

    def map(self, convert: Convert) -> "KroneckerPrecision":
        """Copy with every array converted."""
        spectra = tuple(LayerSpectrum(*map(convert, spectrum)) for spectrum in self.spectra)
        return replace(self, spectra=spectra, prior=convert(self.prior))

    def log_det(self) -> Tensor:
        """Log determinant, 0-d."""
        blocks = (b for *_, weight, bias in self._blocks() for b in (weight, bias))
        return torch.stack([block.log().sum() for block in blocks]).sum()

    def slopes(self) -> Tensor:
        """Derivatives of the log determinant in the prior precisions of the layers, (L,)."""
        return torch.stack(
            [w.reciprocal().sum() + b.reciprocal().sum() for *_, w, b in self._blocks()]
        )

    def preconditioners(self) -> Factors:
        """Derivatives of the log determinant in the factors."""
        factors = []
        for _, s, weight, bias in self._blocks():
            inverse = weight.reciprocal().to(s.input_basis)
            on_inputs = s.output_values @ inverse / self.total_weight
            on_outputs = inverse @ s.input_values
            if len(bias):
                on_outputs = on_outputs + bias.reciprocal().to(on_outputs)
            factors += [
                _compose(s.input_basis, on_inputs, s.input_values),
                _compose(s.output_basis, on_outputs, s.output_values),
            ]
        return factors

    def _blocks(self) -> Iterator[tuple[WeightLayer, LayerSpectrum, Tensor, Tensor]]:
        """Iterate over layers, spectra, and eigenvalues of weight (G, D) and bias (G,) blocks.

        Eigenvalues have the prior's dtype, float64, because sums of float32 ones are inaccurate. A
        layer without a bias has a block (0,).
        """
        for layer, s, delta in zip(self.layers, self.spectra, self.prior, strict=True):
            outputs = s.output_values.to(self.prior)
            weight = torch.outer(outputs, s.input_values.to(self.prior)) + delta
            bias = outputs + delta
            if layer.bias is None:
                bias = bias[:0]
            yield layer, s, weight, bias

    def _split(self, flat: Tensor) -> dict[str, Tensor]:
        names = {n for layer in self.layers for n in (layer.weight, layer.bias)}
        shapes = {n: s for n, s in self.layout.shapes.items() if n in names}
        return ParamLayout(shapes).unflatten(flat)

    def quadratic(self, deviation: Tensor) -> Tensor:
        """Squared Mahalanobis length of deviations (*B, P') from the mode, (*B,)."""
        parts = self._split(deviation)
        total = deviation.new_zeros(deviation.shape[:-1])
        for layer, s, weight, bias in self._blocks():
            rotated = (
                s.output_basis.mT @ parts[layer.weight].flatten(deviation.ndim) @ s.input_basis
            )
            total = total + (weight * rotated.square()).sum((-1, -2))
            if layer.bias is not None:
                total = total + (bias * (parts[layer.bias] @ s.output_basis).square()).sum(-1)
        return total

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw deviations from the mode, (n, P')."""
        parts = {}
        for layer, s, weight, bias in self._blocks():
            z = standard_normal((n, *weight.shape), generator=generator, like=weight)
            rotated = s.output_basis @ (z * weight.rsqrt()) @ s.input_basis.mT
            parts[layer.weight] = rotated.flatten(1)
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
            if inputs.shape[1] == 1:  # at a single position the derivative is an outer product
                variance = inputs[:, 0].square() @ weight.reciprocal().mT  # (N, G)
                g = gradients[:, :, 0]
                total = total + torch.einsum("kng,ng,jng->nkj", g, variance, g)
            else:
                j = torch.einsum("kntg,ntd->kngd", gradients, inputs) * weight.rsqrt()
                total = total + torch.einsum("kngd,jngd->nkj", j, j)
            if layer.bias is not None:
                g = gradients.sum(2) * bias.rsqrt()
                total = total + torch.einsum("kng,jng->nkj", g, g)
        return total

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        """Root R (K, N, P') of the covariance R_kn . R_jm of outputs k, j at rows n, m."""
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
        """Draw deviations of the outputs, (n, N, K).

        Parameters
        ----------
        jacobian : AveragedJacobian
            Derivatives of the outputs of N rows.
        n : int
            Number of draws.
        generator : torch.Generator
            Source of random numbers.
        """
        rotated = [
            _rotated(t, s)
            for t, (_, s, _, _) in zip(jacobian.averages, self._blocks(), strict=True)
        ]
        draws = []
        for _ in range(n):  # the weights of one draw at a time, to save memory
            total: Any = 0.0
            for (layer, _, weight, bias), (inputs, gradients) in zip(
                self._blocks(), rotated, strict=True
            ):
                z = standard_normal(weight.shape, generator=generator, like=inputs)
                deviation = inputs @ (z * weight.rsqrt()).mT  # (N, T, G)
                total = total + torch.einsum("kntg,ntg->nk", gradients, deviation)
                if layer.bias is not None:
                    z = standard_normal(bias.shape, generator=generator, like=inputs)
                    total = total + torch.einsum("kntg,g->nk", gradients, z * bias.rsqrt())
            draws.append(total)
        return torch.stack(draws)


def _rotated(layer: LayerAverages, s: LayerSpectrum) -> tuple[Tensor, Tensor]:
    """Return mean inputs (N, T, D) and summed gradients (K, N, T, G) in the eigenbasis."""
    inputs, gradients = averaged_vectors(layer)
    return inputs @ s.input_basis, gradients @ s.output_basis


@dataclass(frozen=True, eq=False)
class FullPrecision:
    """A dense precision with its lower Cholesky factor.

    Attributes
    ----------
    cholesky : array of shape (P', P')
    layers : sequence of WeightLayer
    layout : ParamLayout
        Layout of all parameters of the network.
    """

    cholesky: Any
    layers: Sequence[WeightLayer]
    layout: ParamLayout

    @property
    def entries_per_output(self) -> int:
        """Number of entries of one row's derivative of one output."""
        return len(self.cholesky)

    def map(self, convert: Convert) -> "FullPrecision":
        """Copy with every array converted."""
        return replace(self, cholesky=convert(self.cholesky))

    def log_det(self) -> Tensor:
        """Log determinant, 0-d."""
        return log_det(self.cholesky)

    def slopes(self) -> Tensor:
        """Derivatives of the log determinant in the prior precisions of the layers, (L,)."""
        values = self.preconditioners()[0].diagonal()
        owner = parameter_layers(self.layers, self.layout).to(values.device)
        return values.new_zeros(len(self.layers)).index_add_(0, owner, values)

    def preconditioners(self) -> Factors:
        """Derivatives of the log determinant in the factors."""
        return [torch.cholesky_inverse(self.cholesky)]

    def quadratic(self, deviation: Tensor) -> Tensor:
        """Squared Mahalanobis length of deviations (*B, P') from the mode, (*B,)."""
        return (deviation @ self.cholesky).square().sum(-1)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw deviations from the mode, (n, P')."""
        z = standard_normal((n, len(self.cholesky)), generator=generator, like=self.cholesky)
        return torch.linalg.solve_triangular(self.cholesky.mT, z.mT, upper=True).mT

    def output_root(self, jacobian: AveragedJacobian) -> Tensor:
        """Root R (K, N, P') of the covariance R_kn . R_jm of outputs k, j at rows n, m."""
        j = dense_jacobian(jacobian, self.layout)
        flat = torch.linalg.solve_triangular(self.cholesky, j.flatten(0, 1).mT, upper=False)
        return flat.mT.unflatten(0, j.shape[:2])

    def output_covariance(self, jacobian: AveragedJacobian) -> Tensor:
        """Covariance (N, K, K) of the outputs along the jacobian's directions."""
        root = self.output_root(jacobian)
        return torch.einsum("knp,jnp->nkj", root, root)

    def output_draws(
        self, jacobian: AveragedJacobian, n: int, *, generator: torch.Generator
    ) -> Tensor:
        """Draw deviations of the outputs, (n, N, K).

        Parameters
        ----------
        jacobian : AveragedJacobian
            Derivatives of the outputs of N rows.
        n : int
            Number of draws.
        generator : torch.Generator
            Source of random numbers.
        """
        root = self.output_root(jacobian)
        z = standard_normal((n, root.shape[-1]), generator=generator, like=root)
        return torch.einsum("knp,sp->snk", root, z)


Precision = KroneckerPrecision | FullPrecision  # of the P' covered parameters, in their order


@dataclass(frozen=True, eq=False)
class Kronecker:
    r"""Kronecker-factored curvature :math:`H_l \approx G_l \otimes A_l / N` of every layer.

    The bias of the layer has :math:`G_l`, and there are no terms between layers.

    :math:`A_l = \frac1T \sum_{nt} w_n \bar a_{nt} \bar a_{nt}'` from the mean inputs and
    :math:`G_l = \sum_{ntr} w_n \hat g_{ntr} \hat g_{ntr}'` from the gradients summed over the
    samples (eq. 15, with 1/N for one factor only and not for the bias), where T is the number of
    positions of a convolution. It is exact for a linear model with constant :math:`\Lambda`.

    A pass costs O(N (D^2 + K G^2)) in addition to the network, and the decomposition O(D^3 + G^3).

    Attributes
    ----------
    layers : sequence of WeightLayer
    layout : ParamLayout
        Layout of all parameters of the network.
    """

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        """Return the factors of a minibatch of weights (N,), differentiable if the jacobian is."""
        return [_second_moment(v, w) for v, w in self._weighted(jacobian, weight)]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        """Return sum_i <P_i, F_i> of a minibatch, differentiable, without forming the factors.

        Parameters
        ----------
        jacobian : AveragedJacobian
            Derivatives of the outputs of a minibatch.
        weight : Tensor of shape (N,)
            Sample weights.
        preconditioners : list of Tensor
            The matrices P.
        """
        pairs = zip(self._weighted(jacobian, weight), preconditioners, strict=True)
        return torch.stack([_inner_moment(v, w, p) for (v, w), p in pairs]).sum()

    def _weighted(
        self, jacobian: AveragedJacobian, weight: Tensor
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over vectors (M, D) and weights (M,) whose second moments are the factors."""
        for layer in jacobian.averages:
            patches, gradients = averaged_vectors(layer)
            n_positions = patches.shape[1]
            position_weight = weight.repeat_interleave(n_positions)
            yield patches.flatten(0, 1), position_weight / n_positions
            yield gradients.flatten(0, 2), position_weight.repeat(len(gradients))

    def precision(self, factors: Factors, total_weight: float, prior: Tensor) -> KroneckerPrecision:
        """Return H + Delta, given the sum of the factors over all rows.

        Parameters
        ----------
        factors : list of Tensor
        total_weight : float
            Sum of the rows' weights.
        prior : Tensor of shape (L,)
            Prior precisions of the layers, float64.

        Returns
        -------
        KroneckerPrecision
        """
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

    Its gradient is 2 w P v, so that one product gives value and gradient. With ``f`` the detached
    copy of v, ``w f' P (2 v - f)`` has the value ``w v' P v`` at f = v and the gradient
    ``2 w P f``. Only first derivatives are right: the second one is 0 instead of ``2 w P``.
    """
    fixed = vectors.detach()
    slope = (fixed @ preconditioner) * weight[:, None]
    return (slope * (2.0 * vectors - fixed)).sum()


def _decompose(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors and eigenvalues of a positive semidefinite matrix.

    Eigenvalues are at least 0, as they would be without rounding. Units without gradient give rows
    of zeros. For these the unit vectors are eigenvectors, and they are left out, because LAPACK's
    divide and conquer may fail to converge if there are many, and on some matrices that are mostly
    zero.
    """
    wide = matrix
    if len(matrix) <= 512:
        # Double precision is fast for small matrices.
        wide = matrix.double()
    alive = (wide.diagonal() != 0.0).nonzero().squeeze(1)
    values = torch.zeros_like(wide[0])
    vectors = torch.eye(len(wide)).to(wide)
    living = wide[alive][:, alive]
    root = _low_rank_root(living)
    try:
        if root is not None:
            vectors[alive[:, None], alive], values[alive] = _decompose_root(root)
        else:
            values[alive], vectors[alive[:, None], alive] = torch.linalg.eigh(living)
    except torch.linalg.LinAlgError:
        vectors[alive[:, None], alive], values[alive], _ = torch.linalg.svd(living)
    return vectors.to(matrix), values.clamp_min(0.0).to(matrix)


def _low_rank_root(matrix: Tensor) -> Tensor | None:
    """Return a root (D, r) of a large matrix of low rank, by Cholesky's method with pivots.

    Fewer rows than inputs give such matrices: the root takes O(D^2 r), the eigenvectors of the
    matrix O(D^3). None if the matrix is small, or its rank is more than a quarter of its size.
    """
    size = len(matrix)
    if size < _MIN_LOW_RANK_SIZE:
        return None
    array = matrix.cpu().numpy()
    factorise = get_lapack_funcs("pstrf", (array,))
    tol = size * torch.finfo(matrix.dtype).eps * float(matrix.diagonal().max())
    factor, pivots, rank, _ = factorise(array, tol=tol, lower=1)
    if rank > size // 4:
        return None
    root = np.empty((size, rank), dtype=array.dtype)
    root[pivots - 1] = np.tril(factor[:, :rank])
    return torch.as_tensor(root).to(matrix)


def _decompose_root(root: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvectors (D, D) and eigenvalues (D,) of ``root root'`` for a root (D, r)."""
    size, rank = root.shape
    vectors, triangle = torch.linalg.qr(root, mode="complete")
    left, singular_values, _ = torch.linalg.svd(triangle[:rank])
    vectors[:, :rank] = vectors[:, :rank] @ left
    values = root.new_zeros(size)
    values[:rank] = singular_values.square()
    return vectors, values


def _compose(basis: Tensor, values: Tensor, spectrum: Tensor) -> Tensor:
    """Return the matrix with eigenvectors ``basis`` and eigenvalues ``values``.

    Where the eigenvalues of the ``spectrum`` are 0, all ``values`` are equal. They give a multiple
    of the identity, so that a product with few vectors is left.
    """
    is_zero = spectrum == 0.0
    if 2 * int(is_zero.sum()) < len(values):
        return (basis * values) @ basis.mT
    constant = values[is_zero][0]
    vectors = basis[:, ~is_zero]
    matrix = (vectors * (values[~is_zero] - constant)) @ vectors.mT
    matrix.diagonal().add_(constant)
    return matrix


@dataclass(frozen=True, eq=False)
class Full:
    """Full matrix H. O(P^2 + K N P) memory, and O(P^3) time for the Cholesky factor.

    Attributes
    ----------
    layers : sequence of WeightLayer
    layout : ParamLayout
        Layout of all parameters of the network.
    """

    layers: Sequence[WeightLayer]
    layout: ParamLayout

    def factors(self, jacobian: AveragedJacobian, weight: Tensor) -> Factors:
        """Return the matrix of a minibatch with weights (N,), differentiable if the jacobian is."""
        j = dense_jacobian(jacobian, self.layout)
        return [_second_moment(j.flatten(0, 1), weight.repeat(len(j)))]

    def inner(self, jacobian: AveragedJacobian, weight: Tensor, preconditioners: Factors) -> Tensor:
        """Return <P, H> of a minibatch, differentiable.

        Parameters
        ----------
        jacobian : AveragedJacobian
            Derivatives of the outputs of a minibatch.
        weight : Tensor of shape (N,)
            Sample weights.
        preconditioners : list of Tensor
            The matrices P.
        """
        j = dense_jacobian(jacobian, self.layout)
        return _inner_moment(j.flatten(0, 1), weight.repeat(len(j)), preconditioners[0].to(j))

    def precision(self, factors: Factors, _total_weight: float, prior: Tensor) -> FullPrecision:
        """Return H + Delta, given the sum over all rows and the layers' prior precisions (L,)."""
        owner = parameter_layers(self.layers, self.layout).to(prior.device)
        factor = cholesky(
            factors[0].double() + prior.double()[owner].diag(),
            name="The posterior precision of the weights",
            remedy="Standardize the data, lower learning_rate, or give a smaller prior.",
        )
        return FullPrecision(factor, self.layers, self.layout)


Structure = Kronecker | Full  # part of the curvature that is kept
