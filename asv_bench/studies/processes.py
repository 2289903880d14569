"""Seconds of fits in one process and in two, and whether they give the same bits.

    python asv_bench/studies/processes.py [--only NAME ...]

Wall-clock seconds on a machine with two free cores, at one thread a process. Processes of a first
fit with ``n_jobs=2`` take some three seconds to start ("cold"); later fits share them ("warm").
"""

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, make_classification, make_friedman1

import skbayes_sym as sk
from skbayes_sym.base.optimizers import GaussNewton


def numbers(n: int) -> Any:
    """Friedman's function of ten columns, with noise."""
    return make_friedman1(n, n_features=10, noise=1.0, random_state=0)


def labels(n: int) -> Any:
    """Three noisy classes of twenty columns."""
    return make_classification(
        n, 20, n_informative=10, n_classes=3, flip_y=0.1, random_state=0
    )  # fmt: skip


def digits(n: int) -> Any:
    """Handwritten digits."""
    return tuple(part[:n] for part in load_digits(return_X_y=True))


TEN = partial(sk.LaplaceRegressor, 20, optimizer=GaussNewton(10))
FITS: dict[str, tuple[Callable[..., Any], Callable[[int], Any], int]] = {
    "ten restarts, 3,000 rows": (TEN, numbers, 3000),
    "Laplace, 3,000 rows": (sk.LaplaceRegressor, numbers, 3000),
    "pool, 1,000 rows": (sk.BayesianMLPRegressor, numbers, 1000),
    "pool, 3,000 rows": (sk.BayesianMLPRegressor, numbers, 3000),
    "pool, 10,000 rows": (sk.BayesianMLPRegressor, numbers, 10_000),
    "stack, 3,000 rows": (sk.PredictiveStackingRegressor, numbers, 3000),
    "classes, 1,000 rows": (sk.BayesianMLPClassifier, labels, 1000),
    "digits, 1,400 rows": (sk.BayesianMLPClassifier, digits, 1400),
}


def main() -> None:
    """Print a line a fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(FITS), choices=list(FITS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"{'':26}{'one':>8}{'cold':>8}{'warm':>8}{'ratio':>8}")
    for name in asked.only:
        kind, rows, n = FITS[name]
        X, y = rows(n)
        seconds, means = [], []
        for n_jobs in (1, 2, 2):
            start = time.perf_counter()
            model = kind(random_state=0, n_jobs=n_jobs).fit(X, y)
            seconds.append(time.perf_counter() - start)
            means.append(getattr(model, "predict_proba", model.predict)(X[:100]))
        told = "".join(f"{s:8.1f}" for s in (*seconds, seconds[0] / seconds[2]))
        same = all(np.array_equal(means[0], mean) for mean in means)
        print(f"{name:26}{told}  {'the same bits' if same else 'NOT the same'}", flush=True)


if __name__ == "__main__":
    main()
