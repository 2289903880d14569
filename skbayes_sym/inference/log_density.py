"""Log densities of whole posteriors, as samplers see them: one flat position a chain.

A position (C, D) holds C chains. Its first columns are the network's ``theta``, in the order of its
layout; parameters of the likelihood follow, mapped to the whole line (the log of the noise). All
values are in nats, summed over the data, with every constant kept, so that their integral over the
position is the evidence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor


class Evaluation(NamedTuple):
    """A log density and its gradient at C positions."""

    value: Tensor  # (C,), nats; -inf where there is no mass
    gradient: Tensor  # (C, D)


class LogDensity(Protocol):
    """A target as a kernel sees it."""

    @property
    def n_dims(self) -> int:
        """Length D of a position."""

    def __call__(self, position: Tensor) -> Tensor:
        """(C, D) -> (C,) nats."""

    def evaluate(self, position: Tensor) -> Evaluation:
        """Value and gradient at (C, D)."""


class LogPosterior(LogDensity, Protocol):
    """``log prior + beta log likelihood``: the posterior at ``beta = 1``, the prior at 0."""

    def log_prior(self, position: Tensor) -> Tensor:
        """(C, D) -> (C,) nats, normalised."""

    def log_likelihood(self, position: Tensor) -> Tensor:
        """(C, D) -> (C,) nats, at ``beta = 1`` whatever this density's own."""

    def sample_prior(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Exact draws (n, D)."""

    def tempered(self, beta: float) -> "LogPosterior":
        """The same at another inverse temperature."""


@runtime_checkable
class VariesInScale(Protocol):
    """A density of coordinates that may be a hundred times larger in one draw than in the next."""

    @property
    def scale_directions(self) -> Tensor | None:
        """Signs (K, D) of coordinates that grow or shrink together; None if none vary so."""


def gradient_of(log_density: LogDensity) -> Callable[[Tensor], Tensor]:
    """(C, D) -> (C, D), without the value: a density's own ``gradient``, if it has one."""
    gradient: Callable[[Tensor], Tensor] | None = getattr(log_density, "gradient", None)
    return gradient or (lambda position: log_density.evaluate(position).gradient)


@dataclass(frozen=True, eq=False)
class RoughGradients:
    """A density whose gradients are those of another, in less precision: a `LogDensity`.

    A trajectory that is kicked by whatever function of its position turns back on itself and keeps
    volumes. So a kernel that accepts by the energies at its ends samples the density itself,
    however rough the gradients between: rougher ones are accepted less often, that is all.

    A trajectory of ``n`` steps costs ``n`` rough gradients and one exact value.
    """

    exact: LogDensity  # has the values
    rough: LogDensity  # about the same, in ``dtype``: has the gradients
    dtype: torch.dtype

    @property
    def n_dims(self) -> int:
        return self.exact.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        return self.exact(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        return Evaluation(self.exact(position), self.gradient(position))

    def gradient(self, position: Tensor) -> Tensor:
        """Rough, in the precision of ``position``."""
        return self.rough.evaluate(position.to(self.dtype)).gradient.to(position)


Batched = Callable[[Tensor], Tensor]  # (C, D) -> (C,)


@dataclass(frozen=True, eq=False)
class AutogradPosterior:
    """Any prior and likelihood, differentiated by torch: a `LogPosterior`.

    ``prior``, ``likelihood``: log densities, chain by chain independent.
    """

    n_dims: int
    prior: Batched
    likelihood: Batched
    prior_sampler: Callable[[int, torch.Generator], Tensor] | None = None
    beta: float = 1.0

    def __call__(self, position: Tensor) -> Tensor:
        if self.beta == 0.0:
            return self.prior(position)
        return self.prior(position) + self.beta * self.likelihood(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        with torch.inference_mode(False), torch.enable_grad():
            tracked = position.detach().clone().requires_grad_()
            value = self(tracked)
            (gradient,) = torch.autograd.grad(value.sum(), tracked)
        return Evaluation(value.detach(), gradient)

    def log_prior(self, position: Tensor) -> Tensor:
        return self.prior(position)

    def log_likelihood(self, position: Tensor) -> Tensor:
        return self.likelihood(position)

    def sample_prior(self, n: int, *, generator: torch.Generator) -> Tensor:
        if self.prior_sampler is None:
            raise ValueError("this density has no prior_sampler: give one to start from the prior.")
        return self.prior_sampler(n, generator)

    def tempered(self, beta: float) -> "AutogradPosterior":
        return replace(self, beta=beta)
