"""Preconditioner of chains by the Kronecker-factored curvature of each layer.

Let ``h`` be the inputs of a layer (and a 1 for its biases), and ``g`` the derivatives of the
outputs with respect to its preactivations, multiplied by a root of the likelihood's curvature. The
layer's block of the generalised Gauss-Newton matrix is the sum over rows of ``(g g') x (h h')``.
Martens & Grosse (2015, "Optimizing neural networks with Kronecker-factored approximate
curvature", eq. 1) approximate it by

    G x A,   G = sum over rows of g g',   A = mean over rows of h h'.

With ``A = U diag(a) U'`` and ``G = V diag(g) V'`` its inverse root is, for a prior of precision p,

    Z -> V [(g_i a_j + p)^(-1/2) Z_ij] U'.

This is exact for linear networks with normal noise. The parameters of a layer are one matrix
``[W | b]`` (out, in + 1). Every chain has its own factors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple, cast

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior
from skbayes_sym.mcmc.warmup import RunningMoments, Window
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.preconditioners import Preconditioner


class LayerCurvature(NamedTuple):
    """Kronecker factors of a layer's curvature, for C chains.

    Parameters
    ----------
    input_factor : Tensor of shape (C, in + 1, in + 1)
        A: mean over rows of the outer products of the inputs.
    output_factor : Tensor of shape (C, out, out)
        G: sum over rows of the outer products of the scaled derivatives.
    """

    input_factor: Tensor
    output_factor: Tensor

    @staticmethod
    def stack(chains: "Sequence[LayerCurvature]") -> "LayerCurvature":
        """Stack the factors of single chains, which have no chain axis."""
        return LayerCurvature(
            torch.stack([chain.input_factor for chain in chains]),
            torch.stack([chain.output_factor for chain in chains]),
        )

    def inverse_root(self, precision: Tensor) -> "_InverseRoot":
        """Compute the inverse root of the curvature plus the prior precision."""
        output_eigenvalues, left = _eigenvectors(self.output_factor)
        input_eigenvalues, right = _eigenvectors(self.input_factor)
        eigenvalues = output_eigenvalues.unsqueeze(2) * input_eigenvalues.unsqueeze(1)
        scale = (eigenvalues + precision).rsqrt()
        like = self.output_factor
        return _InverseRoot(left.to(like), scale.to(like), right.to(like))


class WideLayerCurvature(NamedTuple):
    """Kronecker factors of a first layer with more inputs than rows, for C chains.

    Parameters
    ----------
    input_root : Tensor of shape (N, in + 1)
        B, with A = B'B as in `LayerCurvature`. It is the same for all chains.
    output_factor : Tensor of shape (C, out, out)
        G: sum over rows of the outer products of the scaled derivatives.
    """

    input_root: Tensor
    output_factor: Tensor

    @staticmethod
    def stack(chains: "Sequence[WideLayerCurvature]") -> "WideLayerCurvature":
        """Stack the factors of single chains, which have no chain axis."""
        output_factor = torch.stack([chain.output_factor for chain in chains])
        return WideLayerCurvature(chains[0].input_root, output_factor)

    def inverse_root(self, precision: Tensor) -> "_WideInverseRoot":
        """Compute the inverse root of the curvature plus the prior precision."""
        output_eigenvalues, left = _eigenvectors(self.output_factor)
        root = torch.linalg.svd(self.input_root.double(), full_matrices=False)
        prior_scale = precision.rsqrt()
        eigenvalues = output_eigenvalues.unsqueeze(2) * root.S.square()
        excess = (eigenvalues + precision).rsqrt() - prior_scale
        like = self.output_factor
        right = root.Vh.mT
        return _WideInverseRoot(
            left.to(like), excess.to(like), right.to(like), prior_scale.to(like)
        )


def _eigenvectors(factor: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, at least 0, and eigenvectors of symmetric matrices, in float64."""
    eigenvalues, eigenvectors = torch.linalg.eigh(factor.double())
    return eigenvalues.clamp_min(0), eigenvectors


Curvature = LayerCurvature | WideLayerCurvature


