"""Known errors of targets in linear models: closed forms of generalised least squares."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from sklearn import config_context
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, load, predictive, save
from skbayes_sym.model_selection import get_scorer

AS_GIVEN = {"standardize": False}


def noisy_rows(n=60, k=3, seed=0):
    """Rows whose known errors differ 40-fold, with further noise of 0.3."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, k)) + 0.5
    noise_std = np.exp(rng.uniform(np.log(0.05), np.log(2.0), n))
    y = 1.0 + 2.0 * X[:, 0] + 0.3 * rng.normal(size=n) + noise_std * rng.normal(size=n)
    return X, y, noise_std


def generalised_least_squares(X, y, noise_std, prior, noise, fit_intercept=True):
    """Centre, intercept, mean and covariance of the coefficients, and the log evidence."""
    variance = noise**2 + noise_std**2
    centre = (X / variance[:, None]).sum(0) / (1.0 / variance).sum() * fit_intercept
    inputs = X - centre
    total = prior**2 * inputs @ inputs.T + np.diag(variance)
    ones = np.ones(len(y))
    solved = np.linalg.solve(total, np.column_stack([ones, y]))
    intercept = fit_intercept * (ones @ solved[:, 1]) / (ones @ solved[:, 0])
    covariance = np.linalg.inv(
        inputs.T @ (inputs / variance[:, None]) + np.eye(X.shape[1]) / prior**2
    )
    mean = covariance @ inputs.T @ ((y - intercept) / variance)
    evidence = multivariate_normal(np.full(len(y), intercept), total).logpdf(y)
    return centre, intercept, mean, covariance, evidence


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("shape", [(60, 3), (15, 40)], ids=["K<N", "K>N"])
def test_posterior_and_evidence_are_those_of_generalised_least_squares(shape, fit_intercept):
    X, y, noise_std = noisy_rows(*shape)
    reg = BayesianLinearRegressor(
        prior=0.7, noise_std=0.4, fit_intercept=fit_intercept, **AS_GIVEN
    ).fit(X, y, noise_std=noise_std)
    centre, intercept, mean, covariance, evidence = generalised_least_squares(
        X, y, noise_std, 0.7, 0.4, fit_intercept
    )
    assert reg.log_evidence_ == pytest.approx(evidence, rel=1e-10)
    np.testing.assert_allclose(reg.coef_, mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(reg.coef_cov_, covariance, rtol=1e-9, atol=1e-11)
    assert reg.intercept_ == pytest.approx(intercept - centre @ mean, rel=1e-9, abs=1e-10)
    np.testing.assert_allclose(reg.site_variance_, 0.4**2 + noise_std**2, rtol=1e-12)
    gap = 0.5 * (
        np.log(np.diag(np.linalg.inv(covariance))).sum() + np.linalg.slogdet(covariance)[1]
    )
    assert reg.symmetry_gap_ == pytest.approx(gap, rel=1e-7)

    # Predictions have the learned noise, and known errors only if they are given.
    new = X[:5] + 1.0
    function_variance = np.einsum("nk,kl,nl->n", new - centre, covariance, new - centre)
    expected = intercept + (new - centre) @ mean
    distribution = predictive(reg, new)
    np.testing.assert_allclose(distribution.mean(), expected, rtol=1e-9)
    np.testing.assert_allclose(distribution.var(), function_variance + 0.4**2, rtol=1e-8)
    measured = predictive(reg, new, noise_std=noise_std[:5])
    np.testing.assert_allclose(measured.mean(), expected, rtol=1e-9)
    sources = measured.uncertainty()
    np.testing.assert_allclose(sources.epistemic, function_variance, rtol=1e-8)
    np.testing.assert_allclose(sources.aleatoric, 0.4**2 + noise_std[:5] ** 2, rtol=1e-8)
    np.testing.assert_allclose(measured[1:3].uncertainty().total, measured.var()[1:3], rtol=1e-8)
    variance = function_variance + 0.4**2 + noise_std[:5] ** 2
    np.testing.assert_allclose(measured.var(), variance, rtol=1e-8)
    z = (y[:5] - expected) / np.sqrt(variance)
    log_density = -0.5 * (z**2 + np.log(2.0 * np.pi * variance))
    np.testing.assert_allclose(measured.log_prob(y[:5]), log_density, rtol=1e-8)


@pytest.mark.parametrize("learned", ["both", "noise", "prior"])
def test_learned_scales_maximise_the_evidence(learned):
    """The maximum is that of a general optimiser over the closed form."""
    X, y, noise_std = noisy_rows()
    params = {"both": {}, "noise": {"prior": 0.7}, "prior": {"noise_std": 0.4}}[learned]
    reg = BayesianLinearRegressor(**params, **AS_GIVEN).fit(X, y, noise_std=noise_std)

    def minus_evidence(logs):
        prior = params.get("prior", np.exp(logs[0]))
        noise = params.get("noise_std", np.exp(logs[-1]))
        return -generalised_least_squares(X, y, noise_std, prior, noise)[-1]

    start = np.log([1.0, 0.5] if learned == "both" else [0.6])
    best = minimize(minus_evidence, start, method="Nelder-Mead", options={"xatol": 1e-7})
    assert reg.log_evidence_ == pytest.approx(-best.fun, abs=1e-6)
    found = np.log([reg.prior_scale_, reg.noise_std_])
    if learned != "both":
        found = found[[0]] if learned == "prior" else found[[1]]
    np.testing.assert_allclose(found, best.x, atol=2e-3)


def test_learned_noise_is_what_the_known_errors_leave():
    """The known errors explain most of the scatter, so the noise is far below that without them."""
    X, y, noise_std = noisy_rows(400)
    reg = BayesianLinearRegressor().fit(X, y, noise_std=noise_std)
    assert reg.noise_std_ == pytest.approx(0.3, rel=0.2)
    assert BayesianLinearRegressor().fit(X, y).noise_std_ > 0.6
    # Weighting by precision halves the error of the coefficients.
    assert np.abs(reg.coef_ - [2.0, 0.0, 0.0]).max() < 0.1


def test_equal_known_errors_are_fixed_noise():
    X, y, _ = noisy_rows()
    plain = BayesianLinearRegressor(noise_std=0.5).fit(X, y)
    known = BayesianLinearRegressor(noise_std=1e-9).fit(X, y, noise_std=np.full(60, 0.5))
    assert known.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-10)
    np.testing.assert_allclose(known.coef_cov_, plain.coef_cov_, rtol=1e-7)
    np.testing.assert_allclose(
        predictive(known, X, noise_std=np.full(60, 0.5)).std(),
        plain.predict(X, return_std=True)[1],
        rtol=1e-7,
    )


