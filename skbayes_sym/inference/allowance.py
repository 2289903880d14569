"""Work that may be spent, in multiplications: the same on every machine, unlike seconds."""

from dataclasses import dataclass
from math import inf

from torch import Tensor

# What a call costs whatever it computes, in multiplications of the time it takes: a sixth of a
# millisecond at some 3 10^10 a second.
_CALL = 5e6


@dataclass
class Allowance:
    """A sum that shrinks as gradients are made.

    Parameters
    ----------
    per_gradient : float
        Multiplications of one chain's gradient: 6 N P for N rows and P weights.
    left : float, default=inf
        Below zero once overdrawn: what has begun is finished.
    """

    per_gradient: float
    left: float = inf

    def work(self, n_calls: float, n_chains: float) -> float:
        """Of as many gradient calls of so many chains each."""
        return n_calls * (_CALL + n_chains * self.per_gradient)

    def of_moves(self, n_gradients: Tensor, block_size: int) -> float:
        """Of chains that made so many gradients each (C,), in blocks that moved together."""
        n_calls = sum(float(block.max()) for block in n_gradients.split(block_size))
        return self.work(n_calls, 0.0) + float(n_gradients.sum()) * self.per_gradient

    def spend(self, work: float) -> None:
        """Take it off what is left."""
        self.left -= work

    def affords(self, work: float) -> bool:
        """Whether so much is left."""
        return work <= self.left

    def part(self, share: float) -> float:
        """A share of what is left, at least 0."""
        return share * max(self.left, 0.0)
