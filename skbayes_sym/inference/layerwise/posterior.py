"""A fitted layerwise posterior as plain arrays, with what it was conditioned on."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.layerwise.base import (
    Conditional,
    HiddenDraws,
    LayerInputs,
    Layerwise,
    Moments,
    propagate,
)
from skbayes_sym.inference.predictor import BasePredictor
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.predictive import NormalMixture, Predictive
from skbayes_sym.numerics.memory import rows_within

# Numbers of the features of a block of draws: 16 MB in float64.
_BLOCK_NUMBERS = 1 << 21


@dataclass(frozen=True, eq=False)
class LayerwisePosterior:
    """Posterior over a network's weights, layer by layer.

    It is drawn from and predicts, but is no `Posterior`: no density is known of weights that it
    didn't draw itself, since each layer's law is a function of the draw of the layers before
    (`HiddenPosterior.draw`).

    ``x``, ``y``, ``weight``: training data in scaled units: a last layer that is integrated out
    depends on them.
    """

    parts: Layerwise
    params: npt.NDArray[Any]  # see `Layerwise.split`
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    weight: npt.NDArray[Any]

    def _tensors(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Data]:
        params = torch.as_tensor(self.params, device=device)
        data = Data(*(torch.as_tensor(a, device=device) for a in (self.x, self.y, self.weight)))
        return *self.parts.split(params), data

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws of all weights in the network's flat order, (n, P), float64."""
        hidden, last, log_noise, data = self._tensors(generator.device)
        draws = self.parts.hidden.draw(hidden, n, generator=generator)
        train = propagate(self.parts.network, draws.weights, data.x).expand(n, -1, -1)
        given = LayerInputs(last, train, draws, data, log_noise)
        outer = self.parts.last.sample(given, generator=generator)
        values = {}
        for layer, weight in enumerate([*draws.weights, outer], start=1):
            values[f"W{layer}"], values[f"b{layer}"] = weight[:, :-1].mT, weight[:, -1]
        return self.parts.network.layout.flatten(values)

    def conditioned(
        self, n: int, *, generator: torch.Generator, device: torch.device
    ) -> "ConditionedDraws":
        """``n`` draws of the hidden layers and the last layer given them, for predictions.

        Drawn on the generator's device, so that predictions agree across devices.
        """
        hidden, last, log_noise, data = self._tensors(generator.device)
        draws = self.parts.hidden.draw(hidden, n, generator=generator)
        train = propagate(self.parts.network, draws.weights, data.x).expand(n, -1, -1)
        given = self.parts.last.condition(LayerInputs(last, train, draws, data, log_noise))
        mean, root, prior_scale = (t.to(device) for t in given[:3])
        given = Conditional(mean, root, prior_scale, given.complement)
        return ConditionedDraws(self.parts, _moved(draws, device), given)


def _moved(draws: HiddenDraws, device: torch.device) -> HiddenDraws:
    return draws._replace(weights=[w.to(device) for w in draws.weights])


@dataclass(frozen=True, eq=False)
class ConditionedDraws:
    """Draws of the hidden layers with the exact or variational last layer given each."""

    parts: Layerwise
    draws: HiddenDraws
    last: Conditional

    def moments(self, x: Tensor) -> Moments:
        """Outputs (S, N, T) at inputs (N, D), draws taken in blocks."""
        n = len(self.last.mean)
        size = rows_within(_BLOCK_NUMBERS, len(x) * self.last.mean.shape[1])
        parts = []
        for start in range(0, n, size):
            block = slice(start, start + size)
            weights = [w[block] for w in self.draws.weights]
            features = propagate(self.parts.network, weights, x)
            given = self.last._replace(mean=self.last.mean[block], root=self.last.root[block])
            parts.append(given.moments(features.expand(len(given.mean), -1, -1)))
        return Moments(*(torch.cat(t) for t in zip(*parts, strict=True)))

    def mean(self, x: Tensor) -> Tensor:
        """Average output over the draws, (N, T)."""
        n = len(self.last.mean)
        size = rows_within(_BLOCK_NUMBERS, len(x) * self.last.mean.shape[1])
        total = x.new_zeros(len(x), self.last.mean.shape[2])
        for start in range(0, n, size):
            block = slice(start, start + size)
            features = propagate(self.parts.network, [w[block] for w in self.draws.weights], x)
            total += (features @ self.last.mean[block]).sum(0)
        return total / n


@dataclass(frozen=True, eq=False)
class LayerwisePredictor(BasePredictor):
    """Averages over draws of the hidden layers, the last one integrated out."""

    posterior: LayerwisePosterior
    draws: ConditionedDraws
    likelihood: Likelihood

    def law(self, x: Tensor) -> Predictive:
        mean, variance = (t.to(x) for t in self.draws.moments(x.double()))
        return NormalMixture(mean, variance, self.likelihood.noise_scale.square())

    def mean(self, x: Tensor) -> Tensor:
        return self.draws.mean(x.double()).to(x)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        theta = self.posterior.sample(n, generator=generator).to(x)
        return self.likelihood.predictive(self.posterior.parts.network.forward(theta, x))
