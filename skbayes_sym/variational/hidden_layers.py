r"""Posteriors of a network's hidden layers: independent normals or global inducing points.

For unit h of a layer with prior variance s^2, whose inputs at M inducing points are ``u_i`` (the
*sampled* activations of the inducing inputs), the global inducing posterior is

.. math:: q(w_h \mid W_{<l}) \propto N(w_h; 0, s^2 I) \prod_{i=1}^M
          \exp\left(-\tfrac12 e^{a_h + b_i} (u_i^T w_h - v_{ih})^2\right)

(Ober & Aitchison 2021, with precisions of rank one: a gain for each unit and a precision for each
point). It is the product, conditional on the earlier layers, where Kurle et al. (2022, eqs. 23-26)
print an average. With ``A = s diag(e^{b/2}) U`` all H units share the matrix ``A A'`` (or
``A' A``), so that one eigendecomposition per layer and draw serves all of them
(`skbayes_sym.numerics.linalg`).
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

# Standard deviation of a layer's prior: one number, or one per input, (D + 1,). It is an array in
# what is kept of a fit.
Scale = float | Tensor | npt.NDArray[Any]


def as_tensor(prior_scale: Scale, like: Tensor) -> Tensor:
    """Convert a layer's prior scale to a factor of its inputs, () or (D + 1,)."""
    return torch.as_tensor(prior_scale, dtype=like.dtype, device=like.device)


def as_column(prior_scale: Scale, like: Tensor) -> Tensor:
    """Convert a layer's prior scale to a factor of its weights, (1,) or (D + 1, 1)."""
    return as_tensor(prior_scale, like).unsqueeze(-1)


def append_ones(h: Tensor) -> Tensor:
    """Append a column of ones for the bias, (*B, N, D) -> (*B, N, D + 1)."""
    return torch.cat([h, h.new_ones(*h.shape[:-1], 1)], dim=-1)


def initial_scale(network: MLP, n_inputs: int, prior_scale: Tensor) -> Tensor:
    """Scale of a layer's initial weights: that of the prior, unless it saturates the units.

    Parameters
    ----------
    network : MLP
        Network, for its activation.
    n_inputs : int
        Number of inputs of the layer.
    prior_scale : Tensor
        Standard deviations of the prior.
    """
    return prior_scale.clamp_max(network.activation.gain / (n_inputs + 1) ** 0.5)


@dataclass(frozen=True, eq=False)
class MeanFieldHidden:
    """Independent normals for the weights of the hidden layers.

    Parameters
    ----------
    network : MLP
        Network.
    prior_scale : tuple of Scale
        Prior standard deviation of the weights of every hidden layer: one number, or one per input
        and, last, one for the biases.
    """

    network: MLP
    prior_scale: tuple[Scale, ...]

    @cached_property
    def layout(self) -> ParamLayout:
        """Names and shapes of the variational parameters."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (n_in, n_out) in enumerate(pairwise(self.network.sizes[:-1]), start=1):
            shape = (n_in + 1, n_out)
            shapes[f"loc{layer}"] = shape
            shapes[f"log_variance{layer}"] = shape
        return ParamLayout(shapes)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        """Initial parameters: concentrated at random weights, or as wide as the prior."""
        values: dict[str, Tensor] = {}
        for layer, prior_scale in enumerate(self.prior_scale, start=1):
            shape = self.layout.shapes[f"loc{layer}"]
            draw = float64_normal(shape, generator=generator).to(data.x)
            scale = as_column(prior_scale, draw)
            start_scale = initial_scale(self.network, shape[0] - 1, scale)
            if at_prior:
                loc_scale = 1e-2 * scale
                width = scale
            else:
                loc_scale = start_scale
                width = 0.05 * start_scale
            values[f"loc{layer}"] = draw * loc_scale
            values[f"log_variance{layer}"] = (2.0 * width.log()).expand(shape)
        if values:
            return self.layout.flatten(values)
        return data.x.new_zeros(0)

    def draw(
        self, params: Tensor, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor]:
        """Draw the weights of the hidden layers.

        Parameters
        ----------
        params : Tensor
            Flat variational parameters, see `layout`.
        n : int
            Number S of draws.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        weights : list of Tensor
            Weights (S, D + 1, H) of every layer.
        kl : Tensor of shape (S,)
            KL divergence from the prior in nats, the same for every draw.
        """
        values = self.layout.unflatten(params)
        weights = []
        kl = params.new_zeros(())
        for layer, prior_scale in enumerate(self.prior_scale, start=1):
            loc = values[f"loc{layer}"]
            log_variance = values[f"log_variance{layer}"]
            noise = normal_like((n, *loc.shape), generator=generator, like=params)
            weights.append(torch.addcmul(loc, (0.5 * log_variance).exp(), noise))
            prior_log_variance = 2.0 * as_column(prior_scale, loc).log()
            kl = kl + kl_elementwise(loc, log_variance, prior_log_variance).sum()
        return weights, kl.expand(n)


def draw_layer(
    inducing: Tensor,
    values: Tensor,
    log_gain: Tensor,
    log_precision: Tensor,
    prior_scale: Scale,
    *,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Draw a layer's weights by Matheron's rule.

    Parameters
    ----------
    inducing : Tensor of shape (S, M, D)
        U, the sampled inputs of the layer at the inducing points.
    values : Tensor of shape (M, H)
        v, the pseudo-targets of the units.
    log_gain : Tensor of shape (H,)
        a, the log gains of the units.
    log_precision : Tensor of shape (M,)
        b, the log precisions of the points.
    prior_scale : float or array of shape (D,)
        s, the prior's standard deviation: one number or one per input.
    generator : torch.Generator
        Source of randomness.

    Returns
    -------
    weights : Tensor of shape (S, D, H)
        One draw of the weights for each sample of the inputs.
    kl : Tensor of shape (S,)
        KL divergence of the layer's conditional posterior from its prior, nats.

    Notes
    -----
    Costs O(r^3 + r M H) per draw, where r = min(M, D).
    """
    n, m, d = inducing.shape
    n_units = values.shape[1]
    gain = log_gain.exp()
    root = (0.5 * log_precision).exp()
    scaled = inducing * as_tensor(prior_scale, inducing)
    design = root.unsqueeze(-1) * scaled  # A, (S, M, D)
    target = root.unsqueeze(-1) * values  # (M, H)
    prior_draw, error_draw = (
        normal_like((n, rows, n_units), generator=generator, like=inducing) for rows in (d, m)
    )

    # A draw and the mean solve the same system with two right-hand sides, in the smaller of the
    # two dimensions.
    if d <= m:
        kernel = design.mT @ design
        mean_rhs = gain.sqrt() * (design.mT @ target)
        draw_rhs = mean_rhs - gain.sqrt() * (kernel @ prior_draw) - design.mT @ error_draw
        solved = resolvent(kernel, gain, torch.stack([draw_rhs, mean_rhs], dim=-2))
        shifts = gain.sqrt() * solved.solution
        trace = solved.trace
    else:
        mean_rhs = (gain.sqrt() * target).expand(n, -1, -1)
        draw_rhs = mean_rhs - gain.sqrt() * (design @ prior_draw) - error_draw
        rhs = torch.stack([draw_rhs, mean_rhs], dim=-2)  # (S, M, 2, H)
        solved = resolvent(design @ design.mT, gain, rhs)
        projected = (design.mT @ solved.solution.flatten(-2)).unflatten(-1, rhs.shape[-2:])
        shifts = gain.sqrt() * projected
        trace = solved.trace + (d - m)
    draw_shift, mean = shifts.unbind(-2)
    kl = kl_from_standard(trace, mean.square().sum(-2), -solved.log_det, d).sum(-1)
    return as_column(prior_scale, inducing) * (prior_draw + draw_shift), kl


