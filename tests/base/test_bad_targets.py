"""Inputs and targets that can't be fitted: messages name the row, the column and the remedy."""

import numpy as np
import pandas as pd
import pytest

import skbayes_sym as sk

X = np.random.default_rng(0).normal(size=(20, 2))
FRAME = pd.DataFrame(X, columns=["age", "dose"])
NUMBERS = X[:, 0] + 1.0
LABELS = np.where(X[:, 0] > 0.0, "high", "low").astype(object)

REGRESSORS = [sk.PredictiveStackingRegressor, sk.LaplaceRegressor, sk.BayesianLinearRegressor]
CLASSIFIERS = [sk.PredictiveStackingClassifier, sk.LaplaceClassifier]


def change(values, row, value):
    changed = values.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize("make", REGRESSORS)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_targets_that_are_missing_or_infinite_are_located(make, value):
    with pytest.raises(ValueError, match=r"The first is in row 3\. Leave rows without a target"):
        make().fit(X, change(NUMBERS, 3, value))


@pytest.mark.parametrize("make", REGRESSORS)
@pytest.mark.parametrize(
    "y",
    [
        pd.Series(pd.date_range("2020", periods=20)),
        pd.Series(pd.date_range("2020", periods=20, tz="UTC")),
        pd.Series(pd.to_timedelta(np.arange(20), unit="h")),
    ],
)
def test_dates_are_no_targets(make, y):
    with pytest.raises(ValueError, match=r"y holds dates or durations.*Give days since a date"):
        make().fit(X, y)


@pytest.mark.parametrize("make", CLASSIFIERS)
@pytest.mark.parametrize("value", [None, np.nan, pd.NA])
def test_missing_labels_are_located(make, value):
    with pytest.raises(ValueError, match=r"missing labels\. The first is in row 5\. Leave"):
        make().fit(X, change(LABELS, 5, value))


@pytest.mark.parametrize("make", CLASSIFIERS)
def test_labels_are_of_one_kind(make):
    with pytest.raises(ValueError, match=r"text such as 'h.*' and others such as 1\. Convert all"):
        make().fit(X, np.where(X[:, 0] > 0.0, LABELS, 1))


@pytest.mark.parametrize("make", [*REGRESSORS, *CLASSIFIERS])
def test_infinite_inputs_are_located(make):
    y = LABELS if make in CLASSIFIERS else NUMBERS
    with pytest.raises(ValueError, match=r"infinity.* The first is in row 7, column 'dose'"):
        make().fit(FRAME.assign(dose=change(X[:, 1], 7, np.inf)), y)


@pytest.mark.parametrize("make", [*REGRESSORS, *CLASSIFIERS])
def test_a_series_is_no_table(make):
    y = LABELS if make in CLASSIFIERS else NUMBERS
    with pytest.raises(ValueError, match=r"2-dimensional|2D array"):
        make().fit(FRAME["age"], y)
