"""The posterior of one number, and of the noise."""

import pytest
import torch
from factorization.factorization_problems import (
    complete,
    incomplete,
    model_of,
    problem_of,
)
from thin import some
from torch.testing import assert_close

from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.gibbs import _sample_noise_variance, align_draws, sample_factors

# Moore's Figure 3: the exact posterior mean, by tests/oracles/gaps.py.
EXACT = {0.5: 0.14609664, 2.0: 0.83339463, 4.0: 2.80367299}


@pytest.mark.long
@some("r", EXACT, keep={2.0})
def test_gibbs_has_the_posterior_of_one_number(r):
    """Within 3 standard errors of independent chains."""
    expected = EXACT[r]
    data = complete(torch.tensor([[r]], dtype=torch.float64))
    means = []
    for seed in range(20):
        problem = problem_of(data, 1, noise=1.0, max_iter=130, seed=seed)
        draws, *_ = sample_factors(
            problem, problem.initial_state, n_warmup=30, n_draws=100, on_sweep=lambda *told: False
        )
        means.append((draws[:, 0, 0] * draws[:, 1, 0]).mean())
    means = torch.stack(means)
    error = 3.0 * float(means.std()) / len(means) ** 0.5
    assert abs(float(means.mean()) - expected) < error


@pytest.mark.parametrize("weight", [None, torch.tensor([0.5, 2.0, 1.0, 0.5], dtype=torch.float64)])
def test_the_noise_of_given_factors_is_inverse_gamma(generator, weight):
    """Shape N / 2: the mean of 1 / noise is N over the sum of squares; exact, for few entries."""
    off = complete(torch.tensor([[1.0, -2.0], [0.5, 0.1]], dtype=torch.float64)).by_row
    off = off._replace(weight=weight)
    drawn = torch.tensor([_sample_noise_variance(off, (1e-9, 1e9), generator) for _ in range(4000)])
    expected = off.total_weight / off.sum_of_squares
    spread = expected * (2.0 / off.total_weight) ** 0.5
    assert abs(float((1.0 / drawn).mean()) - expected) < 4.0 * spread / len(drawn) ** 0.5
    assert _sample_noise_variance(off, (1e-9, 1e-8), generator) == 1e-8


def test_gibbs_learns_the_noise(generator):
    data = incomplete(generator, (60, 50), noise=0.5)
    problem = problem_of(data, 3, noise_range=(1e-4, 1e2), max_iter=150)
    _, noises, *_ = sample_factors(
        problem, problem.initial_state, n_warmup=50, n_draws=100, on_sweep=lambda *told: False
    )
    spread = float(noises.std())
    assert abs(float(noises.mean()) - 0.25) < 4.0 * spread


@pytest.mark.parametrize("prior", ["learn", "ard", 1.0])
def test_aligned_draws_are_equally_large_and_have_the_same_products(prior, generator):
    """Whatever size they had; where scales are given they are only turned."""
    n, m, k = 400, 300, 3
    data = incomplete(generator, (n, m), k=k, share=0.01)
    problem = FactorProblem(data, data, model_of(k, prior))
    draws = torch.randn(2, n + m, k, generator=generator, dtype=torch.float64)
    draws[:, n:] *= torch.tensor([5.0, 0.2, 1.0])
    before = draws[:, :n] @ draws[:, n:].mT
    after = align_draws(problem, draws.clone())
    assert_close(after[:, :n] @ after[:, n:].mT, before)
    u, v = after[-1, :n], after[-1, n:]
    first, second = u.mT @ u / n, v.mT @ v / m
    if prior == 1.0:
        assert_close(after[-1], draws[-1])
        return
    if prior == "ard":
        first, second = first.diagonal(), second.diagonal()
    assert_close(first, second, rtol=0.02, atol=0.02)