class _InverseRoot(NamedTuple):
    """Inverse root of a layer's curvature, ``Z -> left (scale o Z) right'``.

    Parameters
    ----------
    left : Tensor of shape (C, out, out)
        Eigenvectors of G.
    scale : Tensor of shape (C, out, in + 1)
        Inverse roots of the eigenvalues.
    right : Tensor of shape (C, in + 1, in + 1)
        Eigenvectors of A.
    """

    left: Tensor
    scale: Tensor
    right: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and of inputs with the bias."""
        return self.left.shape[1], self.right.shape[1]

    def apply(self, z: Tensor) -> Tensor:
        """Apply the root to (C, out, in + 1)."""
        return torch.bmm(torch.bmm(self.left, self.scale * z), self.right.mT)

    def apply_transposed(self, gradient: Tensor) -> Tensor:
        """Apply the transposed root to (C, out, in + 1)."""
        return torch.bmm(torch.bmm(self.left.mT, gradient), self.right).mul_(self.scale)


class _WideInverseRoot(NamedTuple):
    """Inverse root for fewer rows than inputs, whose other directions have the prior's scale s.

    It maps ``Z -> left (s Z + (excess o Z right) right')``.

    Parameters
    ----------
    left : Tensor of shape (C, out, out)
        Eigenvectors of G.
    excess : Tensor of shape (C, out, N)
        Inverse roots of the eigenvalues, minus s.
    right : Tensor of shape (in + 1, N)
        Eigenvectors of A whose eigenvalues aren't zero.
    prior_scale : Tensor of shape ()
        The scale s.
    """

    left: Tensor
    excess: Tensor
    right: Tensor
    prior_scale: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of outputs and of inputs with the bias."""
        return self.left.shape[1], len(self.right)

    def apply(self, z: Tensor) -> Tensor:
        """Apply the root to (C, out, in + 1)."""
        return torch.bmm(self.left, self._scale_inputs(z))

    def apply_transposed(self, gradient: Tensor) -> Tensor:
        """Apply the transposed root to (C, out, in + 1)."""
        return self._scale_inputs(torch.bmm(self.left.mT, gradient))

    def _scale_inputs(self, z: Tensor) -> Tensor:
        """Apply the symmetric factor, which acts on the inputs of each output."""
        return self.prior_scale * z + (self.excess * (z @ self.right)) @ self.right.mT


@dataclass(frozen=True, eq=False)
class KroneckerPreconditioner:
    """`Preconditioner` by the Kronecker-factored curvature of an MLP.

    Parameters
    ----------
    layers : tuple of LayerCurvature or WideLayerCurvature
        Factors, from the first layer to the last.
    precision : Tensor of shape (n_layers,)
        Mean prior precision of each layer.
    likelihood_scale : Tensor of shape (C, n_params)
        Scales of the likelihood's parameters.

    Notes
    -----
    The coordinates are layer by layer ``[W | b]`` (out, in + 1), then the likelihood's parameters.
    A map takes two products of a layer's size, ``2 P (out + in)`` multiplications, which is small
    compared to a gradient's ``6 N P``. The factors take about 2 P numbers per chain. For a first
    layer with fewer rows than inputs, the inputs' factor has N rows, and all chains share it.
    """

    layers: tuple[Curvature, ...]
    precision: Tensor
    likelihood_scale: Tensor

    @cached_property
    def _roots(self) -> list[_InverseRoot | _WideInverseRoot]:
        """Inverse root of each layer."""
        return [
            curvature.inverse_root(precision)
            for curvature, precision in zip(self.layers, self.precision.double(), strict=True)
        ]

    @cached_property
    def _sizes(self) -> list[int]:
        """Number of parameters of each layer and of the likelihood."""
        return [*(prod(root.shape) for root in self._roots), self.likelihood_scale.shape[1]]

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """Index of each coordinate in a position, (D,), and the inverse permutation."""
        indices = []
        start = 0
        for root in self._roots:
            n_out = root.shape[0]
            n_in = root.shape[1] - 1
            weight = start + torch.arange(n_out * n_in).view(n_out, n_in)
            bias = start + n_out * n_in + torch.arange(n_out)
            indices.append(torch.cat([weight, bias.unsqueeze(1)], 1).flatten())
            start += n_out * (n_in + 1)
        indices.append(start + torch.arange(self.likelihood_scale.shape[1]))
        order = torch.cat(indices).to(self.likelihood_scale.device)
        return order, order.argsort()

    def to_position(self, z: Tensor) -> Tensor:
        """Map coordinates (C, D) to positions."""
        *layers, likelihood_params = z.split(self._sizes, 1)
        scaled = [
            root.apply(layer.view(-1, *root.shape)).flatten(1)
            for layer, root in zip(layers, self._roots, strict=True)
        ]
        ordered = torch.cat([*scaled, self.likelihood_scale * likelihood_params], 1)
        return ordered.index_select(1, self._order[1])

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """Map gradients at positions (C, D) to gradients in the coordinates."""
        ordered = gradient.index_select(1, self._order[0])
        *layers, likelihood_params = ordered.split(self._sizes, 1)
        scaled = [
            root.apply_transposed(layer.view(-1, *root.shape)).flatten(1)
            for layer, root in zip(layers, self._roots, strict=True)
        ]
        return torch.cat([*scaled, self.likelihood_scale * likelihood_params], 1)


def compute_layer_curvature(posterior: NetworkPosterior, position: Tensor) -> tuple[Curvature, ...]:
    """Compute the Kronecker factors of every layer.

    Parameters
    ----------
    posterior : NetworkPosterior
        Posterior of an MLP.
    position : Tensor of shape (C, D)
        Positions of C chains.

    Returns
    -------
    tuple of LayerCurvature or WideLayerCurvature
        From the first layer to the last. A first layer of more inputs than rows is wide.

    Notes
    -----
    Each chain takes one forward pass and one backward pass per output: ``(2 + 4 O) N P``
    multiplications.
    """
    chains = [_compute_chain_curvature(posterior, chain_position) for chain_position in position]
    return tuple(type(layer[0]).stack(layer) for layer in zip(*chains, strict=True))


def _compute_chain_curvature(posterior: NetworkPosterior, position: Tensor) -> list[Curvature]:
    """Compute the factors of every layer at one position (D,), without the chain axis."""
    network = cast(MLP, posterior.network)
    x, y, weight = posterior.data
    n_theta = network.layout.n_params
    layers = network.layers(position[:n_theta])

    # Forward pass.
    inputs = [x]
    for w, b in layers[:-1]:
        inputs.append(network.activation.function(torch.addmm(b, inputs[-1], w.mT)))
    outputs = torch.addmm(layers[-1][1], inputs[-1], layers[-1][0].mT)

    # Backward pass from the root of the likelihood's curvature.
    likelihood = posterior.likelihood.to(x).at(position[n_theta:])
    root = likelihood.hessian_root(outputs, y) * weight.sqrt().unsqueeze(1)
    factors: list[Curvature] = []
    for i in range(len(layers) - 1, -1, -1):
        with_one = torch.cat([inputs[i], inputs[i].new_ones(len(x), 1)], 1)
        input_root = with_one * (weight / weight.sum()).sqrt().unsqueeze(1)
        derivatives = root.flatten(0, 1)
        output_factor = derivatives.mT @ derivatives
        if i == 0 and len(x) < with_one.shape[1]:
            factors.append(WideLayerCurvature(input_root, output_factor))
        else:
            factors.append(LayerCurvature(input_root.mT @ input_root, output_factor))
        if i:
            by_output = (root @ layers[i][0]).unbind(0)
            root = torch.stack([network.activation.backward_(g, inputs[i]) for g in by_output])
    return factors[::-1]


def _average(previous: Curvature, current: Curvature) -> Curvature:
    """Average two curvatures of a layer, the current one with weight 0.6."""
    return type(current)(*(a.lerp(b, 0.6) for a, b in zip(previous, current, strict=True)))


def likelihood_scales(log_density: LogDensity, position: Tensor, n_params: int) -> Tensor:
    """Scales of the likelihood's parameters, from their diagonal curvature.

    Parameters
    ----------
    log_density : LogDensity
        Log density whose gradient is differenced.
    position : Tensor of shape (C, D)
        Positions, with the likelihood's parameters last.
    n_params : int
        Number of these parameters.

    Returns
    -------
    Tensor of shape (C, n_params)
        At most 1, the scale that a curvature of 1 gives, about that of the prior of a log scale.
    """
    step = 1e-2
    scales = position.new_ones(len(position), n_params)
    for k in range(n_params):
        offset = torch.zeros_like(position)
        offset[:, k - n_params] = step
        above = log_density.evaluate(position + offset).gradient
        below = log_density.evaluate(position - offset).gradient
        curvature = (below - above)[:, k - n_params] / (2 * step)
        scales[:, k] = curvature.clamp_min(1.0).rsqrt()
    return scales


@dataclass(frozen=True, eq=False)
class KroneckerAdaptation:
    """`PreconditionerAdaptation` that computes the curvature at the chains' positions.

    Parameters
    ----------
    posterior : NetworkPosterior
        Posterior of an MLP, whose likelihood has a `hessian_root`.
    """

    posterior: NetworkPosterior

    def windows(self, n_warmup: int) -> list[Window]:
        """Two windows that end with an update of the curvature, and one for step sizes."""
        first = int(0.2 * n_warmup)
        second = int(0.3 * n_warmup)
        if not n_warmup:
            return []
        if first < 10:  # too short to tune a step size
            return [Window(n_warmup, False)]
        last = n_warmup - first - second
        return [Window(first, True), Window(second, True), Window(last, False)]

    def fit(
        self, preconditioner: Preconditioner, _moments: RunningMoments, position: Tensor, /
    ) -> KroneckerPreconditioner:
        """Compute the curvature at ``position`` and average it with the previous one.

        Parameters
        ----------
        preconditioner : Preconditioner
            Previous preconditioner. The new curvature has weight 0.6 if the previous one was
            Kronecker-factored too, and weight 1 otherwise.
        position : Tensor of shape (C, D)
            Positions of the chains.

        Returns
        -------
        KroneckerPreconditioner
        """
        network = cast(MLP, self.posterior.network)
        layers = compute_layer_curvature(self.posterior, position)
        if isinstance(preconditioner, KroneckerPreconditioner):
            pairs = zip(preconditioner.layers, layers, strict=True)
            layers = tuple(_average(previous, current) for previous, current in pairs)
        gaussian = self.posterior.prior.gaussian()
        precision = torch.ones(network.n_layers, dtype=torch.float64)
        if gaussian is not None:
            by_layer = network.layers(gaussian.precision.double().cpu())
            precision = torch.stack([torch.cat([w.flatten(), b]).mean() for w, b in by_layer])
        n_params = self.posterior.likelihood.n_params
        scales = likelihood_scales(self.posterior, position, n_params)
        return KroneckerPreconditioner(layers, precision.to(position), scales)
