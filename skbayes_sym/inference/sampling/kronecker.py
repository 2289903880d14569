"""A preconditioner of networks: of every layer the Kronecker product that its curvature nearly is.

With ``h`` the inputs of a layer (and a 1 for its biases) and ``g`` the derivatives of the outputs
by what it puts out, multiplied by a root of the likelihood's curvature, the layer's block of the
generalised Gauss-Newton matrix is the sum over rows of ``(g g') x (h h')``. Martens & Grosse (2015,
"Optimizing neural networks with Kronecker-factored approximate curvature", eq. 1) replace it by

    G x A,   G = sum over rows of g g',   A = mean over rows of h h'.

With ``A = U diag(a) U'`` and ``G = V diag(g) V'`` its inverse root is, for a prior of precision p,

    Z -> V [(g_i a_j + p)^(-1/2) Z_ij] U',

exact for linear networks with normal noise. Conventions: a layer's parameters are one matrix
``[W | b]`` (out, in + 1); every chain has its own factors, at its own place.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, cast

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity, NetworkPosterior
from skbayes_sym.inference.sampling.kernels.kernel import Preconditioner
from skbayes_sym.inference.sampling.warmup import RunningMoments, Window
from skbayes_sym.models.networks.mlp import MLP


class LayerCurvature(NamedTuple):
    """The two factors of a layer, of C chains."""

    inputs: Tensor  # (C, in + 1, in + 1), mean over rows
    slopes: Tensor  # (C, out, out), sum over rows

    def mixed(self, before: "LayerCurvature") -> "LayerCurvature":
        """An average with the curvature of another place, this one counting more."""
        pairs = zip(before, self, strict=True)
        return LayerCurvature(*(old.lerp(new, 0.6) for old, new in pairs))


class _Root(NamedTuple):
    """A layer's inverse root: ``Z -> left (scale o Z) right'``."""

    left: Tensor  # (C, out, out)
    scale: Tensor  # (C, out, in + 1)
    right: Tensor  # (C, in + 1, in + 1)


@dataclass(frozen=True, eq=False)
class KroneckerPreconditioner:
    """A `Preconditioner` of `NetworkPosterior` positions of an MLP.

    Its coordinates are layer by layer ``[W | b]`` (out, in + 1), then the likelihood's parameters.
    Two products of a layer's size a map, ``2 P (out + in)`` multiplications, small beside a
    gradient's ``6 N P``; memory of the factors, about 2 P a chain.
    """

    layers: tuple[LayerCurvature, ...]  # first to last
    precision: Tensor  # (n_layers,): of the prior, a layer's mean
    own: Tensor  # (C, n_params): scales of the likelihood's own parameters

    @cached_property
    def _roots(self) -> list[_Root]:
        return [_root(c, p) for c, p in zip(self.layers, self.precision.double(), strict=True)]

    @cached_property
    def _sizes(self) -> list[int]:
        """Numbers of a layer, and of the likelihood's parameters."""
        return [*(root.scale[0].numel() for root in self._roots), self.own.shape[1]]

    @cached_property
    def _scale(self) -> Tensor:
        """Scales of all coordinates, (C, D)."""
        return torch.cat([*(root.scale.flatten(1) for root in self._roots), self.own], 1)

    @cached_property
    def _order(self) -> tuple[Tensor, Tensor]:
        """Places of the coordinates in a position, and the other way round, (D,)."""
        parts, start = [], 0
        for root in self._roots:
            n_out, n_in = root.scale.shape[1], root.scale.shape[2] - 1
            weight = start + torch.arange(n_out * n_in).view(n_out, n_in)
            bias = start + n_out * n_in + torch.arange(n_out)
            parts.append(torch.cat([weight, bias.unsqueeze(1)], 1).flatten())
            start += n_out * (n_in + 1)
        parts.append(start + torch.arange(self.own.shape[1]))
        order = torch.cat(parts).to(self.own.device)
        return order, order.argsort()

    def to_position(self, z: Tensor) -> Tensor:
        *layers, params = (self._scale * z).split(self._sizes, 1)
        pieces = [
            torch.bmm(torch.bmm(outer, part.view(scale.shape)), right.mT).flatten(1)
            for part, (outer, scale, right) in zip(layers, self._roots, strict=True)
        ]
        return torch.cat([*pieces, params], 1).index_select(1, self._order[1])

    def to_gradient(self, gradient: Tensor) -> Tensor:
        *layers, params = gradient.index_select(1, self._order[0]).split(self._sizes, 1)
        pieces = [
            torch.bmm(torch.bmm(outer.mT, part.view(scale.shape)), right).flatten(1)
            for part, (outer, scale, right) in zip(layers, self._roots, strict=True)
        ]
        return torch.cat([*pieces, params], 1).mul_(self._scale)


