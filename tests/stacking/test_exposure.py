"""Exposures of counts in stacks: members, rates, scores and predictions."""

import pickle

import numpy as np
import pytest
import torch
from scipy.stats import nbinom
from sklearn import config_context
from sklearn.linear_model import Ridge
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import (
    BayesianLinearRegressor,
    LaplaceRegressor,
    PredictiveStackingRegressor,
    load,
    predictive,
    save,
)
from skbayes_sym.model_selection import get_scorer
from skbayes_sym.stacking.members.counts import fit_dispersion

BOTH = [("count_linear", "count_linear"), ("count_boosting", "count_boosting")]
LINEAR = BOTH[:1]
SIZE = 3.0  # inverse of the dispersion


def make_rows(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    exposure = np.exp(rng.normal(size=n))
    rate = np.exp(0.5 * X[:, 0] + np.sin(2.0 * X[:, 1]))
    y = rng.poisson(exposure * rate * rng.gamma(SIZE, 1.0 / SIZE, n)).astype(float)
    return X, y, exposure, rate


X, Y, EXPOSURE, _ = make_rows(400)


@pytest.fixture(scope="module")
def stack():
    return PredictiveStackingRegressor(BOTH, random_state=0).fit(X, Y, exposure=EXPOSURE)


def test_the_dispersion_of_counts_of_known_means_is_found():
    _, y, exposure, rate = make_rows(20_000)
    log_mean = torch.as_tensor(np.log(exposure * rate))[:, None]
    counts = torch.as_tensor(y)[:, None]
    found = fit_dispersion(log_mean, counts, torch.ones(20_000, dtype=torch.float64))
    assert float(found.dispersion) == pytest.approx(1.0 / SIZE, rel=0.05)
    poisson = torch.as_tensor(np.random.default_rng(1).poisson(exposure * rate))[:, None]
    none = fit_dispersion(log_mean, poisson.double(), torch.ones(20_000, dtype=torch.float64))
    assert float(none.dispersion) < 0.01


def test_stacks_are_as_dense_as_their_score_and_near_the_truth(stack):
    new, y, exposure, rate = make_rows(3000, seed=1)
    density = predictive(stack, new, exposure=exposure).log_prob(y)
    truth = nbinom.logpmf(y, SIZE, SIZE / (SIZE + exposure * rate))
    score, error = stack.stack_log_density_
    assert abs(density.mean() - score) < 3.0 * error
    assert truth.mean() - 0.1 < density.mean() < truth.mean()
    linear = BayesianLinearRegressor("poisson").fit(X, Y, exposure=EXPOSURE)
    assert density.mean() > predictive(linear, new, exposure=exposure).log_prob(y).mean() + 0.2


def test_predictions_are_rates_which_exposures_multiply(stack):
    rates = predictive(stack, X)
    counts = predictive(stack, X, exposure=EXPOSURE)
    np.testing.assert_allclose(rates.mean(), stack.predict(X))
    np.testing.assert_allclose(counts.mean(), EXPOSURE * stack.predict(X))
    assert stack.score(X, Y, exposure=EXPOSURE) > stack.score(X, Y) + 0.1
    # The distribution of counts, of a mixture of two negative binomials.
    mass = np.exp(counts[:1].log_prob(np.arange(400.0)[:, None]))[:, 0]
    assert mass.sum() == pytest.approx(1.0, abs=1e-6)
    assert mass @ np.arange(400.0) == pytest.approx(counts.mean()[0], rel=1e-4)
    draws = counts.sample(400, random_state=0)
    assert (draws == np.floor(draws)).all()
    assert draws.mean() == pytest.approx(counts.mean().mean(), rel=0.05)


@pytest.mark.long
def test_units_of_exposure_are_those_of_the_rate(stack):
    days = PredictiveStackingRegressor(BOTH, random_state=0).fit(X, Y, exposure=365.0 * EXPOSURE)
    np.testing.assert_allclose(365.0 * days.predict(X), stack.predict(X), rtol=1e-6)
    assert days.stack_log_density_[0] == pytest.approx(stack.stack_log_density_[0], abs=1e-6)


@pytest.mark.long
def test_exposures_of_one_are_no_exposures():
    members = PredictiveStackingRegressor(LINEAR, random_state=0)
    plain = members.fit(X, Y).predict(X)
    np.testing.assert_allclose(members.fit(X, Y, exposure=np.ones(400)).predict(X), plain)


@pytest.mark.long
def test_weights_are_repetitions():
    weight = np.arange(400) % 3
    rows = np.repeat(np.arange(400), weight)
    stack = PredictiveStackingRegressor(LINEAR, random_state=0)
    weighted = stack.fit(X, Y, sample_weight=weight, exposure=EXPOSURE).predict(X)
    repeated = stack.fit(X[rows], Y[rows], exposure=EXPOSURE[rows]).predict(X)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-8)


@pytest.mark.long
def test_default_members_are_replaced_with_a_warning():
    with pytest.warns(UserWarning, match=r"the others are left out \('linear', .*'networks'\)"):
        stack = PredictiveStackingRegressor(random_state=0).fit(X, Y, exposure=EXPOSURE)
    assert set(stack.weights_) == {"count_linear", "count_boosting"}
    assert not hasattr(stack, "outliers_")


