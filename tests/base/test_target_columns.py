"""The target that was left in X, and columns that arrive in another order."""

import numpy as np
import pandas as pd
import pytest

from skbayes_sym import BayesianLinearRegressor, PredictiveStackingClassifier
from skbayes_sym.base.target_columns import find_target_columns

rng = np.random.default_rng(0)
TABLE = pd.DataFrame({
    "size": rng.normal(size=30),
    "colour": rng.choice(["red", "blue"], 30),
    "rooms": rng.integers(1, 5, 30),
    "price": rng.normal(size=30),
})  # fmt: skip


@pytest.mark.parametrize(
    ("y", "names"),
    [
        (TABLE["price"], ["price"]),
        (TABLE["rooms"].astype(float).tolist(), ["rooms"]),
        (TABLE["colour"].to_numpy(dtype=str), ["colour"]),
        (TABLE[["size", "price"]], ["size", "price"]),
        (TABLE["price"] + 1e-9, []),
        (TABLE["colour"] + "!", []),
    ],
)
def test_a_column_that_equals_a_target_is_found(y, names):
    assert find_target_columns(TABLE, y) == names
    assert find_target_columns(TABLE.drop(columns=names), y) == []


def test_few_rows_constant_targets_and_arrays_are_not_compared():
    assert find_target_columns(TABLE[:19], TABLE["price"][:19]) == []
    assert find_target_columns(TABLE.assign(price=1.0), np.ones(30)) == []
    assert find_target_columns(TABLE[["size", "price"]].to_numpy(), TABLE["price"]) == []


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, pd.NaT])
@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_columns_with_missing_values_are_no_target(missing, dtype):
    colour = TABLE["colour"].where(TABLE.index > 0, missing).astype(dtype)
    assert find_target_columns(TABLE.assign(colour=colour), TABLE["colour"]) == []
    assert find_target_columns(TABLE.assign(price=np.nan), TABLE["price"]) == []


def test_a_fit_names_the_column():
    X = TABLE[["size", "price"]]
    with pytest.warns(UserWarning, match="Regressor: column 'price' of X equals y") as caught:
        BayesianLinearRegressor(noise_std=0.1).fit(X, TABLE["price"])
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_a_stack_warns_once():
    stack = PredictiveStackingClassifier([("linear", "linear")], random_state=0)
    with pytest.warns(UserWarning, match="Classifier: column 'colour' of X equals y") as caught:
        stack.fit(TABLE[["size", "colour"]], TABLE["colour"])
    assert len(caught) == 1


def test_columns_in_another_order_are_refused_with_the_remedy():
    model = BayesianLinearRegressor().fit(TABLE[["size", "rooms"]], TABLE["price"])
    for rows in (TABLE[["rooms", "size"]], TABLE[["size", "rooms", "price"]]):
        with pytest.raises(ValueError, match="feature names should match") as caught:
            model.predict(rows)
        remedy = str(caught.value).splitlines()[-1].split(" has ")[0]
        selected = eval(remedy, {"X": rows, "model": model})
        assert list(selected.columns) == ["size", "rooms"]
    with pytest.raises(ValueError, match=r"now missing:\n- rooms\n$"):
        model.predict(TABLE[["size"]])