def test_no_known_errors_change_nothing():
    """Also with few rows, where predictions integrate over the noise."""
    for n in (8, 60):
        X, y, _ = noisy_rows(n)
        plain = BayesianLinearRegressor().fit(X, y)
        known = BayesianLinearRegressor().fit(X, y, noise_std=np.zeros(n))
        assert known.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-8)
        assert known.noise_std_ == pytest.approx(plain.noise_std_, rel=1e-4)
        np.testing.assert_allclose(
            known.predict(X, return_std=True)[1], plain.predict(X, return_std=True)[1], rtol=1e-3
        )


def test_a_row_of_infinite_error_has_no_influence():
    X, y, noise_std = noisy_rows()
    useless = noise_std.copy()
    useless[0] = 1e7
    options = {"prior": 0.7, "noise_std": 0.4, **AS_GIVEN}
    without = BayesianLinearRegressor(**options).fit(X[1:], y[1:], noise_std=noise_std[1:])
    far = y.copy()
    far[0] += 50.0
    reg = BayesianLinearRegressor(**options).fit(X, far, noise_std=useless)
    np.testing.assert_allclose(reg.coef_, without.coef_, rtol=1e-6)
    assert reg.intercept_ == pytest.approx(without.intercept_, rel=1e-6)


def test_weights_repeat_rows_and_equal_rows_of_other_errors_are_kept():
    X, y, noise_std = noisy_rows(20)
    weight = np.array([2.0, 1.0] * 10)
    repeated = np.repeat(np.arange(20), weight.astype(int))
    weighted = BayesianLinearRegressor().fit(X, y, sample_weight=weight, noise_std=noise_std)
    rows = BayesianLinearRegressor().fit(X[repeated], y[repeated], noise_std=noise_std[repeated])
    assert weighted.log_evidence_ == rows.log_evidence_
    np.testing.assert_array_equal(weighted.coef_, rows.coef_)

    twice = [0, *range(20)]
    errors = np.concatenate([[5.0], noise_std])
    options = {"prior": 0.7, "noise_std": 0.4, **AS_GIVEN}
    reg = BayesianLinearRegressor(**options).fit(X[twice], y[twice], noise_std=errors)
    mean = generalised_least_squares(X[twice], y[twice], errors, 0.7, 0.4)[2]
    np.testing.assert_allclose(reg.coef_, mean, rtol=1e-9)