@pytest.mark.long
def test_large_exposures_arent_gross_errors_and_few_events_no_classes():
    """Warnings are errors."""
    exposure = np.where(np.arange(400) < 3, 1e4, 0.1)
    y = np.random.default_rng(0).poisson(0.5 * exposure)
    stack = PredictiveStackingRegressor(LINEAR, random_state=0).fit(X, y, exposure=exposure)
    assert stack.predict(X).mean() == pytest.approx(0.5, rel=0.1)
    y = np.minimum(y[3:], 1)
    stack.fit(X[3:], y, exposure=exposure[3:])
    # The prior of the coefficients shrinks them to nearly nothing.
    assert stack.predict(X).mean() == pytest.approx(y.sum() / exposure[3:].sum(), rel=0.2)


@pytest.mark.long
def test_members_of_the_user_take_exposures():
    members = [*LINEAR, ("network", LaplaceRegressor((), likelihood="negative_binomial"))]
    members[1][1].set_params(max_iter=200)
    stack = PredictiveStackingRegressor(members, random_state=0)
    stack.fit(X[:80], Y[:80], exposure=EXPOSURE[:80])
    # Both are linear models with dispersion.
    (first, _), (second, _) = stack.leave_one_out_log_density_.values()
    assert first == pytest.approx(second, abs=0.1)
    single = stack.estimators_["network"]
    np.testing.assert_allclose(
        single.predict(X), stack.set_params(count_linear="drop").fit(
            X[:80], Y[:80], exposure=EXPOSURE[:80]
        ).predict(X), rtol=1e-6,
    )  # fmt: skip


def test_fitted_members_predict_rates(stack):
    rates = sum(
        weight * stack.estimators_[name].predict(X) for name, weight in stack.weights_.items()
    )
    np.testing.assert_allclose(rates, stack.predict(X))


@pytest.mark.long
@pytest.mark.parametrize("cv", [None, 4, GroupKFold(3)])
def test_groups_and_folds(cv):
    groups = np.arange(400) // 8
    stack = PredictiveStackingRegressor(BOTH, cv=cv, random_state=0)
    stack.fit(X, Y, groups=groups, exposure=EXPOSURE)
    assert stack.score(X, Y, exposure=EXPOSURE) > 0.3


@pytest.mark.long
def test_routing_scorers_files_and_pickles(stack, tmp_path):
    expected = predictive(stack, X, exposure=EXPOSURE).log_prob(Y)
    save(stack, tmp_path / "model")
    for copy in (load(tmp_path / "model"), pickle.loads(pickle.dumps(stack))):
        np.testing.assert_array_equal(predictive(copy, X, exposure=EXPOSURE).log_prob(Y), expected)
    linear = PredictiveStackingRegressor(LINEAR, random_state=0)
    direct = linear.fit(StandardScaler().fit_transform(X), Y, exposure=EXPOSURE).predict(X)
    with config_context(enable_metadata_routing=True):
        linear.set_fit_request(exposure=True).set_score_request(exposure=True)
        pipeline = make_pipeline(StandardScaler(), linear).fit(X, Y, exposure=EXPOSURE)
        scorer = get_scorer("log_density").set_score_request(exposure=True)
        result = cross_validate(
            pipeline, X, Y, params={"exposure": EXPOSURE}, cv=2, scoring=scorer,
            error_score="raise",
        )  # fmt: skip
    np.testing.assert_allclose(pipeline[-1].predict(X), direct)
    assert result["test_score"].mean() == pytest.approx(linear.stack_log_density_[0], abs=0.2)


def test_refused():
    stack = PredictiveStackingRegressor(LINEAR)
    for y, message in (
        (Y + 0.5, r"takes counts, but y is \d+\.5 in row 0. Give whole numbers"),
        (Y - 1.0, "takes counts, but y is -1 in row"),
        (np.zeros(400), "needs at least one positive count"),
        (np.column_stack([Y, Y]), "takes one target, got 2: fit one stack per target"),
    ):
        with pytest.raises(ValueError, match=message):
            stack.fit(X, y, exposure=EXPOSURE)
    with pytest.raises(ValueError, match="exposure is 0 in row 0, but values must be positive"):
        stack.fit(X, Y, exposure=np.zeros(400))
    with pytest.raises(ValueError, match="noise_std for real targets or exposure for counts"):
        stack.fit(X, Y, noise_std=EXPOSURE, exposure=EXPOSURE)
    for other in ("trees", Ridge(), BayesianLinearRegressor()):
        with pytest.raises(ValueError, match="the members 'other' take no exposure"):
            PredictiveStackingRegressor([*LINEAR, ("other", other)]).fit(X, Y, exposure=EXPOSURE)
    with pytest.raises(TypeError, match="exposure multiplies the mean of Poisson"):
        predictive(
            PredictiveStackingRegressor([("line", "linear")]).fit(X, Y + X[:, 0]), X,
            exposure=EXPOSURE,
        ).mean()  # fmt: skip
    real = PredictiveStackingRegressor([("line", "linear")]).fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"score\(exposure=...\) multiplies the mean of counts"):
        real.score(X, Y, exposure=EXPOSURE)
