r"""Posteriors of a network's hidden layers: independent normals, and global inducing points.

For a layer with inputs ``u_i`` at M inducing points (the *sampled* activations of the inducing
inputs) and unit h, with prior variance s^2,

.. math:: q(w_h \mid W_{<l}) \propto N(w_h; 0, s^2 I) \prod_{i=1}^M
          \exp\left(-\tfrac12 e^{a_h + b_i} (u_i^T w_h - v_{ih})^2\right)

(Ober & Aitchison 2021, with precisions of rank one: a gain a unit, a precision a point). It is the
product, conditional on the earlier layers, where Kurle et al. (2022, eqs. 23-26) print an average.
With ``A = s diag(e^{b/2}) U`` all H units share the matrix ``A A'`` (or ``A' A``), so that one
eigendecomposition a layer and draw serves them all (`skbayes_sym.numerics.linalg`).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.gaussian import kl_elementwise, kl_from_standard
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import resolvent
from skbayes_sym.numerics.random import float64_normal, normal_like

# Of a layer's prior: one number, or one per input, (D + 1,); an array in what is kept of a fit.
Scale = float | Tensor | npt.NDArray[Any]


def as_tensor(prior_scale: Scale, like: Tensor) -> Tensor:
    """A layer's prior scale, by which its inputs may be multiplied: () or (D + 1,)."""
    return torch.as_tensor(prior_scale, dtype=like.dtype, device=like.device)


def per_input(prior_scale: Scale, like: Tensor) -> Tensor:
    """A layer's prior scale, by which its weights may be multiplied: (1,) or (D + 1, 1)."""
    return as_tensor(prior_scale, like).unsqueeze(-1)


def with_ones(h: Tensor) -> Tensor:
    """A column of ones for the bias, (*B, N, D) -> (*B, N, D + 1)."""
    return torch.cat([h, h.new_ones(*h.shape[:-1], 1)], dim=-1)


def starting_scale(network: MLP, n_inputs: int, prior_scale: Tensor) -> Tensor:
    """Scale of a layer's weights at the start: the prior's, unless that saturates the units."""
    return prior_scale.clamp_max(network.activation.gain / (n_inputs + 1) ** 0.5)


@dataclass(frozen=True, eq=False)
class MeanFieldHidden:
    """Independent normals for the weights of the hidden layers.

    ``prior_scale``: prior standard deviation of the weights of every hidden layer: one number, or
    one per input and, last, that of the biases.
    """

    network: MLP
    prior_scale: tuple[Scale, ...]

    @cached_property
    def layout(self) -> ParamLayout:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (n_in, n_out) in enumerate(pairwise(self.network.sizes[:-1]), start=1):
            shapes[f"loc{layer}"] = shapes[f"log_variance{layer}"] = (n_in + 1, n_out)
        return ParamLayout(shapes)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        """Starting point: concentrated, or as wide as the prior."""
        values: dict[str, Tensor] = {}
        for layer, prior_scale in enumerate(self.prior_scale, start=1):
            shape = self.layout.shapes[f"loc{layer}"]
            draw = float64_normal(shape, generator=generator).to(data.x)
            scale = per_input(prior_scale, draw)
            start = starting_scale(self.network, shape[0] - 1, scale)
            width = scale if at_prior else 0.05 * start
            values[f"loc{layer}"] = draw * (1e-2 * scale if at_prior else start)
            values[f"log_variance{layer}"] = (2.0 * width.log()).expand(shape)
        return self.layout.flatten(values) if values else data.x.new_zeros(0)

    def draw(
        self, params: Tensor, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor]:
        """Weights (S, D_l + 1, H_l) of every layer; numbers that average to their KL, (S,)."""
        values = self.layout.unflatten(params)
        weights = []
        kl = params.new_zeros(())
        for layer, prior_scale in enumerate(self.prior_scale, start=1):
            loc = values[f"loc{layer}"]
            log_variance = values[f"log_variance{layer}"]
            noise = normal_like((n, *loc.shape), generator=generator, like=params)
            weights.append(torch.addcmul(loc, (0.5 * log_variance).exp(), noise))
            prior_log_variance = 2.0 * per_input(prior_scale, loc).log()
            kl = kl + kl_elementwise(loc, log_variance, prior_log_variance).sum()
        return weights, kl.expand(n)


