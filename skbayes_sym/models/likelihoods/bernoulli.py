"""Two classes by a logistic sigmoid of one output."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skbayes_sym.models.likelihoods.base import ExpectedLogProb, Kind
from skbayes_sym.models.likelihoods.categorical import log_shares
from skbayes_sym.models.likelihoods.defaults import LabelLikelihood
from skbayes_sym.models.likelihoods.expectations import by_quadrature, logistic_nodes
from skbayes_sym.models.predictive import CategoricalMixture


@dataclass(frozen=True)
class Bernoulli(LabelLikelihood):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``; targets are class indices 0 and 1 (int64)."""

    kind: ClassVar[Kind] = "bernoulli"

    def n_outputs(self, n_targets: int) -> int:
        if n_targets != 2:
            raise ValueError(f"Bernoulli() has two classes, y has {n_targets}. Use Categorical().")
        return 1

    def constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Log odds of the classes' shares."""
        logits = log_shares(y, weight)
        return logits[1:] - logits[:1]

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        signed = torch.cat([-outputs, outputs], -1)
        return CategoricalMixture(logsigmoid(signed), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(outputs.squeeze(-1) * (2.0 * y - 1.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        sign = (2.0 * y - 1.0).to(mean).unsqueeze(-1)

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            """From one sigmoid: ``log s(a) = min(a, 0) + log(1 - s(-|a|))``, to rounding."""
            agreeing = sign * f
            wrong = torch.sigmoid(-agreeing)
            value = torch.log1p(-torch.minimum(wrong, 1.0 - wrong)) + agreeing.clamp_max(0.0)
            return value, sign * wrong

        nodes = logistic_nodes(variance)
        return by_quadrature(value_and_slope, mean, variance, n_nodes=nodes)
