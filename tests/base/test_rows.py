"""Rows and tables as they are read: distinct ones, scales, words, missing values and constants."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import KFold, TimeSeriesSplit

from skbayes_sym import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    load,
    save,
)
from skbayes_sym.base.columns import Columns, as_table
from skbayes_sym.base.rows import (
    canonical_rows,
    column_range,
    column_scaling,
    split_observations,
)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    X = rng.integers(0, 3, size=(40, 2)).astype(float)
    return X, rng.integers(0, 2, size=(40, 1)).astype(float), rng.integers(1, 5, size=40) * 1.0


def parts(rows):
    """Inputs, targets, weights."""
    return rows.X, rows.y, rows.weight


@pytest.mark.parametrize("seed", range(5))
def test_order_and_repetition_dont_matter(table, seed):
    X, y, weight = table
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(40), weight.astype(int)))
    a, b = (
        canonical_rows(X, y, weight)[0],
        canonical_rows(X[order], y[order], np.ones(len(order)))[0],
    )
    assert all(np.array_equal(*pair) for pair in zip(parts(a), parts(b), strict=True))


def test_fractional_weights_dont_depend_on_the_order(table):
    X, y, _ = table
    weight = np.random.default_rng(1).random(40)
    order = np.random.default_rng(2).permutation(40)
    a, b = canonical_rows(X, y, weight)[0], canonical_rows(X[order], y[order], weight[order])[0]
    assert all(np.array_equal(*pair) for pair in zip(parts(a), parts(b), strict=True))


@st.composite
def tables(draw):
    """Few values, so that rows tie in their first columns or altogether; every sign of zero."""
    n, n_columns = draw(st.integers(1, 40)), draw(st.sampled_from([1, 2, 3, 40]))
    value = st.sampled_from([0.0, -0.0, 1.0, -1.0, 0.5, 2.0**100, 2.0**-140])
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    X = draw(arrays(dtype, (n, n_columns), elements=value))
    codes, numbers = st.integers(0, 2), st.sampled_from([0.0, -0.0, 2.0])
    y = draw(arrays(np.int64, n, elements=codes) | arrays(float, (n, 2), elements=numbers))
    weight = draw(arrays(float, n, elements=st.sampled_from([0.1, 0.2, 0.3, 1.0, 1e-9, 1e9])))
    return X, y, weight


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(tables())
def test_order_and_weights_are_those_of_unique(table):
    """Bit for bit, signs of zero included."""
    X, y, weight = table
    joined = np.column_stack([X.astype(np.float64), y.astype(np.float64)]) + 0.0
    _, first, origin = np.unique(joined, axis=0, return_index=True, return_inverse=True)
    origin, up = origin.ravel(), np.argsort(weight, kind="stable")
    merged = np.bincount(origin[up], weights=weight[up])
    expected = X[first] + 0.0, y[first], merged, origin
    rows, place = canonical_rows(*table)
    for mine, theirs in zip((*parts(rows), place), expected, strict=True):
        assert mine.dtype == theirs.dtype
        assert mine.tobytes() == theirs.tobytes()


def test_scaling_is_weighted():
    values = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    scaling = column_scaling(values, np.array([1.0, 2.0, 1.0]), enabled=True)
    repeated = values[[0, 1, 1, 2]]
    np.testing.assert_allclose(scaling.mean, repeated.mean(axis=0))
    np.testing.assert_allclose(scaling.scale, [repeated[:, 0].std(), 1.0])
    assert not scaling.apply(values)[:, 1].any()


def test_scaling_can_be_switched_off():
    scaling = column_scaling(np.array([[3.0], [9.0]]), np.ones(2), enabled=False)
    assert np.array_equal(scaling.apply(np.array([[3.0]])), [[3.0]])


@pytest.mark.parametrize("shape", [(1, 1), (3, 700), (512, 1), (1_500, 7), (2_000, 600)])
def test_ends_of_columns_are_the_smallest_and_the_largest(shape):
    """Whatever is left over when rows are laid side by side."""
    values = np.random.default_rng(0).normal(size=shape)
    for place in (0, -1):  # also where they are the first or the last
        values[place] *= 10.0
        found = column_range(values)
        np.testing.assert_array_equal(found, [values.min(axis=0), values.max(axis=0)])


FRAME = pd.DataFrame({
    "size": [1.0, np.nan, 3.0, 4.0, np.nan, 2.0],
    "colour": ["red", "blue", "red", None, "green", "red"],
    "old": [True, False, True, True, False, False],
    "nothing": "same",
    "sort": pd.Categorical(["b", "a", "b", "a", "b", "a"]),
})  # fmt: skip


def encoded(table, rows=None):
    columns = Columns.from_table(as_table(table))
    return columns, columns.encode(as_table(table if rows is None else rows))


def test_every_kind_of_column_becomes_what_it_should():
    columns, numbers = encoded(FRAME)
    size, colour, _, nothing, sort = columns.columns
    assert (size.median, size.has_indicator, size.one_hot_levels) == (2.5, True, ())
    assert colour.one_hot_levels == ("red", "blue", "green")
    assert sort.one_hot_levels == ("a", "b")
    assert nothing.one_hot_levels == ("same",)
    expected = np.column_stack([
        [1.0, 2.5, 3.0, 4.0, 2.5, 2.0], [0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
    ])  # fmt: skip
    np.testing.assert_array_equal(numbers, expected)


def test_a_level_never_seen_is_the_mean_of_those_known():
    new = FRAME.assign(colour="black", sort="c")
    _, numbers = encoded(FRAME, new)
    np.testing.assert_array_equal(numbers[:, 2:5], 1.0 / 3.0)
    np.testing.assert_array_equal(numbers[:, -1], 0.5)  # halfway between two


def test_many_words_have_their_place_in_the_alphabet():
    words = [f"w{i:03d}" for i in range(50)]
    _, numbers = encoded(pd.DataFrame({"code": words * 2, "x": np.arange(100.0)}))
    assert numbers.shape == (100, 30 + 1 + 1)
    np.testing.assert_allclose(numbers[:50, 30], np.arange(50) / 50)


def test_numbers_alone_are_left_alone():
    assert as_table(np.ones((3, 2))) is None
    assert as_table(FRAME[["old"]]) is None
    assert as_table([[1.0, 2.0], [3.0, 4.0]]) is None
    assert as_table([["a", 2.0], ["b", 4.0]]) is not None
    assert as_table(np.array([[1.0, np.nan]])) is not None


def test_rare_gaps_have_no_indicator():
    x = np.ones((200, 2))
    x[:, 1] = np.arange(200.0)
    x[0, 1] = np.nan
    columns, numbers = encoded(x)
    assert not columns.columns[1].has_indicator
    np.testing.assert_array_equal(numbers[0], [100.0])  # the constant is gone


def test_numbers_as_text_are_words_with_a_warning():
    numbers = np.r_[np.arange(40.0) / 8.0, np.nan]
    text = ["?" if np.isnan(v) else str(v) for v in numbers]
    with pytest.warns(UserWarning, match="column 'lag' of X holds numbers as text"):
        columns, _ = encoded(pd.DataFrame({"lag": text}))
    assert len(columns.columns[0].ordered_levels) == 41
    codes = pd.DataFrame({"lag": [f"{v:.0f}a" for v in 10.0 * numbers]})
    encoded(codes)  # without a warning: they are errors in the suite


def test_the_median_of_the_largest_numbers_is_one_of_them():
    middle, _ = encoded(pd.DataFrame({"x": [1.6e308, 1.6e308, np.nan]}))
    assert middle.columns[0].median == 1.6e308


def test_durations_are_refused_by_name():
    with pytest.raises(ValueError, match=r"column 'wait' of X holds durations\. Give"):
        as_table(FRAME.assign(wait=pd.Timedelta("1D")))


def test_objects_and_words_for_numbers_are_refused_by_name():
    with pytest.raises(TypeError, match="column 'size' of X holds a dict"):
        as_table(FRAME.assign(size=[{}] * 6))
    with pytest.raises(ValueError, match=r"numbers in column 'size', as it did in fit, .* 'big'"):
        encoded(FRAME, FRAME.assign(size="big"))
    with pytest.raises(ValueError, match="contains infinity, in column 'size'"):
        encoded(FRAME, FRAME.assign(size=np.inf))


STACK = PredictiveStackingRegressor([("a", "linear"), ("b", "trees")], random_state=0)
POOL = BayesianMLPRegressor((2,), n_modes=1, n_members=1, random_state=0)


@pytest.mark.parametrize("model", [STACK, POOL], ids=["stack", "pool"])
def test_a_frame_goes_in_as_it_is_and_into_a_file(model, tmp_path):
    rng = np.random.default_rng(0)
    frame = FRAME.iloc[rng.integers(6, size=60)].reset_index(drop=True)
    y = frame["size"].fillna(7.0) + (frame["colour"] == "red") + 0.1 * rng.standard_normal(60)
    model.fit(frame, y)
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.score(frame, y) > 0.9
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(frame[:9]), model.predict(frame[:9]))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"size": "length"}))


@pytest.mark.parametrize(
    "write",
    [
        lambda v: f"${1000 * v:,.2f}",
        lambda v: f"{v:.2f} %",
        lambda v: f"{v:.2f}".replace(".", ","),
        lambda v: f"{1e5 * v:,.0f}",
        lambda v: f"(€{v:.2f})",
        lambda v: f"{v:.2f} EUR",
    ],
)
def test_numbers_as_people_write_them_are_words_with_a_warning(write):
    text = [write(v) for v in np.arange(1.0, 41.0) * 1.37]
    pattern = r"column 'price' of X holds numbers as text such as '.*' and is read as words"
    with pytest.warns(UserWarning, match=pattern):
        encoded(pd.DataFrame({"price": text}))


@pytest.mark.parametrize(
    "write",
    [lambda k: f"10.0.{k}.1", lambda k: f"A{k}", lambda k: f"{k}-7", lambda k: f"{k}ABC"],
)
def test_addresses_and_names_are_no_numbers_as_text(write):
    encoded(pd.DataFrame({"code": [write(k) for k in range(40)]}))  # warnings are errors


def canonical(X, y, weight=None):
    """Rows and positions as estimators see them."""
    weight = np.ones(len(X)) if weight is None else weight
    return split_observations(*canonical_rows(X, y, weight))


@pytest.fixture
def survey():
    """Answers of 600 people by two columns of four and three values: twelve combinations."""
    rng = np.random.default_rng(7)
    X = np.column_stack([rng.integers(0, 4, 600), rng.integers(0, 3, 600)]).astype(float)
    return X, (rng.random(600) < 0.2 + 0.2 * X[:, 0]).astype(int)


def test_equal_rows_of_few_values_are_observations(survey):
    X, y = survey
    rows, position = canonical(X, y)
    distinct = canonical_rows(X, y, np.ones(600))[0]
    assert len(distinct.X) == 24
    assert len(rows.X) == np.minimum(distinct.weight, 20).sum()
    assert rows.weight.sum() == pytest.approx(600)
    np.testing.assert_array_equal(rows.X[position], X)
    np.testing.assert_array_equal(rows.y[position], y)
    # Every row has its share of a combination.
    for X_row, y_row, weight in zip(distinct.X, distinct.y, distinct.weight, strict=True):
        is_part = (X_row == rows.X).all(axis=1) & (rows.y == y_row)
        np.testing.assert_allclose(rows.weight[is_part], weight / min(weight, 20))
        assert set(np.flatnonzero(is_part)) == set(
            position[(X_row == X).all(axis=1) & (y == y_row)]
        )


def test_targets_that_the_inputs_determine_are_observations_too():
    X = np.repeat(np.arange(3.0), 50)[:, None]
    rows, _ = canonical(X, X[:, 0].astype(int))
    assert len(rows.X) == 60


def test_weights_are_numbers_of_observations_if_inputs_have_several_targets(survey):
    X, y = survey
    counts = canonical_rows(X, y, np.ones(600))[0]
    of_rows, _ = canonical(X, y)
    of_counts, position = canonical(*parts(counts))
    assert all(np.array_equal(*pair) for pair in zip(parts(of_rows), parts(of_counts), strict=True))
    assert len(np.unique(position)) == 24
    # Other weights aren't.
    of_fractions, _ = canonical(counts.X, counts.y, counts.weight / 2.5)
    assert len(of_fractions.X) == 24


@pytest.mark.parametrize("n_copies", [2, 9])
def test_equal_rows_with_a_continuous_column_are_copies(n_copies):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.standard_normal(50), rng.integers(0, 2, 50)])
    rows, _ = canonical(np.tile(X, (n_copies, 1)), np.tile(X[:, 1], n_copies))
    assert len(rows.X) == 50
    # Weights of such rows aren't numbers of observations either.
    rows, _ = canonical(X, X[:, 1], np.full(50, 1000.0))
    assert len(rows.X) == 50


@pytest.mark.parametrize("n_columns", [1, 2])
def test_stacks_learn_the_classes_of_few_combinations(survey, n_columns):
    """Probabilities and held-out scores are those of the combinations' own frequencies."""
    X, y = survey[0][:, :n_columns], survey[1]
    stack = PredictiveStackingClassifier(random_state=0).fit(X, y)
    combinations, code = np.unique(X, axis=0, return_inverse=True)
    frequency = np.bincount(code, weights=y) / np.bincount(code)
    tolerance = 0.08 if n_columns == 1 else 0.15
    assert abs(stack.predict_proba(combinations)[:, 1] - frequency).max() < tolerance
    p = np.where(y, frequency[code], 1.0 - frequency[code])
    score, _ = stack.stack_log_density_
    assert -0.05 < score - np.log(p).mean() < 0.01
    n_parts = np.minimum(np.unique(np.c_[X, y], axis=0, return_counts=True)[1], 20).sum()
    assert stack.summary_.startswith(f"600 rows ({n_parts} after merging equal ones) of")