def draw_layer(
    inducing: Tensor, values: Tensor, log_gain: Tensor, log_precision: Tensor, prior_scale: Scale,
    *, generator: torch.Generator,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Sample a layer's weights (S, D, H) by Matheron's rule; the KL of their conditional, (S,).

    ``inducing`` (S, M, D): U, the sampled inputs of the layer at the inducing points; ``values``
    (M, H): v; ``log_gain`` (H,): a; ``log_precision`` (M,): b; ``prior_scale``: s, one number or
    one per input.

    O(r^3 + r M H) a draw with r = min(M, D).
    """
    n, m, d = inducing.shape
    gain = log_gain.exp()
    root = (0.5 * log_precision).exp()
    scaled = inducing * as_tensor(prior_scale, inducing)
    design = root.unsqueeze(-1) * scaled  # A, (S, M, D)
    target = root.unsqueeze(-1) * values  # (M, H)

    n_units = values.shape[1]
    prior, error = (
        normal_like((n, rows, n_units), generator=generator, like=inducing) for rows in (d, m)
    )
    # A draw and the mean solve the same system, with these two right-hand sides.
    if d <= m:
        kernel = design.mT @ design
        seen = gain.sqrt() * (design.mT @ target)
        wrong = seen - gain.sqrt() * (kernel @ prior) - design.mT @ error
        solved = resolvent(kernel, gain, torch.stack([wrong, seen], dim=-2))
        moved = gain.sqrt() * solved.solution
        trace = solved.trace
    else:
        seen = (gain.sqrt() * target).expand(n, -1, -1)
        wrong = seen - gain.sqrt() * (design @ prior) - error
        both = torch.stack([wrong, seen], dim=-2)  # (S, M, 2, H)
        solved = resolvent(design @ design.mT, gain, both)
        back = (design.mT @ solved.solution.flatten(-2)).unflatten(-1, both.shape[-2:])
        moved = gain.sqrt() * back
        trace = solved.trace + (d - m)
    shift, mean = moved.unbind(-2)
    kl = kl_from_standard(trace, mean.square().sum(-2), -solved.log_det, d).sum(-1)
    return per_input(prior_scale, inducing) * (prior + shift), kl


@dataclass(frozen=True, eq=False)
class InducingHidden:
    """Product-form sites for all hidden layers."""

    network: MLP
    prior_scale: tuple[Scale, ...]  # as of `MeanFieldHidden`
    n_inducing: int  # M

    @cached_property
    def layout(self) -> ParamLayout:
        m = self.n_inducing
        shapes: dict[str, tuple[int, ...]] = {"inputs": (m, self.network.n_inputs)}
        for layer, width in enumerate(self.network.hidden_layer_sizes, start=1):
            shapes[f"values{layer}"] = (m, width)
            shapes[f"log_gain{layer}"], shapes[f"log_precision{layer}"] = (width,), (m,)
        return ParamLayout(shapes)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        """Random training rows, and a draw of the weights at them as the values."""
        rows = torch.randperm(len(data.x), generator=generator)[: self.n_inducing]
        h = data.x[rows.to(data.x.device)]
        start = {"inputs": h}
        for layer, scale in enumerate(self.prior_scale, start=1):
            width = self.network.hidden_layer_sizes[layer - 1]
            weights = float64_normal((h.shape[-1] + 1, width), generator=generator)
            size = starting_scale(self.network, h.shape[-1], per_input(scale, h))
            values = with_ones(h) @ (size * weights.to(h))
            start[f"values{layer}"] = values
            start[f"log_gain{layer}"] = h.new_zeros(width)
            start[f"log_precision{layer}"] = h.new_full((len(h),), -6.0 if at_prior else 0.0)
            h = self.network.activation.function(values)
        return self.layout.flatten(start)

    def draw(
        self, params: Tensor, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor]:
        values = self.layout.unflatten(params)
        u = with_ones(values["inputs"]).expand(n, -1, -1)
        weights = []
        kl = params.new_zeros(n)
        for layer, scale in enumerate(self.prior_scale, start=1):
            weight, own_kl = draw_layer(
                u, values[f"values{layer}"], values[f"log_gain{layer}"],
                values[f"log_precision{layer}"], scale, generator=generator,
            )  # fmt: skip
            weights.append(weight)
            kl = kl + own_kl
            u = with_ones(self.network.activation.function(u @ weight))
        return weights, kl


HiddenPosterior = MeanFieldHidden | InducingHidden
