"""Effects of the context of entries: Bayesian linear regression, beside the factors."""

import pytest
import torch
from factorization.factorization_problems import FAMILIES, model_of, swept
from scipy.stats import multivariate_normal

from skbayes_sym.factorization.coordinate_ascent import mean_field_elbo
from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.sparse_entries import group_entries


def problem_with_context(prior, copies=None):
    """Two factors and three effects; ``copies``: some entries twice, by "weight" or in the list."""
    g = torch.Generator().manual_seed(0)
    u, v = (torch.randn(n, 2, generator=g).double() for n in (12, 9))
    rows, columns = (torch.rand(12, 9, generator=g) < 0.6).nonzero(as_tuple=True)
    context = torch.randn(len(rows), 3, generator=g).double()
    noise = 0.5 * torch.randn(len(rows), generator=g).double()
    values = (u[rows] * v[columns]).sum(-1) + context @ torch.tensor([0.7, -0.3, 0.0]).double()
    parts = rows, columns, values + noise, context
    weight = 1.0 + (torch.arange(len(rows)) % 3 < 1).double()
    if copies == "list":
        parts = (part.repeat_interleave(weight.long(), dim=0) for part in parts)
    *triples, context = parts
    data = group_entries(*triples, (12, 9), weight if copies == "weight" else None, context)
    model = model_of(2, prior, 0.25, (1e-6, 1e6))
    return FactorProblem(data, data, model, max_iter=100, tol=1e-9)


def test_without_factors_it_is_bayesian_linear_regression():
    problem = problem_with_context(1e-6)
    fit = swept(problem, FAMILIES["full"])
    C, y = problem.data.by_row.context, problem.data.by_row.value
    row_prior, noise = fit.posterior.context, fit.posterior.noise_variance
    precision = C.mT @ C / noise + row_prior.precision * torch.eye(3)
    torch.testing.assert_close(row_prior.mean, torch.linalg.solve(precision, C.mT @ y / noise))
    torch.testing.assert_close(row_prior.cov, torch.linalg.inv(precision), rtol=1e-4, atol=0.0)
    squares = row_prior.mean.square().sum() + row_prior.cov.trace()
    assert row_prior.precision == pytest.approx(3.0 / float(squares))
    marginal = multivariate_normal(cov=C @ C.mT / row_prior.precision + noise * torch.eye(len(y)))
    assert fit.elbo_curve[-1] == pytest.approx(marginal.logpdf(y), abs=1e-3)


@pytest.mark.parametrize("prior", [1.0, "learn"])
def test_the_bound_never_falls_and_weights_are_repetitions(prior):
    problems = [problem_with_context(prior, copies) for copies in ("weight", "list")]
    weighted, listed = (swept(problem, FAMILIES["full"]) for problem in problems)
    assert (torch.tensor(weighted.elbo_curve)[16:].diff() > -1e-9).all()
    bound = mean_field_elbo(problems[0].double_data, weighted.posterior, problems[0].model)
    assert weighted.elbo_curve[-1] == pytest.approx(bound, abs=1e-8)
    assert weighted.elbo_curve[-1] == pytest.approx(listed.elbo_curve[-1], abs=1e-8)
