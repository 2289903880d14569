"""Predictions of fitted models, in scaled units."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.positive_targets import PositiveDraws, PositiveTargets
from skbayes_sym.models.predictive_mixtures import Predictive


class NetworkComponents(NamedTuple):
    """Networks whose outputs are the means of the components of a mixture.

    Parameters
    ----------
    x : Tensor of shape (N, D)
        Inputs of the networks.
    network : Network
        Architecture.
    theta : Tensor of shape (S, P)
        Weights of S networks.
    weight : Tensor of shape (S,)
        Weights of the components.
    """

    x: Tensor
    network: Network
    theta: Tensor
    weight: Tensor


class Predictor(Protocol):
    """Predictions of a posterior at inputs ``x`` (N, *I), which are on its device."""

    def distribution(self, x: Tensor) -> Predictive:
        """Return the predictive distribution of every row."""

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Return distributions of the targets given each of ``n`` functions.

        The functions are sampled from the posterior. The same seed yields the same functions at
        whatever rows they are evaluated.

        Parameters
        ----------
        x : Tensor of shape (N, *I)
            Inputs.
        n : int
            Number of functions.
        generator : torch.Generator
            Source of random numbers.
        """

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Return expected targets given each of the same functions, noise-free, (n, N, T)."""

    def mean(self, x: Tensor) -> Tensor:
        """Return expected targets, (N, T), without computing variances."""

    def covariance(self, x: Tensor) -> Tensor | None:
        """Return the joint covariance of function values at all rows, (N, N, T), if known."""

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Yield networks whose outputs are means of components, as far as they are known."""


class BasePredictor:
    """Methods of a predictor that follow from ``distribution`` and ``sample_conditionals``."""

    def distribution(self, x: Tensor) -> Predictive:
        """Return the predictive distribution of every row."""
        raise NotImplementedError

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Return distributions of the targets given each of ``n`` sampled functions."""
        raise NotImplementedError

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Return expected targets given each of ``n`` sampled functions, (n, N, T)."""
        return self.sample_conditionals(x, n, generator=generator).means

    def mean(self, x: Tensor) -> Tensor:
        """Return expected targets, (N, T)."""
        return self.distribution(x).mean()

    def covariance(self, x: Tensor) -> Tensor | None:  # noqa: ARG002 -- see `Predictor`
        """Return None: the joint covariance isn't known in closed form."""
        return None

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:  # noqa: ARG002 -- see `Predictor`
        """Yield nothing: no network is known."""
        yield from ()


def select_draws(likelihood: Likelihood, index: Tensor) -> Likelihood:
    """Return the likelihood with the parameters of some draws, if every draw has its own.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood with parameters of shape (n_params,) or (S, 1, n_params).
    index : Tensor of shape (n,)
        Positions of the draws.

    Returns
    -------
    Likelihood
    """
    params = likelihood.params
    if params.ndim == 1:
        return likelihood
    return likelihood.at(params[index.to(params.device)])


@dataclass(frozen=True, eq=False)
class DrawsPredictor(BasePredictor):
    """Predictions of weighted draws of a network's weights.

    Parameters
    ----------
    network : Network
        Architecture.
    theta : Tensor of shape (S, P)
        Draws of the weights.
    likelihood : Likelihood
        Its parameters may have leading axes (S K, 1), for K states of the noise of every draw.
    log_weights : Tensor of shape (S K,), optional
        Normalised log weights; equal by default.
    n_states : int
        Number K of states of the noise.
    """

    network: Network
    theta: Tensor
    likelihood: Likelihood
    log_weights: Tensor | None = None
    n_states: int = 1

    def distribution(self, x: Tensor) -> Predictive:
        """Return a mixture with a component for every draw and state of the noise."""
        outputs = self.network.forward(self.theta, x)
        if self.n_states > 1:
            outputs = outputs.repeat_interleave(self.n_states, dim=0)
        return self.likelihood.predictive(outputs, self.log_weights)

    def mean(self, x: Tensor) -> Tensor:
        """Return the weighted average of the outputs, which are the means of normal noise."""
        if self.likelihood.kind != "normal":
            return super().mean(x)
        outputs = self.network.forward(self.theta, x)
        if self.log_weights is None:
            return outputs.mean(0)
        return torch.tensordot(self._weight_per_draw(self.log_weights), outputs, dims=1)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Yield all draws with their weights."""
        n_draws = len(self.theta)
        if self.log_weights is None:
            weight = self.theta.new_full((n_draws,), 1.0 / n_draws)
        else:
            weight = self._weight_per_draw(self.log_weights)
        yield NetworkComponents(x, self.network, self.theta, weight.to(self.theta))

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Return distributions of the targets given ``n`` resampled draws."""
        if self.log_weights is None:
            index = torch.randint(len(self.theta) * self.n_states, (n,), generator=generator)
        else:
            weights = self.log_weights.double().cpu().exp()
            index = torch.multinomial(weights, n, replacement=True, generator=generator)
        theta = self.theta[(index // self.n_states).to(x.device)]
        return select_draws(self.likelihood, index).predictive(self.network.forward(theta, x))

    def _weight_per_draw(self, log_weights: Tensor) -> Tensor:
        """Sum the weights over the states of the noise of every draw, (S,)."""
        return log_weights.exp().unflatten(0, (-1, self.n_states)).sum(1)


@dataclass(frozen=True, eq=False)
class PositivePredictor(BasePredictor):
    """Predictor whose targets are hardly ever zero or negative, see `PositiveTargets`.

    Parameters
    ----------
    base : Predictor
        Predictor of one target with a density, in scaled units.
    origin : float
        Scaled value of the target zero.
    max_mass : float
        Largest probability of values up to zero.
    """

    base: Predictor
    origin: float
    max_mass: float

    def distribution(self, x: Any) -> PositiveTargets:
        """Return the distribution of the target of every row."""
        base: Any = self.base.distribution(x)
        return PositiveTargets(base, self.origin, self.max_mass)

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        """Yield the networks of the base."""
        return self.base.networks(x)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions, whose targets have the distribution of `distribution`."""
        draws = self.base.sample_conditionals(x, n, generator=generator)
        return PositiveDraws(draws, self.distribution(x))

    def sample_functions(self, x: Any, n: int, *, generator: torch.Generator) -> Tensor:
        """Return the functions of the base, (n, N, 1)."""
        return self.base.sample_functions(x, n, generator=generator)
