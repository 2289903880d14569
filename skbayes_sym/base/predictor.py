"""Predictions as values: what every fit ends with, in scaled units."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.predictive_mixtures import Predictive


class NetworkComponents(NamedTuple):
    """Networks of a mixture: their outputs are the means of its components."""

    x: Tensor  # (N, D), what they read of the rows
    network: Network
    theta: Tensor  # (S, P)
    weight: Tensor  # (S,)


class Predictor(Protocol):
    """A posterior as rows ask it; ``x`` is (N, *I), on the predictor's device."""

    def distribution(self, x: Tensor) -> Predictive:
        """Distribution of the targets, or the class, of every row."""

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """The same given each of ``n`` functions drawn from the posterior: its draws.

        One seed means the same functions, whatever rows are asked for.
        """

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Expected targets given each of these functions, noise-free, (n, N, T)."""

    def mean(self, x: Tensor) -> Tensor:
        """Expected targets, (N, T), as cheap as they can be."""

    def covariance(self, x: Tensor) -> Tensor | None:
        """Joint covariance of function values at all rows, (N, N, T), where it is known."""

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Networks whose outputs are the means of components, as far as they are known."""


class BasePredictor:
    """Members that follow from `law` and `drawn`."""

    def distribution(self, x: Tensor) -> Predictive:
        raise NotImplementedError

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        raise NotImplementedError

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        return self.sample_conditionals(x, n, generator=generator).means

    def mean(self, x: Tensor) -> Tensor:
        return self.distribution(x).mean()

    def covariance(self, x: Tensor) -> Tensor | None:
        return None

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        yield from ()


def select_draws(likelihood: Likelihood, chosen: Tensor) -> Likelihood:
    """The likelihood of its draws ``chosen`` (n,), where each has parameters of its own."""
    params = likelihood.params
    return likelihood if params.ndim == 1 else likelihood.at(params[chosen.to(params.device)])


@dataclass(frozen=True, eq=False)
class DrawsPredictor(BasePredictor):
    """Weighted draws of a network's weights.

    ``likelihood``: its parameters may lead with axes (S K, 1): K states of the noise of every draw.
    """

    network: Network
    theta: Tensor  # (S, P)
    likelihood: Likelihood
    log_weights: Tensor | None = None  # (S K,); normalised; equal by default
    n_states: int = 1  # K

    def distribution(self, x: Tensor) -> Predictive:
        outputs = self.network.forward(self.theta, x)
        if self.n_states > 1:
            outputs = outputs.repeat_interleave(self.n_states, dim=0)
        return self.likelihood.predictive(outputs, self.log_weights)

    def mean(self, x: Tensor) -> Tensor:
        if self.likelihood.kind != "normal":
            return super().mean(x)
        outputs = self.network.forward(self.theta, x)
        if self.log_weights is None:
            return outputs.mean(0)
        weights = self.log_weights.exp().unflatten(0, (-1, self.n_states)).sum(1)
        return torch.tensordot(weights, outputs, dims=1)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        n_draws = len(self.theta)
        if self.log_weights is None:
            weight = self.theta.new_full((n_draws,), 1.0 / n_draws)
        else:  # of a draw, summed over the states of its noise
            weight = self.log_weights.exp().reshape(n_draws, self.n_states).sum(1)
        yield NetworkComponents(x, self.network, self.theta, weight.to(self.theta))

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        if self.log_weights is None:
            chosen = torch.randint(len(self.theta) * self.n_states, (n,), generator=generator)
        else:
            weights = self.log_weights.double().cpu().exp()
            chosen = torch.multinomial(weights, n, replacement=True, generator=generator)
        theta = self.theta[(chosen // self.n_states).to(x.device)]
        return select_draws(self.likelihood, chosen).predictive(self.network.forward(theta, x))
