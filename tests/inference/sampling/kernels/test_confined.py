"""Moves with a mass matrix that breaks the symmetry: exact within the domain, biased without it."""

from math import log, pi

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.log_density import AutogradPosterior
from skbayes_sym.inference.sampling.kernels.base import (
    DensePreconditioner,
    DiagonalPreconditioner,
    initial_state,
)
from skbayes_sym.inference.sampling.kernels.hmc import HMC, ConfinedHMC, metropolis
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.symmetry.base import Trivial
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.reference import DiagonalReference
from skbayes_sym.symmetry.units import Units

F64 = torch.float64
TRUTH = 2.0 / pi**0.5  # E|x_1 - x_2| under N(0, I_2)
SWAP = Units(torch.tensor([[0], [1]]))
UNEQUAL = DiagonalPreconditioner(torch.tensor([1.5, 0.15], dtype=F64))


def places(mean):
    mean = torch.as_tensor(mean, dtype=F64)
    return DiagonalReference(mean, torch.ones_like(mean))


SWAP_DOMAIN = FundamentalDomain(SWAP, places([1.0, -1.0]))


def standard_normal(n_dims):
    def prior(x):
        return -0.5 * x.square().sum(dim=1) - 0.5 * n_dims * log(2 * pi)

    return AutogradPosterior(n_dims, prior, lambda x: 0.0 * x[:, 0])


def gap(position):
    return (position[:, 0] - position[:, 1]).abs()


def inside(domain, n, n_dims, generator):
    """Exact draws of a standard normal restricted to the domain."""
    return domain.enter(torch.randn(n, n_dims, generator=generator, dtype=F64))[0]


def random_walk(n_chains, n_moves, generator, *, reject):
    """Gaps (n_moves, n_chains) under Metropolis with proposal standard deviations (1.5, 0.15)."""
    target = standard_normal(2)
    state = initial_state(inside(SWAP_DOMAIN, n_chains, 2, generator), target)
    gaps = []
    for _ in range(n_moves):
        noise = torch.randn(n_chains, 2, generator=generator, dtype=F64)
        proposal = initial_state(state.position + UNEQUAL.to_position(noise), target)
        error = state.value - proposal.value
        allowed = SWAP_DOMAIN.contains(proposal.position) if reject else None
        state, _ = metropolis(
            state, proposal, error, n_gradients=1, generator=generator, allowed=allowed
        )
        if not reject:
            state = initial_state(SWAP_DOMAIN.enter(state.position)[0], target)
        gaps.append(gap(state.position))
    return torch.stack(gaps)


def mean_of_chains(gaps):
    """Mean, and its standard error from the spread of independent chains."""
    means = gaps.mean(dim=0)
    return float(means.mean()), float(means.std()) / len(means) ** 0.5


@pytest.mark.long
def test_relabelling_a_random_walk_is_biased_and_rejection_isnt(generator):
    """The planted example: 1.897 with relabelling instead of rejection; the truth is 1.128."""
    mean, se = mean_of_chains(random_walk(1000, 300, generator, reject=True))
    assert abs(mean - TRUTH) < 4 * se
    assert se < 0.02
    biased, se = mean_of_chains(random_walk(1000, 500, generator, reject=False)[300:])
    assert abs(biased - 1.897) < 4 * (se**2 + 0.0004**2) ** 0.5
    assert se < 0.02


@pytest.mark.long
def test_hmc_confined_to_the_domain_keeps_exact_draws_exact(generator):
    """And the same trajectories with relabelling instead lose them."""
    n, target, inner = 4000, standard_normal(2), HMC(1.0, (0.5, 1.5), 16)
    kernel = ConfinedHMC(SWAP_DOMAIN, inner)
    start = initial_state(inside(SWAP_DOMAIN, n, 2, generator), target)
    step = {
        "step_size": torch.full((n,), 0.5, dtype=F64),
        "preconditioner": UNEQUAL,
        "generator": generator,
    }
    confined = relabelled = start
    for _ in range(60):
        confined, _ = kernel.step(confined, target, **step)
        relabelled, _ = inner.step(relabelled, target, **step)
        relabelled = initial_state(SWAP_DOMAIN.enter(relabelled.position)[0], target)
    se = float(gap(confined.position).std()) / n**0.5
    assert abs(float(gap(confined.position).mean()) - TRUTH) < 4 * se
    assert float(gap(relabelled.position).mean()) > TRUTH + 20 * se
    assert bool(SWAP_DOMAIN.contains(confined.position).all())


