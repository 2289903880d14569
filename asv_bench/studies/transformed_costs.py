"""CPU time of predictions of transformed targets, relative to those of the inner model.

    python asv_bench/studies/transformed_costs.py [--rows 1000 10000] [--rounds 5] [--store FILE]

A `TransformedTargetRegressor` is fitted with each transformer around a linear model and around a
mixture of networks. Every operation on its predictive distribution is timed next to the same
operation on the distribution of the fitted inner model at the same rows, in turns. The first ratio
includes the evaluation of the model, which is repeated by every operation. For the second ratio,
both distributions have been evaluated before. Printed are medians over rounds. ``--store`` keeps
fitted models, so that a second run repeats predictions only.
"""

import argparse
import pickle
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)

from skbayes_sym import BayesianLinearRegressor, BayesianMLPRegressor, predictive

TRANSFORMERS: dict[str, Any] = {
    "standard": StandardScaler(),
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
    "networks": lambda: BayesianMLPRegressor(random_state=0),
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


def ratio(transformed: Callable[[], Any], inner: Callable[[], Any], n_rounds: int) -> float:
    """Median over rounds of the ratio of CPU times; each round repeats short calls."""
    transformed()
    n_calls = max(1, int(0.02 / max(cpu_seconds(inner), 1e-5)))
    ratios = []
    for _ in range(n_rounds):
        below = cpu_seconds(lambda: [inner() for _ in range(n_calls)])
        above = cpu_seconds(lambda: [transformed() for _ in range(n_calls)])
        ratios.append(above / below)
    return statistics.median(ratios)


def main() -> None:
    """Print one table for every inner model and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--inner", nargs="+", choices=list(INNER), default=list(INNER))
    parser.add_argument("--transformers", nargs="+", default=list(TRANSFORMERS))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    n_rounds = arguments.rounds

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
            print(f"{inner_name}, {n_rows:,} rows: with / without the evaluation of the model")
            print(" " * 16 + "".join(f"{name:>14s}" for name in OPERATIONS))
            for name in arguments.transformers:
                model = pickle.loads(stored[inner_name, name])
                z = model.transformer_.transform(y[:, None])[:, 0]
                outer = predictive(model, X)
                inner = predictive(model.regressor_, X)
                line = f"{name:16s}"
                evaluated = outer.evaluated(), inner.evaluated()
                for operation in OPERATIONS.values():
                    with_model = ratio(
                        partial(operation, outer, y), partial(operation, inner, z), n_rounds
                    )
                    without_model = ratio(
                        partial(operation, evaluated[0], y),
                        partial(operation, evaluated[1], z),
                        n_rounds,
                    )
                    line += f"{with_model:8.2f}{without_model:6.1f}"
                print(line, flush=True)


if __name__ == "__main__":
    main()
