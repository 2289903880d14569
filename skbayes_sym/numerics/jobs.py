"""Results of joblib's jobs, of which not all may be wanted."""

import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def closing(results: Generator[Any, None, None]) -> Iterator[Generator[Any, None, None]]:
    """Cancel the jobs that are left, without joblib's advice to have asked for less."""
    try:
        yield results
    finally:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"\d+ tasks (which|have)", UserWarning)
            results.close()