def test_stacks_read_tables_of_frequencies(survey):
    X, y = survey
    counts = canonical_rows(X, y, np.ones(600))[0]
    by_rows = PredictiveStackingClassifier(random_state=0).fit(X, y)
    by_counts = PredictiveStackingClassifier(random_state=0)
    by_counts.fit(counts.X, counts.y, sample_weight=counts.weight)
    np.testing.assert_array_equal(by_rows.predict_proba(X), by_counts.predict_proba(X))
    assert by_rows.stack_log_density_ == by_counts.stack_log_density_
    # Other libraries' members and folds of the user get the original rows.
    own = PredictiveStackingClassifier([("forest", RandomForestClassifier(20, random_state=0))])
    own.set_params(cv=KFold(4, shuffle=True, random_state=0), random_state=0)
    own.fit(counts.X, counts.y, sample_weight=counts.weight)
    probabilities = own.estimators_["forest"].predict_proba(counts.X)[:, 1]
    frequency = [y[(row == X).all(axis=1)].mean() for row in counts.X]
    np.testing.assert_allclose(probabilities, frequency, atol=0.15)


@pytest.mark.long
def test_mixtures_of_networks_learn_the_classes_of_few_combinations(survey):
    X, y = survey
    combinations, code = np.unique(X, axis=0, return_inverse=True)
    frequency = np.bincount(code, weights=y) / np.bincount(code)
    mixture = BayesianMLPClassifier(random_state=0).fit(X, y)
    assert abs(mixture.predict_proba(combinations)[:, 1] - frequency).max() < 0.15


def test_folds_of_the_user_split_equal_rows_in_their_order(survey):
    """Each row stands for equal rows of a stretch of the table, so that forward folds score."""
    X, y = survey
    cheap = PredictiveStackingClassifier(
        [("l", "linear")], cv=TimeSeriesSplit(5), random_state=0
    ).fit(X, y)
    score, _ = cheap.stack_log_density_
    assert -0.7 < score < -0.55


def test_stacks_learn_ratings_of_few_combinations():
    rng = np.random.default_rng(3)
    X = rng.integers(0, 2, (500, 1)).astype(float)
    y = np.clip(np.round(2.5 + X[:, 0] + rng.normal(0.0, 1.0, 500)), 1, 5)
    stack = PredictiveStackingRegressor(random_state=0).fit(X, y)
    means = [y[X[:, 0] == level].mean() for level in (0.0, 1.0)]
    np.testing.assert_allclose(stack.predict([[0.0], [1.0]]), means, atol=0.1)
