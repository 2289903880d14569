r"""Gradients of an averaged network's outputs in its pre-activations.

The averaged network is :math:`\hat f(x_n) = \frac1S \sum_s f(x_{ns})` over S transformed inputs.
One recorded forward pass and K backward passes give everything its curvature needs; the backward
passes end at the pre-activations and never reach the weights or the inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods import CurvedLikelihood
from skbayes_sym.models.recording import Recording, WeightLayer
from skbayes_sym.numerics.layout import ParamLayout


class LayerTape(NamedTuple):
    """One weight layer on a minibatch."""

    layer: WeightLayer
    inputs: Tensor  # (N, S, *I)
    gradients: list[Tensor]  # K times d(f_hat . r_k)/dz, (N, S, *Z)


class Tape(NamedTuple):
    """The weight layers of an averaged network on a minibatch, seen along K directions."""

    layers: list[LayerTape]


class Directions(Protocol):
    r"""Output directions r whose squares sum to the curvature of the likelihood."""

    def columns(
        self,
        likelihood: CurvedLikelihood,
        outputs: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        """Directions (K, N, O) at the averaged outputs (N, O), differentiable in them."""
        ...


@dataclass(frozen=True)
class ExactDirections:
    r"""All columns of a root of :math:`\Lambda`, K = O: the Gauss-Newton curvature itself."""

    def columns(
        self,
        likelihood: CurvedLikelihood,
        outputs: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        return likelihood.hessian_root(outputs)


@dataclass(frozen=True)
class SketchedDirections:
    r"""Random signs times the columns, :math:`r = R\varepsilon`: unbiased, K = ``n_sketches``.

    :math:`E[rr'] = RR' = \Lambda`. Unlike labels drawn from the model, the directions stay
    differentiable.
    """

    n_sketches: int = 1

    def columns(
        self,
        likelihood: CurvedLikelihood,
        outputs: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        root = likelihood.hessian_root(outputs)
        shape = (self.n_sketches, *root.shape[:2])
        signs = torch.randint(0, 2, shape, generator=generator, device=generator.device)
        signs = (2 * signs - 1).to(root)
        return torch.einsum("jkn,kno->jno", signs, root) / self.n_sketches**0.5


@dataclass(frozen=True)
class EmpiricalFisher:
    """The score itself, K = 1: cheap, and no approximation of the curvature away from a fit."""

    def columns(
        self,
        likelihood: CurvedLikelihood,
        outputs: Tensor,
        y: Tensor,
        *,
        generator: torch.Generator,
    ) -> Tensor:
        return likelihood.score(outputs, y).unsqueeze(0)


def record_tape(
    recording: Recording,
    layers: Sequence[WeightLayer],
    n_samples: int,
    averaged: Tensor,
    directions: Tensor,
    *,
    create_graph: bool = False,
    keep_graph: bool = False,
) -> Tape:
    """Run the backward passes.

    Parameters
    ----------
    recording : Recording
        Of N * S inputs, the samples of a row next to each other.
    layers : sequence of WeightLayer
        All weight layers of the network, or its last few.
    n_samples : int
        S.
    averaged : Tensor of shape (N, O)
        The averaged outputs, computed from ``recording.outputs``.
    directions : Tensor of shape (K, N, O)
        Each is one backward pass.
    create_graph : bool, default=False
        Whether the gradients can be differentiated themselves (in what made the inputs).
    keep_graph : bool, default=False
        Whether the recording is needed after this.
    """
    first = len(recording.preactivations) - len(layers)
    preactivations = recording.preactivations[first:]
    passes = []
    for k, direction in enumerate(directions):
        # The average's own factor 1/S is in `averaged`.
        gradients = torch.autograd.grad(
            averaged, preactivations, direction if create_graph else direction.detach(),
            create_graph=create_graph,
            retain_graph=create_graph or keep_graph or k + 1 < len(directions),
        )  # fmt: skip
        passes.append([g.unflatten(0, (-1, n_samples)) for g in gradients])
    tapes = []
    for i, (layer, inputs) in enumerate(zip(layers, recording.inputs[first:], strict=True)):
        inputs = inputs if create_graph else inputs.detach()
        rows = inputs.unflatten(0, (-1, n_samples))
        tapes.append(LayerTape(layer, rows, [p[i] for p in passes]))
    return Tape(tapes)


def jacobian(tape: Tape, layout: ParamLayout) -> Tensor:
    r"""Derivatives of the averaged outputs along the directions, (K, N, P') in the layout's order.

    P' counts the parameters of the tape's layers, see `parameter_positions`. The sum over the
    samples is exact: :math:`J = \sum_s g_s a_s'`. Memory is O(K N P').
    """
    pieces: dict[str, Tensor] = {}
    for layer, inputs, gradients in tape.layers:
        n, s = inputs.shape[:2]
        patches = layer.patches(inputs.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2)
        at_positions = torch.stack(
            [layer.positions(g.flatten(0, 1)).unflatten(0, (n, s)).flatten(1, 2) for g in gradients]
        )
        pieces[layer.weight] = (at_positions.mT @ patches).flatten(2)
        if layer.bias is not None:
            pieces[layer.bias] = at_positions.sum(2)
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
