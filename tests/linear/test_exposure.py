"""Exposures of counts in linear models."""

import numpy as np
import pytest
from scipy.stats import poisson
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import PoissonRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, load, predictive, save
from skbayes_sym.model_selection import get_scorer

POISSON = BayesianLinearRegressor("poisson")


def exposed_counts(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    exposure = np.exp(rng.uniform(-1.0, 3.0, n))
    return X, rng.poisson(exposure * np.exp(0.3 + 0.5 * X[:, 0])), exposure


def test_a_common_exposure_moves_the_intercept():
    X, y, _ = exposed_counts()
    plain = clone(POISSON).fit(X, y)
    exposed = clone(POISSON).fit(X, y, exposure=np.full(120, 3.0))
    np.testing.assert_allclose(exposed.coef_, plain.coef_, rtol=1e-5, atol=1e-7)
    assert exposed.intercept_ == pytest.approx(plain.intercept_ - np.log(3.0), abs=1e-6)
    assert exposed.elbo_ == pytest.approx(plain.elbo_, abs=1e-6)
    np.testing.assert_allclose(
        predictive(exposed, X, exposure=np.full(120, 3.0)).mean(), plain.predict(X), rtol=1e-5
    )


def test_doubled_exposures_of_doubled_counts_are_repeated_rows():
    """Counts of the same inputs add up, and so do their exposures."""
    X, y, exposure = exposed_counts(40)
    added = clone(POISSON).fit(X, 2 * y, exposure=2 * exposure)
    repeated = clone(POISSON).fit(X, y, sample_weight=np.full(40, 2.0), exposure=exposure)
    np.testing.assert_allclose(added.coef_, repeated.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(added.coef_cov_, repeated.coef_cov_, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(added.predict(X), repeated.predict(X), rtol=1e-5)


def test_the_mode_is_that_of_rates_weighted_by_exposure():
    """scikit-learn's Poisson regression of y / exposure has this mode; a wide prior."""
    X, y, exposure = exposed_counts(2000)
    reg = BayesianLinearRegressor("poisson", prior=100.0).fit(X, y, exposure=exposure)
    glm = PoissonRegressor(alpha=0.0, tol=1e-10).fit(X, y / exposure, sample_weight=exposure)
    np.testing.assert_allclose(reg.coef_, glm.coef_, atol=1e-3)
    assert reg.intercept_ == pytest.approx(glm.intercept_, abs=1e-3)
    # Without exposures, coefficient errors are several standard deviations larger.
    np.testing.assert_allclose(reg.coef_, [0.5, 0.0], atol=4 * reg.coef_std_.max())


def test_predictions_are_per_unit_of_exposure():
    X, y, exposure = exposed_counts(2000)
    reg = clone(POISSON).fit(X, y, exposure=exposure)
    rate = reg.predict(X)
    distribution = predictive(reg, X[:5], exposure=exposure[:5])
    np.testing.assert_allclose(distribution.mean(), exposure[:5] * rate[:5], rtol=1e-6)
    # With this many rows, the distribution is that of the count at the mean rate.
    expected = poisson.logpmf(y[:5], exposure[:5] * rate[:5])
    np.testing.assert_allclose(distribution.log_prob(y[:5]), expected, atol=0.05)
    draws = distribution.sample(4000, random_state=0)
    assert (draws == draws.round()).all()
    np.testing.assert_allclose(draws.mean(1), exposure[:5] * rate[:5], rtol=0.1)
    assert reg.score(X, y, exposure=exposure) > 0.5 > reg.score(X, y)
    residual = y - exposure * rate
    expected_score = 1.0 - (residual**2).sum() / ((y - y.mean()) ** 2).sum()
    assert reg.score(X, y, exposure=exposure) == pytest.approx(expected_score)


def test_pipelines_and_searches_route_exposures():
    X, y, exposure = exposed_counts()
    with config_context(enable_metadata_routing=True):
        requested = clone(POISSON).set_fit_request(exposure=True).set_score_request(exposure=True)
        pipeline = make_pipeline(StandardScaler(), requested).fit(X, y, exposure=exposure)
        grid = {"prior": [1e-3, 1.0]}
        by_score = GridSearchCV(requested, grid, cv=3).fit(X, y, exposure=exposure)
        scorer = get_scorer("log_density").set_score_request(exposure=True)
        by_density = GridSearchCV(requested, grid, scoring=scorer, cv=3)
        by_density.fit(X, y, exposure=exposure)
        # Scikit-learn asks for a decision about the score.
        undecided = clone(POISSON).set_fit_request(exposure=True)
        with pytest.raises(ValueError, match=r"exposure.*not explicitly set"):
            GridSearchCV(undecided, grid, cv=3).fit(X, y, exposure=exposure)
    scaled = StandardScaler().fit_transform(X)
    direct = clone(POISSON).fit(scaled, y, exposure=exposure)
    np.testing.assert_allclose(pipeline.predict(X), direct.predict(scaled))
    assert by_score.best_params_ == by_density.best_params_ == {"prior": 1.0}
    assert by_score.best_score_ > 0.5


def test_saved_files_keep_the_fit(tmp_path):
    X, y, exposure = exposed_counts(30)
    reg = clone(POISSON).fit(X, y, exposure=exposure)
    save(reg, tmp_path / "model")
    again = load(tmp_path / "model")
    mean = predictive(reg, X, exposure=exposure).mean()
    np.testing.assert_array_equal(predictive(again, X, exposure=exposure).mean(), mean)


def test_refused():
    X, y, exposure = exposed_counts(12)
    exposure[3] = 0.0
    with pytest.raises(ValueError, match="exposure is 0 in row 3, but values must be positive"):
        clone(POISSON).fit(X, y, exposure=exposure)
    with pytest.raises(ValueError, match=r"likelihood='gaussian'.*likelihood='poisson'"):
        BayesianLinearRegressor().fit(X, y, exposure=np.ones(12))
    with pytest.raises(ValueError, match=r"likelihood='poisson'.*exposure= for counts"):
        clone(POISSON).fit(X, y, noise_std=np.ones(12))
    with pytest.raises(TypeError, match="which NormalMixture doesn't hold"):
        predictive(BayesianLinearRegressor().fit(X, y), X, exposure=np.ones(12))
