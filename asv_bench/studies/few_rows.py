"""Coverage and log density of every default regressor where there are one to six rows.

    python asv_bench/studies/few_rows.py [--rows 5] [--seed 1000] [--repeats 5] [MODEL ...]

Rows are drawn from eight kinds of functions: linear or bent, of one or four columns, under normal
noise or Student's t of three degrees of freedom. With ``--tables`` they are drawn from every second
table of ``$SKBAYES_SYM_DATA/tables/regression`` instead. Printed for every model are the mean
coverage of 90 % intervals and the mean log density (nats per row, of targets in units of their
standard deviation) of 200 new rows, over all draws and in the worst draw.
The constants of `skbayes_sym` for few rows were chosen on simulated data with seed 0. Report
other seeds.
"""

import argparse
import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    DeepEnsembleRegressor,
    LaplaceRegressor,
    LayerwiseVIRegressor,
    LILARegressor,
    MCMCRegressor,
    PredictiveStackingRegressor,
    SymmetrizedVIRegressor,
)

MODELS: dict[str, Callable[[], Any]] = {
    "linear": BayesianLinearRegressor,
    "process": lambda: PredictiveStackingRegressor(
        [("process", "gaussian_process")], random_state=0
    ),
    "laplace": lambda: LaplaceRegressor(random_state=0),
    "pool": lambda: BayesianMLPRegressor(random_state=0),
    "stack": lambda: PredictiveStackingRegressor(random_state=0),
    "ensemble": lambda: DeepEnsembleRegressor(random_state=0),
    "vi": lambda: SymmetrizedVIRegressor(random_state=0),
    "mcmc": lambda: MCMCRegressor(random_state=0),
    "layerwise": lambda: LayerwiseVIRegressor(random_state=0),
    "lila": lambda: LILARegressor(random_state=0),
}
N_NEW = 200


class Draw(NamedTuple):
    """A few rows, and new ones."""

    kind: str
    X: np.ndarray
    y: np.ndarray
    X_new: np.ndarray
    y_new: np.ndarray


def simulated(n_rows: int, seed: int, repeats: int) -> Iterator[Draw]:
    """Draws of every kind; noise and function have about the same standard deviation."""
    kinds = itertools.product(("normal", "t3"), (1, 4), ("linear", "bent"))
    for repeat, (noise, n_columns, truth) in itertools.product(range(repeats), kinds):
        rng = np.random.default_rng([seed, repeat])
        X = rng.normal(size=(n_rows + N_NEW, n_columns))
        along = X @ rng.normal(size=n_columns) / n_columns**0.5
        f = along if truth == "linear" else 1.4 * np.sin(2.0 * along)
        if noise == "normal":
            e = rng.normal(size=len(X))
        else:
            e = rng.standard_t(3, size=len(X)) / 3.0**0.5
        y = f + 0.5 * e
        kind = f"{noise} {n_columns} {truth}"
        yield Draw(kind, X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])


def from_tables(n_rows: int, seed: int, repeats: int, half: int) -> Iterator[Draw]:
    """Rows of real tables, by their columns of numbers."""
    import pandas as pd

    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables" / "regression"
    for path in sorted(folder.glob("*.csv.gz"))[half::2]:
        table = pd.read_csv(path).select_dtypes("number").dropna()
        values = table.to_numpy(float)
        if len(values) < n_rows + 50:
            continue
        for repeat in range(repeats):
            order = np.random.default_rng([seed, repeat]).permutation(len(values))
            rows, new = values[order[:n_rows]], values[order[n_rows : n_rows + N_NEW]]
            yield Draw(path.name[:-7], rows[:, :-1], rows[:, -1], new[:, :-1], new[:, -1])


def scores(model: Any, draw: Draw) -> tuple[float, float]:
    """Coverage of 90 % intervals, and mean log density in standard deviations of the targets."""
    model.fit(draw.X, draw.y)
    low, high = model.predict_interval(draw.X_new, 0.9).T
    coverage = float(np.mean((low <= draw.y_new) & (draw.y_new <= high)))
    density = model.log_predictive_density(draw.X_new, draw.y_new) + np.log(draw.y_new.std())
    return coverage, float(density.mean())


def main() -> None:
    """Print a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tables", type=int, choices=(0, 1), help="half of the tables")
    parser.add_argument("--kinds", action="store_true", help="a line for every kind, too")
    parser.add_argument("models", nargs="*", default=[], choices=[*MODELS, []])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.tables is None:
        draws = list(simulated(asked.rows, asked.seed, asked.repeats))
    else:
        draws = list(from_tables(asked.rows, asked.seed, asked.repeats, asked.tables))
    print(f"{asked.rows} rows, {len(draws)} draws")
    print(f"{'':10}{'coverage':>10}{'worst':>8}{'density':>10}{'median':>10}{'worst':>10}")
    for name in asked.models or MODELS:
        values = np.array([scores(MODELS[name](), draw) for draw in draws])
        lines = {name: np.ones(len(draws), dtype=bool)}
        if asked.kinds:
            kinds = np.array([draw.kind for draw in draws])
            lines |= {kind: kinds == kind for kind in dict.fromkeys(kinds)}
        for label, which in lines.items():
            coverage, density = values[which].T
            print(
                f"{label:18}{coverage.mean():6.3f}{coverage.min():8.2f}{density.mean():10.2f}"
                f"{np.median(density):10.2f}{density.min():10.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
