"""Which learning rate do the log variances want, relative to that of the means?

For every data set, number of steps and ``log_variance_rate``: the ELBO of the training data and the
mean log predictive density of the test data (nats per datum, of ``y`` as given), mean +- standard
error over seeds. A seed sets the split (MNIST: fixed) and the fit; the columns "to 5" are paired
differences to the default rate of 5 at the same seeds.

    SKBAYES_SYM_DATA=... python asv_bench/studies/learning_rates.py [--seeds 5] [case ...]
"""

import argparse
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from paper_tables import load_dataset
from sklearn.model_selection import train_test_split

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor, VariationalAdam

RATES = (1.0, 2.0, 5.0, 10.0, 20.0)
DEFAULT = RATES.index(5.0)
STEPS = (500, 2000)


class Result(NamedTuple):
    """Figures of one fit, nats: of the training set, and a test datum."""

    elbo: float
    test_log_density: float


class Case(NamedTuple):
    """A data set and the estimator fitted to it."""

    data: str
    make: Callable[..., Any]
    parameters: dict[str, Any]


_TANH10 = {"hidden_layer_sizes": (10,), "activation": "tanh"}
_RELU50 = {"hidden_layer_sizes": (50,), "symmetry": None}
CASES = {
    "mnist": Case(
        "mnist",
        SymmetrizedVIClassifier,
        {
            "hidden_layer_sizes": (30,),
            "symmetry": None,
            "standardize": False,  # pixels in [0, 1]
        },
    ),
    **{
        f"{data} {name}": Case(data, SymmetrizedVIRegressor, parameters)
        for data in ("diabetes", "concrete", "sinusoidal")
        for name, parameters in (
            ("tanh 10, symmetrised", _TANH10),
            ("relu 50, mean-field", _RELU50),
        )
    },
}


def split(data: str, seed: int) -> tuple[np.ndarray, ...]:
    """``X_train, X_test, y_train, y_test``."""
    X, y = load_dataset(data, return_X_y=True)
    if data != "mnist":
        return tuple(train_test_split(X, y, test_size=0.2, random_state=seed))
    X = (X / 255.0).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:8000], order[-2000:]
    return X[train], X[test], y[train], y[test]


def fit(case: Case, rate: float, n_steps: int, seed: int) -> Result:
    """One fit on one split."""
    X_train, X_test, y_train, y_test = split(case.data, seed)
    model = case.make(
        **case.parameters,
        optimizer=VariationalAdam(log_variance_rate=rate),
        max_iter=n_steps,
        tol=None,
        random_state=seed,
    )  # 500 steps are meant to be too few
    model.fit(X_train, y_train)
    return Result(model.elbo_, float(np.mean(log_density(model, X_test, y_test))))


def log_density(model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Log predictive density (or probability of the label) of every row."""
    if isinstance(model, SymmetrizedVIRegressor):
        return np.asarray(model.log_predictive_density(X, y))
    return model.predict_log_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]


def mean_and_error(values: np.ndarray) -> str:
    """``mean +- standard error`` over seeds."""
    error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
    return f"{values.mean():10.3f} +- {error:7.3f}"


def report(name: str, n_steps: int, results: np.ndarray) -> None:
    """Print one table; ``results`` has shape (rates, seeds, 2)."""
    print(f"\n{name}, {n_steps} steps")
    print(f"{'rate':>5}  {'ELBO':^21}  {'to 5':^21}  {'test log density':^21}  {'to 5':^21}")
    for rate, row in zip(RATES, results, strict=True):
        change = row - results[DEFAULT]
        columns = (row[:, 0], change[:, 0], row[:, 1], change[:, 1])
        print(f"{rate:5g}  " + "  ".join(mean_and_error(c) for c in columns), flush=True)


def main() -> None:
    """Run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; all by default")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    chosen = {n: c for n, c in CASES.items() if not options.cases or n in options.cases}
    with Parallel(n_jobs=options.jobs) as parallel:
        for (name, case), n_steps in itertools.product(chosen.items(), STEPS):
            grid = itertools.product(RATES, range(options.seeds))
            results = parallel(delayed(fit)(case, rate, n_steps, seed) for rate, seed in grid)
            report(name, n_steps, np.array(results).reshape(len(RATES), options.seeds, 2))


if __name__ == "__main__":
    main()
