"""CPU time of a default stack's predictions in units of a fit of boosting, by member.

    python asv_bench/studies/prediction_costs.py [--rows 1000 10000] [--store FILE]

A unit is the CPU time of ``HistGradientBoostingRegressor().fit`` on 1,000 x 8 rows in the same run.
Predictions are for 10,000 rows, and for one row in milliseconds. The first line of a size has the
weights of the fit, the second one equal weights, and each further line a single member. ``--store``
keeps fitted stacks, so that a second run repeats predictions only.
"""

import argparse
import pickle
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor

import skbayes_sym as sk


def cpu_seconds(work: Callable[[], Any], n_runs: int) -> float:
    """Shortest CPU time of several runs."""
    seconds = []
    for _ in range(n_runs):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def make_data(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Friedman's first function of 8 columns, with unit noise."""
    return make_friedman1(n_rows, n_features=8, noise=1.0, random_state=seed)


def print_costs(name: str, stack: Any, X: np.ndarray, y: np.ndarray, unit: float) -> None:
    """Print one line of the table."""
    row = X[:1]
    costs = [
        cpu_seconds(lambda: stack.predict(X), 2) / unit,
        cpu_seconds(lambda: stack.predict(X, return_std=True), 2) / unit,
        cpu_seconds(lambda: stack.predict_interval(X), 2) / unit,
        1e3 * cpu_seconds(lambda: stack.predict(row), 20),
        1e3 * cpu_seconds(lambda: stack.predict_interval(row), 20),
    ]
    density = stack.log_predictive_density(X, y).mean()
    print(f"{name:28s}" + "".join(f"{cost:9.2f}" for cost in costs) + f"{density:9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--store", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    X, y = make_data(10_000, 1)
    small = make_data(1_000, 0)
    unit = cpu_seconds(lambda: HistGradientBoostingRegressor().fit(*small), 5)
    titles = ("mean", "std", "interval", "row, ms", "interval", "density")
    print(f"a unit is {unit:.3f} s\n{'':28s}" + "".join(f"{title:>9s}" for title in titles))
    stored = {}
    if arguments.store and arguments.store.exists():
        stored = pickle.loads(arguments.store.read_bytes())
    for n_rows in arguments.rows:
        if n_rows not in stored:
            stack = sk.PredictiveStackingRegressor(random_state=0).fit(*make_data(n_rows, 0))
            stored[n_rows] = pickle.dumps(stack)
            if arguments.store:
                arguments.store.write_bytes(pickle.dumps(stored))
        stack = pickle.loads(stored[n_rows])
        weights = dict(stack.weights_)
        print(f"{n_rows:,} rows, pickle of {len(stored[n_rows]) / 1e6:.1f} MB, weights "
              + " ".join(f"{name} {weight:.3f}" for name, weight in weights.items()))  # fmt: skip
        print_costs("default", stack, X, y, unit)
        stack.weights_ = dict.fromkeys(weights, 1.0 / len(weights))
        print_costs("equal weights", stack, X, y, unit)
        for name in weights:
            stack.weights_ = {other: float(other == name) for other in weights}
            print_costs(name, stack, X, y, unit)


if __name__ == "__main__":
    main()
