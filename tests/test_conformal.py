"""MAPIE's conformal wrappers take our estimators, and a quantile of theirs is a regressor."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import binom
from sklearn.datasets import load_diabetes, load_iris
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor, predictive
from skbayes_sym.model_selection import QuantilePredictor

pytest.importorskip("mapie")
from mapie.classification import SplitConformalClassifier
from mapie.regression import CrossConformalRegressor, SplitConformalRegressor

X, Y = load_diabetes(return_X_y=True)
TRAIN, HELD, TEST = np.split(np.random.default_rng(0).permutation(len(Y)), [200, 320])
MODEL = make_pipeline(StandardScaler(), BayesianLinearRegressor())


def inside(intervals):
    """How many of the test rows; and the range that nine in ten would have by chance, 1 in 1000."""
    low, high = intervals[:, :, 0].T
    count = int(np.sum((low <= Y[TEST]) & (Y[TEST] <= high)))
    return count, binom.ppf([5e-4, 1 - 5e-4], len(TEST), 0.9)


def test_split_and_cross_conformal_regression():
    split = SplitConformalRegressor(MODEL, confidence_level=0.9, prefit=False)
    split.fit(X[TRAIN], Y[TRAIN]).conformalize(X[HELD], Y[HELD])
    cross = CrossConformalRegressor(MODEL, confidence_level=0.9, cv=5)
    seen = np.concatenate([TRAIN, HELD])
    for wrapper in (split, cross.fit_conformalize(X[seen], Y[seen])):
        count, (least, most) = inside(wrapper.predict_interval(X[TEST])[1])
        assert least <= count <= most


@pytest.mark.long
def test_conformal_sets_of_classes():
    X, y = load_iris(return_X_y=True)
    train, held, test = np.split(np.random.default_rng(0).permutation(150), [60, 110])
    model = BayesianLinearClassifier(random_state=0)
    wrapper = SplitConformalClassifier(model, confidence_level=0.9, prefit=False)
    wrapper.fit(X[train], y[train]).conformalize(X[held], y[held])
    sets = wrapper.predict_set(X[test])[1][:, :, 0]
    assert sets[np.arange(40), y[test]].sum() >= binom.ppf(5e-4, 40, 0.9)
    assert sets.sum(axis=1).max() <= 2  # of three classes


def test_a_quantile_as_a_regressor():
    model = MODEL.fit(X[TRAIN], Y[TRAIN])
    upper = QuantilePredictor(model, 0.95)
    assert_array_equal(upper.predict(X[TEST]), predictive(model, X[TEST]).quantile(0.95))
    assert upper.fit(X[HELD], Y[HELD]).estimator is model
    for level in (0.0, 1.5):
        with pytest.raises(ValueError, match="must be a number strictly between 0 and 1"):
            QuantilePredictor(model, level).predict(X)
