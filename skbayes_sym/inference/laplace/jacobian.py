r"""Gradients of an averaged network's outputs in its pre-activations.

The averaged network is :math:`\hat f(x_n) = \frac1S \sum_s f(x_{ns})` over S transformed inputs.
One recorded forward pass and K backward passes give everything its curvature needs; the backward
passes end at the pre-activations and never reach the weights or the inputs.

Where the network ends in an elementwise activation :math:`\phi` and a linear layer W, the gradients
of its last two layers, summed over the samples, need no backward passes:

.. math::

    \sum_s \frac{\partial\, \hat f_n \cdot r}{\partial z_{ns}}
        = \Big[\frac1S \sum_s \phi'(z_{ns})\Big] \circ W' r

for the hidden layer, and r for the last one. All K directions then share one mean of
:math:`\phi'`, and no array has N S K rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Recording, WeightLayer
from skbayes_sym.numerics.layout import ParamLayout


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
        hidden, preactivations = self.recording.inputs[-1], self.recording.preactivations[-2]
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
