"""Posterior predictive distributions, shared by every estimator.

A posterior made of draws (of weights, or of hidden units) predicts by a mixture: of normals in
regression, of class probabilities in classification. Everything a user asks for is a functional
of that mixture.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.scalar import TargetLikelihood

# Bisection halves the bracket each time: 60 steps end below float64's resolution.
_BISECTIONS = 60


class Uncertainty(NamedTuple):
    """What is not known, split by whether more data would help: total = epistemic + aleatoric."""

    total: Tensor
    epistemic: Tensor
    aleatoric: Tensor


@dataclass(frozen=True, eq=False)
class NormalMixture:
    """Mixture over S draws of normals, for every row and output.

    Parameters
    ----------
    loc : Tensor of shape (S, N, T)
        Mean of the function values of every draw.
    variance : Tensor broadcastable to (S, N, T)
        Their variance given the draw (0 if a draw fixes the function).
    noise_variance : Tensor broadcastable to (S, N, T)
        Variance of the observation noise.
    log_weights : Tensor of shape (S,), optional
        Normalised log weights of the draws; equal by default.
    """

    loc: Tensor
    variance: Tensor
    noise_variance: Tensor
    log_weights: Tensor | None = None

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        return False

    @cached_property
    def _weights(self) -> Tensor:
        if self.log_weights is None:
            n = self.loc.shape[0]
            return self.loc.new_full((n, 1, 1), 1.0 / n)
        return self.log_weights.exp().reshape(-1, 1, 1)

    @cached_property
    def _scale(self) -> Tensor:
        return (self.variance + self.noise_variance).sqrt().expand_as(self.loc)

    def in_units(self, mean: Tensor, scale: Tensor) -> "NormalMixture":
        """The law of ``mean + scale * target``."""
        return replace(
            self,
            loc=self.loc * scale + mean,
            variance=self.variance * scale**2,
            noise_variance=self.noise_variance * scale**2,
        )

    def mean(self) -> Tensor:
        """(N, T)."""
        return (self._weights * self.loc).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Variances (N, T): of the mean function (epistemic) and of the noise (aleatoric)."""
        spread = (self.loc - self.mean()) ** 2 + self.variance
        epistemic = (self._weights * spread).sum(0)
        aleatoric = (self._weights * self.noise_variance.expand_as(self.loc)).sum(0)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def std(self) -> Tensor:
        """Standard deviation of a new target, noise included, (N, T)."""
        return self.uncertainty().total.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """Joint log density of all outputs, ``log sum_s w_s prod_t N(y_t; ...)``, (N,) nats.

        The outputs of one row are independent given a draw, not across draws.
        """
        return torch.logsumexp(self.log_prob_of_draws(y) + self._weights[:, :, 0].log(), dim=0)

    def log_prob_of_draws(self, y: Tensor) -> Tensor:
        """Log density of all outputs of a row given each draw, (S, N) nats."""
        z = (y - self.loc) / self._scale
        return -(0.5 * z * z + self._scale.log() + 0.5 * log(2 * pi)).sum(-1)

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), (N, T)."""
        z = (y - self.loc) / self._scale
        return (self._weights * torch.special.ndtr(z)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        """The mixture's quantile by bisection, (N, T); accurate to rounding."""
        z = float(torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))
        ends = self.loc + z * self._scale  # each component's own quantile brackets the mixture's
        lower, upper = ends.amin(0), ends.amax(0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            below = self.cdf(middle) < probability
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        return 0.5 * (lower + upper)


@dataclass(frozen=True, eq=False)
class TargetMixture:
    """Mixture over S values of the output of any likelihood of one real target.

    Parameters
    ----------
    likelihood : TargetLikelihood
        Law of the target given its output.
    outputs : Tensor of shape (S, N, 1)
        Draws, or nodes of a quadrature.
    log_weights : Tensor of shape (S,)
        Their normalised log weights.
    """

    likelihood: TargetLikelihood
    outputs: Tensor
    log_weights: Tensor

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        return self.likelihood.is_discrete

    @cached_property
    def _weights(self) -> Tensor:
        return self.log_weights.exp().reshape(-1, 1, 1)

    def in_units(self, mean: Tensor, scale: Tensor) -> "TargetMixture":
        """The law of ``mean + scale * target``."""
        likelihood = self.likelihood.rescaled(scale)
        return TargetMixture(likelihood, self.outputs * scale + mean, self.log_weights)

    def mean(self) -> Tensor:
        """(N, 1)."""
        return (self._weights * self.likelihood.mean(self.outputs)).sum(0)

    def uncertainty(self) -> Uncertainty:
        """Variances (N, 1): of the target's mean (epistemic) and around it (aleatoric)."""
        spread = (self.likelihood.mean(self.outputs) - self.mean()) ** 2
        epistemic = (self._weights * spread).sum(0)
        aleatoric = (self._weights * self.likelihood.variance(self.outputs)).sum(0)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)

    def std(self) -> Tensor:
        """Standard deviation of a new target, (N, 1)."""
        return self.uncertainty().total.sqrt()

    def log_prob(self, y: Tensor) -> Tensor:
        """(N, 1) -> (N,) nats."""
        per_node = self.likelihood.log_prob(self.outputs, y)
        return torch.logsumexp(per_node + self.log_weights.unsqueeze(-1), dim=0)

    def cdf(self, y: Tensor) -> Tensor:
        """P(target <= y), (N, 1)."""
        return (self._weights * self.likelihood.cdf(y, self.outputs)).sum(0)

    def quantile(self, probability: float) -> Tensor:
        """By bisection of a bracket that doubles until it holds the quantile, (N, 1).

        Of a discrete target it is the smallest value whose `cdf` reaches ``probability``.
        """
        middle, width = self.outputs.mean(0), torch.ones_like(self.outputs[0])
        lower, upper = middle - width, middle + width
        while bool((self.cdf(lower) >= probability).any() | (self.cdf(upper) < probability).any()):
            width = 2.0 * width
            lower = torch.where(self.cdf(lower) >= probability, middle - width, lower)
            upper = torch.where(self.cdf(upper) < probability, middle + width, upper)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (lower + upper)
            below = self.cdf(middle) < probability
            lower, upper = torch.where(below, middle, lower), torch.where(below, upper, middle)
        value = 0.5 * (lower + upper)
        return value.round() if self.likelihood.is_discrete else value


