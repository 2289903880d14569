r"""The last layer integrated out: the exact posterior given the hidden layers' sampled features.

    ELBO = E_q[log N(y; 0, s^2 Phi Phi' + noise^2 / w)] - KL[q(hidden) || p(hidden)]

with ``Phi`` the sampled features of the training data. Given them the last layer is a Bayesian
linear model, and its posterior (the product of one site per row) abides by the translations that
no row sees. Costs O(N r^2) a draw, r = min(N, H + 1).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

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
)
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.gaussian import LOG_2PI, kl_elementwise
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.linalg import RidgePosterior
from skbayes_sym.numerics.random import float64_normal, normal_like

_NARROW = 0.05  # posterior standard deviation of a concentrated start, in units of the prior's


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

    def under(self, prior_scale: tuple[Scale, ...]) -> "MeanFieldHidden":
        return replace(self, prior_scale=prior_scale)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        values: dict[str, Tensor] = {}
        for layer, given in enumerate(self.prior_scale, start=1):
            shape = self.layout.shapes[f"loc{layer}"]
            draw = float64_normal(shape, generator=generator).to(data.x)
            scale = per_input(given, draw)
            start = starting_scale(self.network, shape[0] - 1, scale)
            width = scale if at_prior else _NARROW * start
            values[f"loc{layer}"] = draw * (1e-2 * scale if at_prior else start)
            values[f"log_variance{layer}"] = (2.0 * width.log()).expand(shape)
        return self.layout.flatten(values) if values else data.x.new_zeros(0)

    def draw(self, params: Tensor, n: int, *, generator: torch.Generator) -> HiddenDraws:
        values = self.layout.unflatten(params)
        weights, kl = [], params.new_zeros(())
        for layer, given in enumerate(self.prior_scale, start=1):
            loc, log_variance = values[f"loc{layer}"], values[f"log_variance{layer}"]
            noise = normal_like((n, *loc.shape), generator=generator, like=params)
            weights.append(torch.addcmul(loc, (0.5 * log_variance).exp(), noise))
            prior_log_variance = 2.0 * per_input(given, loc).log()
            kl = kl + kl_elementwise(loc, log_variance, prior_log_variance).sum()
        width = self.network.sizes[-2] + 1
        return HiddenDraws(weights, kl.expand(n), params.new_zeros(n, 0, width))


@dataclass(frozen=True, eq=False)
class CollapsedLast(LastLayer):
    """The last layer given the hidden ones, exactly."""

    prior_scale: Scale

    @property
    def layout(self) -> ParamLayout:
        return ParamLayout({})

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        return data.x.new_zeros(0)

    def elbo(self, inputs: LayerInputs) -> tuple[Tensor, Tensor]:
        # log N(y; 0, s^2 Phi Phi' + noise^2 / w) a target, copies of a row counted.
        log_ratio = self.ridge(inputs).log_evidence()
        constant = inputs.data.weight.sum() * (LOG_2PI + 2.0 * inputs.log_noise)
        total = (log_ratio - 0.5 * constant).sum(-1)
        return total, torch.zeros_like(total)

    def ridge(self, inputs: LayerInputs) -> RidgePosterior:
        data = inputs.data
        root = data.weight.sqrt() * (-inputs.log_noise).exp().unsqueeze(-1)  # (T, N)
        scaled = inputs.features * as_tensor(self.prior_scale, root)
        return RidgePosterior(scaled.unsqueeze(1), root, root * data.y.T)
