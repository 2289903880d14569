"""Tables as they are read: what comes out of words, missing values and constants."""

import numpy as np
import pandas as pd
import pytest

from skbayes_sym import BayesianMLPRegressor, PredictiveStackingRegressor, load, save
from skbayes_sym.estimators._fit.columns import Columns, table_of

FRAME = pd.DataFrame({
    "size": [1.0, np.nan, 3.0, 4.0, np.nan, 2.0],
    "colour": ["red", "blue", "red", None, "green", "red"],
    "old": [True, False, True, True, False, False],
    "nothing": "same",
    "sort": pd.Categorical(["b", "a", "b", "a", "b", "a"]),
})  # fmt: skip


def encoded(table, rows=None):
    columns = Columns.learned(table_of(table))
    return columns, columns.encoded(table_of(table if rows is None else rows))


def test_every_kind_of_column_becomes_what_it_should():
    columns, numbers = encoded(FRAME)
    size, colour, _, nothing, sort = columns.columns
    assert (size.middle, size.tells_missing, size.words) == (2.5, True, ())
    assert colour.words == ("red", "blue", "green")
    assert sort.words == ("a", "b")
    assert nothing.words == ("same",)
    expected = np.column_stack([
        [1.0, 2.5, 3.0, 4.0, 2.5, 2.0], [0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0], [0, 0, 0, 1, 0, 0],
        [1, 0, 1, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
    ])  # fmt: skip
    np.testing.assert_array_equal(numbers, expected)


def test_a_word_never_seen_is_none_of_those_known():
    new = FRAME.assign(colour="black", sort="c")
    _, numbers = encoded(FRAME, new)
    np.testing.assert_array_equal(numbers[:, 2:5], 0.0)
    np.testing.assert_array_equal(numbers[:, -1], 0.5)  # halfway between two


def test_many_words_have_their_place_in_the_alphabet():
    words = [f"w{i:03d}" for i in range(50)]
    _, numbers = encoded(pd.DataFrame({"code": words * 2, "x": np.arange(100.0)}))
    assert numbers.shape == (100, 30 + 1 + 1)
    np.testing.assert_allclose(numbers[:50, 30], np.arange(50) / 50)


def test_numbers_alone_are_left_alone():
    assert table_of(np.ones((3, 2))) is None
    assert table_of(FRAME[["old"]]) is None
    assert table_of([[1.0, 2.0], [3.0, 4.0]]) is None
    assert table_of([["a", 2.0], ["b", 4.0]]) is not None
    assert table_of(np.array([[1.0, np.nan]])) is not None


def test_rare_gaps_have_no_indicator():
    x = np.ones((200, 2))
    x[:, 1] = np.arange(200.0)
    x[0, 1] = np.nan
    columns, numbers = encoded(x)
    assert not columns.columns[1].tells_missing
    np.testing.assert_array_equal(numbers[0], [100.0])  # the constant is gone


@pytest.mark.parametrize("dates", [
    pd.Timestamp("2020-02-20"), pd.Timedelta("1D"), pd.Timestamp("2020-02-20").date(),
])  # fmt: skip
def test_dates_are_refused_by_name(dates):
    with pytest.raises(ValueError, match=r"such as dates \(in 'day'\). Give numbers: days"):
        table_of(FRAME.assign(day=dates))


def test_objects_and_words_for_numbers_are_refused_by_name():
    with pytest.raises(TypeError, match="column 'size' of X holds a dict"):
        table_of(FRAME.assign(size=[{}] * 6))
    with pytest.raises(ValueError, match=r"numbers in column 'size', as it did in fit, .* 'big'"):
        encoded(FRAME, FRAME.assign(size="big"))
    with pytest.raises(ValueError, match="contains infinity, in column 'size'"):
        encoded(FRAME, FRAME.assign(size=np.inf))


STACK = PredictiveStackingRegressor([("a", "linear"), ("b", "forest")], random_state=0)
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
