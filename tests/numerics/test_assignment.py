"""Assignments: the best, the second best and the quick refusal, against all permutations."""

from itertools import permutations
from math import inf

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.assignment import best_assignment, can_exchange, runner_up_loss


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_best_assignment_and_runner_up_by_enumeration(d, generator):
    similarity = torch.randn(30, d, d, generator=generator, dtype=torch.float64)
    table = torch.tensor(list(permutations(range(d))))
    totals = similarity[:, torch.arange(d), table].sum(dim=-1).sort(dim=-1, descending=True)
    best = best_assignment(similarity)
    gained = similarity.gather(-1, best.unsqueeze(-1)).sum(dim=(-2, -1))
    assert_close(gained, totals.values[:, 0])
    aligned = similarity.gather(-1, best.unsqueeze(-2).expand_as(similarity))
    expected = totals.values[:, 0] - totals.values[:, 1] if d > 1 else torch.full((30,), inf)
    assert_close(runner_up_loss(aligned), expected.double(), rtol=0, atol=1e-12)
    assert not bool(can_exchange(aligned, 1e-12).any())


def test_assignments_of_no_draws():
    assert best_assignment(torch.zeros(0, 6, 6)).shape == (0, 6)
    assert best_assignment(torch.zeros(0, 2, 2)).shape == (0, 2)


def test_a_cycle_may_gain_where_no_exchange_does():
    gain = torch.tensor([[0.0, 1.0, -9.0], [-9.0, 0.0, 1.0], [1.0, -9.0, 0.0]])
    assert not bool(can_exchange(gain))
    assert best_assignment(gain).tolist() == [1, 2, 0]
