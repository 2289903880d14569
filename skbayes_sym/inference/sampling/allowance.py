"""Work that may be spent, in multiplications: the same on every machine, unlike seconds."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

# What a call costs whatever it computes, in multiplications of the time it takes: a sixth of a
# millisecond at some 3 10^10 a second.
_CALL = 5e6

# What a move takes beside its gradients: momenta, energies, whether it stays in its copy; in calls.
A_MOVE = 8.0


@dataclass
class Allowance:
    """A sum that shrinks as gradients are made."""

    per_gradient: float  # multiplications of one chain's gradient: 6 N P for N rows and P weights
    left: float = inf  # below zero once overdrawn: what has begun is finished

    def work(self, n_calls: float, n_chains: float) -> float:
        """Multiplications of gradient calls of ``n_chains`` chains each."""
        return n_calls * (_CALL + n_chains * self.per_gradient)

    def of_moves(self, n_gradients: Tensor, n_moves: Tensor, block_size: int) -> float:
        """Multiplications of chains' gradients (C,) and moves (C,), made in blocks."""
        by_block = zip(n_gradients.split(block_size), n_moves.split(block_size), strict=True)
        n_calls = sum(float(made.max() + A_MOVE * moves.max()) for made, moves in by_block)
        return self.work(n_calls, 0.0) + float(n_gradients.sum()) * self.per_gradient

    def part(self, share: float) -> float:
        """A share of what is left, at least 0."""
        return share * max(self.left, 0.0)
