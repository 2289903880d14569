"""A fitted layerwise posterior as plain arrays, with what it was conditioned on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.layers import Conditional, LastLayer, Layerwise, propagate
from skbayes_sym.inference.predictor import BasePredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.numerics.memory import rows_within


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

    def _given(self, n: int, generator: torch.Generator) -> tuple[list[Tensor], Tensor, LastLayer]:
        """``n`` draws of the hidden layers, their KL, and the last layer given them."""
        params, *rows = (
            torch.as_tensor(array, device=generator.device)
            for array in (self.params, self.x, self.y, self.weight)
        )
        return self.parts.draw(params, Data(*rows), n, generator=generator)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws of all weights in the network's flat order, (n, P), float64."""
        weights, _, last = self._given(n, generator)
        values = {}
        for layer, weight in enumerate([*weights, last.sample(generator=generator)], start=1):
            values[f"W{layer}"], values[f"b{layer}"] = weight[:, :-1].mT, weight[:, -1]
        return self.parts.network.layout.flatten(values)

    def predictor(
        self, n: int, likelihood: Likelihood, *, generator: torch.Generator
    ) -> "LayerwisePredictor":
        """Average over ``n`` draws of the hidden layers and the last layer given them.

        Drawn on the generator's device, so that predictions agree across devices.
        """
        (weights, _, given), to = self._given(n, generator), likelihood.noise_scale.device
        mean, root, prior_scale, complement = given.conditional()
        last = Conditional(mean.to(to), root.to(to), prior_scale.to(to), complement)
        return LayerwisePredictor(self, [w.to(to) for w in weights], last, likelihood)


@dataclass(frozen=True, eq=False)
class LayerwisePredictor(BasePredictor):
    """Averages over S draws of the hidden layers, the last one integrated out."""

    posterior: LayerwisePosterior
    weights: list[Tensor]  # of the hidden layers, (S, D + 1, H)
    last: Conditional
    likelihood: Likelihood

    def law(self, x: Tensor) -> Predictive:
        parts = [last.moments(features) for last, features in self._blocks(x.double())]
        mean, variance = (torch.cat(t).to(x) for t in zip(*parts, strict=True))
        return NormalMixture(mean, variance, self.likelihood.noise_scale.square())

    def mean(self, x: Tensor) -> Tensor:
        sums = [(features @ last.mean).sum(0) for last, features in self._blocks(x.double())]
        return (torch.stack(sums).sum(0) / len(self.last.mean)).to(x)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        theta = self.posterior.sample(n, generator=generator).to(x)
        return self.likelihood.predictive(self.posterior.parts.network.forward(theta, x))

    def _blocks(self, x: Tensor) -> Iterator[tuple[Conditional, Tensor]]:
        """The last layer and its inputs (block, N, H + 1), block of draws by block of draws."""
        n, network = len(self.last.mean), self.posterior.parts.network
        size = rows_within(1 << 21, len(x) * self.last.mean.shape[1])  # of features: 16 MB
        for start in range(0, n, size):
            block = slice(start, start + size)
            last = self.last._replace(mean=self.last.mean[block], root=self.last.root[block])
            features = propagate(network, [w[block] for w in self.weights], x)
            yield last, features.expand(len(last.mean), -1, -1)
