"""Linear models beside scikit-learn's: CPU seconds of a fit, paired and in random order.

    python asv_bench/studies/compare_linear.py [--rounds 7] [--sizes 1000x10 100000x10] [--classes]

One thread. `BayesianLinearRegressor` beside `BayesianRidge`, which has the same posterior; two
classes beside `LogisticRegressionCV`, which learns the strength of its penalty as ours does. The
ratio is the median over rounds of paired ratios, with their range; a target that is missed is said.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks

import numpy as np
from benchmarks.linear import make_data
from ratios import Ratio, Round, Source
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from threadpoolctl import threadpool_limits
from timing import cpu_times, median_ratio

from skbayes_sym import BayesianLinearClassifier, BayesianLinearRegressor

Size = tuple[int, int]
SIZES = ((1_000, 10), (10_000, 10), (100_000, 10), (10_000, 100), (1_000, 1_000), (500, 2_000))
CLASS_SIZES = ((1_000, 10), (100_000, 10))
MOST, AHEAD_FROM = 2.0, 100  # times BayesianRidge; features from which ours is ahead
MOST_CLASSES = 4.0  # times LogisticRegressionCV
_PAIRS = 5  # of a round


def arms(size: Size, *, classes: bool) -> dict[str, Callable[[], Any]]:
    """Ours and theirs, once fitted."""
    X, y = make_data(size, classes=classes)
    models: list[Any] = [BayesianLinearRegressor(), BayesianRidge()]
    if classes:
        models = [BayesianLinearClassifier(), LogisticRegressionCV(use_legacy_attributes=False)]
    for model in models:
        model.fit(X, y)
    ours, theirs = models
    return {"ours": lambda: ours.fit(X, y), "theirs": lambda: theirs.fit(X, y)}


def target(size: Size, *, classes: bool) -> float:
    """Times theirs that a fit may take."""
    return MOST_CLASSES if classes else 1.0 if size[1] >= AHEAD_FROM else MOST


def compare(size: Size, n_rounds: int, *, classes: bool) -> None:
    """One line of the table."""
    seconds = cpu_times(arms(size, classes=classes), n_rounds)
    ratio, most = seconds["ours"] / seconds["theirs"], target(size, classes=classes)
    ours, theirs = (np.median(s) for s in seconds.values())
    print(
        f"{size[0]:>8} x {size[1]:<6}{ours:9.4f} s{theirs:9.4f} s"
        f"{np.median(ratio):8.2f} [{ratio.min():.2f}, {ratio.max():.2f}]  target {most:g}"
        + ("" if np.median(ratio) <= most else "  MISSED"),
        flush=True,
    )


def _source(name: str, title: str, sizes: tuple[Size, ...], *, classes: bool) -> Source:
    names = {size: f"{size[0]:,} x {size[1]:,}" for size in sizes}

    def prepare() -> Round:
        ready = {size: arms(size, classes=classes) for size in sizes}

        def measure(seed: int) -> dict[str, float]:
            times = {size: cpu_times(blocks, _PAIRS, seed) for size, blocks in ready.items()}
            return {names[size]: median_ratio(t, "ours", "theirs") for size, t in times.items()}

        return measure

    ratios = tuple(Ratio(names[size], target(size, classes=classes)) for size in sizes)
    return Source(name, title, ratios, prepare)


SOURCES = (
    _source("linear", "BayesianLinearRegressor / BayesianRidge", SIZES, classes=False),
    _source(
        "classes", "BayesianLinearClassifier / LogisticRegressionCV", CLASS_SIZES, classes=True
    ),
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
    print(f"{'rows x features':17}{'ours':>11}{'theirs':>11}   ratio")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        for size in sizes:
            compare(size, options.rounds, classes=options.classes)


if __name__ == "__main__":
    main()
