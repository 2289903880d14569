"""Numbers that stand for missing values, and dates that are written as numbers."""

import warnings

import numpy as np
import pandas as pd
import pytest

from skbayes_sym import BayesianLinearRegressor, PredictiveStackingRegressor
from skbayes_sym.base.coded_numbers import find_date_format, find_missing_code

AGES = np.random.default_rng(0).integers(18, 80, 40).astype(float)
DAYS = pd.date_range("2023-11-20", periods=40, freq="3D")


def with_code(code, n_rows=3):
    values = AGES.copy()
    values[:n_rows] = code
    return values


@pytest.mark.parametrize("code", [-999.0, -99.0, 999.0, 99999.0, -9999.0])
def test_a_repeated_number_of_nines_far_from_all_others_is_a_code(code):
    found = find_missing_code(with_code(code))
    assert found == (code, 3)
    values = with_code(code)
    values[5] = np.nan
    assert find_missing_code(values) == (code, 3)


@pytest.mark.parametrize(
    "values",
    [
        AGES,
        with_code(-999.0, n_rows=1),
        with_code(-998.0),
        with_code(99.0),  # 19 above the others, which are 61 apart
        np.repeat([0.0, 1.0, 9.0], 5),  # two other values
        np.full(9, np.nan),
        np.full(9, 99.0),
        np.array([-1.7e308, 0.0, 1.7e308, 9.0, 9.0]),
        np.empty(0),
    ],
)
def test_other_numbers_are_no_codes(values):
    assert find_missing_code(values) is None


def test_a_code_is_as_far_from_the_others_as_they_are_apart():
    assert find_missing_code(np.array([0.0, 1.0, 4.4, 9.0, 9.0])) == (9.0, 2)
    assert find_missing_code(np.array([0.0, 1.0, 4.6, 9.0, 9.0])) is None


def test_dates_as_numbers_are_found():
    days = DAYS.strftime("%Y%m%d").astype(float).to_numpy(copy=True)
    assert find_date_format(days) == "%Y%m%d"
    days[3] = np.nan
    assert find_date_format(days) == "%Y%m%d"
    months = pd.date_range("2022-01-01", periods=18, freq="MS").strftime("%Y%m").astype(float)
    assert find_date_format(months.to_numpy()) == "%Y%m"


@pytest.mark.parametrize(
    "values",
    [
        np.arange(20240101.0, 20240131.0),  # one year
        np.arange(202001.0, 202041.0),  # order numbers
        np.append(DAYS.strftime("%Y%m%d").astype(float), 20241301.0),  # no month
        np.append(DAYS.strftime("%Y%m%d").astype(float), 20241232.0),  # no day
        np.append(DAYS.strftime("%Y%m%d").astype(float), 18991231.0),
        np.append(DAYS.strftime("%Y%m%d").astype(float), 21000101.0),
        np.append(DAYS.strftime("%Y%m%d").astype(float), 202401.0),  # two formats
        np.append(DAYS.strftime("%Y%m%d").astype(float), 20240101.5),
        np.append(DAYS.strftime("%Y%m%d").astype(float), np.inf),
        DAYS[:9].strftime("%Y%m%d").astype(float).to_numpy(),  # few
        DAYS.year.astype(float).to_numpy(),
        AGES,
    ],
)
def test_other_numbers_are_no_dates(values):
    assert find_date_format(values) is None


@pytest.mark.parametrize("dtype", [float, np.int64, "Int64", "float32", object])
def test_a_fit_names_column_code_and_remedy(dtype):
    X = pd.DataFrame({"income": AGES, "age": pd.Series(with_code(-999.0)).astype(dtype)})
    words = r"Regressor: column 'age' of X holds -999 in 3 rows.*replace\(-999, numpy.nan\)"
    with pytest.warns(UserWarning, match=words) as caught:
        BayesianLinearRegressor(noise_std=1.0).fit(X, AGES + 0.1)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_stack_warns_once_and_its_remedies_silence_it():
    days = DAYS.strftime("%Y%m%d").astype(int)
    X = pd.DataFrame({"age": with_code(-999.0), "since": days, "town": ["Rome", "Oslo"] * 20})
    y = np.sin(AGES)
    stack = PredictiveStackingRegressor([("linear", "linear")], random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        stack.fit(X, y)
    messages = [str(w.message) for w in caught]
    assert sum("holds -999 in 3 rows" in m for m in messages) == 1
    assert sum("'since' of X holds dates as numbers, such as 20231120" in m for m in messages) == 1
    X["age"] = X["age"].replace(-999, np.nan)
    X["since"] = pd.to_datetime(X["since"], format="%Y%m%d")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stack.fit(X, y)
