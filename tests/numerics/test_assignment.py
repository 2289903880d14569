"""Assignments: the best, the second best and the quick refusal, against all permutations."""

import itertools
import math
from itertools import permutations
from math import inf

import pytest
import torch
from numerics.log_weights import INF, random_log_weights
from torch.testing import assert_close

from skbayes_sym.numerics.assignment import (
    best_assignment,
    has_improving_exchange,
    sample_assignments,
    second_best_margin,
)
from skbayes_sym.numerics.permanent import sinkhorn
from skbayes_sym.numerics.random import generator_from


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
    assert_close(second_best_margin(aligned), expected.double(), rtol=0, atol=1e-12)
    assert not bool(has_improving_exchange(aligned, 1e-12).any())


def test_assignments_of_no_draws():
    assert best_assignment(torch.zeros(0, 6, 6)).shape == (0, 6)
    assert best_assignment(torch.zeros(0, 2, 2)).shape == (0, 2)


def test_a_cycle_may_gain_where_no_exchange_does():
    gain = torch.tensor([[0.0, 1.0, -9.0], [-9.0, 0.0, 1.0], [1.0, -9.0, 0.0]])
    assert not bool(has_improving_exchange(gain))
    assert best_assignment(gain).tolist() == [1, 2, 0]


def assignment_log_prob(log_weights, permutations, n_iter=10):
    """Log probability of assignments (*S, *B, d), as if they had been drawn."""
    given = permutations.reshape(-1, *log_weights.shape[:-1])
    _, log_prob = sample_assignments(
        log_weights, 0, n_iter=n_iter, generator=generator_from(0), first=given
    )
    return log_prob.reshape(permutations.shape[:-1])


def all_permutations(d):
    return torch.tensor(list(itertools.permutations(range(d))))


def assignment_weight(log_weights, permutations):
    rows = torch.arange(log_weights.shape[-1])
    return log_weights[..., rows, permutations].sum(-1)


def sequential_log_prob(log_weights, permutation, n_iter=10):
    """The law of the proposal, column by column, written out in plain Python."""
    b = sinkhorn(log_weights, n_iter).exp().tolist()
    d = len(b)
    confidence = [max(b[i][j] for i in range(d)) / sum(b[i][j] for i in range(d)) for j in range(d)]
    row_of = {column: row for row, column in enumerate(permutation.tolist())}
    free, total = set(range(d)), 0.0
    for j in sorted(range(d), key=lambda j: -confidence[j]):
        total += math.log(b[row_of[j]][j] / sum(b[i][j] for i in free))
        free.remove(row_of[j])
    return total


@pytest.mark.parametrize("scale", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_assignment_log_prob_is_the_sequential_law(d, scale):
    log_weights = random_log_weights(d, d, scale=scale, seed=d)
    permutations = all_permutations(d)
    log_prob = assignment_log_prob(log_weights, permutations)
    expected = [sequential_log_prob(log_weights, g) for g in permutations]
    assert_close(log_prob, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    assert_close(log_prob.logsumexp(0), torch.tensor(0.0, dtype=torch.float64))


def test_draws_follow_the_stated_law():
    log_weights = random_log_weights(3, 3, seed=2)
    n = 40_000
    drawn, log_prob = sample_assignments(log_weights, n, generator=generator_from(3))
    for permutation in all_permutations(3):
        hit = (drawn == permutation).all(-1)
        p = assignment_log_prob(log_weights, permutation).exp()
        # Five standard errors of a binomial frequency: one false alarm in 3e5 such tests.
        assert abs(hit.double().mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
        assert_close(log_prob[hit], p.log().expand(int(hit.sum())))


@pytest.mark.parametrize("n_iter", [0, 10])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_the_law_sums_to_one_and_draws_know_their_probability(scale, n_iter):
    """Over all 120 permutations: then E[exp(sum L) / tau] is the permanent, exactly."""
    log_weights = random_log_weights(4, 5, 5, scale=scale)
    permutations = all_permutations(5).unsqueeze(1).expand(120, 4, 5)
    log_tau = assignment_log_prob(log_weights, permutations, n_iter)
    assert_close(log_tau.logsumexp(0), torch.zeros(4, dtype=torch.float64))
    drawn, log_prob = sample_assignments(
        log_weights, 50, n_iter=n_iter, generator=generator_from(0)
    )
    found = (drawn.unsqueeze(1) == permutations).all(-1)  # (50, 120, 4)
    assert_close((found * log_tau).sum(1), log_prob)


def test_separated_rows_find_their_assignment_from_any_row_order():
    d = 30
    order = torch.randperm(d, generator=generator_from(8))
    levels = 1e3 * torch.arange(d, dtype=torch.float64).unsqueeze(-1)
    log_weights = (1e4 * torch.eye(d, dtype=torch.float64) - 1e4)[order] + levels
    drawn, log_prob = sample_assignments(log_weights, 4, generator=generator_from(0))
    assert_close(drawn, order.expand(4, d))
    assert_close(log_prob, torch.zeros(4, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_weights_are_avoided_and_dead_ends_still_give_permutations(dtype):
    triangular = torch.zeros(4, 4, dtype=dtype).masked_fill(
        torch.ones(4, 4, dtype=torch.bool).triu(1), -INF
    )
    drawn, log_prob = sample_assignments(triangular, 500, generator=generator_from(0))
    assert log_prob.isfinite().all()
    assert_close(drawn.sort(-1).values, torch.arange(4).expand(500, 4))
    valid = assignment_weight(triangular, drawn) > -INF
    # Only the identity has a positive weight. The estimate sums exactly that one term.
    assert_close(drawn[valid], torch.arange(4).expand(int(valid.sum()), 4))
    estimate = (assignment_weight(triangular, drawn) - log_prob).exp()
    assert abs(estimate.mean() - 1) <= 5 * estimate.std() / math.sqrt(500) + 1e-6
    nothing = torch.full((3, 3), -INF, dtype=dtype)
    drawn, log_prob = sample_assignments(nothing, 50, generator=generator_from(0))
    assert_close(drawn.sort(-1).values, torch.arange(3).expand(50, 3))
    assert log_prob.isfinite().all()


def test_noise_comes_from_the_generator_alone():
    log_weights = random_log_weights(6, 6).requires_grad_()
    state = torch.random.get_rng_state()
    first = sample_assignments(log_weights, 9, generator=generator_from(1))
    again = sample_assignments(log_weights, 9, generator=generator_from(1))
    other = sample_assignments(log_weights, 9, generator=generator_from(2))
    assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first[0], other[0])
    assert_close(torch.random.get_rng_state(), state)
    assert not first[1].requires_grad
