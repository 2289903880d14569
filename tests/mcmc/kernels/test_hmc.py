from dataclasses import replace
from math import log, pi

import pytest
import torch
from mcmc.known_densities import AutogradPosterior, flat, quartic
from torch.testing import assert_close

from skbayes_sym.mcmc.kernels import HMC, State, energy_error, initial_state, leapfrog, metropolis
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.numerics.preconditioners import DensePreconditioner, DiagonalPreconditioner
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.relabelling import DiagonalReference
from skbayes_sym.symmetry.units import Units

N_SE = 4.5  # P(|z| > 4.5) = 7e-6


PRECONDITIONERS = {
    "own-scales": lambda c, d: DiagonalPreconditioner(
        torch.linspace(0.5, 2, c * d).double().view(c, d)
    ),
    "dense": lambda c, d: DensePreconditioner(
        torch.eye(d).double() + 0.3 * torch.ones(d, d).tril()
    ),
    "own-dense": lambda c, d: DensePreconditioner(
        torch.linspace(0.5, 1, c).double().view(c, 1, 1) * (torch.eye(d) + 0.2).tril()
    ),
}


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
def test_leapfrog_is_reversible(preconditioner, generator):
    density, scaling = quartic(), PRECONDITIONERS[preconditioner](7, 3)
    x, p = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    start, eps = initial_state(x, density), torch.linspace(0.01, 0.1, 7).double()
    there, momentum = leapfrog(start, density, p, eps, scaling, 23)
    back, momentum = leapfrog(there, density, -momentum, eps, scaling, 23)
    assert bool(((there.position - x).abs().amax(1) > 1e-3).all())
    assert_close(back.position, x, rtol=0, atol=1e-11)
    assert_close(momentum, -p, rtol=0, atol=1e-11)
    assert_close(back.value, start.value, rtol=0, atol=1e-11)


@pytest.mark.parametrize("preconditioner", PRECONDITIONERS)
def test_energy_error_is_of_second_order(preconditioner, generator):
    """Half the step size on the same path gives a quarter of the error."""
    density, scaling = quartic(), PRECONDITIONERS[preconditioner](50, 3)
    x, p = torch.randn(2, 50, 3, generator=generator, dtype=torch.float64)
    start = initial_state(x, density)

    def rms(n_steps):
        eps = torch.full((50,), 0.5 / n_steps, dtype=torch.float64)
        return energy_error(start, p, *leapfrog(start, density, p, eps, scaling, n_steps)).norm()

    coarse, middle, fine = rms(100), rms(200), rms(400)
    assert float(coarse / middle) == pytest.approx(4, rel=0.02)
    assert float(middle / fine) == pytest.approx(4, rel=0.005)


def test_leapfrog_of_a_standard_normal_turns(generator):
    """The harmonic oscillator, solved: x cos t + p sin t."""
    density = AutogradPosterior(2, lambda x: -0.5 * (x * x).sum(1), flat)
    x, p = torch.randn(2, 9, 2, generator=generator, dtype=torch.float64)
    n, identity = 2000, DiagonalPreconditioner(torch.ones(2).double())
    eps = torch.full((9,), pi / 2 / n, dtype=torch.float64)
    end, momentum = leapfrog(initial_state(x, density), density, p, eps, identity, n)
    assert_close(end.position, p, rtol=0, atol=1e-6)
    assert_close(momentum, -x, rtol=0, atol=1e-6)


def test_large_energy_error_is_divergent(generator):
    """A huge energy error is divergent, and so is one that isn't finite."""
    state = State(*(torch.zeros(s, dtype=torch.float64) for s in ((5, 1), (5,), (5, 1))))
    error = torch.tensor([0.0, 999.0, 1001.0, torch.nan, -torch.inf], dtype=torch.float64)
    moved, info = metropolis(state, state, error, n_gradients=7, generator=generator)
    assert info.divergent.tolist() == [False, False, True, True, True]
    assert info.accepted.tolist() == [True, False, False, False, False]
    assert_close(info.acceptance, torch.tensor([1.0, 0, 0, 0, 0]).double(), rtol=0, atol=0)
    assert info.n_gradients.tolist() == [7] * 5
    assert bool(moved.value.isfinite().all())


