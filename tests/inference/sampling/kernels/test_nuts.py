"""The No-U-Turn sampler beyond the laws: how far trajectories go and what they cost."""

from dataclasses import dataclass, field

import pytest
import torch

from skbayes_sym.inference.log_density import Evaluation
from skbayes_sym.inference.sampling.kernels.kernel import DiagonalPreconditioner, initial_state
from skbayes_sym.inference.sampling.kernels.nuts import (
    NUTS,
    Checkpoints,
    Segment,
    turns,
    turns_at_seam,
)


@dataclass
class StandardNormal:
    """Counts the rows it is asked for."""

    n_dims: int
    n_rows: list = field(default_factory=list)

    def evaluate(self, position):
        self.n_rows.append(len(position))
        return Evaluation(-0.5 * (position**2).sum(-1), -position)


def move(kernel, target, step_size, n_chains=40, n=1, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    position = scale * torch.randn(n_chains, target.n_dims, generator=generator).double()
    state, infos = initial_state(position, target), []
    target.n_rows.clear()
    for _ in range(n):
        state, info = kernel.step(
            state, target,
            step_size=torch.as_tensor(step_size).double().expand(n_chains),
            preconditioner=DiagonalPreconditioner(torch.ones(target.n_dims, dtype=torch.float64)),
            generator=generator,
        )  # fmt: skip
        infos.append(info)
    return state, infos


@pytest.mark.parametrize(("step_size", "n_gradients"), [(0.12, 31), (0.24, 15), (0.06, 63)])
def test_trajectories_end_after_half_a_period(step_size, n_gradients):
    """All coordinates of a wide standard normal swing alike: they turn at pi.

    16 leaves of 0.12 span 1.8, 32 span 3.7: the doubling that crosses pi is the last.
    """
    _, (info,) = move(NUTS(), StandardNormal(2000), step_size)
    assert (info.n_gradients == n_gradients).all()
    assert info.accepted.all()


def test_skipping_finished_chains_changes_nothing_but_the_cost():
    step_size = torch.linspace(0.05, 1.0, 40)
    runs = []
    for skip in (True, False):
        target = StandardNormal(3)
        runs.append((*move(NUTS(skip_finished=skip), target, step_size, n=5), sum(target.n_rows)))
    (state, infos, rows), (full_state, full_infos, full_rows) = runs
    assert torch.equal(state.position, full_state.position)
    for info, full in zip(infos, full_infos, strict=True):
        assert info[4:] == full[4:] == (None, None)  # of one proposal; here are many
        assert all(map(torch.equal, info[:4], full[:4]))
    assert rows == sum(int(info.n_gradients.sum()) for info in infos)
    assert full_rows > 2 * rows


@pytest.mark.parametrize("max_depth", [1, 3])
def test_max_depth_bounds_the_cost(max_depth):
    _, (info,) = move(NUTS(max_depth), StandardNormal(5), 1e-3)
    assert (info.n_gradients == 2**max_depth - 1).all()


def test_a_trajectory_ends_where_it_diverges():
    """Unstable beyond a step size of 2, and far out the first leaf is lost already."""
    _, (info,) = move(NUTS(), StandardNormal(50), 2.5, scale=10.0)
    assert info.divergent.all()
    assert (info.n_gradients == 1).all()
    assert not info.accepted.any()


def test_draws_of_one_trajectory_follow_the_density():
    """The proposal is far from the start: successive draws of a wide normal are antithetic.

    With the bias to the newer half the mean correlation of one move is below that of a uniform
    draw from the trajectory, which is positive by symmetry about the start.
    """
    target = StandardNormal(500)
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(40, 500, generator=generator).double()
    state, _ = move(NUTS(), target, 0.12)
    correlation = (start * state.position).mean(1)
    assert correlation.mean() < 0.0


N_CHAINS = 200


def momenta(n_leaves, generator):
    """Slowly turning ones, so that some chains turn early, some late and some never."""
    noise = torch.randn(n_leaves, N_CHAINS, 2, generator=generator, dtype=torch.float64)
    return noise.cumsum(0) + 3.0 * torch.randn(N_CHAINS, 2, generator=generator).double()


def stretch_of(leaves):
    return Segment(leaves[0], leaves[-1], leaves.sum(0))


def recursion(leaves):
    """Whether the tree over these leaves or any tree within turns: Stan's ``build_tree``."""
    if len(leaves) == 1:
        return torch.zeros(N_CHAINS, dtype=torch.bool)
    halves = leaves.chunk(2)
    return recursion(halves[0]) | recursion(halves[1]) | turns_at_seam(*map(stretch_of, halves))


@pytest.mark.parametrize("depth", range(7))
def test_walk_is_the_recursion(depth, generator):
    leaves = momenta(1 << depth, generator)
    checkpoints, turned = Checkpoints(), torch.zeros(N_CHAINS, dtype=torch.bool)
    for leaf in leaves:
        found = checkpoints.add(leaf)
        if found is not None:
            turned |= found
    assert torch.equal(turned, recursion(leaves))
    if depth > 1:
        assert 0.05 < turned.double().mean() < 0.999  # both answers occur


def circle(step, n_leaves):
    angle = step * torch.arange(n_leaves, dtype=torch.float64)
    return torch.stack([angle.cos(), angle.sin()], -1).unsqueeze(1)


def test_a_straight_way_goes_on_and_a_circle_turns_at_half_a_period():
    assert not turns(stretch_of(torch.ones(16, 1, 2))).any()
    assert not turns(stretch_of(circle(0.4, 8))).any()  # spans 2.8
    assert turns(stretch_of(circle(0.4, 9))).all()  # 3.2


def test_only_the_seam_sees_a_period_made_of_two_half_ones():
    """Each half stops short of pi and the whole is beyond 2 pi, where it looks straight again."""
    leaves = circle(0.98 * torch.pi / 7, 16)
    halves = [stretch_of(half) for half in leaves.chunk(2)]
    assert not turns(stretch_of(leaves)).any()
    assert not any(turns(half).any() for half in halves)
    assert turns_at_seam(*halves).all()
