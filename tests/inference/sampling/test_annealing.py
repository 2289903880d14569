from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from skbayes_sym.inference.log_density import Evaluation
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.sampling.annealing import Annealing, Detour, climb
from skbayes_sym.inference.sampling.blocks import Sampler
from skbayes_sym.inference.sampling.chains import sample_chains, start_blocks
from skbayes_sym.inference.sampling.kernels.base import initial_state
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kronecker import KroneckerAdaptation, KroneckerPreconditioner
from skbayes_sym.inference.sampling.warmup import FixedPreconditioner
from skbayes_sym.models.likelihoods.heteroscedastic import Heteroscedastic
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import Normal

SHORT = Annealing(n_adam=20, n_hot=40, n_settle=30)


@dataclass(frozen=True)
class Bowl:
    """A normal whose scales span a factor of ten."""

    n_dims: int = 4

    def __call__(self, position):
        return self.evaluate(position).value

    def evaluate(self, position):
        scale = torch.logspace(-0.5, 0.5, self.n_dims).to(position)
        gradient = -(position - 1) / scale**2
        return Evaluation(0.5 * (gradient * (position - 1)).sum(1), gradient)


def posterior(n_rows=60):
    g = torch.Generator().manual_seed(4)
    x = torch.randn(n_rows, 2, generator=g, dtype=torch.float64)
    y = x[:, :1].sin() + 0.2 * torch.randn(n_rows, 1, generator=g, dtype=torch.float64)
    network = MLP(2, (4, 4), 2, TANH)
    return NetworkPosterior(
        network, Heteroscedastic(), Normal(1.0).bind(network.layout), Data(x, y, torch.ones(n_rows))
    )


def starts(density, n=3):
    return density.network.init(n, generator=torch.Generator().manual_seed(3))


def run(density, approach=SHORT, block_size=2, **plan):
    sampler = Sampler(HMC(max_leapfrog=8), density, KroneckerAdaptation(density), approach=approach)
    blocks = start_blocks(starts(density), density, block_size=block_size, seed=1)
    return sample_chains(sampler, blocks, **{"n_warmup": 12, "n_draws": 6, **plan})


def test_adam_climbs():
    """Each coordinate moves by about the learning rate a step; without noise it arrives."""
    state = initial_state(torch.zeros(5, 4).double(), Bowl())
    seen = []
    end = climb(state, Bowl(), 800, lambda state, info: seen.append(float(state.value[0])))
    assert float(end.value.min()) > -1e-3 > 100 * float(state.value.min())
    assert len(seen) == 800
    assert all(after > before for before, after in pairwise(seen[:60]))


@pytest.mark.long
def test_the_energy_error_falls_as_asked(generator):
    """Over the last hot steps its variance is that of the end, far below that of the beginning."""
    density, positions = Bowl(20), []
    sampler = Annealing(n_adam=0, n_hot=1500, energy_error=(0.05, 1e-6), n_settle=0)
    place = sampler.run(
        initial_state(torch.randn(40, 20, generator=generator).double(), density), density,
        FixedPreconditioner(), generator=generator,
        tell=lambda state, info: positions.append(state.position),
    )  # fmt: skip
    hot, cold = (
        (torch.stack(part)[1:] - torch.stack(part)[:-1]).norm(dim=2).mean()
        for part in (positions[150:300], positions[-150:])
    )
    # the variance is as size^6 and falls from 0.01 to 2e-6: 4.2 times as long
    assert 2.5 < float(hot / cold) < 5
    variance = (torch.stack(positions[-500:]) - 1).square().mean((0, 1))
    expected = torch.logspace(-0.5, 0.5, 20).double() ** 2
    assert bool(((variance / expected - 1).abs() < 0.15).all())
    assert float(place.step_size.min()) > 0


def test_it_ends_where_it_says_with_the_curvature_there():
    density, told = posterior(), []
    place = SHORT.run(
        initial_state(starts(density), density), density, KroneckerAdaptation(density),
        generator=torch.Generator().manual_seed(0), tell=lambda state, info: told.append(info),
    )  # fmt: skip
    assert len(told) == SHORT.n_steps == 90
    assert sum(int(info.n_gradients[0]) for info in told) == 20 + 2 * 70
    torch.testing.assert_close(place.state, initial_state(place.state.position, density))
    assert place.preconditioner.to_position(place.state.position).shape == (3, 42)
    assert isinstance(place.preconditioner, KroneckerPreconditioner)


