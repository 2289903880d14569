"""Any call gives finite numbers, an error in words, or a warning in words (see fuzz.py)."""

import pytest
from fuzz import findings


def test_three_hundred_calls():
    assert findings(300) == []


@pytest.mark.slow
@pytest.mark.parametrize(("n_calls", "seed"), [(1_000, 0), (10_000, 1)])
def test_thousands_of_calls(n_calls, seed):
    assert findings(n_calls, seed=seed) == []