def _root(curvature: LayerCurvature, precision: Tensor) -> _Root:
    (inputs, right), (slopes, outer) = (
        torch.linalg.eigh(factor.double()) for factor in (curvature.inputs, curvature.slopes)
    )
    products = slopes.clamp_min(0).unsqueeze(2) * inputs.clamp_min(0).unsqueeze(1)
    like = curvature.inputs
    return _Root(outer.to(like), (products + precision).rsqrt().to(like), right.to(like))


def curvature_at(posterior: NetworkPosterior, position: Tensor) -> tuple[LayerCurvature, ...]:
    """The factors of every layer at C positions (C, D).

    One forward pass and a backward pass an output, chain by chain: ``(2 + 4 O) N P``
    multiplications each.
    """
    chains = [_curvature_of_chain(posterior, place) for place in position]
    return tuple(
        LayerCurvature(*(torch.stack(factors) for factors in zip(*layer, strict=True)))
        for layer in zip(*chains, strict=True)
    )


def _curvature_of_chain(posterior: NetworkPosterior, position: Tensor) -> list[LayerCurvature]:
    network, (x, y, weight) = cast(MLP, posterior.network), posterior.data
    n_theta = network.layout.n_params
    layers, inputs = network.layers(position[:n_theta]), [x]
    for w, b in layers[:-1]:
        inputs.append(network.activation.function(torch.addmm(b, inputs[-1], w.mT)))
    outputs = torch.addmm(layers[-1][1], inputs[-1], layers[-1][0].mT)
    likelihood = posterior.likelihood.to(x).at(position[n_theta:])
    root = likelihood.hessian_root(outputs, y) * weight.sqrt().unsqueeze(1)
    factors = []
    for i in range(len(layers) - 1, -1, -1):
        with_one = torch.cat([inputs[i], inputs[i].new_ones(len(x), 1)], 1)
        mean = with_one.mT @ (with_one * (weight / weight.sum()).unsqueeze(1))
        flat = root.flatten(0, 1)
        factors.append(LayerCurvature(mean, flat.mT @ flat))
        if i:
            below = (root @ layers[i][0]).unbind(0)
            root = torch.stack([network.activation.backward_(g, inputs[i]) for g in below])
    return factors[::-1]


def own_scales(log_density: LogDensity, position: Tensor, n_params: int) -> Tensor:
    """Scales of the likelihood's own parameters, the last ``n_params`` of every position.

    From the curvature of each alone, by differences of its gradient; at least 1, about what the
    prior of a log scale has.
    """
    nudged, scales = 1e-2, position.new_ones(len(position), n_params)
    for k in range(n_params):
        nudge = torch.zeros_like(position)
        nudge[:, k - n_params] = nudged
        ends = [log_density.evaluate(position + s * nudge).gradient for s in (1, -1)]
        curvature = (ends[1] - ends[0])[:, k - n_params] / (2 * nudged)
        scales[:, k] = curvature.clamp_min(1.0).rsqrt()
    return scales


@dataclass(frozen=True, eq=False)
class KroneckerAdaptation:
    """Warm-up that takes the curvature where the chains are; a `PreconditionerAdaptation`."""

    posterior: NetworkPosterior  # of an MLP; its likelihood has a `hessian_root`

    def windows(self, n_warmup: int) -> list[Window]:
        """Two that end with a look at the curvature, and half of the moves for step sizes."""
        first, second = int(0.2 * n_warmup), int(0.3 * n_warmup)
        if first < 10:  # what a step size needs to settle
            return [Window(n_warmup, False)] if n_warmup else []
        last = n_warmup - first - second
        return [Window(first, True), Window(second, True), Window(last, False)]

    def fit(
        self, preconditioner: Preconditioner, moments: RunningMoments, *, position: Tensor
    ) -> KroneckerPreconditioner:
        """Take the curvature at ``position``, averaged with what ``preconditioner`` knew."""
        network = cast(MLP, self.posterior.network)
        layers = curvature_at(self.posterior, position)
        if isinstance(preconditioner, KroneckerPreconditioner):
            both = zip(layers, preconditioner.layers, strict=True)
            layers = tuple(new.mixed(old) for new, old in both)
        gaussian = self.posterior.prior.gaussian()
        precision = torch.ones(network.n_layers, dtype=torch.float64)
        if gaussian is not None:
            parts = network.layers(gaussian.precision.double().cpu())
            precision = torch.stack([torch.cat([w.flatten(), b]).mean() for w, b in parts])
        scales = own_scales(self.posterior, position, self.posterior.likelihood.n_params)
        return KroneckerPreconditioner(layers, precision.to(position), scales)
