"""Two classes by a logistic sigmoid of one output."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skbayes_sym.models.likelihoods.base import ExpectedLogProb
from skbayes_sym.models.likelihoods.scalar import WithoutParameters, by_quadrature


@dataclass(frozen=True)
class Bernoulli(WithoutParameters):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``; targets are class indices 0 and 1 (int64)."""

    def at(self, params: Tensor) -> "Bernoulli":
        return self

    def to(self, like: Tensor) -> "Bernoulli":
        return self

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(outputs.squeeze(-1) * (2.0 * y - 1.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> ExpectedLogProb:
        sign = (2.0 * y - 1.0).to(mean).unsqueeze(-1)
        return by_quadrature(
            lambda f: logsigmoid(sign * f), lambda f: sign * torch.sigmoid(-sign * f),
            mean, variance,
        )  # fmt: skip
