"""How fits grow with rows, features and width, and predictions with draws: CPU seconds and slopes.

    python asv_bench/studies/scaling.py [--models NAME ...] [--axes rows features width draws]

Every estimator makes a fixed number of steps (or chains moves), in one thread, on the smooth
function of `time_by_size`; one size grows fourfold twice, the others stay at 1,000 rows, 10
features and 20 units. The slope is that of the last fourfold on logarithmic scales: 1 is linear.
Beside it stands the most it should be, and why where that is above 1; "!" is a slope beyond it by
more than 0.15, which timing may be off by.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator
from math import log
from typing import Any, NamedTuple

import torch
from ratios import Ratio, Round, Source
from sklearn.base import is_classifier
from threadpoolctl import threadpool_limits
from time_by_size import data
from timing import cpu_seconds

import skbayes_sym as sk
from skbayes_sym import Chains, GaussNewton, ModeWeights

SIZES = {"rows": (1_000, 4_000, 16_000), "features": (10, 40, 160), "width": (20, 80, 320)}
BASE = {"rows": 1_000, "features": 10, "width": 20}
DRAWS = (100, 400, 1_600)
SLACK = 0.15
TRIES = 2  # the faster one counts

_STEPS = {"tol": None, "random_state": 0}
_CHAINS = {
    "sampler": Chains(init="prior", n_warmup=20), "prior": 1.0, "n_chains": 4, "n_draws": 10,
    "remove_symmetries": ModeWeights("uniform"), "random_state": 0,
}  # fmt: skip
MODELS: dict[str, Callable[[int], Any]] = {
    "BayesianLinearRegressor": lambda width: sk.BayesianLinearRegressor(),
    "BayesianLinearClassifier": lambda width: sk.BayesianLinearClassifier(random_state=0),
    "SymmetrizedVIRegressor": lambda width: sk.SymmetrizedVIRegressor(
        (width,), max_iter=200, **_STEPS
    ),
    "LayerwiseVIRegressor": lambda width: sk.LayerwiseVIRegressor((width,), max_iter=20, **_STEPS),
    "DeepEnsembleRegressor": lambda width: sk.DeepEnsembleRegressor(
        (width,), max_iter=100, **_STEPS
    ),
    "LaplaceRegressor, Adam": lambda width: sk.LaplaceRegressor(
        (width,), optimizer="adam", max_iter=300, **_STEPS
    ),
    "LaplaceRegressor, Gauss-Newton": lambda width: sk.LaplaceRegressor(
        (width,), optimizer=GaussNewton(1), max_iter=3, **_STEPS
    ),
    "LILARegressor": lambda width: sk.LILARegressor((width,), max_iter=200, **_STEPS),
    "MCMCRegressor": lambda width: sk.MCMCRegressor((width,), **_CHAINS),
}


class Known(NamedTuple):
    """A slope that should be above 1, or isn't measured."""

    most: float
    why: str


KNOWN = {
    ("BayesianLinearRegressor", "features"): Known(2.0, "normal equations, N K^2"),
    ("BayesianLinearClassifier", "features"): Known(2.0, "normal equations, N K^2"),
    ("LayerwiseVIRegressor", "width"): Known(2.0, "last layer exact: N d^2 a step"),
    ("SymmetrizedVIRegressor", "width"): Known(2.0, "the gap looks at d^2 pairs of units"),
    ("LaplaceRegressor, Adam", "features"): Known(3.0, "Kronecker factors, K^3 an update"),
    ("LaplaceRegressor, Adam", "width"): Known(3.0, "Kronecker factors, d^3 an update"),
    ("LILARegressor", "features"): Known(3.0, "Kronecker factors, K^3 an update"),
    ("LILARegressor", "width"): Known(3.0, "Kronecker factors, d^3 an update"),
    ("LaplaceRegressor, Gauss-Newton", "features"): Known(3.0, "N P^2 + P^3 in all P weights"),
    ("LaplaceRegressor, Gauss-Newton", "width"): Known(3.0, "N P^2 + P^3 in all P weights"),
}
# All weights in one matrix: what they would take beyond this isn't asked for.
SHORTER = {"LaplaceRegressor, Gauss-Newton": {"features": (5, 10, 20), "width": (5, 10, 20)}}


def sizes_of(name: str, axis: str) -> tuple[int, ...]:
    """Where a curve is looked at."""
    return SHORTER.get(name, {}).get(axis, SIZES.get(axis, DRAWS))


def seconds(name: str, axis: str, size: int) -> float:
    """Of a fit, or of a prediction by so many draws."""
    at = {**BASE, axis: size}
    model = MODELS[name](at["width"])
    X, y, X_new = data(f"{at['rows']}x{at['features']}", is_classifier(model))
    if axis != "draws":
        return min(cpu_seconds(lambda: model.fit(X, y))[1] for _ in range(TRIES))
    model.fit(X, y)
    model.sample_y(X_new[:5], 5, random_state=0)
    return min(
        cpu_seconds(lambda: model.sample_y(X_new, size, random_state=0))[1] for _ in range(TRIES)
    )


def slope(name: str, axis: str, values: list[float]) -> float:
    """Of the last step."""
    before, last = sizes_of(name, axis)[-2:]
    return log(values[-1] / values[-2]) / log(last / before)


def curves(names: list[str], axes: list[str]) -> Iterator[tuple[str, str, list[float]]]:
    """All that has draws, or a width."""
    for name in names:
        for axis in axes:
            if axis == "width" and "Linear" in name:
                continue
            if axis == "draws" and not hasattr(MODELS[name](5), "sample_y"):
                continue
            yield name, axis, [seconds(name, axis, size) for size in sizes_of(name, axis)]


def _prepare() -> Round:
    def measure(seed: int) -> dict[str, float]:
        return {name: slope(name, axis, v) for name, axis, v in curves(list(MODELS), ["rows"])}

    return measure


SOURCES = (
    Source(
        "slopes", "Slope in rows of a fit of equally many steps, 4,000 to 16,000",
        tuple(Ratio(name, 1.0 + SLACK) for name in MODELS), _prepare,
    ),
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    axes = [*SIZES, "draws"]
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--axes", nargs="+", default=axes, choices=axes)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'':32}{'axis':10}{'CPU seconds at three sizes':30}{'slope':>6}{'most':>6}")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, axis, values in curves(options.models, options.axes):
            most, why = KNOWN.get((name, axis), Known(1.0, ""))
            found = slope(name, axis, values)
            pairs = zip(sizes_of(name, axis), values, strict=True)
            cells = ", ".join(f"{size}: {value:.2g}" for size, value in pairs)
            wrong = " !" if found > most + SLACK else ""
            print(f"{name:32}{axis:10}{cells:30}{found:6.2f}{most:6g}{wrong}  {why}", flush=True)


if __name__ == "__main__":
    main()
