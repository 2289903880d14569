"""Any call gives finite numbers, an error in words, or a warning in words (see fuzz.py)."""

import pytest
from fuzz import findings


def test_a_few_calls():
    assert findings(50) == []


@pytest.mark.long
def test_a_thousand_calls():
    assert findings(1_000) == []


@pytest.mark.slow
def test_ten_thousand_calls():
    assert findings(10_000, seed=1) == []
