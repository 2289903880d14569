"""Changes of scale leave the posterior as it is and reach the tails of its prior."""

import torch
from scipy import stats

from skbayes_sym.base.log_density import NetworkPosterior
from skbayes_sym.mcmc.kernels import HMC, initial_state, rescale
from skbayes_sym.models import MLP, TANH, Gaussian
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import LayerScales
from skbayes_sym.numerics.preconditioners import DiagonalPreconditioner
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain
from skbayes_sym.symmetry.relabelling import DiagonalReference

NETWORK = MLP(2, (2,), 1, TANH)
SCALES = LayerScales().bind(NETWORK.layout)
ROWS = Data(torch.zeros(3, 2), torch.zeros(3, 1), torch.zeros(3))  # of no weight
PRIOR = NetworkPosterior(NETWORK, Gaussian(), SCALES.collapse(), Data(*(t.double() for t in ROWS)))


def moved(position, n_moves, generator, domain=None):
    state = initial_state(position, PRIOR)
    for _ in range(n_moves):
        state = rescale(state, PRIOR, PRIOR.scale_directions, generator=generator, domain=domain)
    return state


def check_norms(state):
    """|theta_g|^2 / (n_g s_g^2) is F(n_g, 2a)."""
    ratio = SCALES.sum_by_group(state.position[:, :-1].square()) / (
        SCALES.sizes * SCALES.reference_variance
    )
    for g, size in enumerate(SCALES.sizes.tolist()):
        assert stats.kstest(ratio[:, g].numpy(), stats.f(size, 1.0).cdf).pvalue > 1e-4
    torch.testing.assert_close(state.value, PRIOR(state.position))


def test_exact_draws_stay_exact(generator):
    check_norms(moved(PRIOR.sample_prior(2000, generator=generator), 2, generator))


def test_trajectories_that_go_nowhere_reach_the_tails(generator):
    position = PRIOR.sample_prior(2000, generator=generator)
    position[:, :-1] = SCALES.sample(2000, generator=generator)  # normal
    state, kernel = initial_state(position, PRIOR), HMC(max_leapfrog=1)
    scaling = DiagonalPreconditioner(torch.ones(10).double())
    for _ in range(40):
        state, info = kernel.step(
            state, PRIOR, step_size=torch.full((2000,), 1e-3).double(), preconditioner=scaling,
            generator=generator,
        )  # fmt: skip
    check_norms(state)
    assert (info.n_gradients == 3).all()


def test_directions_are_groups_layers_and_layers_against_each_other():
    *groups, first, second, against = PRIOR.scale_directions.tolist()
    w1, b1, w2, b2 = ([float(k == g) for k in [*SCALES.group.tolist(), -1]] for g in range(4))
    assert groups == [w1, b1, w2, b2]
    assert first == [a + b for a, b in zip(w1, b1, strict=True)]
    assert second == [a + b for a, b in zip(w2, b2, strict=True)]
    assert against == [a - b for a, b in zip(first, w2, strict=True)]


def test_chains_stay_in_their_domain(generator):
    reference = DiagonalReference(torch.arange(1.0, 11.0).double(), torch.ones(10).double())
    domain = FundamentalDomain(NETWORK.symmetry(), reference)
    inside = domain.enter(PRIOR.sample_prior(200, generator=generator))[0]
    state = moved(inside, 3, generator, domain)
    assert domain.contains(state.position).all()
    assert (state.position != inside).any(1).double().mean() > 0.5
