"""Compare symmetric estimators with their rivals on few rows of known functions.

    python asv_bench/studies/where_symmetry_pays.py [--seeds 1000 1001] [--rows 10 30 100]
                                                    [--models NAME ...]
    python asv_bench/studies/where_symmetry_pays.py --print [--models NAME ...]

An odd, an even, a smooth and a step function of one column are observed with noise of 0.2 or 0.8
standard deviations of the function. All networks have eight tanh units, except those of the
default stack. Each fit is scored by the mean log density of 300 new rows, in nats per row and for
targets in units of the standard deviation of the new targets, by the coverage of its 90 %
intervals, and by the CPU seconds of fit and predictions. The results are appended to
``where_symmetry_pays.json`` after every fit, so that an interrupted run keeps them.
"""

import argparse
import itertools
import json
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from timing import current_commit

from skbayes_sym import (
    GaussNewton,
    LaplaceRegressor,
    MCMCRegressor,
    PredictiveStackingRegressor,
    SymmetrizedVIRegressor,
)

RESULTS = Path(__file__).with_suffix(".json")
N_NEW = 300
NOISE = {"low": 0.2, "high": 0.8}
FUNCTIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "odd": lambda x: np.sin(1.5 * x),
    "even": lambda x: np.cos(2.0 * x),
    "smooth": lambda x: np.sin(x + 0.5) + 0.3 * (x - 0.4) ** 2,
    "step": lambda x: np.where(x > 0.3, 1.0, -1.0),
}
NETWORK = {"hidden_layer_sizes": (8,), "activation": "tanh", "random_state": 0}
MODELS: dict[str, Callable[[], Any]] = {
    "Symmetrised VI": lambda: SymmetrizedVIRegressor(**NETWORK),
    "Mean-field VI": lambda: SymmetrizedVIRegressor(**NETWORK, symmetry=None),
    "MCMC": lambda: MCMCRegressor(**NETWORK, remove_symmetries=True),
    "Laplace": lambda: LaplaceRegressor(**NETWORK, optimizer=GaussNewton(10)),
    "Gaussian process": lambda: PredictiveStackingRegressor(
        [("process", "gaussian_process")], random_state=0
    ),
    "Default stack": lambda: PredictiveStackingRegressor(random_state=0),
}


def simulate(function: str, noise: str, n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw ``n_rows`` training rows and `N_NEW` test rows, in this order.

    Parameters
    ----------
    function, noise : str
        Keys of `FUNCTIONS` and `NOISE`.
    n_rows : int
        Number of training rows. Problems of one seed share their first rows and their test rows.
    seed : int

    Returns
    -------
    x : ndarray of shape (n_rows + N_NEW, 1)
    y : ndarray of shape (n_rows + N_NEW,)
    """
    test_rng = np.random.default_rng([seed, 0])
    train_rng = np.random.default_rng([seed, 1])
    x = np.concatenate([train_rng.uniform(-2.0, 2.0, n_rows), test_rng.uniform(-2.0, 2.0, N_NEW)])
    errors = np.concatenate([train_rng.standard_normal(n_rows), test_rng.standard_normal(N_NEW)])
    mean = FUNCTIONS[function](x)
    scale = FUNCTIONS[function](np.linspace(-2.0, 2.0, 1001)).std()
    return x[:, None], mean + NOISE[noise] * scale * errors


def score(name: str, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Fit a model to all but the last `N_NEW` rows, and score it on these."""
    started = time.process_time()
    model = MODELS[name]().fit(x[:-N_NEW], y[:-N_NEW])
    x_new = x[-N_NEW:]
    y_new = y[-N_NEW:]
    density = model.log_predictive_density(x_new, y_new) + np.log(y_new.std())
    low, high = model.predict_interval(x_new, 0.9).T
    seconds = time.process_time() - started
    covered = (low <= y_new) & (y_new <= high)
    return {
        "log_density": round(float(density.mean()), 4),
        "coverage": round(float(covered.mean()), 4),
        "cpu_seconds": round(seconds, 2),
    }


def load_results() -> dict[str, Any]:
    """Return the stored results, or an empty table."""
    if RESULTS.exists():
        stored: dict[str, Any] = json.loads(RESULTS.read_text())
        return stored
    date = datetime.now(UTC).date().isoformat()
    return {"date": date, "commit": current_commit(), "fits": []}


def run(seeds: list[int], rows: list[int], models: list[str]) -> None:
    """Make all fits that have no stored result."""
    results = load_results()
    keys = ("seed", "rows", "function", "noise", "model")
    done = {tuple(fit[key] for key in keys) for fit in results["fits"]}
    for seed, n_rows, function, noise in itertools.product(seeds, rows, FUNCTIONS, NOISE):
        x, y = simulate(function, noise, n_rows, seed)
        for name in models:
            labels = (seed, n_rows, function, noise, name)
            if labels not in done:
                fit = dict(zip(keys, labels, strict=True)) | score(name, x, y)
                results["fits"].append(fit)
        lines = ",\n".join(json.dumps(fit) for fit in results["fits"])
        header = {key: value for key, value in results.items() if key != "fits"}
        RESULTS.write_text(json.dumps(header)[:-1] + ', "fits": [\n' + lines + "\n]}\n")


def print_tables(models: list[str]) -> None:
    """Print mean scores of problems with fits of all these models, and differences of all pairs.

    Problems of one seed and number of rows share their noise, so that they aren't independent.
    Differences are therefore printed by seed.
    """
    import pandas as pd

    all_fits = pd.DataFrame(load_results()["fits"])
    problem = ["seed", "rows", "function", "noise"]
    fits = all_fits[all_fits["model"].isin(models)]
    is_complete = fits.groupby(problem)["model"].transform("size") == len(models)
    fits = fits[is_complete]
    density = fits.pivot_table(index=problem, columns="model", values="log_density")[models]
    summary = fits.groupby("model")[["log_density", "coverage", "cpu_seconds"]].mean()
    lowest = fits.groupby("model")["coverage"].min().rename("lowest coverage")
    print(f"{len(density)} problems")
    print(pd.concat([summary, lowest], axis=1).loc[models].round(3).to_string())
    for key in (["rows"], ["noise"], ["function"], ["rows", "noise"]):
        print(density.groupby(level=key).mean().round(3).to_string())
    pairs = all_fits.pivot_table(index=problem, columns="model", values="log_density")
    for (n_rows, noise), group in pairs.groupby(level=["rows", "noise"]):
        for name in MODELS:
            difference = (group["Symmetrised VI"] - group[name]).dropna()
            by_seed = difference.groupby(level="seed").mean()
            wins = int((difference > 0.0).sum())
            print(
                f"{n_rows:3} rows, {noise:4} noise: Symmetrised VI less {name:16} "
                f"{difference.mean():6.3f}, higher in {wins:2} of {len(difference):2}; "
                f"by seed {by_seed.round(2).tolist()}"
            )


def main() -> None:
    """Fit, or print tables of the stored results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--print", action="store_true", help="only print the stored results")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if not args.print:
        run(args.seeds, args.rows, args.models)
    print_tables(args.models)


if __name__ == "__main__":
    main()
