"""Deep ensembles whose prior's scales are given, and learned.

    SKBAYES_SYM_DATA=... python asv_bench/studies/compare_scales.py regression [--sets NAME ...]
                             [--splits 3] [--first 0] [--rows N] [--variants NAME ...]
                                                            classification

Every other setting is the estimators' default, but for ``tanh``: twenty units of it. Splits of
numbers are random 90/10 ones of seeds 2000, 2001, ...; ``--rows`` keeps so many of the training
rows. Those of classes are `compare_classifiers`' of seeds 2000, 2001, ...

For every set and variant, means over splits: the log density of a test row in nats (of y as given),
the error (root mean square over the training targets' standard deviation, or the share of wrong
classes), CPU seconds of one thread for fit and predictions; and the difference of the log density
to the first variant on the same rows with the standard error of its mean.
"""

import argparse
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import compare_classifiers
import numpy as np
import torch
from paper_tables import load_dataset
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from timing import cpu_seconds, mean_and_error

from skbayes_sym import DeepEnsembleClassifier, DeepEnsembleRegressor
from skbayes_sym.models import ARD, LayerScales

FIRST_SEED = 2000
SETS = {
    "regression": ("diabetes", "yacht", "energy", "concrete"),
    "classification": ("iris", "wine", "breast_cancer", "moons", "overlap3"),
}
TANH = {"hidden_layer_sizes": (20,), "activation": "tanh"}
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "regression": {
        "1.0": {},
        "learn": {"prior": "learn"},
        "ARD()": {"prior": ARD()},
        "tanh 1.0": TANH,
        "tanh learn": {**TANH, "prior": "learn"},
        "tanh ARD()": {**TANH, "prior": ARD()},
    },
    "classification": {
        "1.0": {},
        "learn": {"prior": "learn"},
        "(0.5, 1)": {"prior": LayerScales(0.5, 1.0)},
        "(8, 1)": {"prior": LayerScales(8.0, 1.0)},
        "(8, 64)": {"prior": LayerScales(8.0, 64.0)},
        "ARD(8, 64)": {"prior": ARD(8.0, 64.0)},
    },
}

Splits = list[tuple[np.ndarray, np.ndarray]]


class Figures(NamedTuple):
    """Of one fit."""

    log_density: float
    error: float
    seconds: float


def numbers(name: str, seeds: range, n_rows: int | None) -> tuple[Any, Any, Splits]:
    """A set, and its training and test rows."""
    data = load_diabetes() if name == "diabetes" else load_dataset(name)
    rows = np.arange(len(data.target))
    pairs = [train_test_split(rows, test_size=0.1, random_state=seed) for seed in seeds]
    return data.data, data.target, [(train[:n_rows], test) for train, test in pairs]


def classes(name: str, seeds: range, n_rows: int | None) -> tuple[Any, Any, Splits]:
    X, y = compare_classifiers.load(name)
    pairs = [compare_classifiers.split(name, y, seed) for seed in seeds]
    return X, y, [(train[:n_rows], test) for train, test in pairs]


def score_member(model: Any, X: Any, y: Any, train: Any, test: Any) -> Figures:
    """Fit to the training rows, and ask about the others."""

    def work() -> tuple[float, float]:
        fitted = clone(model).fit(X[train], y[train])
        density = float(np.mean(fitted.log_predictive_density(X[test], y[test])))
        predicted = fitted.predict(X[test])
        if hasattr(fitted, "classes_"):
            return density, float(np.mean(predicted != y[test]))
        return density, float(np.sqrt(np.mean((predicted - y[test]) ** 2)) / y[train].std())

    (log_density, error), seconds = cpu_seconds(work)
    return Figures(log_density, error, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=SETS)
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--rows", type=int, default=None)
    args = parser.parse_args()
    kind = DeepEnsembleRegressor if args.part == "regression" else DeepEnsembleClassifier
    load: Callable[..., tuple[Any, Any, Splits]] = numbers if args.part == "regression" else classes
    seeds = range(FIRST_SEED + args.first, FIRST_SEED + args.first + args.splits)
    print(f"{'':28s}{'log density':>13s}{'error':>8s}{'CPU s':>8s}{'gain':>10s}")
    for name in args.sets or SETS[args.part]:
        X, y, pairs = load(name, seeds, args.rows)
        base: list[Figures] = []
        for variant in args.variants or SETTINGS[args.part]:
            model = kind(random_state=0, **SETTINGS[args.part][variant])
            found = [score_member(model, X, y, *pair) for pair in pairs]
            base = base or found
            gain, spread = mean_and_error(
                [a.log_density - b.log_density for a, b in zip(found, base, strict=True)]
            )
            density, error, seconds = np.mean(found, axis=0)
            print(
                f"{name:15s}{variant:13s}{density:13.3f}{error:8.3f}{seconds:8.1f}"
                f"{gain:+10.3f} ({spread:.3f})", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
