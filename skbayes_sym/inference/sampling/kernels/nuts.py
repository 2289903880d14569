"""The No-U-Turn sampler, for many chains in lock step."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import Evaluation, LogDensity
from skbayes_sym.inference.sampling.kernels.hmc import draw_momentum, energy_error, leapfrog
from skbayes_sym.inference.sampling.kernels.kernel import (
    MAX_ENERGY_ERROR,
    Info,
    Preconditioner,
    State,
    where,
)


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
    """Memory of an even leaf."""

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
            turns_now = self._turns_over(size)
            turned = turns_now if turned is None else turned | turns_now
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
    """Place where an even leaf is kept.

    Of the segments that are open at a time, each begins at a leaf with one more bit than that of
    the segment around it, so none overwrites another.
    """
    return (leaf >> 1).bit_count()


class _Point(NamedTuple):
    """A point of every chain's trajectory."""

    state: State
    momentum: Tensor  # (C, D), in preconditioned coordinates, where its mass is the identity


class _Tree(NamedTuple):
    """A segment of every chain's trajectory."""

    first: _Point
    last: _Point
    proposal: State  # one of its points, drawn with probability proportional to its density
    log_weight: Tensor  # (C,), float64: log of the summed densities, relative to the start's
    total: Tensor  # (C, D), summed momenta


@dataclass(frozen=True)
class NUTS:
    """Trajectories that double until they turn back; the next state is drawn from them.

    The multinomial variant: points are drawn in proportion to their density within a doubling,
    with a bias to the newer half between doublings; a trajectory ends where either end's momentum
    points against the summed momenta, of the whole or of one of the three segments at every
    seam.

    Parameters
    ----------
    max_depth : int, default=10
        Doublings, at most: 2^max_depth - 1 gradients a move.
    skip_finished : bool, default=True
        Whether the density is evaluated only at the chains whose trees still grow. It then sees
        varying numbers of chains: turn it off for densities that tell the rows of a position
        apart. On a GPU finished chains run along.

    Notes
    -----
    All growing chains are at the same leaf of the same doubling, so that the recursion over
    subtrees is one loop over leaves: the leaf n that ends subtrees of 2, 4, ... leaves finds where
    they began among O(max_depth) checkpoints, the same for all chains. A move costs as many
    sequential gradients as the longest tree; with ``skip_finished`` their total is the sum of the
    trees' sizes.

    A trajectory that leaves the support counts as divergent.

    References
    ----------
    Hoffman & Gelman (2014), The No-U-Turn sampler. Betancourt (2017), A conceptual introduction to
    Hamiltonian Monte Carlo, appendix A.4. Phan, Pradhan & Jankowiak (2019), Composable effects for
    flexible and accelerated probabilistic programming, appendix A (checkpoints).
    """

    max_depth: int = 10
    skip_finished: bool = True

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
        move = _Move(self, log_density, preconditioner, generator, state, step_size)
        for depth in range(self.max_depth):
            if bool(move.growing.any()):
                move.double(depth)
        figures = move.acceptance / move.n_gradients, move.moved, move.divergent, move.n_gradients
        return move.tree.proposal, Info(*figures)


