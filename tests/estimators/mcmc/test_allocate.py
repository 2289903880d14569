"""What weighing modes may cost, exploration included: what was asked for, and so many times it."""

from math import inf
from types import SimpleNamespace

import pytest
import torch

from skbayes_sym.estimators.mcmc.allocate import allowance_for_evidence, allowance_for_new_chains
from skbayes_sym.estimators.mcmc.sampling_effort import SamplingEffort
from skbayes_sym.inference.sampling.allowance import Allowance

N_CHAINS, N_GRADIENTS = 16, 1000


def a_fit(effort, n_draws, made_draws):
    """A setting, and chains that explored: 1,000 gradients each, in 50 moves and ``made_draws``."""
    setting = SimpleNamespace(
        search=SimpleNamespace(effort=effort),
        plan=SimpleNamespace(n_warmup=50, n_draws=n_draws, thinning=1), effort=SamplingEffort(),
        block_size=N_CHAINS, allowance=lambda left=inf: Allowance(1e4, left),
    )  # fmt: skip
    made, n_moves, none = (torch.full((N_CHAINS,), n) for n in (N_GRADIENTS, 100, 0))
    chains = SimpleNamespace(
        draws=torch.empty(N_CHAINS, made_draws, 3),
        warmup=SimpleNamespace(n_gradients=made, n_moves=n_moves),
        sampling=SimpleNamespace(n_gradients=none, n_moves=none),
    )  # fmt: skip
    return setting, SimpleNamespace(chains=chains, replicates=[])


@pytest.mark.parametrize("effort", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n_draws", [50, 100, 1000])
def test_all_of_it_costs_what_was_asked_for_and_effort_times_as_much(effort, n_draws):
    setting, explored = a_fit(effort, n_draws, 50)
    made = Allowance(1e4).work(N_GRADIENTS, N_CHAINS) + Allowance(1e4).work(8 * 100, 0)
    asked = made * (50 + n_draws) / 100
    evidence = allowance_for_evidence(setting, explored)
    assert 0.0 <= evidence.left <= effort * asked * (1.0 + 1e-12)
    unspent = evidence.left
    for spent in (0.0, unspent, unspent + 0.1 * asked):
        evidence.left = unspent - spent
        new = allowance_for_new_chains(setting, explored, evidence).left
        assert made + spent + new <= (1.0 + effort) * asked * (1.0 + 1e-12)
    if effort >= 1.0:  # half of what was asked for, whatever the evidence needed
        evidence.left = 0.0
        assert allowance_for_new_chains(setting, explored, evidence).left >= 0.49 * asked


def test_particles_that_explored_are_the_evidences():
    setting, explored = a_fit(1.0, 50, 50)
    alone = allowance_for_evidence(setting, explored).left
    replicate = SimpleNamespace(particles=torch.empty(256, 3), n_gradients=256 * 70, stages=[0] * 9)
    explored.replicates.append(replicate)
    left = allowance_for_evidence(setting, explored).left
    assert alone - left == pytest.approx(Allowance(1e4).work(70, 256) + 5e6 * 100 * 9)


def test_without_exploring_chains_the_new_ones_have_no_limit():
    setting, explored = a_fit(1.0, 50, 50)
    explored.chains = None
    assert allowance_for_new_chains(setting, explored, Allowance(1e4, 0.0)) is None
