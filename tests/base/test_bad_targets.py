"""Inputs and targets that can't be fitted: messages name the row, the column and the remedy."""

import re
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch

import skbayes_sym as sk
from skbayes_sym import predictive
from skbayes_sym.model_selection import compare_models

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


@pytest.mark.parametrize("make", REGRESSORS)
@pytest.mark.parametrize("value", [None, pd.NA, pd.NaT, "", "NA", "nan"])
def test_missing_targets_are_located_among_objects_and_texts(make, value):
    numbers = NUMBERS.astype(str) if isinstance(value, str) else NUMBERS
    y = change(numbers.astype(object), 3, value)
    for targets in (y, y.tolist(), pd.Series(y)):
        with pytest.raises(ValueError, match=r"y contains NaN\. The first is in row 3\. Leave"):
            make().fit(X, targets)


@pytest.mark.parametrize("value", ["1,5", "$3", "1.200,5", "5 kg", "-"])
def test_texts_among_numbers_are_no_labels(value):
    y = change(NUMBERS.astype(str).astype(object), 4, value)
    with pytest.raises(ValueError, match=rf"the text '{re.escape(value)}' in row 4.*to_numeric"):
        sk.BayesianLinearRegressor().fit(X, y)


def test_formatted_numbers_are_no_labels():
    y = [f"{value:.2f}".replace(".", ",") for value in NUMBERS]
    with pytest.raises(ValueError, match="Decimals need a point"):
        sk.PredictiveStackingRegressor().fit(X, y)


@pytest.mark.parametrize("make", [sk.BayesianLinearRegressor, sk.BayesianLinearClassifier])
@pytest.mark.parametrize(
    ("y", "remedy"),
    [
        (dict(enumerate(NUMBERS)), r"list\(y.values\(\)\)"),
        (set(NUMBERS), "a set has no order"),
        (iter(NUMBERS), r"give list\(y\)"),
        ("price", r"such as frame\['price'\]"),
        (1.0, "one value for each row"),
        (np.zeros(20, dtype=[("p", float), ("q", float)]), "one of its fields, 'p', 'q'"),
    ],
)
def test_what_is_no_column_of_targets_is_named(make, y, remedy):
    with pytest.raises(TypeError, match=f"y must hold one target for each row .*{remedy}"):
        make().fit(X, y)


def test_intervals_and_numbers_beyond_floats_are_no_targets():
    with pytest.raises(ValueError, match=r"got a Interval in row 0\. Use BayesianLinearClassifier"):
        sk.BayesianLinearRegressor().fit(X, pd.cut(NUMBERS, 3))
    with pytest.raises(ValueError, match=r"range of float64, got an int of .* in row 2"):
        sk.BayesianLinearRegressor().fit(X, change(NUMBERS.astype(object), 2, 10**400))


def test_missing_dates_are_dates():
    with pytest.raises(ValueError, match="y holds dates or durations such as NaT"):
        sk.BayesianLinearRegressor().fit(X, np.full(20, "NaT", dtype="datetime64[ns]"))


def test_missing_labels_and_groups_in_lists_of_texts_are_located():
    labels = [*LABELS[:4], np.nan, *LABELS[5:]]
    stack = sk.PredictiveStackingClassifier([("line", "linear")])
    with pytest.raises(ValueError, match=r"missing labels\. The first is in row 4\."):
        stack.fit(X, labels)
    with pytest.raises(ValueError, match=r"groups has 1 missing values, the first in row 4"):
        stack.fit(X, LABELS, groups=labels)
    stack.fit(X, LABELS)
    for evaluate in (stack.score, stack.log_predictive_density):
        with pytest.raises(ValueError, match=r"missing labels\. The first is in row 4\."):
            evaluate(X, labels)
        with pytest.raises(TypeError, match="y must hold labels of the same type as in fit"):
            evaluate(X, CODES)


def test_observed_targets_are_read_like_those_of_fit():
    model = sk.BayesianLinearRegressor().fit(X, np.cos(9.0 * X[:, 0]))
    for evaluate in (model.score, model.log_predictive_density):
        same = NUMBERS.astype(str).tolist()
        np.testing.assert_allclose(evaluate(X, same), evaluate(X, NUMBERS), rtol=1e-12)
        with pytest.raises(ValueError, match=r"y contains NaN\. The first is in row 3"):
            evaluate(X, change(NUMBERS.astype(object), 3, None))
        with pytest.raises(ValueError, match=r"y contains infinity.* The first is in row 3"):
            evaluate(X, change(NUMBERS, 3, np.inf))
        with pytest.raises(ValueError, match="y holds labels such as"):
            evaluate(X, LABELS)


CODES = (X[:, 0] > 0.0).astype(int)


