"""Rows of a side given the other: regressions, and sizes that raise the bound by what is said."""

from dataclasses import replace

import pytest
import torch
from factorization.factorization_problems import (
    FAMILIES,
    fit,
    incomplete,
    model_of,
    swept,
)
from torch.testing import assert_close

from skbayes_sym.factorization import coordinate_ascent as sides
from skbayes_sym.factorization.coordinate_ascent import (
    Noise,
    compute_row_conditionals,
    compute_row_statistics,
    expected_squared_error,
    mean_field_elbo,
    optimise_scales,
    row_entropy,
)
from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.hyperpriors import RowPrior
from skbayes_sym.factorization.sparse_entries import compute_normal_equations, pack_second_moments
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError


def problem_of(data, prior="learn", k=4):
    model = model_of(k, prior, 0.3, (1e-4, 1e2), (True, True))
    return FactorProblem(data, data, model, 60, -1e9)


def updated(problem, index):
    """One side after its update, and the sums of it."""
    state, side = problem.initial_state, problem.data.by_factor[index]
    return state, sides.update_factor(problem, side, index, state, FAMILIES["full"], None)


@pytest.mark.parametrize("prior", ["learn", "ard"])
@pytest.mark.parametrize("index", [0, 1])
def test_the_bound_rises_by_what_is_said(index, prior, generator):
    data = incomplete(generator, (30, 20))
    problem = problem_of(data, prior)
    state, update = updated(problem, index)
    k, prior, row_prior = 4, problem.hyperpriors[index], problem.row_priors(state)[index]
    before = mean_field_elbo(data, state, problem.model)
    moments = compute_row_statistics(problem, state, index)
    noise, sums = Noise(k, state.noise_variance), update[2]
    scales, _, value = optimise_scales(sums, moments, prior, row_prior, noise)
    assert float((scales.log()).abs().max()) > 0.01
    assert_close(scales[k:], torch.ones_like(scales[k:]))
    fit = sums.squared_error(scales, k) - sums.squared_error(torch.ones_like(scales), k)
    said = -0.5 * fit / state.noise_variance + value - prior.optimise(moments, row_prior)[1]
    said += moments.n * float(scales.log().sum())
    state, total, part = sides.update_row_prior(
        problem, index, state, update, problem.n_fixed_prior_sweeps
    )
    rise = mean_field_elbo(data, state, problem.model) - before
    assert rise == pytest.approx(said, rel=1e-9)
    assert rise > 0.0
    # What the sweep adds up is the posterior's own.
    assert total == pytest.approx(
        expected_squared_error(data.by_row, state, problem.model) - data.by_row.sum_of_squares,
        rel=1e-9,
    )
    rows = problem.data.by_factor[index].own_rows
    free = torch.tensor(problem.model.coordinates.splits[index].free)
    entropy = row_entropy(state.cov[rows][:, free][:, :, free])
    assert part == pytest.approx(value + entropy, rel=1e-9)


def test_the_slope_of_a_prior_is_that_of_its_density(generator):
    """Of coordinates' log sizes, by differences."""
    problem = problem_of(incomplete(generator, (30, 20)))
    prior, moments = (
        problem.hyperpriors[0],
        compute_row_statistics(problem, problem.initial_state, 0),
    )
    row_prior, _ = prior.optimise(moments, problem.row_priors(problem.initial_state)[0])
    for i, growth in enumerate(prior.scale_slope(row_prior)):
        values = []
        for step in (1e-4, -1e-4):
            scales = torch.ones(5, dtype=torch.float64)
            scales[i] += step
            values.append(prior.optimise(moments.multiply(scales), row_prior)[1])
        assert float(growth) - moments.n == pytest.approx((values[0] - values[1]) / 2e-4, rel=1e-5)


def test_singular_precisions_name_a_remedy(generator):
    """Fewer entries than components and next to no noise, in single precision."""
    data = incomplete(generator)
    single = data._replace(
        by_row=data.by_row._replace(value=data.by_row.value.float()),
        by_column=data.by_column._replace(value=data.by_column.value.float()),
    )
    with pytest.raises(NotPositiveDefiniteError, match=r"noise_std.*float64"):
        fit(single, 9, FAMILIES["full"], None, noise=1e-12)


def test_conditionals_are_bayesian_regressions(generator):
    """A row given the others is regressed on them, over ``sqrt(k)``: dense algebra, row by row."""
    data, k, noise = incomplete(generator, (5, 7), k=3).by_row, 3, 0.4
    others = torch.randn(7, k, generator=generator, dtype=torch.float64)
    prior_means = torch.randn(5, k, generator=generator, dtype=torch.float64)
    root = torch.randn(k, k, generator=generator, dtype=torch.float64)
    row_prior = RowPrior(root @ root.mT + torch.eye(k), root.new_zeros(0, k))
    packed = pack_second_moments(others, root.new_zeros(1, 1, 1).expand(7, k, k))
    sums = compute_normal_equations(data, packed, others)
    factor, precision, target = compute_row_conditionals(
        sums, row_prior, prior_means, Noise(k, noise)
    )
    for i in range(5):
        seen = data.row_index == i
        design = others[data.indices[seen]] / k**0.5
        expected = design.mT @ design / noise + row_prior.precision
        assert_close(precision[i], expected)
        assert_close(factor[i] @ factor[i].mT, expected)
        pull = design.mT @ data.value[seen] / noise + row_prior.precision @ prior_means[i]
        assert_close(target[i], pull)


@pytest.mark.long
def test_components_of_noise_shrink_in_a_few_sweeps(generator, monkeypatch):
    """And what is there stays: after 40 sweeps the bound is where 200 without the step end."""
    data = incomplete(generator, (150, 100), k=1)

    problem = replace(problem_of(data), max_iter=40)
    quick = swept(problem, FAMILIES["full"])
    assert min(torch.tensor(quick.elbo_curve[16:]).diff()) > -1e-6
    stay = lambda _, moments, prior, row_prior, noise: (None, *prior.optimise(moments, row_prior))  # noqa: E731
    monkeypatch.setattr(sides, "optimise_scales", stay)
    slow = swept(problem, FAMILIES["full"])
    assert quick.elbo_curve[-1] > slow.elbo_curve[-1] + 1.0

    def scales(fitted):
        own = torch.linalg.inv(fitted.posterior.row_priors[0].precision)
        return torch.linalg.eigvalsh(own[:4, :4]).sqrt()

    assert scales(quick)[-1] > 0.5 * scales(slow)[-1]
