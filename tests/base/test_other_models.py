"""Other people's models and ensembles as predictive distributions, and ours as skpro's."""

import numpy as np
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import ARDRegression, BayesianRidge, LinearRegression
from sklearn.multioutput import MultiOutputRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearRegressor, PredictiveStackingRegressor, predictive
from skbayes_sym.base.predictive import is_regression_model, predicts_distribution
from skbayes_sym.model_selection import compare_models

X, Y = (a[:60] for a in load_diabetes(return_X_y=True))
ROWS, NEW = X[50:], Y[50:]


def means_and_widths(members, rows):
    """(K, N) each."""
    return np.moveaxis([m.predict(rows, return_std=True) for m in members], 1, 0)


def is_this_mixture(distribution, weights, mean, std):
    """Every answer, by scipy's normals."""
    weights = np.asarray(weights)[:, None] / np.sum(weights)
    normals = stats.norm(mean, std)
    expected = (weights * mean).sum(0)
    np.testing.assert_allclose(distribution.mean(), expected)
    square = (weights * (std**2 + (mean - expected) ** 2)).sum(0)
    np.testing.assert_allclose([distribution.std() ** 2, distribution.var()], [square, square])
    np.testing.assert_allclose(distribution.pdf(NEW), (weights * normals.pdf(NEW)).sum(0))
    np.testing.assert_allclose(distribution.cdf(NEW), (weights * normals.cdf(NEW)).sum(0))
    np.testing.assert_allclose(distribution.cdf(distribution.quantile(0.3)), 0.3)
    # E|Y - y| - E|Y - Y'| / 2, component by component
    distance = (weights * stats.foldnorm(abs(mean - NEW) / std, 0.0, std).mean()).sum(0)
    both = np.sqrt(std[:, None] ** 2 + std**2)
    apart = stats.foldnorm(abs(mean[:, None] - mean) / both, 0.0, both).mean()
    crps = distance - 0.5 * np.einsum("k,l,kln->n", weights[:, 0], weights[:, 0], apart)
    np.testing.assert_allclose(distribution.crps(NEW), crps, rtol=1e-5)
    draws = distribution.sample(4000, random_state=0)
    z = (draws.mean(-1) - expected) / (np.sqrt(square) / 4000**0.5)
    assert draws.shape == (len(NEW), 4000)
    assert np.abs(z).max() < 5.0


def test_votes_are_a_mixture_in_their_proportions():
    members = [("a", BayesianRidge()), ("gone", "drop"), ("b", BayesianLinearRegressor())]
    model = VotingRegressor(members, weights=[1.0, 5.0, 3.0]).fit(X[:50], Y[:50])
    distribution = predictive(make_pipeline(StandardScaler(with_std=False), model).fit(X, Y), ROWS)
    assert "2 normal components" in repr(distribution)
    is_this_mixture(
        predictive(model, ROWS), [1, 3], *means_and_widths(model.estimators_, ROWS)
    )  # fmt: skip
    assert predicts_distribution(model)
    points = VotingRegressor([("a", BayesianRidge()), ("b", LinearRegression())]).fit(X, Y)
    assert not predicts_distribution(points)
    with pytest.raises(TypeError, match="LinearRegression predicts no distribution"):
        predictive(points, ROWS)


def test_bags_are_an_equal_mixture_of_models_of_some_columns():
    model = BaggingRegressor(BayesianRidge(), 3, max_features=0.5, random_state=0)
    model.fit(X[:50], Y[:50])
    pairs = zip(model.estimators_, model.estimators_features_, strict=True)
    both = [m.predict(ROWS[:, columns], return_std=True) for m, columns in pairs]
    is_this_mixture(predictive(model, ROWS), np.ones(3), *np.moveaxis(both, 1, 0))


def test_targets_with_a_model_each_are_independent():
    both = np.column_stack([Y, np.sqrt(Y)])
    model = MultiOutputRegressor(BayesianLinearRegressor()).fit(X[:50], both[:50])
    distribution, single = predictive(model, ROWS), [predictive(m, ROWS) for m in model.estimators_]
    new = both[50:]
    for name in ("mean", "std"):
        expected = np.column_stack([getattr(s, name)() for s in single])
        np.testing.assert_array_equal(getattr(distribution, name)(), expected)
    for name in ("cdf", "crps"):
        expected = [getattr(s, name)(column) for s, column in zip(single, new.T, strict=True)]
        np.testing.assert_array_equal(getattr(distribution, name)(new), np.transpose(expected))
    joint = sum(s.log_prob(column) for s, column in zip(single, new.T, strict=True))
    np.testing.assert_allclose(distribution.log_prob(new), joint)
    assert distribution.interval(0.8).shape == (10, 2, 2)
    draws = distribution.sample(50)
    assert draws.shape == (10, 2, 50)
    z = (draws - distribution.mean()[..., None]) / distribution.std()[..., None]
    assert abs(np.mean(z[:, 0] * z[:, 1])) < 5.0 / 500**0.5  # they share no noise
    with pytest.raises(TypeError, match="no components"):
        distribution.components()


