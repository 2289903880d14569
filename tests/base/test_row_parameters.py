"""Known errors and exposures: values that are refused, and models that don't take them."""

from inspect import signature

import numpy as np
import pytest
from sklearn.linear_model import BayesianRidge, LogisticRegression

import skbayes_sym
from skbayes_sym import BayesianLinearRegressor, predictive
from skbayes_sym.base.public_names import ESTIMATOR_MODULES

X = np.random.default_rng(0).normal(size=(12, 2))
Y = X[:, 0] + 0.1 * np.arange(12)


SUPPORTED = {
    "noise_std": ("BayesianLinearRegressor", "LaplaceRegressor", "PredictiveStackingRegressor"),
    "exposure": ("BayesianLinearRegressor", "LaplaceRegressor", "PredictiveStackingRegressor"),
}
ORDER = [name for names in ESTIMATOR_MODULES.values() for name in names]


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("argument", ["noise_std", "exposure"])
def test_other_estimators_name_those_that_take_row_parameters(name, argument):
    estimator = getattr(skbayes_sym, name)()
    if argument in signature(estimator.fit).parameters:
        assert name in SUPPORTED[argument]
        return
    assert name not in SUPPORTED[argument]
    message = f"{argument} is for {', '.join(sorted(SUPPORTED[argument], key=ORDER.index))}"
    with pytest.raises(TypeError, match=message):
        estimator.fit(X, Y > 0, **{argument: np.ones(12)})


@pytest.mark.parametrize(
    ("noise_std", "message"),
    [
        (np.ones(11), r"one value for each of the 12 rows of X, of shape \(12,\), got shape \(11,"),
        (0.1, r"got shape \(\)"),
        (np.ones((12, 2)), r"got shape \(12, 2\)"),
        ([0.1] * 11 + [-1.0], "noise_std is -1 in row 11, but values must be at least 0"),
        ([np.nan] + [0.1] * 11, "noise_std is nan in row 0, but values must be finite"),
        ([np.inf] + [0.1] * 11, "noise_std is inf in row 0"),
        (np.ma.masked_less(np.arange(12.0), 1.0), "noise_std"),
        (["a"] * 12, "noise_std must hold numbers"),
        (np.full(12, 1e200), "noise_std is 1e\\+200 in row 0"),
    ],
)
def test_invalid_known_errors_are_refused(noise_std, message):
    with pytest.raises(ValueError, match=message):
        BayesianLinearRegressor().fit(X, Y, noise_std=noise_std)


def test_arguments_of_other_estimators_are_named_with_them():
    message = "groups is for .*PredictiveStackingRegressor"
    with pytest.raises(TypeError, match=message):
        BayesianLinearRegressor().fit(X, Y, groups=np.arange(12))
    with pytest.raises(TypeError, match=r"it takes X, y, sample_weight, noise_std, exposure\.$"):
        BayesianLinearRegressor().fit(X, Y, weights=np.ones(12))


@pytest.mark.parametrize("name", ["BayesianLinearRegressor", "DeepEnsembleRegressor"])
def test_exposures_are_refused_by_scores_of_other_targets_than_counts(name):
    estimator = getattr(skbayes_sym, name)()
    if name == "DeepEnsembleRegressor":
        estimator.set_params(n_members=1, max_iter=1, random_state=0)
    estimator.fit(X, Y)
    with pytest.raises(ValueError, match=r"score\(exposure=...\) multiplies the mean of counts"):
        estimator.score(X, Y, exposure=np.ones(12))


def test_invalid_known_errors_are_refused_at_prediction():
    reg = BayesianLinearRegressor().fit(X, Y)
    with pytest.raises(ValueError, match=r"each of the 3 rows.*got shape \(12,\)"):
        predictive(reg, X[:3], noise_std=np.ones(12))
    with pytest.raises(ValueError, match="noise_std is -1 in row 0"):
        predictive(reg, X[:3], noise_std=[-1.0, 0.0, 0.0])


def test_columns_and_lists_are_known_errors():
    errors = np.linspace(0.1, 1.0, 12)
    reg = BayesianLinearRegressor().fit(X, Y, noise_std=errors)
    for given in (errors.tolist(), errors[:, None]):
        other = BayesianLinearRegressor().fit(X, Y, noise_std=given)
        assert other.log_evidence_ == reg.log_evidence_


def test_known_errors_at_prediction_of_other_models():
    """Predictive distributions of any mixture of normals take known errors."""
    errors = np.linspace(0.1, 1.0, 12)
    ridge = BayesianRidge().fit(X, Y)
    std = ridge.predict(X, return_std=True)[1]
    measured = predictive(ridge, X, noise_std=errors)
    np.testing.assert_allclose(measured.std(), np.hypot(std, errors))
    with pytest.raises(TypeError, match="classes have no errors of known size"):
        predictive(LogisticRegression().fit(X, Y > 0), X, noise_std=errors)
    counts = BayesianLinearRegressor("poisson").fit(X, np.arange(12))
    with pytest.raises(TypeError, match="mixtures of normal distributions, which TargetMixture"):
        predictive(counts, X, noise_std=errors)