def test_number_of_steps(generator):
    """ceil(T u / median) with uniform u: the extreme step sizes don't matter."""
    kernel = HMC(path_length=2.0, jitter=(0.5, 1.5), max_leapfrog=100)
    eps = torch.tensor([1e-6, 0.1, 0.1, 0.1, 50.0])
    n = torch.tensor(
        [kernel.choose_n_steps(float(eps.median()), generator) for _ in range(4000)]
    ).double()
    assert float(n.min()) >= 10
    assert float(n.max()) <= 30
    # ceil adds one half on average; variance of a uniform on 20 integers.
    assert abs(float(n.mean()) - 20.5) < N_SE * ((20**2 - 1) / 12 / 4000) ** 0.5


@pytest.mark.parametrize("cap", [1, 2, 9, 64])
def test_number_of_steps_at_the_cap(cap, generator):
    """The number is uniform in the upper half and not constant."""
    kernel = HMC(jitter=(0.5, 1.5), max_leapfrog=cap)
    n = {kernel.choose_n_steps(1e-4, generator) for _ in range(1000)}
    assert n == set(range((cap + 1) // 2, cap + 1))


def test_a_length_that_was_asked_for_before_is_the_moves_own(generator):
    kernel, target = HMC(max_leapfrog=64, min_step_factor=0.5), quartic()
    step_size, moved = torch.linspace(0.01, 0.1, 5).double(), []
    for n_steps in (None, kernel.choose_n_steps(0.055, torch.Generator().manual_seed(0))):
        stream = torch.Generator().manual_seed(0)
        if n_steps is not None:
            kernel.choose_n_steps(0.055, stream)
        moved.append(kernel.step(
            initial_state(torch.zeros(5, 3).double(), target), target, n_steps=n_steps,
            step_size=step_size, preconditioner=DiagonalPreconditioner(torch.ones(5, 3).double()),
            generator=stream,
        ))  # fmt: skip
    assert_close(*(state for state, _ in moved), rtol=0.0, atol=0.0)


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


def stepped(kernel, state, target, size, preconditioner, generator):
    step_size = torch.full((len(state.position),), size, dtype=F64)
    return kernel.step(
        state, target, step_size=step_size, preconditioner=preconditioner, generator=generator
    )


@pytest.mark.long
def test_hmc_confined_to_the_domain_keeps_exact_draws_exact(generator):
    """The same trajectories with relabelling instead of rejection lose the moments."""
    n, target, inner = 4000, standard_normal(2), HMC(1.0, (0.5, 1.5), 16)
    kernel = replace(inner, domain=SWAP_DOMAIN)
    start = initial_state(inside(SWAP_DOMAIN, n, 2, generator), target)
    confined = relabelled = start
    for _ in range(60):
        confined, _ = stepped(kernel, confined, target, 0.5, UNEQUAL, generator)
        relabelled, _ = stepped(inner, relabelled, target, 0.5, UNEQUAL, generator)
        relabelled = initial_state(SWAP_DOMAIN.enter(relabelled.position)[0], target)
    se = float(gap(confined.position).std()) / n**0.5
    assert abs(float(gap(confined.position).mean()) - TRUTH) < 4 * se
    assert float(gap(relabelled.position).mean()) > TRUTH + 20 * se
    assert bool(SWAP_DOMAIN.contains(confined.position).all())


def test_a_move_says_what_left_the_domain(generator):
    n, target = 500, standard_normal(2)
    kernel = HMC(1.5, domain=SWAP_DOMAIN)
    state = initial_state(inside(SWAP_DOMAIN, n, 2, generator), target)
    moved, info = stepped(kernel, state, target, 0.4, UNEQUAL, generator)
    assert 0 < int(info.outside.sum()) < n
    assert not bool((info.outside & info.accepted).any())
    assert_close(moved.position[info.outside], state.position[info.outside], rtol=0, atol=0)
    assert float(info.acceptance[info.outside].mean()) > 0.8  # the integrator's, not zero


@pytest.mark.parametrize("far", [1e160, torch.inf])
def test_divergent_proposals_stay_out(far, generator):
    network = MLP(1, (3,), 1, TANH)
    n_dims = network.layout.n_params
    domain = FundamentalDomain(network.symmetry(), places(torch.randn(n_dims, generator=generator)))
    target = standard_normal(n_dims)
    state = initial_state(inside(domain, 5, n_dims, generator), target)
    wide = DiagonalPreconditioner(torch.full((n_dims,), far, dtype=F64))
    moved, info = stepped(HMC(1.0, domain=domain), state, target, 1.0, wide, generator)
    assert bool(info.outside.all())
    assert bool(info.divergent.all())
    assert_close(moved.position, state.position, rtol=0, atol=0)