@pytest.mark.long
def test_ngboost():
    ngboost = pytest.importorskip("ngboost")
    from ngboost.distns import LogNormal, Poisson

    model = ngboost.NGBRegressor(n_estimators=5, verbose=False, random_state=0)
    assert is_regression_model(model)
    with pytest.raises(NotFittedError):
        predictive(model, ROWS)
    distribution = predictive(model.fit(X[:50], Y[:50]), ROWS)
    params = model.pred_dist(ROWS).params
    is_this_mixture(distribution, [1.0], params["loc"][None], params["scale"][None])
    skewed = clone(model).set_params(Dist=LogNormal).fit(X[:50], 1.0 + Y[:50] / 300.0)
    distribution, theirs, new = (
        predictive(skewed, ROWS),
        skewed.pred_dist(ROWS).dist,
        1.0 + NEW / 300.0,
    )
    answers = [
        distribution.mean(),
        distribution.std(),
        distribution.log_prob(new),
        distribution.cdf(new),
        distribution.quantile(0.2),
    ]
    expected = [
        theirs.mean(), theirs.std(), theirs.logpdf(new), theirs.cdf(new), theirs.ppf(0.2)
    ]  # fmt: skip
    np.testing.assert_allclose(answers, expected)
    draws = [distribution.sample(4000, seed) for seed in (0, 1)]
    direct = np.abs(draws[0] - new[:, None]).mean(1) - 0.5 * np.abs(draws[0] - draws[1]).mean(1)
    np.testing.assert_allclose(distribution.crps(new), direct, atol=0.1 * theirs.std().max())
    counts = clone(model).set_params(Dist=Poisson).fit(X[:50], Y[:50].round().astype(int))
    distribution, theirs = predictive(counts, ROWS), counts.pred_dist(ROWS).dist
    assert distribution.is_discrete
    np.testing.assert_allclose(distribution.log_prob(NEW.round()), theirs.logpmf(NEW.round()))


def test_forests_of_quantiles():
    forests = pytest.importorskip("quantile_forest")
    model = forests.RandomForestQuantileRegressor(20, random_state=0).fit(X[:50], Y[:50])
    distribution, theirs = predictive(model, ROWS), model.predict(ROWS, quantiles=[0.25, 0.5, 0.75])
    wide = model.predict(ROWS, quantiles=0.9) - model.predict(ROWS, quantiles=0.1)
    np.testing.assert_allclose(
        distribution.quantile([0.25, 0.5, 0.75]), theirs, atol=0.2 * wide.max()
    )
    assert np.isfinite(distribution.log_prob(NEW)).all()


def test_skpro_both_ways():
    pytest.importorskip("skpro")
    import pandas as pd
    from skpro.metrics import CRPS, LogLoss
    from skpro.regression.residual import ResidualDouble

    from skbayes_sym.skpro import BayesianSkpro, NormalMixtures

    theirs = ResidualDouble(LinearRegression())
    with pytest.raises(NotFittedError, match="ResidualDouble"):
        predictive(theirs, ROWS)
    distribution = predictive(theirs.fit(X[:50], Y[:50]), ROWS)
    proba = theirs.predict_proba(ROWS)
    mean, std = proba.mean().to_numpy().T, np.sqrt(proba.var().to_numpy().T)
    is_this_mixture(distribution, [1.0], mean, std)

    members = [("a", BayesianRidge()), ("b", ARDRegression())]
    ours = BayesianSkpro(VotingRegressor(members, weights=[1.0, 3.0]))
    rows, new = pd.DataFrame(ROWS), pd.DataFrame({"y": NEW})
    proba = ours.fit(pd.DataFrame(X[:50]), pd.DataFrame({"y": Y[:50]})).predict_proba(rows)
    is_this_mixture(
        predictive(ours, rows), [1, 3], *means_and_widths(ours.estimator_.estimators_, rows)
    )  # fmt: skip
    assert CRPS()(new, proba) == pytest.approx(predictive(ours, rows).crps(NEW).mean(), rel=1e-5)
    assert LogLoss()(new, proba) == pytest.approx(-predictive(ours, rows).log_prob(NEW).mean())
    some = proba.iloc[[2, 5]]
    np.testing.assert_array_equal(some.mean(), proba.mean().iloc[[2, 5]])
    assert proba.iat[2, 0].ppf(0.3) == pytest.approx(proba.quantile(0.3).iloc[2, 0])
    standard = NormalMixtures(np.ones(1), np.zeros((1, 1)), np.ones((1, 1)), [0], ["y"])
    score = CRPS()(pd.DataFrame({"y": [0.0]}), standard)
    assert score == pytest.approx((2.0**0.5 - 1.0) / np.pi**0.5)


def test_models_that_do_not_say_that_they_are_regressors_are_stacked_and_compared():
    pytest.importorskip("skpro")
    from skpro.regression.residual import ResidualDouble

    models = {"skpro": ResidualDouble(LinearRegression()), "ridge": BayesianRidge()}
    stack = PredictiveStackingRegressor(list(models.items()), random_state=0).fit(X[:50], Y[:50])
    assert set(stack.weights_) == {"skpro", "ridge"}
    table = compare_models(models, X[:50], Y[:50], cv=3)
    assert np.isfinite(table.log_density).all()
