"""Tables that people really have: objects in columns, units, structured arrays and odd labels."""

import datetime
import pickle
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPClassifier,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    save,
)

polars = pytest.importorskip("polars")

N = 40
RNG = np.random.default_rng(0)
A = RNG.normal(size=N)
Y = A + 0.1 * RNG.normal(size=N)
STACK = PredictiveStackingRegressor([("line", "linear")], random_state=0)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([datetime.time(k % 24, 30) for k in range(N)], "holds a time: .* Give the hour, such as"),
        ([[1, 2]] * N, "holds a list: .* Give each of its entries a column"),
        ([{"k": 1}] * N, "holds a dict: .* Give each of its entries a column"),
        ([(1, 2)] * N, "holds a tuple: .* Give each of its entries a column"),
    ],
)
def test_objects_are_refused_with_their_column_and_a_remedy(column, message):
    with pytest.raises(TypeError, match=f"column 'c' of X {message}"):
        STACK.fit(pd.DataFrame({"a": A, "c": column}), Y)


@pytest.mark.parametrize("column", [[{"x": 1}] * N, [[1, 2]] * N])
def test_structs_and_lists_of_polars_are_named(column):
    frame = polars.DataFrame({"a": A, "c": column})
    with pytest.raises(TypeError, match=r"column 'c' of X holds .* Give each"):
        STACK.fit(frame, Y)


@pytest.mark.parametrize("model", [STACK, BayesianLinearRegressor()])
def test_complex_numbers_are_named(model):
    X = pd.DataFrame({"a": A, "c": A + 1j, "d": A - 1j})
    with pytest.raises(
        ValueError, match="not supported: column 'c', 'd' of X holds complex numbers"
    ):
        model.fit(X, Y)
    with pytest.raises(ValueError, match="not supported: y holds complex numbers"):
        model.fit(X[["a"]], Y + 0j)


@pytest.mark.parametrize("model", [STACK, BayesianLinearRegressor()])
def test_series_and_structured_arrays_are_no_tables(model):
    X = pd.DataFrame({"a": A, "b": A})
    fitted = model.fit(X, Y)
    for refuse in (lambda rows: model.fit(rows, Y), fitted.predict):
        with pytest.raises(
            ValueError, match=r"got a Series: give X.to_frame\(\) if it is a column"
        ):
            refuse(X["a"])
        with pytest.raises(TypeError, match="its rows are structured, with the fields"):
            refuse(X.to_records(index=False))


def test_tables_without_rows_are_refused_at_prediction():
    X = pd.DataFrame({"a": A, "g": np.where(A > 0, "x", "y")})
    stack = STACK.fit(X, Y)
    with pytest.raises(ValueError, match=r"0 sample\(s\) .* X has no rows"):
        stack.predict(X[:0])


def test_numbers_with_units_are_warned_about():
    X = pd.DataFrame({"a": A, "c": [f"{value:.2f} kg" for value in A]})
    with pytest.warns(UserWarning, match="column 'c' of X holds numbers as text .*without units"):
        STACK.fit(X, Y)


def test_times_of_day_as_text_are_warned_about():
    X = pd.DataFrame({"a": A, "c": [f"{i % 24:02}:{i:02}" for i in range(N)]})
    with pytest.warns(UserWarning, match="column 'c' of X holds times of day as text .*dt.hour"):
        STACK.fit(X, Y)
    assert pd.to_datetime(X["c"], format="mixed").dt.hour.tolist() == [i % 24 for i in range(N)]


def test_durations_as_text_are_warned_about():
    hours = 24 + 7 * np.arange(N)
    printed = [str(datetime.timedelta(hours=int(h))) for h in hours]  # by Python
    for text in (pd.to_timedelta(hours, unit="h").astype(str), printed):
        X = pd.DataFrame({"a": A, "c": text})
        words = "column 'c' of X holds durations as text .*pandas.to_timedelta"
        with pytest.warns(UserWarning, match=words):
            STACK.fit(X, Y)
        words = r"'1 day.* Give numbers, .*pandas\.to_timedelta"
        with pytest.raises(ValueError, match=words):
            BayesianLinearRegressor().fit(X[["c"]], Y)
        days = pd.to_timedelta(X["c"]) / np.timedelta64(1, "D")
        np.testing.assert_allclose(days, hours / 24)


