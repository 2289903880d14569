"""Functions and files of the package that one default fit of each estimator enters.

    python tests/one_fit.py [ESTIMATOR ...]

Every estimator is fitted with its default parameters to 100 rows with four columns.
"""

import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import is_classifier

import skbayes_sym
from skbayes_sym.base.public_names import ESTIMATOR_MODULES

ROOT = str(Path(skbayes_sym.__file__).parent)
N_ROWS = 100


class Entered(NamedTuple):
    """Code of the package that a call entered."""

    functions: set[tuple[str, str]]  # file and qualified name
    deepest: int  # largest number of the package's frames on the stack

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


def entered(estimator: Any, X: Any, y: Any) -> Entered:
    """Fit twice, and record the functions that the second fit enters.

    The first fit imports modules and fills caches.
    """
    functions = set()
    depth = 0
    deepest = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(ROOT):
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)
            if event == "call" and not code.co_qualname.endswith(">"):  # lambda, comprehension
                functions.add((code.co_filename.removeprefix(ROOT), code.co_qualname))

    estimator.fit(X, y)
    sys.setprofile(profile)
    try:
        estimator.fit(X, y)
    finally:
        sys.setprofile(None)
    return Entered(functions, deepest)


def default_fit(name: str) -> Entered:
    """Fit an estimator with its default parameters."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_ROWS, 4))
    signal = np.sin(X[:, 0]) + 0.5 * X[:, 1]
    y: Any = signal + 0.3 * rng.normal(size=N_ROWS)
    estimator = getattr(skbayes_sym, name)()
    estimator.set_params(random_state=0)
    if is_classifier(estimator):
        y = np.where(y > 0.0, "high", "low")
    elif name == "SymVIMatrixFactorization":
        X, y = np.where(rng.random((20, 15)) < 0.7, rng.normal(size=(20, 15)), np.nan), None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return entered(estimator, X, y)


def main() -> None:
    names = [name for names in ESTIMATOR_MODULES.values() for name in names]
    print("estimator                      functions  files  deepest")
    for name in sys.argv[1:] or sorted(names):
        found = default_fit(name)
        print(f"{name:31}{len(found.functions):9}{len(found.files):7}{found.deepest:9}", flush=True)


if __name__ == "__main__":
    main()
