"""Linear models beside scikit-learn's: CPU seconds of a fit, paired and in random order.

    python asv_bench/compare_linear.py [--rounds 7] [--sizes 1000x10 100000x10] [--classes]

One thread. `BayesianLinearRegressor` beside `BayesianRidge`, which has the same posterior; two
classes beside `LogisticRegressionCV`, which learns the strength of its penalty as ours does. The
ratio is the median over rounds of paired ratios, with their range; a target that is missed is said.
"""

import argparse
import time
import warnings
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from threadpoolctl import threadpool_limits

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor

SIZES = ((1_000, 10), (10_000, 10), (100_000, 10), (10_000, 100), (1_000, 1_000), (500, 2_000))
CLASS_SIZES = ((1_000, 10), (100_000, 10))
MOST, AHEAD_FROM = 2.0, 100  # times BayesianRidge; features from which ours is ahead
MOST_CLASSES = 4.0  # times LogisticRegressionCV


def make_data(n: int, k: int, *, classes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal features of which ten matter, and noise of the size of the signal."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, k))
    f = X[:, :10].sum(axis=1) / 10**0.5
    return X, (f + rng.logistic(size=n) > 0 if classes else f + rng.normal(size=n))


def cpu_seconds(model: Any, X: np.ndarray, y: np.ndarray) -> float:
    """Of one fit."""
    start = time.process_time()
    model.fit(X, y)
    return time.process_time() - start


def compare(n: int, k: int, n_rounds: int, *, classes: bool) -> None:
    """One line of the table."""
    X, y = make_data(n, k, classes=classes)
    models: list[Any] = [BayesianLinearRegressor(), BayesianRidge()]
    if classes:
        models = [BayesianLinearClassifier(), LogisticRegressionCV(use_legacy_attributes=False)]
    rng, seconds = np.random.default_rng(1), np.empty((n_rounds, 2))
    for model in models:
        model.fit(X, y)
    for i in range(n_rounds):
        for j in rng.permutation(2):
            seconds[i, j] = cpu_seconds(models[j], X, y)
    ratio, (ours, theirs) = seconds[:, 0] / seconds[:, 1], np.median(seconds, axis=0)
    target = MOST_CLASSES if classes else 1.0 if k >= AHEAD_FROM else MOST
    print(
        f"{type(models[0]).__name__:26}{n:>8} x {k:<6}{ours:9.4f} s{theirs:9.4f} s"
        f"{np.median(ratio):8.2f} [{ratio.min():.2f}, {ratio.max():.2f}]  target {target:g}"
        + ("" if np.median(ratio) <= target else "  MISSED"),
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sizes", nargs="+", help="rows x features, such as 1000x10")
    parser.add_argument("--classes", action="store_true")
    options = parser.parse_args()
    sizes = CLASS_SIZES if options.classes else SIZES
    if options.sizes:
        sizes = tuple(tuple(map(int, size.split("x"))) for size in options.sizes)
    print(f"{'':26}{'rows x features':>17}{'ours':>11}{'theirs':>11}   ratio")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for n, k in sizes:
            compare(n, k, options.rounds, classes=options.classes)


if __name__ == "__main__":
    main()
