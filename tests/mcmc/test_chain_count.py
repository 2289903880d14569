"""Coupon collector: oracles, a state-by-state recursion, and which side bounds are on."""

import numpy as np
import pytest

from skbayes_sym.mcmc import chain_count
from skbayes_sym.mcmc.chain_count import n_chains_required

PRINTED = [0.57, 0.35, 0.08]
# Half-normal densities at linspace(0, 1.96, 3), normalised: what the authors' code uses.
AUTHORS = [0.5665242933255618, 0.3504857196104644, 0.08298998706397376]


@pytest.mark.parametrize(("pi", "expected"), [(PRINTED, 56), (AUTHORS, 54)])
def test_the_papers_example(pi, expected):
    assert n_chains_required(pi) == n_chains_required(np.array(pi)[::-1]) == expected


def chance_of_all(pi, n_max):
    """P(G <= n) for n = 0..n_max from the chain of sets of visited modes."""
    chance = np.zeros(2 ** len(pi))
    chance[0] = 1.0
    history = [chance[-1]]
    for _ in range(n_max):
        after = np.zeros_like(chance)
        for visited, p in enumerate(chance):
            for j, pi_j in enumerate(pi):
                after[visited | 1 << j] += p * pi_j
        chance = after
        history.append(chance[-1])
    return np.array(history)


@pytest.mark.parametrize("pi", [[0.3, 0.3, 0.2, 0.1, 0.1], [0.9, 0.1], [0.4, 0.35, 0.15, 0.1]])
@pytest.mark.parametrize("probability", [0.01, 0.3, 0.9, 0.99, 0.9999])
def test_exact_against_the_chain_of_visited_sets(pi, probability):
    history = chance_of_all(pi, 120)
    expected = int(np.argmax(history >= probability))
    assert n_chains_required(pi, probability) == expected


def test_ties_are_enough():
    assert n_chains_required([0.5, 0.5], 0.5) == 2
    assert n_chains_required([0.5, 0.5], 0.75) == 3
    assert n_chains_required([1.0]) == 1


def test_many_different_modes_fall_back_to_enough(monkeypatch):
    """Between the exact n of 20 modes and the claimed excess of the union bound."""
    pi = np.random.default_rng(0).dirichlet(np.full(20, 5.0))
    exact = n_chains_required(pi)
    with monkeypatch.context() as patch:
        patch.setattr(chain_count, "_MAX_TERMS", 0)
        assert exact <= n_chains_required(pi) <= exact + 0.0051 / pi.min() + 1
    many = np.random.default_rng(0).dirichlet(np.full(25, 5.0))
    n = n_chains_required(many)
    assert ((1 - many) ** n).sum() <= 0.01 + 1e-12 < ((1 - many) ** (n - 1)).sum()


def test_rounded_probabilities_pass():
    assert n_chains_required([0.333333, 0.333333, 0.333333]) == n_chains_required([1 / 3] * 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0.5, 0.6],), r"sum to 1, got a sum of 1\.1"),
        (([57, 35, 8],), "sum of 100.*Divide"),
        (([0.5, 0.5, 0.0],), "positive"),
        (([1.5, -0.5],), "positive"),
        (([np.nan, 1.0],), "positive"),
        (([],), "at least one mode"),
        (([[0.5, 0.5]],), r"shape \(1, 2\)"),
        (([0.5, 0.5], 1.0), "probability must lie strictly"),
        (([0.5, 0.5], 0.0), "probability must lie strictly"),
        (([0.5, 0.5], np.nan), "probability must lie strictly"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        n_chains_required(*arguments)
