"""Rows of a side are made as large as they should be, and the bound rises by what is said."""

import pytest
import torch
from inference.factorization.factorization_problems import FAMILIES, incomplete
from torch.testing import assert_close

from skbayes_sym.inference.factorization import vi
from skbayes_sym.inference.factorization.problem import Factorisation, FactorProblem
from skbayes_sym.inference.factorization.rows import Noise
from skbayes_sym.inference.factorization.scale_step import rescaled


def problem_of(data, prior_scale="learn", k=4):
    model = Factorisation(k, prior_scale, 0.3, (1e-4, 1e2), (True, True))
    return FactorProblem(data, data, model, None, 60, -1e9, 0)


def updated(problem, index):
    """One side after its update, and the sums of it."""
    sweep = vi.Sweep(0, FAMILIES["full"], None)
    state = problem.start
    return state, vi._update_side(problem, problem.data.sides[index], index, state, sweep)


@pytest.mark.parametrize("prior_scale", ["learn", "ard"])
@pytest.mark.parametrize("index", [0, 1])
def test_the_bound_rises_by_what_is_said(index, prior_scale, generator):
    data = incomplete(generator, (30, 20))
    problem = problem_of(data, prior_scale)
    state, update = updated(problem, index)
    k, prior, law = 4, problem.priors[index], problem.laws(state)[index]
    before = vi.mean_field_elbo(data, state, problem.model)
    moments = vi._moments(problem, state, index)
    step = rescaled(update.sums, moments, prior, law, Noise(k, state.noise_variance))
    assert float((step.scales.log()).abs().max()) > 0.01
    assert_close(step.scales[k:], torch.ones_like(step.scales[k:]))
    fit = update.sums.fit(step.scales, k) - update.sums.fit(torch.ones_like(step.scales), k)
    said = -0.5 * fit / state.noise_variance + step.value - prior.log_density(moments, law)
    said += moments.n * float(step.scales.log().sum())
    state, total, part = vi._learn_prior(problem, index, state, update, problem.n_held)
    rise = vi.mean_field_elbo(data, state, problem.model) - before
    assert rise == pytest.approx(said, rel=1e-9)
    assert rise > 0.0
    # What the sweep adds up is the posterior's own.
    assert total == pytest.approx(
        vi.expected_squares(data.by_row, state, problem.model) - data.by_row.squares, rel=1e-9
    )
    entropy = vi._entropy(problem, state, index)
    assert part == pytest.approx(step.value + entropy, rel=1e-9)


def test_the_slope_of_a_prior_is_that_of_its_density(generator):
    """Of coordinates' log sizes, by differences."""
    problem = problem_of(incomplete(generator, (30, 20)))
    prior, moments = problem.priors[0], vi._moments(problem, problem.start, 0)
    law, _ = prior.learned(moments, problem.laws(problem.start)[0])
    for i, growth in enumerate(prior.growth(law)):
        values = []
        for step in (1e-4, -1e-4):
            scales = torch.ones(5, dtype=torch.float64)
            scales[i] += step
            values.append(prior.log_density(moments.scaled(scales), law))
        assert float(growth) - moments.n == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5)


@pytest.mark.long
def test_components_of_noise_shrink_in_a_few_sweeps(generator, monkeypatch):
    """And what is there stays: after 40 sweeps the bound is where 200 without the step end."""
    data = incomplete(generator, (150, 100), k=1)

    def swept(n):
        problem = problem_of(data)
        arguments = problem, problem.start, FAMILIES["full"]
        return vi.fit_factors(*arguments, gap=None, on_step=lambda s, told: s == n)

    quick = swept(40)
    assert min(torch.tensor(quick.elbo_curve[16:]).diff()) > -1e-6
    monkeypatch.setattr(vi, "_EAGER_SCALES", 0)
    monkeypatch.setattr(vi, "_LAZY_SCALES", 1000)
    slow = swept(40)
    assert quick.elbo_curve[-1] > slow.elbo_curve[-1] + 1.0

    def scales(fitted):
        own = torch.linalg.inv(fitted.posterior.laws[0].precision)
        return torch.linalg.eigvalsh(own[:4, :4]).sqrt()

    assert scales(quick)[-1] > 0.5 * scales(slow)[-1]
