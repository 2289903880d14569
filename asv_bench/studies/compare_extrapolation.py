"""Coverage and interval scores beyond the last training date, with and without the continuation.

    python asv_bench/studies/compare_extrapolation.py [number of seeds]

Simulated sales have a weekly pattern, noise of standard deviation 3 and a level of one of four
kinds. Of 400 days the first 300 are for training. The stack has all default members but networks.
With SKBAYES_SYM_DATA, monthly US unemployment is added, with 60 months after the first 300, 400 and
500.
"""

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from skbayes_sym import PredictiveStackingRegressor

MEMBERS = [(name, name) for name in ("linear", "trees", "boosting", "gaussian_process")]
Z = 1.645


def simulate(kind, seed, n=400):
    """Days and sales."""
    rng = np.random.default_rng(seed)
    t = np.arange(n)
    year = 15.0 * np.sin(2.0 * np.pi * (t + rng.uniform(0.0, 365.0)) / 365.0)
    level = {
        "trend and year": 0.1 * t + year,
        "random walk": np.cumsum(rng.normal(size=n)),
        "trend": rng.normal(0.0, 0.1) * t,
        "year": year,
    }[kind]
    week = rng.normal(0.0, 5.0, size=7)[t % 7]
    days = pd.date_range("2021-01-04", periods=n).strftime("%Y-%m-%d")
    return pd.DataFrame({"date": days}), 100.0 + level + week + rng.normal(0.0, 3.0, size=n)


def evaluate(interval, y):
    """Coverage and interval score of 90 % intervals."""
    low, high = interval.T
    score = high - low + 20.0 * (np.maximum(low - y, 0.0) + np.maximum(y - high, 0.0))
    return ((low < y) & (y < high)).mean(), score.mean()


def naive_interval(y, n, period):
    """The last value of the same phase, with the width of a random walk of cycles."""
    horizon = np.arange(1, n + 1)
    centre = y[-period:][(horizon - 1) % period]
    width = Z * np.std(y[period:] - y[:-period]) * np.sqrt(np.ceil(horizon / period))
    return np.column_stack([centre - width, centre + width])


def compare(X, y, n_train, n_test, period):
    """Results of the stack, of the same without a continuation, and of the naive forecast."""
    test = slice(n_train, n_train + n_test)
    model = PredictiveStackingRegressor(MEMBERS, random_state=0).fit(X[:n_train], y[:n_train])
    continued = evaluate(model.predict_interval(X[test]), y[test])
    model.training_range_in_ = None
    plain = evaluate(model.predict_interval(X[test]), y[test])
    return continued, plain, evaluate(naive_interval(y[:n_train], n_test, period), y[test])


def main():
    """Print a table."""
    warnings.simplefilter("ignore", UserWarning)
    n_seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    results = {}
    for kind in ("trend and year", "random walk", "trend", "year"):
        tables = [simulate(kind, seed) for seed in range(200, 200 + n_seeds)]
        results[kind] = [compare(X, y, 300, 100, 7) for X, y in tables]
    data = os.environ.get("SKBAYES_SYM_DATA")
    if data:
        table = pd.read_csv(Path(data) / "tables/people/dates_economics.csv.gz")
        y = table["target"].to_numpy(dtype=float)
        results["unemployment"] = [compare(table[["date"]], y, n, 60, 1) for n in (300, 400, 500)]
    print(f"{'':16}{'continued':>18}{'not continued':>18}{'naive':>18}")
    for name, result in results.items():
        means = np.mean(result, axis=0)
        print(f"{name:16}" + "".join(f"{c:10.2f}{score:8.3g}" for c, score in means), flush=True)


if __name__ == "__main__":
    main()
