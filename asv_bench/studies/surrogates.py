"""How good is a model of a few noiseless points of a function, beside a Gaussian process?

    python asv_bench/studies/surrogates.py [--models process pool ...] [--points 12 30 100]
                                           [--seeds 5] [--first 0]

Four functions (Branin, Hartmann's of three variables, Ackley's of two, a step) at random points of
the unit cube. Printed are means over designs of the root mean squared error at a thousand new
points, in the function's standard deviations; of the correlation of the absolute error with the
function's standard deviation; and of CPU seconds of a fit. "gp" is scikit-learn's process with one
length scale a column, Matern's kernel of smoothness 5/2 and a learned noise; "gp-sure" is told that
there is none. "again" is the stack's second fit with ``warm_start``, of a point more than its
first. The last lines say how often a model is behind "gp", design by design.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from timing import cpu_seconds

import skbayes_sym as sk

Floats = np.ndarray[Any, np.dtype[np.float64]]


def branin(u: Floats) -> Floats:
    """Branin's function, of [-5, 10] x [0, 15]."""
    a, b = 15.0 * u[:, 0] - 5.0, 15.0 * u[:, 1]
    bend = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0


def hartmann(u: Floats) -> Floats:
    """Hartmann's function of three variables."""
    steep = np.array([[3.0, 10, 30], [0.1, 10, 35], [3.0, 10, 30], [0.1, 10, 35]])
    peak = np.array([
        [0.3689, 0.1170, 0.2673], [0.4699, 0.4387, 0.7470],
        [0.1091, 0.8732, 0.5547], [0.0381, 0.5743, 0.8828],
    ])  # fmt: skip
    off = (steep * (u[:, None] - peak) ** 2).sum(2)
    return -np.exp(-off) @ np.array([1.0, 1.2, 3.0, 3.2])


def ackley(u: Floats) -> Floats:
    """Ackley's function, of the square of half width 5."""
    x = 10.0 * u - 5.0
    far = -20.0 * np.exp(-0.2 * np.sqrt((x**2).mean(1)))
    return far - np.exp(np.cos(2.0 * np.pi * x).mean(1)) + 20.0 + np.e


def step(u: Floats) -> Floats:
    """1 beyond a line, 0 before."""
    return (u[:, 0] + 0.5 * u[:, 1] > 0.7).astype(float)


FUNCTIONS: dict[str, tuple[Callable[[Floats], Floats], int]] = {
    "Branin": (branin, 2), "Hartmann 3": (hartmann, 3), "Ackley 2": (ackley, 2), "a step": (step, 2)
}  # fmt: skip


def scikit_learn(n_inputs: int, has_noise: bool) -> GaussianProcessRegressor:
    """A Gaussian process with one length scale a column."""
    kernel = ConstantKernel() * Matern(0.5 * np.ones(n_inputs), (0.05, 20.0), nu=2.5)
    if has_noise:
        kernel = kernel + WhiteKernel(1e-4, (1e-8, 1.0))
    return GaussianProcessRegressor(kernel, alpha=1e-8, normalize_y=True, random_state=0)


MODELS: dict[str, Callable[[int], Any]] = {
    "gp": lambda d: scikit_learn(d, True),
    "gp-sure": lambda d: scikit_learn(d, False),
    "process": lambda d: sk.PredictiveStackingRegressor(
        [("process", "gaussian_process")], random_state=0
    ),
    "both": lambda d: sk.PredictiveStackingRegressor(
        [("gaussian_process", "gaussian_process"), ("networks", "networks")], random_state=0
    ),
    "stack": lambda d: sk.PredictiveStackingRegressor(random_state=0),
    "again": lambda d: sk.PredictiveStackingRegressor(random_state=0, warm_start=True),
    "laplace": lambda d: sk.LaplaceRegressor((20,), "tanh", random_state=0),
    "pool": lambda d: sk.BayesianMLPRegressor(random_state=0),
}


def judged(name: str, function: str, n: int, seed: int) -> tuple[float, float, float]:
    """Relative error, correlation, seconds."""
    f, d = FUNCTIONS[function]
    rng = np.random.default_rng(seed)
    X, new = rng.random((n, d)), rng.random((1000, d))
    y, truth = f(X), f(new)
    model = MODELS[name](d)
    if name == "again":  # one point more than the last fit had
        model.fit(X[:-1], y[:-1])
    _, seconds = cpu_seconds(lambda: model.fit(X, y))
    mean, std = model.predict(new, return_std=True)
    if not name.startswith("gp"):
        std = np.sqrt(sk.predictive(model, new).uncertainty().epistemic)
    off = np.abs(mean - truth)
    related = np.corrcoef(off, std)[0, 1] if std.std() > 0.0 else 0.0
    return float(np.sqrt((off**2).mean()) / truth.std()), float(related), seconds


def main() -> None:
    """Print a line a function, number of points and model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=list(FUNCTIONS))
    parser.add_argument("--points", nargs="+", type=int, default=[12, 30, 100])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    names = list(dict.fromkeys(["gp", *asked.models]))
    every: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    print(f"{'':18}" + "".join(f"{name:>20}" for name in names))
    for function in asked.functions:
        for n in asked.points:
            line = f"{function:12}{n:6}"
            for name in names:
                seeds = range(asked.first, asked.first + asked.seeds)
                found = [judged(name, function, n, seed) for seed in seeds]
                every[name] += found
                error, related, seconds = np.mean(found, axis=0)
                line += f"{error:8.3f} {related:5.2f} {seconds:4.1f}s"
            print(line, flush=True)
    base = np.array(every["gp"]).reshape(-1, asked.seeds, 3)
    for name in names[1:]:
        own = np.array(every[name]).reshape(-1, asked.seeds, 3)
        ratio = np.exp(np.log(own[..., 0] / base[..., 0]).mean(1))
        more = (own[..., 1] - base[..., 1]).mean(1)
        print(
            f"{name}: error {ratio.min():.2f} to {ratio.max():.2f} times the process's, in the mean"
            f" {np.exp(np.log(ratio).mean()):.2f}, at most 1.05 in {(ratio <= 1.05).sum()} of"
            f" {len(ratio)} cases; correlation {more.min():+.2f} to {more.max():+.2f},"
            f" at least its own less .05 in {(more >= -0.05).sum()}"
        )


if __name__ == "__main__":
    main()
