"""The nouns every sampler shares: where the chains are, how they are scaled, what a move did."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogDensity

_Nested = TypeVar("_Nested", bound=tuple[Any, ...])


class State(NamedTuple):
    """Places of C chains, as the next move needs them."""

    position: Tensor  # (C, D)
    value: Tensor  # (C,), log density there, nats
    gradient: Tensor  # (C, D)


class Info(NamedTuple):
    """Figures of a move."""

    acceptance: Tensor  # (C,), mean Metropolis probability of the proposals
    accepted: Tensor  # (C,), bool: the chain moved
    divergent: Tensor  # (C,), bool: the integrator's energy error exceeded `MAX_ENERGY_ERROR`
    n_gradients: Tensor  # (C,), int64: gradients this chain's move was charged for
    energy_error: Tensor | None = None  # (C,), nats, of the proposal; where a move has one
    outside: Tensor | None = None  # (C,), bool: the proposal left a region, and was rejected


# Energy error in nats beyond which a trajectory has left the integrator's stability (Stan's value).
MAX_ENERGY_ERROR = 1000.0


def where(mask: Tensor, new: _Nested, old: _Nested) -> _Nested:
    """Chain by chain ``new`` where ``mask`` (C,) holds, else ``old``: of nested NamedTuples."""

    def choose(a: Any, b: Any) -> Any:
        if isinstance(b, Tensor):
            return torch.where(mask.reshape(-1, *[1] * (b.ndim - 1)), a, b)
        return type(b)(*map(choose, a, b))

    chosen: _Nested = choose(new, old)
    return chosen


class Preconditioner(Protocol):
    """A linear map ``position = L z`` under which the target is about as wide in all directions.

    Momenta live in the coordinates z and are standard normal there: the mass matrix is
    ``(L L')^-1``.
    """

    def to_position(self, z: Tensor) -> Tensor:
        """``L z``, (C, D) -> (C, D)."""

    def to_gradient(self, gradient: Tensor) -> Tensor:
        """``L' gradient``, (C, D) -> (C, D)."""


@dataclass(frozen=True, eq=False)
class DiagonalPreconditioner:
    """Coordinate by coordinate: ``scale`` (C, D), each chain its own, or (D,)."""

    scale: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        return self.scale * z

    def to_gradient(self, gradient: Tensor) -> Tensor:
        return self.scale * gradient


@dataclass(frozen=True, eq=False)
class DensePreconditioner:
    """A Cholesky factor of the covariance: (D, D) for all chains or (C, D, D)."""

    cholesky: Tensor

    def to_position(self, z: Tensor) -> Tensor:
        return (self.cholesky @ z.unsqueeze(-1)).squeeze(-1) if self._own else z @ self.cholesky.mT

    def to_gradient(self, gradient: Tensor) -> Tensor:
        if self._own:
            return (self.cholesky.mT @ gradient.unsqueeze(-1)).squeeze(-1)
        return gradient @ self.cholesky

    @property
    def _own(self) -> bool:
        return self.cholesky.ndim == 3


class Kernel(Protocol):
    """A Markov move of C independent chains that leaves ``exp(log_density)`` invariant.

    Kernels keep no state: everything adaptive is an argument, and must not depend on the state
    within the move.
    """

    def step(
        self,
        state: State,
        log_density: LogDensity,
        *,
        step_size: Tensor,
        preconditioner: Preconditioner,
        generator: torch.Generator,
    ) -> tuple[State, Info]:
        """Move every chain once; ``step_size`` is (C,)."""


def initial_state(position: Tensor, log_density: LogDensity) -> State:
    """The state of chains at ``position`` (C, D)."""
    value, gradient = log_density.evaluate(position)
    return State(position, value, gradient)
