"""How a fit is stopped and what it logs."""

import time

import numpy as np
import pytest

from skbayes_sym import SymmetrizedVIRegressor
from skbayes_sym.base.messages import format_digits
from skbayes_sym.base.progress import fit_deadline

X = np.linspace(-1.0, 1.0, 12)[:, None]
Y = np.sin(3.0 * X[:, 0])


@pytest.mark.parametrize(
    ("value", "n_digits", "text"),
    [(10.4, 1, "10"), (-1234.5, 3, "-1230"), (0.000241, 2, "0.00024"), (0.03, 1, "0.03")],
)
def test_numbers_of_summaries_have_no_exponent(value, n_digits, text):
    assert format_digits(value, n_digits) == text


def test_a_fit_stops_after_the_block_in_which_its_deadline_passes():
    short = SymmetrizedVIRegressor((2,), max_iter=100, tol=None, random_state=0)
    with fit_deadline(time.monotonic()):
        with fit_deadline(time.monotonic() + 3600.0):  # the earlier deadline stays in force
            assert short.fit(X, Y).n_iter_ == 1
        assert short.stop_reason_ == "callback"
    assert short.fit(X, Y).n_iter_ == 100
