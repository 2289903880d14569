"""What weighing modes may cost, exploration included: what was asked for, and so many times it."""

from math import inf
from types import SimpleNamespace

import pytest
import torch

from skbayes_sym import ModeWeights
from skbayes_sym.estimators.mcmc.weighing import budget_of
from skbayes_sym.inference.sampling.modes.confined import Allowance

N_CHAINS, N_GRADIENTS = 16, 1000


def a_fit(cost, n_draws, made_draws):
    """A setting, and chains that explored: 1,000 gradients each, in 50 moves and ``made_draws``."""
    setting = SimpleNamespace(
        n_warmup=50, n_draws=n_draws, thinning=1, evidence=ModeWeights(effort=cost),
        block_size=N_CHAINS,
        allowance=lambda left=inf: Allowance(1e4, left),
    )  # fmt: skip
    made, n_moves, none = (torch.full((N_CHAINS,), n) for n in (N_GRADIENTS, 100, 0))
    chains = SimpleNamespace(
        draws=torch.empty(N_CHAINS, made_draws, 3),
        warmup=SimpleNamespace(n_gradients=made, n_moves=n_moves),
        sampling=SimpleNamespace(n_gradients=none, n_moves=none),
    )  # fmt: skip
    return setting, SimpleNamespace(chains=chains)


@pytest.mark.parametrize("cost", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("n_draws", [50, 100, 1000])
def test_all_of_it_costs_what_was_asked_for_and_so_many_times_as_much(cost, n_draws):
    made = Allowance(1e4).work(N_GRADIENTS, N_CHAINS) + Allowance(1e4).work(8 * 100, 0)
    asked = made * (50 + n_draws) / 100
    evidence, rest = budget_of(*a_fit(cost, n_draws, 50))
    assert 0.0 <= evidence.left <= cost * asked * (1.0 + 1e-12)
    assert made + evidence.left + rest <= (1.0 + cost) * asked * (1.0 + 1e-12)
    if cost >= 1.0:  # half of what was asked for, whatever the evidence needed
        assert rest >= 0.49 * asked
