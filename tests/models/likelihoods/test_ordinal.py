"""Ordered probit against scipy: masses, expectations, cut points."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.noise import StudentT
from skbayes_sym.models.likelihoods.ordinal import Ordinal

CUTS = np.array([-1.0, 0.1, 1.2])
STEPS = torch.tensor([-1.0, *np.log(np.diff(CUTS))], dtype=torch.float64)
LIKELIHOOD = Ordinal(STEPS, 0.75**0.5)


def masses(f):
    """Of every class at outputs of any shape, by differences."""
    edges = np.concatenate([[-np.inf], CUTS, [np.inf]])
    return np.diff(stats.norm.cdf((edges - np.asarray(f)[..., None]) / 0.75**0.5))


def test_masses_and_probabilities_of_draws():
    f = torch.linspace(-3.0, 3.0, 12, dtype=torch.float64).reshape(2, 6, 1)
    distribution = LIKELIHOOD.predictive(f)
    assert_close(distribution.mean(), torch.as_tensor(masses(f[..., 0]).mean(0)))
    y = torch.tensor([0, 1, 2, 3, 0, 3])
    expected = np.log(masses(f[0, :, 0])[np.arange(6), y])
    assert_close(LIKELIHOOD.log_prob(f, y)[0], torch.as_tensor(expected))
    assert_close(LIKELIHOOD.cuts, torch.as_tensor(CUTS))


def test_expectations_are_integrals_and_their_slopes_are_derivatives(generator):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    mean, y = torch.randn(9, 1, generator=generator).double(), torch.arange(9) % 4
    variance = 0.3 * torch.rand(9, 1, generator=generator).double()
    none = torch.empty(9, 0)
    got = LIKELIHOOD.expected_log_prob(mean, variance, y, none)
    f = mean.numpy() + variance.numpy() ** 0.5 * nodes
    exact = np.log(masses(f)[np.arange(9), :, y.numpy()] + 1e-300) @ weights / weights.sum()
    assert_close(got.value, torch.as_tensor(exact))
    few = LIKELIHOOD.approximate_expected_log_prob(mean, variance, y)
    assert_close(few.value, got.value, rtol=1e-4, atol=1e-5)
    leaves = [t.clone().requires_grad_() for t in (mean, variance, STEPS)]
    again = Ordinal(leaves[2], 0.75**0.5).expected_log_prob(*leaves[:2], y, none)
    slopes = torch.autograd.grad(again.value.sum(), leaves)
    totals = got.d_mean, got.d_variance, got.d_params.sum(0)
    for by_hand, expected in zip(totals, slopes, strict=True):
        assert_close(by_hand, expected, rtol=1e-8, atol=1e-8)


def test_far_tails_keep_their_logarithm():
    """Classes forty standard deviations off have a finite log probability."""
    y, mean = torch.tensor([0, 3, 1]), torch.tensor([[40.0], [-40.0], [40.0]]).double()
    got = LIKELIHOOD.approximate_expected_log_prob(mean, torch.zeros(3, 1).double(), y)
    assert all(bool(part.isfinite().all()) for part in got)
    assert float(got.value[0]) == pytest.approx(stats.norm.logcdf(-41.0 / 0.75**0.5), rel=1e-6)


def test_start_has_the_shares_of_the_classes():
    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 20)
    start = Ordinal.from_class_frequencies(y, torch.ones(100), 3, 0.6)
    f = 0.8 * np.random.default_rng(0).standard_normal(200_000)
    share = start.predictive(torch.as_tensor(f)[:, None, None]).mean()[0]
    assert_close(share, torch.tensor([0.5, 0.3, 0.2]).double(), atol=0.01, rtol=0)
    with pytest.raises(ValueError, match=r"steps of shape \(2,\): for 4 classes"):
        start.n_outputs(4)


@pytest.mark.parametrize("df", [3.0, "learn"])
def test_a_student_t_is_bounded_by_its_density_at_the_root_mean_square(df, generator):
    params = torch.tensor([-0.4] + [0.3] * (df == "learn")).double()
    likelihood, none = StudentT(df=df).at(params), torch.empty(20, 0)
    mean, y = torch.randn(2, 20, 1, generator=generator).double()
    for spread in (0.0, 0.5):
        variance = spread * torch.rand(20, 1, generator=generator).double()
        bound = likelihood.approximate_expected_log_prob(mean, variance, y)
        exact = likelihood.expected_log_prob(mean, variance, y, none)
        assert bool((bound.value <= exact.value + 1e-9).all())
        assert spread or torch.allclose(bound.value, exact.value)
        leaves = [t.clone().requires_grad_() for t in (mean, variance, params)]
        again = likelihood.at(leaves[2]).approximate_expected_log_prob(*leaves[:2], y).value.sum()
        slopes = torch.autograd.grad(again, leaves)
        for by_hand, slope in zip((*bound[1:3], bound.d_params.sum(0)), slopes, strict=True):
            assert_close(by_hand, slope)
