"""Coverage of models with constant noise where the noise grows with a column.

    python asv_bench/studies/constant_noise.py

The mean is flat and the standard deviation of the targets is ``exp(1.2 x)`` for the first of three
uniform columns. Printed for every model are the coverage of 90 % intervals on all new rows, in the
quarter with the most and the quarter with the least noise, and the log density in nats per row.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    DeepEnsembleRegressor,
    LaplaceRegressor,
    PredictiveStackingRegressor,
)

MODELS: dict[str, Callable[[], Any]] = {
    "linear": BayesianLinearRegressor,
    "mixture": lambda: BayesianMLPRegressor(random_state=0),
    "stack": lambda: PredictiveStackingRegressor(random_state=0),
    "ensemble, heteroscedastic": lambda: DeepEnsembleRegressor(
        likelihood="heteroscedastic", random_state=0
    ),
    "laplace, heteroscedastic": lambda: LaplaceRegressor(
        likelihood="heteroscedastic", random_state=0
    ),
}
N_TRAIN = 400
N_NEW = 4000
N_REPEATS = 3


def scores(model: Any, seed: int) -> list[float]:
    """Three coverages and the log density of one draw of the data."""
    rng = np.random.default_rng(100 + seed)
    X = rng.uniform(-1.0, 1.0, (N_TRAIN + N_NEW, 3))
    y = np.exp(1.2 * X[:, 0]) * rng.normal(size=len(X))
    model.fit(X[:N_TRAIN], y[:N_TRAIN])
    X_new = X[N_TRAIN:]
    y_new = y[N_TRAIN:]
    low, high = model.predict_interval(X_new, 0.9).T
    is_inside = (low <= y_new) & (y_new <= high)
    noisy = X_new[:, 0] > 0.5
    quiet = X_new[:, 0] < -0.5
    density = model.log_predictive_density(X_new, y_new).mean()
    return [is_inside.mean(), is_inside[noisy].mean(), is_inside[quiet].mean(), density]


def main() -> None:
    """Print a line per model."""
    warnings.simplefilter("ignore")
    print(f"{'':26}{'all':>8}{'noisy':>8}{'quiet':>8}{'density':>10}")
    for name, make_model in MODELS.items():
        values = np.mean([scores(make_model(), seed) for seed in range(N_REPEATS)], axis=0)
        coverages = "".join(f"{value:8.2f}" for value in values[:3])
        print(f"{name:26}{coverages}{values[3]:10.3f}")


if __name__ == "__main__":
    main()
