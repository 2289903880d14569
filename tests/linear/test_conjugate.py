"""The evidence from sufficient statistics, and the low-rank posterior, against dense algebra."""

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym import BayesianLinearRegressor
from skbayes_sym.linear import fit as method
from skbayes_sym.linear import low_rank
from skbayes_sym.linear.conjugate import SufficientStatistics, maximize_evidence
from skbayes_sym.linear.hyperparameters import LearnedRanges, Range
from skbayes_sym.linear.low_rank import LowRankGaussian

LOG_V, LOG_S = -0.7, 0.2


def rows(n=20, k=4, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, k)) + 0.4 * rng.standard_normal((n, 1))
    y = x[:, :4] @ rng.standard_normal(4) + 0.5 * rng.standard_normal(n)
    return torch.as_tensor(x), torch.as_tensor(y), torch.ones(n, dtype=torch.float64)


def test_the_evidence_is_the_dense_normal():
    x, y, weight = rows()
    covariance = np.exp(2 * LOG_S) * np.eye(20) + np.exp(LOG_V) * x.numpy() @ x.numpy().T
    expected = stats.multivariate_normal(np.zeros(20), covariance).logpdf(y)
    found = SufficientStatistics.from_rows(x, y, weight, None)
    assert found.log_evidence(LOG_V, LOG_S) == pytest.approx(expected, rel=1e-12)


def test_weights_are_repetitions():
    x, y, weight = rows()
    weight[:5] = 3.0
    index = torch.arange(20).repeat_interleave(weight.long())
    one = SufficientStatistics.from_rows(x, y, weight, None)
    two = SufficientStatistics.from_rows(x[index], y[index], torch.ones(len(index)).double(), None)
    assert one.log_evidence(LOG_V, LOG_S) == pytest.approx(two.log_evidence(LOG_V, LOG_S))


def test_weights_of_many_sizes_overflow_nothing():
    x, y, _ = rows()
    found = SufficientStatistics.from_rows(
        x, y, torch.logspace(-200, 200, 20, dtype=torch.float64), None
    )
    assert np.isfinite(found.explained).all()
    exact = SufficientStatistics.from_rows(
        x, 0.0 * y, torch.full((20,), 1e200, dtype=torch.float64), None
    )
    assert np.isfinite(exact.best_log_noise(0.0))


def test_small_differences_of_columns_are_kept():
    """Singular values whose squares are below rounding of the largest one's."""
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(n, 4)))[0] for n in (30, 4))
    sizes, along = np.array([1.0, 0.3, 1e-5, 1e-9]), np.array([1.0, 2.0, -1.0, 3.0])
    x, y = left * sizes @ right.T, left @ along
    weight = np.ones(30)
    weight[:10] = 4.0
    for scale, given in [(1.0, None), (weight**-0.5, torch.as_tensor(weight))]:
        design, targets = (torch.as_tensor((a.T * scale).T) for a in (x, y))
        found = SufficientStatistics.from_rows(design, targets, given, None)
        order = np.argsort(-found.eigenvalues)
        np.testing.assert_allclose(found.eigenvalues[order], sizes**2, rtol=1e-5)
        np.testing.assert_allclose(found.explained[order], along**2, rtol=1e-5)
        assert found.residual < 1e-11  # of 15; rounding of a column times its coefficient, 3e9


def test_columns_that_are_nearly_alike_predict_as_they_should():
    rng = np.random.default_rng(0)
    cause, fine = rng.standard_normal((2, 3000))
    X = np.column_stack([cause, cause + 1e-6 * fine])
    y = cause + 0.5 * fine + 0.01 * rng.standard_normal(3000)
    model = BayesianLinearRegressor().fit(X[:2000], y[:2000])
    assert np.std(model.predict(X[2000:]) - y[2000:]) < 0.011
    assert model.noise_std_ == pytest.approx(0.01, rel=0.1)


