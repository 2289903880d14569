r"""The last layer integrated out: the exact posterior given the hidden layers' sampled features.

    ELBO = E_q[log N(y; 0, s^2 Phi Phi' + noise^2 / w)] - KL[q(hidden) || p(hidden)]

with ``Phi`` the sampled features of the training data. Given them the last layer is a Bayesian
linear model, and its posterior (the product of one site a datum) abides by the translations that
no datum sees. Costs O(N r^2) a draw, r = min(N, H + 1).
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log, pi

import torch
from torch import Tensor

from skbayes_sym.inference.layerwise.base import Conditional, HiddenDraws, starting_scale
from skbayes_sym.models.data import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.low_rank_normal import log_density_up_to_constant

_NARROW = 0.05  # posterior standard deviation of a concentrated start, in units of the prior's


@dataclass(frozen=True, eq=False)
class MeanFieldHidden:
    """Independent normals for the weights of the hidden layers.

    Parameters
    ----------
    network : MLP
    prior_scale : tuple of float
        Prior standard deviation of the weights and biases of every hidden layer.
    """

    network: MLP
    prior_scale: tuple[float, ...]

    @cached_property
    def layout(self) -> ParamLayout:
        shapes: dict[str, tuple[int, ...]] = {}
        for layer, (n_in, n_out) in enumerate(pairwise(self.network.sizes[:-1]), start=1):
            shapes[f"loc{layer}"] = shapes[f"log_variance{layer}"] = (n_in + 1, n_out)
        return ParamLayout(shapes)

    def start(self, data: Data, *, at_prior: bool, generator: torch.Generator) -> Tensor:
        values: dict[str, Tensor] = {}
        for layer, scale in enumerate(self.prior_scale, start=1):
            shape = self.layout.shapes[f"loc{layer}"]
            draw = torch.randn(shape, generator=generator, dtype=torch.float64).to(data.x)
            start = starting_scale(self.network, shape[0] - 1, scale)
            width = scale if at_prior else _NARROW * start
            values[f"loc{layer}"] = draw * (1e-2 * scale if at_prior else start)
            values[f"log_variance{layer}"] = torch.full_like(draw, 2.0 * log(width))
        return self.layout.flatten(values) if values else data.x.new_zeros(0)

    def draw(self, params: Tensor, n: int, *, generator: torch.Generator) -> HiddenDraws:
        values = self.layout.unflatten(params)
        weights, kl = [], params.new_zeros(())
        for layer, scale in enumerate(self.prior_scale, start=1):
            loc, log_variance = values[f"loc{layer}"], values[f"log_variance{layer}"]
            noise = torch.randn(
                (n, *loc.shape), generator=generator, device=params.device, dtype=params.dtype
            )
            weights.append(torch.addcmul(loc, (0.5 * log_variance).exp(), noise))
            ratio = (log_variance.exp() + loc**2) / scale**2
            kl = kl + 0.5 * (ratio - 1.0 - log_variance + 2.0 * log(scale)).sum()
        width = self.network.sizes[-2] + 1
        return HiddenDraws(weights, kl.expand(n), params.new_zeros(n, 0, width))


@dataclass(frozen=True)
class CollapsedLast:
    """The last layer given the hidden ones, exactly.

    Parameters
    ----------
    prior_scale : float
        Prior standard deviation of its weights and biases.
    """

    prior_scale: float

    @property
    def trains_on_elbo(self) -> bool:
        return True

    @property
    def layout(self) -> ParamLayout:
        return ParamLayout({})

    def start(self, data: Data, *, generator: torch.Generator) -> Tensor:
        return data.x.new_zeros(0)

    def elbo(
        self, params: Tensor, features: Tensor, draws: HiddenDraws, data: Data, log_noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        total = features.new_zeros(len(features))
        for target, noise in zip(data.y.T, log_noise, strict=True):
            total = total + self._log_evidence(features, target, data.weight, noise)
        return total, torch.zeros_like(total)

    def objective(
        self, params: Tensor, features: Tensor, draws: HiddenDraws, data: Data, log_noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.elbo(params, features, draws, data, log_noise)

    def _whitened(self, features: Tensor, weight: Tensor, log_noise: Tensor) -> Tensor:
        """Features in units in which noise and prior are standard, (S, N, D)."""
        return features * (self.prior_scale * _root_precision(weight, log_noise)).unsqueeze(-1)

    def _log_evidence(
        self, features: Tensor, y: Tensor, weight: Tensor, log_noise: Tensor
    ) -> Tensor:
        """``log N(y; 0, s^2 Phi Phi' + noise^2 / w)``, copies of a row counted, (S,) nats."""
        root = _root_precision(weight, log_noise)
        constant = weight.sum() * (log(2 * pi) + 2.0 * log_noise)
        ratio = log_density_up_to_constant(features, self.prior_scale * root, root * y)
        return ratio - 0.5 * constant

    def condition(
        self, params: Tensor, train: Tensor, draws: HiddenDraws, data: Data, log_noise: Tensor
    ) -> Conditional:
        parts = [
            self._given(train, target, data.weight, noise)
            for target, noise in zip(data.y.T, log_noise, strict=True)
        ]
        means, roots = zip(*parts, strict=True)
        is_wide = train.shape[-1] > train.shape[-2]
        mean = self.prior_scale * torch.stack(means, dim=-1)
        return Conditional(mean, torch.stack(roots, dim=1), self.prior_scale, is_wide)

    def _given(
        self, train: Tensor, y: Tensor, weight: Tensor, log_noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Mean (S, D) and root (S, r, D) of one target, whitened."""
        scaled = self._whitened(train, weight, log_noise)
        target = _root_precision(weight, log_noise) * y
        target = target.expand(len(scaled), -1).unsqueeze(-1)
        is_wide = scaled.shape[-1] > scaled.shape[-2]
        gram = scaled @ scaled.mT if is_wide else scaled.mT @ scaled
        gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor = torch.linalg.cholesky(gram)
        if is_wide:
            root = torch.linalg.solve_triangular(factor, scaled, upper=False)
            white = torch.linalg.solve_triangular(factor, target, upper=False)
            return (root.mT @ white).squeeze(-1), root
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        root = torch.linalg.solve_triangular(factor, eye.expand_as(gram), upper=False)
        return (root.mT @ (root @ (scaled.mT @ target))).squeeze(-1), root

    def sample(
        self, params: Tensor, train: Tensor, draws: HiddenDraws, data: Data, log_noise: Tensor,
        *, generator: torch.Generator,
    ) -> Tensor:  # fmt: skip
        columns = []
        for y, noise in zip(data.y.T, log_noise, strict=True):
            scaled = self._whitened(train, data.weight, noise)
            target = _root_precision(data.weight, noise) * y
            prior, error = (
                torch.randn(shape, generator=generator, device=train.device, dtype=train.dtype)
                for shape in ((len(train), train.shape[-1], 1), (len(train), len(target), 1))
            )
            # A prior draw moved by the data it would have made wrong (Matheron's rule).
            wrong = target.unsqueeze(-1) - scaled @ prior - error
            gram = scaled @ scaled.mT
            gram.diagonal(dim1=-2, dim2=-1).add_(1.0)
            factor = torch.linalg.cholesky(gram)
            moved = prior + scaled.mT @ torch.cholesky_solve(wrong, factor)
            columns.append(self.prior_scale * moved)
        return torch.cat(columns, dim=-1)


def _root_precision(weight: Tensor, log_noise: Tensor) -> Tensor:
    """Of every datum's noise, (N,): what multiplies it to make the noise standard."""
    return weight.sqrt() * (-log_noise).exp()
