"""When a trajectory turns back on itself, and the memory that tells it for all its segments.

A trajectory of 2^depth leaves is a binary tree of segments. `Checkpoints` walks along the leaves
and judges every segment at its last leaf, with O(depth) leaves remembered instead of a recursion;
the leaves are numbered alike in all chains, so one memory serves the batch.
"""

from typing import NamedTuple

from torch import Tensor


class Segment(NamedTuple):
    """The momenta of consecutive leaves, in coordinates where the mass is the identity."""

    first: Tensor  # (C, D)
    last: Tensor  # (C, D)
    total: Tensor  # (C, D), sum over all leaves, both ends included


def turns(segment: Segment) -> Tensor:
    """Whether either end moves against the way made in total, (C,) bool.

    Betancourt 2017, appendix A.4.2; the summed momenta stand for the difference of positions.
    """
    first, last, total = segment
    return ((first * total).sum(-1) <= 0.0) | ((last * total).sum(-1) <= 0.0)


def turns_at_seam(before: Segment, after: Segment) -> Tensor:
    """`turns` of two adjacent segments as one, and of each with the other's nearest leaf.

    The latter catch trajectories that come round to where they began just between two doublings
    (as Stan does since 2.21).
    """
    whole = Segment(before.first, after.last, before.total + after.total)
    first_and_seam = Segment(before.first, after.first, before.total + after.first)
    seam_and_last = Segment(before.last, after.last, before.last + after.total)
    return turns(whole) | turns(first_and_seam) | turns(seam_and_last)


class _Leaf(NamedTuple):
    """What is remembered of an even leaf."""

    momentum: Tensor  # (C, D)
    previous: Tensor  # momentum of the leaf before
    total_before: Tensor  # summed momenta of all leaves before


class Checkpoints:
    """Judges every segment of 2, 4, ... leaves of a trajectory, leaf by leaf."""

    def __init__(self) -> None:
        self._leaves: dict[int, _Leaf] = {}
        self._n = 0
        self._previous: Tensor | None = None
        self._total: Tensor | None = None

    def add(self, momentum: Tensor) -> Tensor | None:
        """Take the next leaf; whether a segment that ends with it turns, (C,) bool.

        None if no segment ends there (every even leaf).
        """
        if self._previous is None or self._total is None:
            self._previous = self._total = momentum.new_zeros(()).expand_as(momentum)
        if self._n % 2 == 0:
            self._leaves[_slot(self._n)] = _Leaf(momentum, self._previous, self._total)
        self._previous, self._total = momentum, self._total + momentum
        turned, size = None, 2
        while (self._n + 1) % size == 0:
            found = self._turns_over(size)
            turned = found if turned is None else turned | found
            size *= 2
        self._n += 1
        return turned

    def _turns_over(self, size: int) -> Tensor:
        """`turns_at_seam` of the halves of the last ``size`` leaves."""
        assert self._previous is not None
        assert self._total is not None
        end, total = self._previous, self._total
        start = self._leaves[_slot(self._n + 1 - size)]
        if size == 2:  # two leaves are all the segments there are
            return turns(Segment(start.momentum, end, total - start.total_before))
        middle = self._leaves[_slot(self._n + 1 - size // 2)]
        before = Segment(start.momentum, middle.previous, middle.total_before - start.total_before)
        return turns_at_seam(before, Segment(middle.momentum, end, total - middle.total_before))


def _slot(leaf: int) -> int:
    """Where an even leaf is kept.

    Of the segments that are open at a time, each begins at a leaf with one more bit than that of
    the segment around it, so none overwrites another.
    """
    return (leaf >> 1).bit_count()