def test_slopes_posterior_and_gap():
    x, y, weight = rows()
    found, h = SufficientStatistics.from_rows(x, y, weight, None), 1e-5
    steps = [(h, 0.0), (0.0, h)]
    for slope, (a, b) in zip(found.gradient(LOG_V, LOG_S), steps, strict=True):
        up, down = (found.log_evidence(LOG_V + s * a, LOG_S + s * b) for s in (1, -1))
        assert slope == pytest.approx((up - down) / (2 * h), rel=1e-6)
    precision = x.T @ x / np.exp(2 * LOG_S) + torch.eye(4).double() / np.exp(LOG_V)
    loc, covariance = found.posterior(LOG_V, LOG_S)
    np.testing.assert_allclose(covariance, torch.linalg.inv(precision), rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(loc, covariance @ (x.T @ y).numpy() / np.exp(2 * LOG_S))
    expected = 0.5 * float(precision.diagonal().log().sum() - torch.logdet(precision))
    assert found.mean_field_gap(LOG_V, LOG_S) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("learns_noise", [True, False])
@pytest.mark.parametrize("learns_prior", [True, False])
def test_nothing_nearby_or_on_a_grid_is_higher(learns_noise, learns_prior):
    x, y, weight = rows()
    found, wide = SufficientStatistics.from_rows(x, y, weight, None), Range(-12.0, 12.0)
    learning = LearnedRanges(wide if learns_prior else None, wide)
    best = maximize_evidence(found, (LOG_V, LOG_S), learning, learns_noise=learns_noise)
    top = found.log_evidence(*best)
    for slope, learned in zip(found.gradient(*best), (learns_prior, learns_noise), strict=True):
        assert abs(slope) < 1e-7 or not learned
    for v in np.linspace(-11, 11, 45) if learns_prior else [LOG_V]:
        for s in np.linspace(-6, 6, 45) if learns_noise else [LOG_S]:
            assert found.log_evidence(v, s) <= top + 1e-9


def test_ends_of_the_ranges_hold():
    x, y, weight = rows()
    found = SufficientStatistics.from_rows(x, y, weight, None)
    tight = LearnedRanges(Range(-9.0, -3.0), Range(0.5, 1.0))
    best = maximize_evidence(found, (LOG_V, LOG_S), tight, learns_noise=True)
    assert -9.0 <= best.log_variance <= -3.0
    assert 0.5 <= best.log_noise <= 1.0
    values = [found.log_evidence(v, s) for v in np.linspace(-9, -3, 61)
              for s in np.linspace(0.5, 1, 61)]  # fmt: skip
    assert found.log_evidence(*best) >= max(values) - 1e-9


CASES = {
    "learned": {}, "as given": {"standardize": False}, "no intercept": {"fit_intercept": False},
    "noise given": {"noise_std": 0.4}, "scale given": {"prior": 0.3},
    "scales given": {"prior": [0.3, 1.0, 2.0, 0.5], "noise_std": 0.4},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*noise_std_ reached the lower end")  # of as many features
@pytest.mark.parametrize("wide", [False, True], ids=["K<N", "K>N"])
@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_a_fit_is_that_of_one_site_a_row(settings, wide, monkeypatch):
    x, y, _ = rows(*((40, 60) if wide else (40, 4)), seed=2)
    if wide and np.ndim(settings.get("prior", 1.0)):
        settings = {**settings, "prior": np.linspace(0.3, 1.0, 60)}
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    x, y = x.numpy(), y.numpy() + 2.0 + np.random.default_rng(1).standard_normal(40)

    def fit():
        reg = BayesianLinearRegressor(tol=1e-10, **settings)
        return reg.fit(x, y, sample_weight=weight)

    closed = fit()
    monkeypatch.setattr(method, "is_conjugate", lambda likelihood: False)
    sites = fit()
    assert abs(closed.log_evidence_ - sites.log_evidence_) < 1e-9 * max(1, abs(sites.elbo_))
    # Not at their own optimum, these move as far as the scales do.
    for name in ("elbo_mean_field_", "symmetry_gap_"):
        assert getattr(closed, name) == pytest.approx(getattr(sites, name), abs=1e-5), name
    # Where features interpolate, precisions of 1e12 leave the sites' route few digits.
    rtol = 1e-3 if wide else 1e-5
    for name in (
        "coef_", "intercept_", "coef_std_", "coef_cov_", "noise_std_", "prior_scale_",
        "site_location_", "site_variance_",
    ):  # fmt: skip
        one, two = getattr(closed, name), getattr(sites, name)
        np.testing.assert_allclose(one, two, rtol=rtol, atol=0.1 * rtol, err_msg=name)
    found, expected = (reg.predict(x, return_std="function")[1] for reg in (closed, sites))
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6 * rtol)


def centred(n, k, seed):
    """Three of k columns and noise of standard deviation 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, k))
    y = x[:, :3].sum(1) + rng.standard_normal(n)
    return (torch.as_tensor(a - a.mean(0)) for a in (x, y))


@pytest.mark.parametrize(("n", "k"), [(60, 66), (30, 33), (20, 22)])
def test_noise_of_more_columns_than_rows_isn_t_nothing(n, k):
    """With the intercept taken out the evidence is higher without noise, and without end."""
    prior, noise = Range(-23.0, 23.0), Range(np.log(1e-6), np.log(1e2))
    runs_away, are_maxima = 0, 0
    for seed in range(8):
        found = SufficientStatistics.from_rows(*centred(n, k, seed), None, None)
        best = maximize_evidence(found, (0.0, 0.0), LearnedRanges(prior, noise), learns_noise=True)
        assert 0.1 < np.exp(best.log_noise) < 1.8
        are_maxima += np.abs(found.gradient(*best)).max() < 1e-6
        end = maximize_evidence(
            found, (0.0, noise.low), LearnedRanges(prior, noise), learns_noise=False
        )
        runs_away += found.log_evidence(*end) > found.log_evidence(*best)
        given = maximize_evidence(found, (-2.0, 0.0), LearnedRanges(None, noise), learns_noise=True)
        assert 0.1 < np.exp(given.log_noise) < 1.8
    assert runs_away > 3
    assert are_maxima > 3  # the prior only chooses, where there is something to choose


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t"])
def test_predictions_of_as_many_columns_as_rows_aren_t_sure(likelihood):
    x, y = (a.numpy() for a in centred(1060, 60, 3))
    fit = BayesianLinearRegressor(likelihood=likelihood).fit(x[:60], y[:60])
    new = fit.log_predictive_density(x[60:], y[60:])
    no_columns = stats.norm.logpdf(y[60:], y[:60].mean(), y[:60].std())
    assert new.mean() > no_columns.mean() - 0.05


def make(with_basis, n_rows=2, k=5, r=3):
    """A posterior and its dense covariance."""
    rng = np.random.default_rng(0)
    if not with_basis:
        r = k
    root = rng.normal(size=(n_rows * r, n_rows * r))
    covariance = root @ root.T / (n_rows * r) + 0.1 * np.eye(n_rows * r)
    basis = np.linalg.qr(rng.normal(size=(k, r)))[0] if with_basis else None
    q = np.eye(k) if basis is None else basis
    scale = rng.gamma(2.0, size=k)
    posterior = LowRankGaussian(rng.normal(size=(n_rows, k)), scale, basis, covariance, 1.7)
    wide = np.kron(np.eye(n_rows), scale[:, None] * q)
    free = 1.7 * np.diag(scale) @ (np.eye(k) - q @ q.T) @ np.diag(scale)
    return posterior, wide @ covariance @ wide.T + np.kron(np.eye(n_rows), free)


both = pytest.mark.parametrize("with_basis", [False, True], ids=["K<=N", "K>N"])


@both
def test_covariance_and_variance(with_basis):
    posterior, dense = make(with_basis)
    np.testing.assert_allclose(posterior.dense_covariance(), dense, atol=1e-13)
    np.testing.assert_allclose(posterior.variance().ravel(), np.diag(dense), rtol=1e-12)


def test_no_variance_is_below_zero():
    """However well known a weight is: what the prior leaves of it is no difference."""
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(9, 8)))[0]
    basis = np.vstack([basis[:8], np.zeros(8)])
    basis[:8] = np.linalg.qr(basis[:8])[0]
    posterior = LowRankGaussian(np.zeros((1, 9)), np.ones(9), basis, 1e-30 * np.eye(8), 1.0)
    assert (posterior.variance() >= 0.0).all()


@both
def test_precision(with_basis):
    posterior, dense = make(with_basis)
    expected = np.linalg.inv(dense)
    np.testing.assert_allclose(posterior.precision(), expected, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(posterior.precision_diagonal(), np.diag(expected), rtol=1e-10)
    log_det = np.linalg.slogdet(expected)[1]
    assert float(posterior.log_det_precision()) == pytest.approx(log_det, abs=1e-11)


@both
def test_log_prob_is_the_normal_density(with_basis):
    posterior, dense = make(with_basis)
    theta = np.random.default_rng(1).normal(size=(4, 10))
    expected = stats.multivariate_normal(posterior.loc.ravel(), dense).logpdf(theta)
    np.testing.assert_allclose(posterior.log_prob(theta).numpy(), expected, rtol=1e-10)


@both
def test_output_moments(with_basis):
    posterior, dense = make(with_basis)
    x = np.random.default_rng(2).normal(size=(3, 5))
    mean, covariance = posterior.output_moments(torch.as_tensor(x))
    np.testing.assert_allclose(mean.numpy(), x @ posterior.loc.T, rtol=1e-12)
    for row, got in zip(x, covariance.numpy(), strict=True):
        wide = np.kron(np.eye(2), row)
        np.testing.assert_allclose(got, wide @ dense @ wide.T, rtol=1e-10, atol=1e-12)


def test_too_large_a_covariance_names_its_bytes(monkeypatch):
    monkeypatch.setattr(low_rank, "MAX_COVARIANCE_BYTES", 799)
    with pytest.raises(MemoryError, match=r"10 coefficients would take 800 bytes.*coef_std_"):
        make(True)[0].dense_covariance()