@pytest.mark.parametrize(
    ("y", "kind"),
    [
        (pd.Series(CODES, dtype="Int64"), "i"),
        (CODES.astype(object), "i"),
        (np.array([Decimal(int(code)) for code in CODES]), "f"),
        ((CODES == 1).astype(object), "b"),
        (pd.Series(CODES == 1, dtype="boolean"), "b"),
    ],
)
def test_labels_that_are_numbers_keep_their_kind(y, kind):
    model = sk.BayesianLinearClassifier().fit(X, y)
    assert model.classes_.dtype.kind == kind
    assert model.classes_.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("other", "remedy"), [("high ", "strip"), ("High", "lower"), (" HIGH", r"strip\(\).str.lower")]
)
@pytest.mark.parametrize("dtype", [object, str])
def test_labels_that_differ_by_spaces_or_case_are_warned_about(other, remedy, dtype):
    y = np.where(np.arange(20) < 3, other, LABELS).astype(dtype)
    with pytest.warns(UserWarning, match=rf"the labels '.*' and 'high ?'.*as by y.str.{remedy}"):
        sk.PredictiveStackingClassifier([("line", "linear")]).fit(X, y)


def test_a_fold_of_one_class_is_explained():
    stack = sk.PredictiveStackingClassifier([("line", "linear")])
    with pytest.raises(ValueError, match="rows of every fold lack the classes"):
        stack.fit(X, LABELS, groups=LABELS)


def test_columns_and_targets_out_of_range_are_named():
    model = sk.BayesianLinearRegressor()
    with pytest.raises(ValueError, match="column 'dose' of X spreads by less than"):
        model.fit(FRAME.assign(dose=1e-310 * X[:, 1]), NUMBERS)
    with pytest.raises(ValueError, match=r"^y spreads by less than"):
        model.fit(FRAME, 1e-310 * NUMBERS)
    coded = FRAME.assign(dose=1e-310 * X[:, 1])
    coded.insert(0, "town", ["a", "b", "c", "d"] * 5)
    with pytest.raises(ValueError, match="column 'dose' of X spreads by less than"):
        sk.PredictiveStackingRegressor([("line", "linear")]).fit(coded, NUMBERS)


def test_dates_are_no_weights():
    with pytest.raises(ValueError, match="sample_weight must hold numbers, got datetime64"):
        sk.BayesianLinearRegressor().fit(X, NUMBERS, pd.date_range("2020", periods=20).to_numpy())


def test_rows_of_other_lengths_and_types_are_explained():
    model = sk.BayesianLinearRegressor()
    with pytest.raises(ValueError, match="X must have rows of one length"):
        model.fit([[1.0, 2.0], [3.0]], [1.0, 2.0])
    with pytest.raises(TypeError, match="X must be of a type that NumPy has"):
        model.fit(torch.ones(20, 2, dtype=torch.bfloat16), NUMBERS)


@pytest.mark.parametrize("argument", ["y", "sample_weight", "groups"])
def test_columns_in_another_order_of_rows_are_warned_about(argument):
    arguments = {"y": pd.Series(NUMBERS), argument: pd.Series(np.abs(NUMBERS))[::-1]}
    stack = sk.PredictiveStackingRegressor([("line", "linear")])
    with pytest.warns(UserWarning, match=rf"X and {argument} have .* Give {argument}.loc\[X.index"):
        stack.fit(FRAME, **arguments)


def test_compared_models_get_complete_targets():
    """A missing target fails once, with its row, and not in every fold."""
    lines = {"line": sk.BayesianLinearRegressor()}
    with pytest.raises(ValueError, match=r"y contains NaN\. The first is in row 3\."):
        compare_models(lines, X, change(NUMBERS.astype(object), 3, None))
    with pytest.raises(ValueError, match=r"y contains infinity.* The first is in row 3\."):
        compare_models(lines, X, change(NUMBERS, 3, np.inf))
    with pytest.raises(ValueError, match=r"missing labels\. The first is in row 4\."):
        compare_models({"line": sk.BayesianLinearClassifier()}, X, change(LABELS, 4, np.nan))


def test_a_column_of_a_frame_holds_one_target_for_each_row():
    model = sk.BayesianLinearRegressor().fit(X, np.cos(9.0 * X[:, 0]))
    distribution = predictive(model, X)
    frame = pd.DataFrame({"y": NUMBERS})
    for evaluate in (distribution.log_prob, distribution.cdf, distribution.crps):
        np.testing.assert_array_equal(evaluate(frame), evaluate(NUMBERS))
    assert distribution.cdf(NUMBERS[:, None]).shape == (20, 20)
    two_dimensional = predictive(model.fit(X, np.cos(9.0 * X[:, :1])), X)
    assert two_dimensional.cdf(frame).shape == (20, 1)
