r"""Global inducing points: product-form sites for the weights of every layer.

For a layer with inputs ``u_i`` at M inducing points (the *sampled* activations of the inducing
inputs) and unit h, with prior variance s^2,

.. math:: q(w_h \mid W_{<l}) \propto N(w_h; 0, s^2 I) \prod_{i=1}^M
          \exp\left(-\tfrac12 e^{a_h + b_i} (u_i^T w_h - v_{ih})^2\right)

(Ober & Aitchison 2021, with precisions of rank one: a gain a unit, a precision a point). It is the
product, conditional on the earlier layers, where Kurle et al. (2022, eqs. 23-26) print an average.
With ``A = s diag(e^{b/2}) U`` all H units share the matrix ``A A'`` (or ``A' A``), so that one
eigendecomposition a layer and draw serves them all (`skbayes_sym.numerics.linalg`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.layers import (
    HiddenDraws,
    LastLayer,
    LayerInputs,
    Scale,
    as_tensor,
    per_input,
    starting_scale,
    with_ones,
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.gaussian import kl_from_standard, log_normal
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import RidgePosterior, resolvent
from skbayes_sym.numerics.random import float64_normal, normal_like


def draw_layer(
    inducing: Tensor,
    values: Tensor,
    log_gain: Tensor,
    log_precision: Tensor,
    prior_scale: Scale,
    *,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Sample a layer's weights (S, D, H) by Matheron's rule; the KL of their conditional, (S,).

    ``inducing`` (S, M, D): U, the sampled inputs of the layer at the inducing points; ``values``
    (M, H): v; ``log_gain`` (H,): a; ``log_precision`` (M,): b; ``prior_scale``: s, one number or
    one per input.

    O(r^3 + r M H) a draw with r = min(M, D).
    """
    n, m, d = inducing.shape
    gain, root = log_gain.exp(), (0.5 * log_precision).exp()
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
        moved, trace = gain.sqrt() * solved.solution, solved.trace
    else:
        seen = (gain.sqrt() * target).expand(n, -1, -1)
        wrong = seen - gain.sqrt() * (design @ prior) - error
        both = torch.stack([wrong, seen], dim=-2)  # (S, M, 2, H)
        solved = resolvent(design @ design.mT, gain, both)
        back = (design.mT @ solved.solution.flatten(-2)).unflatten(-1, both.shape[-2:])
        moved, trace = gain.sqrt() * back, solved.trace + (d - m)
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

    def under(self, prior_scale: tuple[Scale, ...]) -> "InducingHidden":
        return replace(self, prior_scale=prior_scale)

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

    def draw(self, params: Tensor, n: int, *, generator: torch.Generator) -> HiddenDraws:
        values = self.layout.unflatten(params)
        u = with_ones(values["inputs"]).expand(n, -1, -1)
        weights, kl = [], params.new_zeros(n)
        for layer, scale in enumerate(self.prior_scale, start=1):
            weight, own_kl = draw_layer(
                u, values[f"values{layer}"], values[f"log_gain{layer}"],
                values[f"log_precision{layer}"], scale, generator=generator,
            )  # fmt: skip
            weights.append(weight)
            kl = kl + own_kl
            u = with_ones(self.network.activation.function(u @ weight))
        return HiddenDraws(weights, kl, u)


@dataclass(frozen=True, eq=False)
class InducingLast(LastLayer):
    """Product-form sites for the last layer, its Gaussian expectation in closed form."""

    prior_scale: Scale
    n_inducing: int
    n_outputs: int

    @property
    def layout(self) -> ParamLayout:
        m, t = self.n_inducing, self.n_outputs
        return ParamLayout({"values": (m, t), "log_gain": (t,), "log_precision": (m,)})

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        """Targets of the rows that `InducingHidden.start` takes with a generator of equal seed.

        Precisions are those of N / M data of noise 0.1 each.
        """
        rows = torch.randperm(len(data.x), generator=generator)[: self.n_inducing]
        values = data.y[rows.to(data.y.device)]
        precision = float(data.weight.sum()) / self.n_inducing / 0.1**2
        return self.layout.flatten({
            "values": values,
            "log_gain": values.new_zeros(self.n_outputs),
            "log_precision": values.new_full((self.n_inducing,), log(precision)),
        })  # fmt: skip

    def ridge(self, inputs: LayerInputs) -> RidgePosterior:
        p = self.layout.unflatten(inputs.params)
        root = (0.5 * (p["log_precision"] + p["log_gain"].unsqueeze(-1))).exp()  # (T, M)
        scaled = inputs.draws.inducing * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * p["values"].T)

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        ridge = self.ridge(inputs)
        mean, variance = self.conditional(ridge).moments(inputs.features)
        squares = (inputs.data.y - mean) ** 2 + variance
        log_prob = log_normal(squares, inputs.log_noise)
        return inputs.data.weight @ log_prob.sum(-1).mT, ridge.kl().sum(-1)
