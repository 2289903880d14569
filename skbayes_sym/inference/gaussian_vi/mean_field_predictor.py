"""Predictions by independent normals over the weights."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from skbayes_sym.inference.gaussian_vi.bounds import posterior_layers
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.inference.predictor import BasePredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import Layers, mean_output, output_moments
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.numerics.random import generator_from


@dataclass(frozen=True, eq=False)
class MeanFieldPredictor(BasePredictor):
    """Averages over draws of the hidden units, the same for every row."""

    network: MLP
    posterior: MeanFieldGaussian
    likelihood: Likelihood
    loc: Layers
    variance: Layers
    noise: list[Tensor]  # (S, 1, width) a layer

    @classmethod
    def of(
        cls, network: MLP, posterior: MeanFieldGaussian, likelihood: Likelihood,
        *, n_draws: int, seed: int, like: Tensor,
    ) -> Self:  # fmt: skip
        """On the device of ``like``, with ``n_draws`` draws."""
        generator = generator_from(seed)
        # Drawn on the CPU in float32 whatever the device: predictions agree across them.
        noise = [torch.randn(n_draws, 1, size, generator=generator) for size in network.sizes[1:]]
        layers = posterior_layers(network, posterior, like)
        noise = [e.to(like) for e in noise]
        return cls(network, posterior, likelihood.to(like), *layers, noise)

    def law(self, x: Tensor) -> Predictive:
        mean, variance = output_moments(self.network, self.loc, self.variance, x, self.noise[:-1])
        if self.likelihood.kind == "normal":
            return NormalMixture(mean, variance, self.likelihood.noise_scale.square())
        # Without hidden units all draws share their moments: not in place.
        outputs = torch.addcmul(mean, variance.sqrt_(), self.noise[-1])
        return self.likelihood.predictive(outputs)

    def mean(self, x: Tensor) -> Tensor:
        if self.likelihood.kind != "normal":
            return super().mean(x)
        return mean_output(self.network, self.loc, self.variance, x, self.noise[:-1])

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        theta = self.posterior.sample(n, generator=generator).to(x)
        return self.likelihood.predictive(self.network.forward(theta, x))
