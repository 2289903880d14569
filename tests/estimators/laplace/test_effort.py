"""Units and restarts by the number of rows."""

import pytest

from skbayes_sym.estimators.laplace.effort import (
    MOST_WORK,
    USUAL_WORK,
    affordable_modes,
    automatic_width,
    work,
)
from skbayes_sym.models import MLP, TANH


def test_width_follows_the_number_of_rows():
    assert automatic_width(1000, 5, 1) == 20
    assert automatic_width(1001, 5, 1) == 40
    assert automatic_width(10**6, 5, 1) == 20


@pytest.mark.parametrize("n_rows", [100, 3000, 30_000, 10**6])
def test_modes_take_seconds_or_are_left_out(n_rows):
    network = MLP(5, (20,), 1, TANH)
    n_modes = affordable_modes(10, n_rows, network)
    each = work(1, 100, n_rows, network.layout.n_params)
    if n_modes == 0:
        assert 3 * each > MOST_WORK
    else:
        assert 3 <= n_modes <= 10
        assert n_modes * each <= max(USUAL_WORK, 3 * each)
        assert n_modes == 10 or (n_modes + 1) * each > USUAL_WORK
    assert affordable_modes(2, 100, network) == 2
