"""Functions and files of the package that one small fit of each estimator enters.

python tests/one_fit.py [ESTIMATOR ...]
"""

import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fits import FITS
from sklearn.base import clone

import skbayes_sym

ROOT = str(Path(skbayes_sym.__file__).parent)


class Entered(NamedTuple):
    """What a call entered of the package."""

    functions: set[tuple[str, str]]  # file and qualified name
    deepest: int  # frames of the package on the stack

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}


def entered(estimator: Any, X: Any, y: Any) -> Entered:
    """Fit a clone and record every function of the package that begins."""
    functions, depth, deepest = set(), 0, 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth, deepest
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(ROOT):
            depth += 1 if event == "call" else -1
            deepest = max(deepest, depth)
            if event == "call" and not code.co_qualname.endswith(">"):  # lambda, comprehension
                functions.add((code.co_filename.removeprefix(ROOT), code.co_qualname))

    clone(estimator).fit(X, y)  # imports, and what is made once
    sys.setprofile(profile)
    try:
        clone(estimator).fit(X, y)
    finally:
        sys.setprofile(None)
    return Entered(functions, deepest)


def main() -> None:
    cases = {type(case.estimator).__name__: case for case in reversed(FITS.values())}
    print("estimator                  functions  files  deepest")
    for name in sys.argv[1:] or sorted(cases):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = entered(*cases[name])
        print(f"{name:27}{len(found.functions):9}{len(found.files):7}{found.deepest:9}")


if __name__ == "__main__":
    main()
