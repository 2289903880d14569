"""Masked arrays: masked entries of X are missing, those of y and weights are refused."""

import numpy as np
import pytest
from sklearn.base import is_regressor
from sklearn.exceptions import FitFailedWarning
from sklearn.linear_model import LinearRegression

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    LaplaceRegressor,
    PredictiveStackingRegressor,
    predictive,
)

N = 30
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=N)
MASK = np.zeros((N, 2), dtype=bool)
MASK[:3, 0] = True
SPOILED = np.where(MASK, 1e6, X)
TABLES = [
    PredictiveStackingRegressor([("l", "linear")], random_state=0),
    BayesianMLPRegressor((), n_modes=1, n_members=1, random_state=0),
]


@pytest.mark.parametrize("model", TABLES, ids=["stack", "pool"])
def test_masked_entries_are_missing(model):
    gaps = np.where(MASK, np.nan, X)
    expected = model.fit(gaps, Y).predict(gaps)
    masked = np.ma.array(SPOILED, mask=MASK)
    for rows in (masked, list(masked), masked.astype(object)):
        model.fit(rows, Y)
        np.testing.assert_array_equal(model.predict(rows), expected)
    model.fit(X, Y)
    np.testing.assert_array_equal(model.predict(masked), model.predict(gaps))
    np.testing.assert_array_equal(model.predict(np.ma.array(X)), model.predict(X))


def test_masked_entries_are_refused_where_missing_ones_are():
    masked = np.ma.array(SPOILED, mask=MASK)
    for model in (BayesianLinearRegressor(), LaplaceRegressor((), random_state=0)):
        with pytest.raises(ValueError, match="NaN"):
            model.fit(masked, Y)
        model.fit(np.ma.array(X), Y)
        with pytest.raises(ValueError, match="NaN"):
            model.predict(masked)


def test_members_of_others_dont_see_what_is_masked():
    masked = np.ma.array(SPOILED, mask=MASK)
    stack = PredictiveStackingRegressor([("l", "linear"), ("o", LinearRegression())])
    with pytest.warns(FitFailedWarning, match="NaN"):  # left out, since it takes no missing values
        stack.fit(masked, Y)
    assert list(stack.weights_) == ["l"]


@pytest.mark.parametrize("model", [*TABLES, BayesianLinearRegressor(), BayesianLinearClassifier()],
                         ids=lambda model: type(model).__name__)  # fmt: skip
def test_masked_targets_and_weights_are_refused(model):
    y = (RNG.permutation(N) % 2) * 1.0
    if is_regressor(model):
        y = y + 1.0
    masked = np.ma.array(y, mask=MASK[:, 0])
    for wrong in (masked, list(masked)):
        with pytest.raises(ValueError, match="y has 3 masked entries, the first in row 0"):
            model.fit(X, wrong)
    with pytest.raises(ValueError, match="sample_weight has 3 masked entries"):
        model.fit(X, y, masked)
    model.fit(X, np.ma.array(y))
    with pytest.raises(ValueError, match="y has 3 masked"):
        model.score(X, masked)
    with pytest.raises(ValueError, match="y has 3 masked"):
        model.log_predictive_density(X, masked)
    with pytest.raises(ValueError, match="masked"):
        predictive(model, X).log_prob(masked)