@dataclass(frozen=True, eq=False)
class CategoricalMixture:
    """Mixture over S draws of class probabilities, for every row.

    Parameters
    ----------
    log_probs : Tensor of shape (S, N, C)
    log_weights : Tensor of shape (S,), optional
        Normalised log weights of the draws; equal by default.
    """

    log_probs: Tensor
    log_weights: Tensor | None = None

    @cached_property
    def _weights(self) -> Tensor:
        if self.log_weights is None:
            n = self.log_probs.shape[0]
            return self.log_probs.new_full((n, 1, 1), 1.0 / n)
        return self.log_weights.exp().reshape(-1, 1, 1)

    def log_prob_of_draws(self, codes: Tensor) -> Tensor:
        """Log probability of the classes ``codes`` (N,) given each draw, (S, N) nats."""
        return self.log_probs[:, torch.arange(len(codes)), codes]

    def probabilities(self) -> Tensor:
        """(N, C); each row sums to one."""
        p = torch.tensordot(self._weights.flatten(), self.log_probs.exp(), dims=1)
        return p / p.sum(-1, keepdim=True)

    def uncertainty(self) -> Uncertainty:
        """Entropies in nats (N,): mutual information with the weights, and expected entropy."""
        total = torch.special.entr(self.probabilities()).sum(-1)
        per_draw = -(self.log_probs.exp() * self.log_probs).nan_to_num(0.0).sum(-1)
        aleatoric = (self._weights[:, :, 0] * per_draw).sum(0)
        epistemic = (total - aleatoric).clamp_min(0.0)  # >= 0 up to rounding (Jensen)
        return Uncertainty(epistemic + aleatoric, epistemic, aleatoric)