class _Move:
    """Trajectories of all chains, as far as they have got, and what was met on the way."""

    def __init__(
        self,
        kernel: NUTS,
        log_density: LogDensity,
        preconditioner: Preconditioner,
        generator: torch.Generator,
        state: State,
        step_size: Tensor,
    ) -> None:
        self._density, self._preconditioner = log_density, preconditioner
        self._generator, self._step_size = generator, step_size
        self._on_cpu = step_size.device.type == "cpu"
        self._skips = kernel.skip_finished and self._on_cpu
        momentum = draw_momentum(state, generator)
        self._start = _Point(state, momentum)
        zero = torch.zeros_like(state.value, dtype=torch.float64)
        self.tree = _Tree(self._start, self._start, state, zero, momentum)
        self.moved = torch.zeros_like(zero, dtype=torch.bool)
        self.growing, self.divergent = ~self.moved, self.moved
        self.acceptance, self.n_gradients = zero, zero.long()  # sums over all points

    def double(self, depth: int) -> None:
        """Add as many points as there are, after the last or before the first by a coin's toss."""
        shape, device = self.growing.shape, self.growing.device
        backward = torch.rand(shape, generator=self._generator, device=device) < 0.5
        oriented = where(backward, _reversed(self.tree), self.tree)
        step_size = torch.where(backward, -self._step_size, self._step_size)
        half, whole = self._subtree(oriented.last, depth, step_size)
        # Between doublings the newer half is preferred (Betancourt 2017, appendix A.3.2): it moves
        # further and still leaves the density invariant.
        taken = whole & self._happens(half.log_weight - self.tree.log_weight)
        merged = _merge(oriented, half, taken)
        self.tree = where(whole, where(backward, _reversed(merged), merged), self.tree)
        self.growing = whole & ~turns_at_seam(_segment(oriented), _segment(half))
        self.moved = self.moved | taken

    def _subtree(self, start: _Point, depth: int, step_size: Tensor) -> tuple[_Tree, Tensor]:
        """The 2^depth points after ``start``, and the chains that got through without turning.

        On a GPU, which stands still while it is asked how many still grow, that is asked only after
        leaves 1, 2, 4, 8, ...: at most as many again are visited for nothing.
        """
        checkpoints, end, growing = Checkpoints(), start, self.growing
        n_growing = int(growing.sum()) if self._skips else len(growing)
        for n in range(1 << depth):
            density = self._density
            if self._skips and n_growing < len(growing):
                density = _Growing(density, growing, end.state)
            size = torch.where(growing, step_size, 0.0)
            state, momentum = end
            end = _Point(*leapfrog(state, density, momentum, size, self._preconditioner, 1))
            log_weight = _log_weight(end, self._start)
            passed = log_weight.clamp(max=0.0).exp()
            self.acceptance = self.acceptance + torch.where(growing, passed, 0.0)
            self.n_gradients = self.n_gradients + growing
            lost = log_weight < -MAX_ENERGY_ERROR
            self.divergent = self.divergent | growing & lost
            growing = growing & ~lost
            leaf = _Tree(end, end, end.state, log_weight, end.momentum)
            if n == 0:
                tree = leaf
            else:
                share = log_weight - torch.logaddexp(tree.log_weight, log_weight)
                tree = _merge(tree, leaf, growing & self._happens(share))
            turned = checkpoints.add(end.momentum)
            if turned is not None:
                growing = growing & ~turned
            if self._on_cpu or (n + 1).bit_count() == 1:
                n_growing = int(growing.sum())
                if not n_growing:
                    break
        return tree, growing

    def _happens(self, log_probability: Tensor) -> Tensor:
        """Independent events, (C,) bool; certain where the log probability is 0 or more."""
        shape, device = log_probability.shape, self._generator.device
        uniform = torch.rand(shape, generator=self._generator, device=device, dtype=torch.float64)
        return uniform.log() < log_probability


@dataclass(frozen=True, eq=False)
class _Growing:
    """A density evaluated at the chains that grow; the others keep what ``known`` says of them."""

    log_density: LogDensity
    growing: Tensor
    known: State

    @property
    def n_dims(self) -> int:
        return self.log_density.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        return self.evaluate(position).value

    def evaluate(self, position: Tensor) -> Evaluation:
        (rows,) = self.growing.nonzero(as_tuple=True)
        value, gradient = self.log_density.evaluate(position[rows])
        return Evaluation(
            self.known.value.index_copy(0, rows, value),
            self.known.gradient.index_copy(0, rows, gradient),
        )


def _log_weight(end: _Point, start: _Point) -> Tensor:
    """Log density of a point relative to the start's, (C,), float64; -inf if it is no number."""
    error = energy_error(start.state, start.momentum, end.state, end.momentum)
    return (-error).nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def _merge(tree: _Tree, after: _Tree, taken: Tensor) -> _Tree:
    """Both segments as one; ``taken`` says where the later one brings the proposal."""
    return _Tree(
        tree.first,
        after.last,
        where(taken, after.proposal, tree.proposal),
        torch.logaddexp(tree.log_weight, after.log_weight),
        tree.total + after.total,
    )


def _segment(tree: _Tree) -> Segment:
    return Segment(tree.first.momentum, tree.last.momentum, tree.total)


def _reversed(tree: _Tree) -> _Tree:
    return tree._replace(first=tree.last, last=tree.first)
