"""CPU time of predictions of transformed targets, relative to those of the inner model.

    python asv_bench/studies/transformed_costs.py [--rows 1000 10000] [--rounds 5] [--store FILE]

A `TransformedTargetRegressor` is fitted with each transformer around a linear model, scikit-learn's
Gaussian process, a Laplace approximation, networks and a stack. The prediction of a distribution
and an operation on it are timed next to the same for the fitted inner model at the same rows, in
turns, and the ratio of the shortest times is printed. The mean of a nonlinear
transformation needs the inner distribution, which costs more than the inner mean: "mean /
components" is its cost relative to the evaluation of the components of the inner distribution.
``--store`` keeps fitted models, so that a second run repeats predictions only.
"""

import argparse
import pickle
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    MinMaxScaler,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    LaplaceRegressor,
    PredictiveStackingRegressor,
    predictive,
)

TRANSFORMERS: dict[str, Any] = {
    "standard": StandardScaler(),
    "min-max": MinMaxScaler(),
    "log": FunctionTransformer(np.log, np.exp),
    "log1p": FunctionTransformer(np.log1p, np.expm1),
    "log, standard": make_pipeline(FunctionTransformer(np.log, np.exp), StandardScaler()),
    "square": FunctionTransformer(np.sqrt, np.square),
    "box-cox": PowerTransformer("box-cox"),
    "yeo-johnson": PowerTransformer(),
    "normal": QuantileTransformer(n_quantiles=200, output_distribution="normal"),
    "uniform": QuantileTransformer(n_quantiles=200),
    "sqrt": FunctionTransformer(np.square, np.sqrt),
}
INNER: dict[str, Callable[[], Any]] = {
    "linear": BayesianLinearRegressor,
    "gaussian process": lambda: GaussianProcessRegressor(
        RBF(2.0) + WhiteKernel(), normalize_y=True
    ),
    "laplace": lambda: LaplaceRegressor(random_state=0),
    "networks": lambda: BayesianMLPRegressor(random_state=0),
    "stack": lambda: PredictiveStackingRegressor(
        [(kind, kind) for kind in ("linear", "boosting", "gaussian_process")], random_state=0
    ),
}
OPERATIONS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "mean": lambda distribution, _: distribution.mean(),
    "std": lambda distribution, _: distribution.std(),
    "crps": lambda distribution, y: distribution.crps(y),
    "log_prob": lambda distribution, y: distribution.log_prob(y),
    "cdf": lambda distribution, y: distribution.cdf(y),
    "quantile": lambda distribution, _: distribution.quantile([0.1, 0.5, 0.9]),
    "interval": lambda distribution, _: distribution.interval(0.9),
    "sample": lambda distribution, _: distribution.sample(10),
}


def make_data(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of five columns and positive, skewed targets."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, 5))
    log_target = np.sin(X[:, 0]) + 0.5 * X[:, 1] + 0.2 * X[:, 2] * X[:, 3]
    return X, np.exp(0.6 * log_target + 0.3 * rng.standard_normal(n_rows))


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU time of one run."""
    start = time.process_time()
    work()
    return time.process_time() - start


def predict(
    model: Any, X: np.ndarray, operation: Callable[[Any, np.ndarray], Any], y: np.ndarray
) -> None:
    """Predict a distribution and evaluate an operation on it."""
    operation(predictive(model, X), y)


def components(distribution: Any, _: np.ndarray) -> Any:
    """Evaluate the components of a distribution."""
    return distribution.components()


def shortest_times(calls: dict[Any, Callable[[], Any]], n_rounds: int) -> dict[Any, float]:
    """Shortest CPU times of several calls, which take turns, so that a busy machine slows all."""
    for call in calls.values():
        call()
    shortest = dict.fromkeys(calls, np.inf)
    for _ in range(n_rounds):
        for name, call in calls.items():
            shortest[name] = min(shortest[name], cpu_seconds(call))
    return shortest


def main() -> None:
    """Print one table for every inner model and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--inner", nargs="+", choices=list(INNER), default=list(INNER))
    parser.add_argument("--transformers", nargs="+", default=list(TRANSFORMERS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")

    stored: dict[tuple[str, str], bytes] = {}
    if arguments.store and arguments.store.exists():
        stored = pickle.loads(arguments.store.read_bytes())
    training = make_data(200, 0)
    for inner_name in arguments.inner:
        for name in arguments.transformers:
            if (inner_name, name) in stored:
                continue
            model = TransformedTargetRegressor(
                INNER[inner_name](), transformer=TRANSFORMERS[name], check_inverse=False
            )
            stored[inner_name, name] = pickle.dumps(model.fit(*training))
            if arguments.store:
                arguments.store.write_bytes(pickle.dumps(stored))

    for inner_name in arguments.inner:
        for n_rows in arguments.rows:
            X, y = make_data(n_rows, 1)
            print(f"{inner_name}, {n_rows:,} rows")
            titles = [*OPERATIONS, "mean / components"]
            print(" " * 16 + "".join(f"{title:>10s}" for title in titles))
            for name in arguments.transformers:
                model = pickle.loads(stored[inner_name, name])
                z = model.transformer_.transform(y[:, None])[:, 0]
                inner = model.regressor_
                calls: dict[Any, Callable[[], Any]] = {}
                for title, operation in OPERATIONS.items():
                    calls[title, "outer"] = partial(predict, model, X, operation, y)
                    calls[title, "inner"] = partial(predict, inner, X, operation, z)
                if predictive(inner, X).has_normal_components:
                    calls["components"] = partial(predict, inner, X, components, z)
                seconds = shortest_times(calls, arguments.rounds)
                ratios = [seconds[title, "outer"] / seconds[title, "inner"] for title in OPERATIONS]
                if "components" in seconds:
                    ratios.append(seconds["mean", "outer"] / seconds["components"])
                print(f"{name:16s}" + "".join(f"{ratio:10.2f}" for ratio in ratios), flush=True)


if __name__ == "__main__":
    main()
