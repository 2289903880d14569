"""Entries of any likelihood as Gaussian ones: slopes, steps in the noise, fits of counts."""

from math import lgamma, sqrt

import numpy as np
import pytest
import torch
from factorization.factorization_problems import FAMILIES, model_of, swept
from scipy import optimize
from torch.testing import assert_close

from skbayes_sym.factorization.coordinate_ascent import mean_field_elbo
from skbayes_sym.factorization.entry_sites import (
    EntryMoments,
    compute_sites,
    expected_log_prob,
    update_likelihood,
)
from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.sparse_entries import group_entries
from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT
from skbayes_sym.models.likelihoods.ordinal import Ordinal

LIKELIHOODS = {
    "normal": Gaussian(torch.tensor([-0.45]).double()),
    "student-t": StudentT(torch.tensor([-0.45]).double(), 3.0),
    "ordinal": Ordinal(torch.tensor([-1.0, 0.1, 0.1]).double(), 0.75**0.5),
    "poisson": Poisson(),
    "negative-binomial": NegativeBinomial(torch.tensor([-0.5]).double()),
    "bernoulli": Bernoulli(),
}
every_likelihood = pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)


def seen(generator, likelihood, n=40, weight=None):
    mean = torch.randn(n, generator=generator, dtype=torch.float64)
    value = mean + torch.randn(n, generator=generator, dtype=torch.float64)
    if not likelihood.scales_targets:
        n_values = 2 if isinstance(likelihood, Bernoulli) else 4
        value = torch.randint(n_values, (n,), generator=generator).double()
    variance = 0.3 * torch.rand(n, generator=generator, dtype=torch.float64)
    return EntryMoments(value, weight, mean, variance)


@every_likelihood
def test_sites_have_the_slopes_of_the_bound(likelihood, generator):
    """A Gaussian entry with the site's value and weight, by differences."""
    told, step = seen(generator, likelihood, n=6), 1e-5
    value, weight = compute_sites(told, expected_log_prob(likelihood, told), 99)
    for name, slope in (("mean", weight * (value - told.mean)), ("variance", -0.5 * weight)):
        ends = [
            expected_log_prob(likelihood, told._replace(**{name: getattr(told, name) + s})).value
            for s in (step, -step)
        ]
        assert_close((ends[0] - ends[1]) / (2 * step), slope, rtol=1e-4, atol=1e-5)


@every_likelihood
def test_learning_never_lowers_the_bound_and_gets_there(likelihood, generator):
    told, values = seen(generator, likelihood, n=200), []
    terms = expected_log_prob(likelihood, told)
    for _ in range(12):
        values.append(told.weighted_sum(terms.value))
        likelihood, terms = update_likelihood(likelihood, told, terms, (1e-6, 1e6))
    assert min(np.diff(values)) >= 0.0
    assert values[-1] - values[-2] < 1e-2 * (values[-1] - values[0]) + 1e-6
    if not likelihood.n_params:
        return
    # No better parameters anywhere near.
    for direction in torch.eye(likelihood.n_params, dtype=torch.float64):
        for sign in (0.1, -0.1):
            beside = likelihood.at(likelihood.params + sign * direction)
            assert told.weighted_sum(expected_log_prob(beside, told).value) < values[-1] + 1e-3


@every_likelihood
def test_weights_are_repetitions(likelihood, generator):
    told = seen(generator, likelihood, n=5)
    weight = torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    repeated = EntryMoments(
        *(None if t is None else t.repeat_interleave(weight.long()) for t in told)
    )
    totals, params = [], []
    for each in (told._replace(weight=weight), repeated):
        terms = expected_log_prob(likelihood, each)
        moved, after = update_likelihood(likelihood, each, terms, (1e-6, 1e6))
        totals += [each.weighted_sum(terms.value), each.weighted_sum(after.value)]
        params.append(moved.params)
    assert totals[:2] == pytest.approx(totals[2:], rel=1e-12)
    # Slopes of single entries are weighted once in the step's curvature, as repetitions are.
    assert_close(*params)


def test_early_sites_are_not_far_off():
    """An exponential rate would overflow: an entry of 1000 where one is expected."""
    told = EntryMoments(torch.tensor([1000.0]), None, torch.zeros(1), torch.zeros(1))
    value, weight = compute_sites(told, expected_log_prob(Poisson(), told), 0)
    assert float(value) == pytest.approx(3.0)
    assert float(weight) == pytest.approx(333.0)


def counts(generator, n=12, m=9):
    rows, columns = (torch.rand(n, m, generator=generator) < 0.7).nonzero(as_tuple=True)
    u, v = (0.7 * torch.randn(size, 2, generator=generator).double() for size in (n, m))
    rate = (1.0 + (u[rows] * v[columns]).sum(-1)).exp()
    return group_entries(rows, columns, torch.poisson(rate, generator=generator), (n, m))


def poisson_bound(data, mean, cov, shift):
    """The ELBO of independent rows under standard normal priors, by Monte-Carlo-free algebra.

    ``E exp(u . v / sqrt(k))`` has no closed form; as in the fit, the output is taken for a normal
    with its first two moments.
    """
    mean, cov, n, k = mean.numpy(), cov.numpy(), data.n_rows, mean.shape[1]
    total = 0.0
    for i, j, y in zip(data.by_row.row_index, data.by_row.indices, data.by_row.value, strict=True):
        u, v, a, b = mean[i], mean[n + j], cov[i], cov[n + j]
        centre = shift + u @ v / sqrt(k)
        spread = (v @ a @ v + u @ b @ u + np.sum(a * b)) / k
        total += float(y) * centre - np.exp(centre + 0.5 * spread) - lgamma(float(y) + 1.0)
    for m, s in zip(mean, cov, strict=True):
        total -= 0.5 * (m @ m + np.trace(s) - k - np.linalg.slogdet(s)[1])
    return total


def test_fits_of_counts_climb_to_an_optimum(generator):
    """The bound never falls, is an independent sum, and L-BFGS finds nothing more from there."""
    data, shift = counts(generator), 1.2
    model = model_of(2, likelihood=Poisson())._replace(intercept=shift)
    found = swept(FactorProblem(data, data, model, 300, 1e-9), FAMILIES["full"])
    assert min(np.diff(found.elbo_curve)) > -1e-9
    mean, cov, *_ = found.posterior
    bound = mean_field_elbo(data, found.posterior, model)
    assert bound == pytest.approx(poisson_bound(data, mean, cov, shift), rel=1e-10)
    assert bound == pytest.approx(found.elbo_curve[-1], abs=1e-6)
    cov = cov.clone()

    def loss(flat):
        return -poisson_bound(data, torch.as_tensor(flat).view_as(mean), cov, shift)

    better = optimize.minimize(loss, mean.flatten().numpy(), options={"maxiter": 3})
    assert -better.fun < bound + 1e-4