@pytest.mark.filterwarnings("error")
def test_complex_columns_are_refused_beside_words():
    X = pd.DataFrame({"a": A, "c": A + 1j, "d": ["x", "y"] * (N // 2)})
    with pytest.raises(ValueError, match=r"^Complex data .* 'c' of X holds complex"):
        STACK.fit(X, Y)


def test_unknown_levels_are_written_plainly():
    X = pd.DataFrame({"a": A, "g": pd.Categorical(np.where(A > 0, 1, 2))})
    stack = STACK.fit(X, Y)
    with pytest.warns(UserWarning, match="such as 3 "):
        stack.predict(X.assign(g=pd.Categorical([3] * N)))


@pytest.mark.parametrize("columns", [pd.MultiIndex.from_tuples([("x", "a"), ("x", "b")]), [5, 7]])
def test_columns_of_any_names_are_saved(columns, tmp_path):
    X = pd.DataFrame(np.column_stack([A, A**2]), columns=columns)
    stack = STACK.fit(X, Y)
    save(stack, tmp_path / "model")
    for copy in (load(tmp_path / "model"), pickle.loads(pickle.dumps(stack))):
        np.testing.assert_array_equal(copy.predict(X), stack.predict(X))


@pytest.mark.parametrize("dtype", ["boolean", "bool[pyarrow]"])
def test_nullable_booleans_are_labels(dtype):
    pytest.importorskip("pyarrow")
    X = A[:, None]
    stack = PredictiveStackingClassifier([("trees", "trees")], random_state=0)
    stack.fit(X, pd.Series(Y > 0, dtype=dtype))
    assert stack.classes_.dtype == bool
    assert stack.predict(X).dtype == bool


@pytest.mark.parametrize(
    "model", [PredictiveStackingClassifier([("trees", "trees")]), BayesianMLPClassifier()]
)
def test_periods_are_no_labels(model):
    y = pd.PeriodIndex(np.where(Y > 0, "2020-01", "2021-01"), freq="M")
    with pytest.raises(ValueError, match=r"got a Period in row 0. Convert all to text"):
        model.fit(A[:, None], y)


@pytest.mark.parametrize("model", [STACK, BayesianLinearRegressor()])
def test_repeated_names_and_tables_without_columns_are_refused(model):
    X = pd.DataFrame(np.column_stack([A, A]), columns=["a", "a"])
    with pytest.raises(ValueError, match="X has two columns named 'a': rename one, or drop it"):
        model.fit(X, Y)
    with pytest.raises(ValueError, match=r"0 feature\(s\) .*X has no columns"):
        model.fit(pd.DataFrame(index=range(N)), Y)


def test_missing_values_are_located_where_they_are_refused():
    X = pd.DataFrame({"a": A, "b": np.where(np.arange(N) == 7, np.nan, A)})
    message = "Input X contains NaN. The first is in row 7, column 'b'. Fill missing values"
    with pytest.raises(ValueError, match=message):
        BayesianLinearRegressor().fit(X, Y)


def test_a_memoryview_is_no_table():
    with pytest.raises(TypeError, match=r"got memoryview: give numpy.asarray\(X\)"):
        STACK.fit(memoryview(np.column_stack([A, A])), Y)


CONSTANT = pd.DataFrame(
    {"a": A, "k": 3.0, "b": True, "e": np.nan, "d": pd.Timestamp("2020-01-01"), "s": "x"}
)


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("k", 4.0, r"'k' \(3 in fit\)"),
        ("b", False, r"'b' \(True in fit\)"),
        ("e", 1.0, r"'e' \(0 or missing in fit\)"),
        ("d", pd.Timestamp("2021-01-01"), r"'d' \(2020-01-01 in fit\)"),
    ],
)
def test_columns_that_begin_to_vary_are_warned_about(column, value, words):
    """A model can't know their effect, and a file that is read again has the same values."""
    model = clone(STACK).fit(CONSTANT, Y)
    model.predict(CONSTANT)
    model.predict(pd.read_csv(StringIO(CONSTANT.to_csv(index=False))))
    with pytest.warns(UserWarning, match=f"X varies in columns .*unknown: {words}"):
        model.predict(CONSTANT.assign(**{column: value}))


@pytest.mark.parametrize("model", [STACK, BayesianLinearRegressor()])
def test_constants_of_arrays_are_compared_up_to_single_precision(model):
    X = np.column_stack([A, np.full(N, 0.1), np.zeros(N)])
    model = clone(model).fit(X, Y)
    model.predict(X.astype(np.float32))
    rare = X.copy()
    rare[0, 2] = 1.0  # a pixel at the margin
    model.predict(rare)
    rare[:10, 2] = 1.0
    with pytest.warns(UserWarning, match=r"X varies in columns .*unknown: '2' \(0 in fit\)\. Fit"):
        model.predict(rare)


@pytest.mark.parametrize("convert", [list, pd.Series.to_numpy])
def test_a_single_row_is_explained(convert):
    frame = pd.DataFrame({"a": A, "town": ["Rome", "Oslo"] * (N // 2)})
    model = clone(STACK).fit(frame, Y)
    with pytest.raises(ValueError, match=r"got 1D array .* Give \[row\] if it is a single row"):
        model.predict(convert(frame.iloc[0]))


def test_a_table_in_which_nothing_varied_warns_as_well():
    """All of its encoded columns are kept, so that these don't tell which varied."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"z": np.full(30, 2.0), "level": ["a"] * 30})
    model = PredictiveStackingRegressor([("line", "linear")], random_state=0)
    model.fit(table, rng.normal(size=30))
    model.predict(table)
    with pytest.warns(UserWarning, match=r"constant in fit.*'z' \(2 in fit\)"):
        model.predict(table.assign(z=rng.normal(size=30)))