def test_no_steps_are_no_steps():
    density = posterior()
    nothing, told = Annealing(n_adam=0, n_hot=0, n_settle=0), []
    state = initial_state(starts(density), density)
    place = nothing.run(
        state, density, KroneckerAdaptation(density), generator=torch.Generator().manual_seed(0),
        tell=lambda state, info: told.append(info),
    )  # fmt: skip
    assert not told
    assert torch.equal(place.state.position, state.position)


@pytest.mark.long
def test_a_detour_begins_where_another_density_led():
    """In its precision; where it ends, state and curvature are those of the density itself."""
    density = posterior()
    other = replace(
        density,
        prior=Normal(0.1).bind(density.network.layout),
        data=Data(*(t.float() for t in density.data)),
    )
    detour = Detour(SHORT, other, KroneckerAdaptation(other), torch.float32)
    place = detour.run(
        initial_state(starts(density), density), density, KroneckerAdaptation(density),
        generator=torch.Generator().manual_seed(0), tell=lambda state, info: None,
    )  # fmt: skip
    alone = SHORT.run(
        initial_state(starts(density).float(), other), other, KroneckerAdaptation(other),
        generator=torch.Generator().manual_seed(0), tell=lambda state, info: None,
    )  # fmt: skip
    assert torch.equal(place.state.position, alone.state.position.double())
    torch.testing.assert_close(place.state, initial_state(place.state.position, density))
    assert torch.equal(place.preconditioner.precision, torch.ones(3).double())
    assert detour.n_steps == SHORT.n_steps


def test_a_stop_on_a_detour_leaves_the_density_s_own_state():
    density = posterior()
    other = replace(density, data=Data(*(t.float() for t in density.data)))
    detour = Detour(SHORT, other, KroneckerAdaptation(other), torch.float32)
    found = run(density, detour, block_size=3, on_step=lambda step, info: step >= 50)
    state = found.blocks[0].state
    torch.testing.assert_close(state, initial_state(state.position, density))
    assert state.position.dtype == torch.float64


@pytest.mark.long
def test_draws_do_not_depend_on_where_a_run_was_cut():
    """The approach is part of the warm-up, and a block of its own random stream."""
    density = posterior()
    whole = run(density)
    sampler = Sampler(HMC(max_leapfrog=8), density, KroneckerAdaptation(density), approach=SHORT)
    first = run(density, n_draws=2)
    rest = sample_chains(sampler, first.blocks, n_warmup=0, n_draws=4)
    cut = np.concatenate([first.draws, rest.draws], axis=1)
    np.testing.assert_array_equal(whole.draws, cut)
    assert int(whole.warmup.n_moves[0]) == SHORT.n_steps + 12


def test_progress_counts_its_steps_and_a_stop_keeps_the_place():
    density, steps = posterior(), []

    def on_step(step, info):
        steps.append(step)
        return step >= 50

    found = run(density, on_step=on_step, block_size=3)
    assert found.stopped == "callback"
    assert steps == [10, 20, 30, 40, 50]
    assert not found.n_draws.any()
    moved = found.blocks[0].state.position - starts(density)
    assert bool((moved.abs().amax(1) > 0.01).all())


def test_a_chain_that_is_lost_leaves_the_others_alone():
    density = posterior()
    state = initial_state(starts(density), density)
    lost = state._replace(position=state.position.clone(), gradient=state.gradient.clone())
    lost.position[1], lost.gradient[1] = 1e200, 1e200
    hot = replace(SHORT, n_adam=0, n_settle=0)
    ends = [
        hot.run(
            s, density, FixedPreconditioner(), generator=torch.Generator().manual_seed(0),
            tell=lambda state, info: None,
        ).state
        for s in (state, lost)
    ]  # fmt: skip
    for before, after in zip(*ends, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert bool(ends[1].value[[0, 2]].isfinite().all())