@pytest.mark.long
def test_order_statistics_within_a_domain_of_three_signed_units(generator):
    """E of the sorted absolute values of three normals, from a chain that starts at one point."""
    group = Units(torch.tensor([[0], [1], [2]]), flip=True)
    domain = FundamentalDomain(group, places([3.0, 1.0, 0.5]))
    n, target = 1500, standard_normal(3)
    factor = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.6, 0.0], [0.3, -0.2, 0.4]], dtype=F64)
    kernel = ConfinedHMC(domain, HMC(0.5, (0.5, 1.5), 16))  # short: the cone is narrow
    point = torch.tensor([2.0, 1.0, 0.1], dtype=F64)
    state = initial_state(point.repeat(n, 1), target)
    for _ in range(300):
        state, _ = kernel.step(
            state,
            target,
            step_size=torch.full((n,), 0.5, dtype=F64),
            preconditioner=DensePreconditioner(factor),
            generator=generator,
        )
    exact = torch.randn(40_000, 3, generator=generator, dtype=F64).abs().sort(descending=True)[0]
    ours = state.position.abs().sort(descending=True)[0]
    assert bool((state.position >= 0).all())  # F is the cone x_1 > x_2 > x_3 > 0
    se = (ours.var(dim=0) / n + exact.var(dim=0) / 40_000).sqrt()
    assert bool(((ours.mean(dim=0) - exact.mean(dim=0)).abs() < 4 * se).all())


def test_a_move_says_what_left_the_domain(generator):
    n, target = 500, standard_normal(2)
    kernel = ConfinedHMC(SWAP_DOMAIN, HMC(1.5))
    state = initial_state(inside(SWAP_DOMAIN, n, 2, generator), target)
    moved, info = kernel.step(
        state,
        target,
        step_size=torch.full((n,), 0.4, dtype=F64),
        preconditioner=UNEQUAL,
        generator=generator,
    )
    assert 0 < int(info.outside.sum()) < n
    assert not bool((info.outside & info.accepted).any())
    assert_close(moved.position[info.outside], state.position[info.outside], rtol=0, atol=0)
    assert float(info.acceptance[info.outside].mean()) > 0.8  # the integrator's, not zero


def test_without_a_boundary_it_is_hmc(generator):
    n, target, inner = 50, standard_normal(3), HMC(1.5)
    kernel = ConfinedHMC(FundamentalDomain(Trivial(), places([0.0] * 3)), inner)
    state = initial_state(torch.randn(n, 3, generator=generator, dtype=F64), target)
    arguments = {
        "step_size": torch.full((n,), 0.4, dtype=F64),
        "preconditioner": DiagonalPreconditioner(torch.ones(3, dtype=F64)),
    }
    found = [
        k.step(state, target, **arguments, generator=torch.Generator().manual_seed(1))
        for k in (kernel, inner)
    ]
    (ours, info), (theirs, expected) = found
    assert_close(ours, theirs, rtol=0, atol=0)
    assert_close(info[:5], expected[:5], rtol=0, atol=0)
    assert not bool(info.outside.any())


@pytest.mark.parametrize("far", [1e160, torch.inf])
def test_divergent_proposals_stay_out(far, generator):
    network = MLP(1, (3,), 1, TANH)
    n_dims = network.layout.n_params
    domain = FundamentalDomain(network.symmetry(), places(torch.randn(n_dims, generator=generator)))
    target = standard_normal(n_dims)
    state = initial_state(inside(domain, 5, n_dims, generator), target)
    moved, info = ConfinedHMC(domain, HMC(1.0)).step(
        state,
        target,
        step_size=torch.ones(5, dtype=F64),
        preconditioner=DiagonalPreconditioner(torch.full((n_dims,), far, dtype=F64)),
        generator=generator,
    )
    assert bool(info.outside.all())
    assert bool(info.divergent.all())
    assert_close(moved.position, state.position, rtol=0, atol=0)
