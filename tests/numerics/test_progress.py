"""Parts of a task report fractions of the whole, whoever computes them."""

import threading
from functools import partial

import joblib
import pytest

from skbayes_sym.numerics.progress import (
    current_receiver,
    part_of_progress,
    report_progress,
    reporting_to,
)
from skbayes_sym.numerics.runtime import run_parallel


@pytest.fixture
def reports():
    """Fractions that the surrounding task receives."""
    received = []

    def receive(fraction):
        received.append(fraction)
        return fraction > 0.8

    with reporting_to(receive):
        yield received


def test_without_a_receiver_reports_have_no_effect():
    with part_of_progress(0.0, 0.5):
        assert current_receiver() is None
        assert report_progress(1, 2) is False


def test_parts_are_mapped_to_the_whole_and_end_even_if_they_are_silent(reports):
    with part_of_progress(0.2, 0.6):
        report_progress(1, 4)
        with part_of_progress(0.5, 1.0):
            report_progress(1, 2)
            report_progress(7, 2)  # more than expected is all
    with part_of_progress(0.6, 1.0):
        pass
    assert reports == pytest.approx([0.3, 0.5, 0.6, 0.6, 0.6, 1.0])


def test_reports_say_whether_to_stop(reports):
    assert not report_progress(1, 2)
    with part_of_progress(0.5, 1.0):
        assert report_progress(9, 10)


def test_a_part_that_fails_is_not_reported_as_done(reports):
    with pytest.raises(ZeroDivisionError), part_of_progress(0.2, 0.6):
        report_progress(0, 0)
    assert reports == []
    report_progress(1, 2)
    assert reports == [0.5]


def halves(seen):
    report_progress(1, 2)
    seen.append(threading.get_ident())


def test_serial_jobs_are_equal_parts_and_the_consumer_reports_to_the_whole(reports):
    for _ in run_parallel([partial(halves, []), partial(halves, [])], None):
        report_progress(0, 1)
    assert reports == [0.25, 0.5, 0.0, 0.75, 1.0, 0.0]


def test_jobs_of_threads_are_reported_when_they_return(reports):
    seen = []
    with joblib.parallel_config("threading"):
        list(run_parallel([partial(halves, seen), partial(halves, seen)], 2))
    assert threading.get_ident() not in seen
    assert reports == [0.5, 1.0]