@dataclass(frozen=True, eq=False)
class InducingHidden:
    """Global inducing posteriors of all hidden layers, see the module's equation.

    Parameters
    ----------
    network : MLP
        Network.
    prior_scale : tuple of Scale
        Prior standard deviations, as for `MeanFieldHidden`.
    n_inducing : int
        Number M of inducing points.
    """

    network: MLP
    prior_scale: tuple[Scale, ...]
    n_inducing: int

    @cached_property
    def layout(self) -> ParamLayout:
        """Names and shapes of the variational parameters."""
        m = self.n_inducing
        shapes: dict[str, tuple[int, ...]] = {"inputs": (m, self.network.n_inputs)}
        for layer, width in enumerate(self.network.hidden_layer_sizes, start=1):
            shapes[f"values{layer}"] = (m, width)
            shapes[f"log_gain{layer}"] = (width,)
            shapes[f"log_precision{layer}"] = (m,)
        return ParamLayout(shapes)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        """Initial parameters: random training rows, with values by a draw of the weights."""
        index = torch.randperm(len(data.x), generator=generator)[: self.n_inducing]
        h = data.x[index.to(data.x.device)]
        start = {"inputs": h}
        for layer, scale in enumerate(self.prior_scale, start=1):
            width = self.network.hidden_layer_sizes[layer - 1]
            weights = float64_normal((h.shape[-1] + 1, width), generator=generator)
            size = initial_scale(self.network, h.shape[-1], as_column(scale, h))
            values = append_ones(h) @ (size * weights.to(h))
            start[f"values{layer}"] = values
            start[f"log_gain{layer}"] = h.new_zeros(width)
            start[f"log_precision{layer}"] = h.new_full((len(h),), -6.0 if at_prior else 0.0)
            h = self.network.activation.function(values)
        return self.layout.flatten(start)

    def draw(
        self, params: Tensor, n: int, *, generator: torch.Generator
    ) -> tuple[list[Tensor], Tensor]:
        """Draw the weights of the hidden layers, each conditional on the layers below.

        Parameters
        ----------
        params : Tensor
            Flat variational parameters, see `layout`.
        n : int
            Number S of draws.
        generator : torch.Generator
            Source of randomness.

        Returns
        -------
        weights : list of Tensor
            Weights (S, D + 1, H) of every layer.
        kl : Tensor of shape (S,)
            KL divergences of the conditional posteriors, summed over layers, nats. They average to
            the KL divergence from the prior.
        """
        values = self.layout.unflatten(params)
        u = append_ones(values["inputs"]).expand(n, -1, -1)
        weights = []
        kl = params.new_zeros(n)
        for layer, scale in enumerate(self.prior_scale, start=1):
            weight, layer_kl = draw_layer(
                u,
                values[f"values{layer}"],
                values[f"log_gain{layer}"],
                values[f"log_precision{layer}"],
                scale,
                generator=generator,
            )
            weights.append(weight)
            kl = kl + layer_kl
            u = append_ones(self.network.activation.function(u @ weight))
        return weights, kl


HiddenPosterior = MeanFieldHidden | InducingHidden
