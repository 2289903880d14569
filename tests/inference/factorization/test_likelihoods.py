"""Bounds of single entries against quadrature."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.factorization.likelihoods import (
    NoiseState,
    Normal,
    Ordinal,
    Seen,
    StudentT,
)

ORDINAL = Ordinal((1.0, 2.0, 4.0, 5.0))
STATES = {
    "normal": (Normal(), NoiseState(0.4)),
    "student-t": (StudentT(3.0), NoiseState(0.4)),
    "ordinal": (ORDINAL, NoiseState(0.75, torch.tensor([-1.0, 0.1, 1.2], dtype=torch.float64))),
}
every_likelihood = pytest.mark.parametrize(("likelihood", "state"), STATES.values(), ids=STATES)


def seen(generator, likelihood, n=40, spread=0.3, weight=None):
    mean = 2.0 * torch.randn(n, generator=generator, dtype=torch.float64)
    value = mean + torch.randn(n, generator=generator, dtype=torch.float64)
    if hasattr(likelihood, "labels"):
        value = torch.randint(len(likelihood.labels), (n,), generator=generator).double()
    variance = spread * torch.rand(n, generator=generator, dtype=torch.float64)
    return Seen(value, weight, mean, variance)


def log_p(likelihood, state, value, f):
    """log p(x | f) of one entry by scipy, f any shape."""
    s = state.variance**0.5
    if hasattr(likelihood, "labels"):
        edges = np.concatenate([[-np.inf], state.cuts.numpy(), [np.inf]])
        c = int(value)
        upper, lower = stats.norm.cdf((edges[c + 1] - f) / s), stats.norm.cdf((edges[c] - f) / s)
        return np.log(np.maximum(upper - lower, 1e-300))
    if hasattr(likelihood, "df"):
        return stats.t.logpdf(value, likelihood.df, f, s)
    return stats.norm.logpdf(value, f, s)


@every_likelihood
def test_the_bound_is_below_the_expectation_and_meets_it_at_points(likelihood, state, generator):
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for spread in (0.0, 0.5):
        at = seen(generator, likelihood, spread=spread)
        exact = 0.0
        for value, mean, variance in zip(at.value, at.mean, at.variance, strict=True):
            f = float(mean) + float(variance) ** 0.5 * nodes
            exact += weights @ log_p(likelihood, state, float(value), f) / weights.sum()
        bound = likelihood.log_density(at, state)
        if spread == 0.0 or not hasattr(likelihood, "df"):
            assert bound == pytest.approx(exact, rel=1e-5)
        else:
            assert exact - 20.0 * spread < bound < exact


@every_likelihood
def test_sites_have_the_slopes_of_the_bound(likelihood, state, generator):
    """A Gaussian entry with the site's value and weight has the bound's slopes."""
    at = seen(generator, likelihood, n=6)
    value, weight = likelihood.sites(at, state)
    weight = torch.ones_like(value) if weight is None else weight
    for i in range(6):
        step = 1e-5
        for which in (0, 1):
            parts = []
            for sign in (1.0, -1.0):
                shifted = [at.mean.clone(), at.variance.clone()]
                shifted[which][i] += sign * step
                parts.append(likelihood.log_density(Seen(at.value, None, *shifted), state))
            slope = (parts[0] - parts[1]) / (2 * step)
            s2 = state.variance
            expected = weight[i] * ((value[i] - at.mean[i]) / s2 if which == 0 else -0.5 / s2)
            assert slope == pytest.approx(float(expected), rel=1e-4, abs=1e-5)


@every_likelihood
def test_learning_never_lowers_the_bound(likelihood, state, generator):
    at, values = seen(generator, likelihood, n=200), []
    for _ in range(12):
        values.append(likelihood.log_density(at, state))
        state = likelihood.learn(at, state, (1e-6, 1e6))
    assert min(np.diff(values)) > -1e-9
    assert values[-1] - values[-2] < 1e-2 * (values[-1] - values[0]) + 1e-6  # and gets there


@every_likelihood
def test_weights_are_repetitions(likelihood, state, generator):
    at = seen(generator, likelihood, n=5)
    weight = torch.tensor([1.0, 2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    repeated = Seen(*(None if t is None else t.repeat_interleave(weight.long()) for t in at))
    weighted = at._replace(weight=weight)
    both = [likelihood.log_density(a, state) for a in (weighted, repeated)]
    assert both[0] == pytest.approx(both[1], rel=1e-12)
    learned = [likelihood.learn(a, state, (1e-6, 1e6)) for a in (weighted, repeated)]
    assert learned[0].variance == pytest.approx(learned[1].variance)
    if state.cuts is not None:
        assert_close(learned[0].cuts, learned[1].cuts)
    starts = [likelihood.start_cuts(a.value, a.weight) for a in (weighted, repeated)]
    if starts[0] is not None:
        assert_close(*starts)


@every_likelihood
def test_draws_have_the_moments_of_new_entries(likelihood, state, generator):
    n, rng = 200_000, np.random.default_rng(0)
    mean, variance = (torch.full((1,), v, dtype=torch.float64) for v in (0.4, 0.3))
    at = 0.4 + 0.3**0.5 * rng.standard_normal(n)
    drawn = likelihood.draw(at, state, rng)
    first, second = likelihood.new_moments(mean, variance, state)
    assert abs(drawn.mean() - float(first)) < 5.0 * drawn.std() / n**0.5
    if not hasattr(likelihood, "df"):  # the fourth moment of t(3) doesn't exist
        assert drawn.var() == pytest.approx(float(second), rel=0.02)


def test_probabilities_are_those_of_the_labels():
    likelihood, state = STATES["ordinal"]
    mean, variance = torch.tensor([-3.0, 0.2, 9.0]).double(), torch.tensor([0.1, 2.0, 0.0]).double()
    p = likelihood.probabilities(mean, variance, state)
    assert_close(p.sum(-1), torch.ones(3).double())
    for label in range(4):
        at = Seen(torch.full((3,), float(label)).double(), None, mean, variance)
        assert_close(likelihood.predictive_log_density(at, state).exp(), p[:, label])


def test_far_tails_keep_their_logarithm():
    """No difference of ones: labels forty standard deviations off have a finite log probability."""
    likelihood, state = STATES["ordinal"]
    value, mean = torch.tensor([[0.0, 3.0, 1.0], [40.0, -40.0, 40.0]]).double()
    at = Seen(value, None, mean, torch.zeros(3).double())
    assert np.isfinite(likelihood.log_density(at, state))
    assert bool(likelihood.sites(at, state).value.isfinite().all())
    assert bool(likelihood.predictive_log_density(at, state).isfinite().all())
