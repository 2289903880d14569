"""Jobs that nobody waits for."""

import warnings

import joblib
import pytest

from skbayes_sym.numerics.jobs import closing


# Under load a thread of joblib's own may look for a job that has just been cancelled.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.processes
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_leaving_early_is_silent(n_jobs):
    jobs = (joblib.delayed(abs)(-i) for i in range(20))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with closing(joblib.Parallel(n_jobs=n_jobs, return_as="generator")(jobs)) as results:
            assert next(results) == 0
    with pytest.raises(StopIteration):
        next(results)