def test_predictions_after_few_rows_are_wider_than_the_learned_noise():
    """Six rows hardly determine the noise beyond their errors."""
    X, y, noise_std = noisy_rows(6, 1)
    reg = BayesianLinearRegressor().fit(X, y, noise_std=noise_std)
    function = reg.predict(X, return_std="function")[1]
    std = reg.predict(X, return_std=True)[1]
    assert (std > 1.1 * np.hypot(function, reg.noise_std_)).all()


def test_units_of_the_targets():
    X, y, noise_std = noisy_rows()
    reg = BayesianLinearRegressor().fit(X, y, noise_std=noise_std)
    cents = BayesianLinearRegressor().fit(X, 100.0 * y + 7.0, noise_std=100.0 * noise_std)
    assert cents.noise_std_ == pytest.approx(100.0 * reg.noise_std_, rel=1e-5)
    np.testing.assert_allclose(cents.predict(X), 100.0 * reg.predict(X) + 7.0, rtol=1e-6)
    assert cents.log_evidence_ == pytest.approx(reg.log_evidence_ - 60 * np.log(100.0))


def test_pipelines_and_searches_route_known_errors():
    X, y, noise_std = noisy_rows()
    reg = BayesianLinearRegressor(noise_std=0.4)
    scaled = StandardScaler().fit_transform(X)
    direct = clone(reg).fit(scaled, y, noise_std=noise_std)
    scorer = get_scorer("log_density")
    with config_context(enable_metadata_routing=True):
        requested = clone(reg).set_fit_request(noise_std=True)
        pipeline = make_pipeline(StandardScaler(), requested).fit(X, y, noise_std=noise_std)
        np.testing.assert_allclose(
            predictive(pipeline, X, noise_std=noise_std).std(),
            predictive(direct, scaled, noise_std=noise_std).std(),
        )
        scorer.set_score_request(noise_std=True)
        grid = {"prior": [1e-3, 1.0]}
        search = GridSearchCV(requested, grid, scoring=scorer, cv=3).fit(X, y, noise_std=noise_std)
        assert search.best_params_ == {"prior": 1.0}
        scores = cross_val_score(
            requested.set_params(prior=1.0), X, y, scoring=scorer, cv=3,
            params={"noise_std": noise_std},
        )  # fmt: skip
    assert scores.mean() == pytest.approx(search.best_score_)
    train, test = np.arange(20, 60), np.arange(20)
    fold = clone(reg).set_params(prior=1.0).fit(X[train], y[train], noise_std=noise_std[train])
    log_density = predictive(fold, X[test], noise_std=noise_std[test]).log_prob(y[test])
    assert scores[0] == pytest.approx(log_density.mean())


def test_saved_files_keep_the_fit(tmp_path):
    X, y, noise_std = noisy_rows()
    reg = BayesianLinearRegressor().fit(X, y, noise_std=noise_std)
    save(reg, tmp_path / "model")
    again = load(tmp_path / "model")
    for name in ("coef_", "site_variance_", "x_mean_", "log_evidence_"):
        np.testing.assert_array_equal(getattr(again, name), getattr(reg, name))
    std = predictive(reg, X, noise_std=noise_std).std()
    np.testing.assert_array_equal(predictive(again, X, noise_std=noise_std).std(), std)


def test_refused():
    X, y, noise_std = noisy_rows()
    with pytest.raises(ValueError, match=r"likelihood='student_t'.*default likelihood"):
        BayesianLinearRegressor("student_t").fit(X, y, noise_std=noise_std)
    with pytest.raises(ValueError, match="one target, got 2: fit one model per target"):
        BayesianLinearRegressor().fit(X, np.column_stack([y, y]), noise_std=noise_std)
