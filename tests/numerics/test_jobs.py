"""Jobs that nobody waits for."""

import time
import warnings

import joblib
import pytest

from skbayes_sym.numerics.jobs import closing


def waited(i):
    time.sleep(0.1)
    return i


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_leaving_early_is_silent(n_jobs):
    # Jobs that take a moment: joblib's own threads stumble where results and the end cross.
    jobs = (joblib.delayed(waited)(i) for i in range(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(joblib.Parallel(n_jobs=n_jobs, return_as="generator")(jobs)) as results:
            assert next(results) == 0
    with pytest.raises(StopIteration):
        next(results)
