"""The split that isn't one."""

import numpy as np
from sklearn.datasets import load_diabetes

from skbayes_sym.model_selection import (
    NoSplit,
)

X, y = (a[:80] for a in load_diabetes(return_X_y=True))


def test_no_split_is_all_rows_twice():
    ((train, test),) = NoSplit().split(X, y)
    assert np.array_equal(train, np.arange(80))
    assert np.array_equal(test, np.arange(80))
    assert train is not test
    assert NoSplit().get_n_splits() == NoSplit().get_n_splits(X, y) == 1
    assert repr(NoSplit()) == "NoSplit()"
