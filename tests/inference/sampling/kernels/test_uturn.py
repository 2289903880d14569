"""Turning segments: the walk along the leaves against the recursion it replaces."""

import pytest
import torch

from skbayes_sym.inference.sampling.kernels.nuts import Checkpoints, Segment, turns, turns_at_seam

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


def test_memory_is_logarithmic(generator):
    checkpoints = Checkpoints()
    for leaf in momenta(256, generator):
        checkpoints.add(leaf)
    assert len(checkpoints._leaves) == 8


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
