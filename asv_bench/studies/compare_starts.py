"""What the defaults of symmetrised VI reach, on forty problems that set none of their constants.

    python asv_bench/studies/compare_starts.py ARM [ARM ...] [--kinds KIND ...]

Ten tanh units; 10 folds of forty points of a noisy sine, 8 sines of 20 to 160 points, 14 tables of
100 rows made up by `simulated_tables`, 8 tables of classes of 60 rows. Every ARM is compared with
the defaults of `SymmetrizedVIRegressor` and `SymmetrizedVIClassifier` on the same rows and seed:

``mean field``: ``symmetry=None``, by starts and bound of its own. ``random``, ``annealed``,
``laplace``: that start alone. ``before``: one random start of 2000 steps at 0.01, stopped by
nothing. ``longer``: five times the steps, and how often the defaults warned where that gained.
``1000 steps``: what ``max_iter="auto"`` is where steps take all rows of ten units; the two differ
for two more ``--kinds``: ``minibatches``, the same 14 tables of 2,000 rows, and ``wide``, of 300
rows under the default network of fifty units.

For each kind of problem: the defaults' log density of a test row less the arm's, and their ELBO
less the arm's a training row, means with standard errors over problems; the share of problems in
which an arm's ELBO is at most .01 nats a row higher; CPU seconds of a fit of either.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from simulated_tables import TABLES
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold, train_test_split
from threadpoolctl import threadpool_limits
from timing import cpu_seconds, mean_and_error

from skbayes_sym import SymmetrizedVIClassifier, SymmetrizedVIRegressor, VariationalAdam

ARMS: dict[str, dict[str, Any]] = {
    "mean field": {"symmetry": None},
    **{init: {"optimizer": VariationalAdam(init=init)} for init in ("random", "annealed")},
    "laplace": {"optimizer": VariationalAdam(init="laplace")},
    "before": {
        "optimizer": VariationalAdam(learning_rate=0.01, init="random"),
        "max_iter": 2000,
        "tol": None,
    },
    "longer": {"max_iter": 5000},
    "1000 steps": {"max_iter": 1000},
}
NAMES = "friedman1", "friedman2", "friedman3", "suburbs", "cars", "fires", "wine"


class Problem(NamedTuple):
    """Rows to learn from, and rows to be judged by."""

    kind: str
    seed: int
    x: np.ndarray
    x_test: np.ndarray
    y: np.ndarray
    y_test: np.ndarray


class Fit(NamedTuple):
    """Figures of one fit, nats a row."""

    elbo: float
    log_density: float
    seconds: float
    warned: bool


def sine(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points with normal noise of standard deviation .3."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-4.0, 4.0, size=(n, 1))
    return x, np.sin(x[:, 0]) + 0.3 * rng.standard_normal(n)


def problems() -> Iterator[Problem]:
    for seed in (2, 3):
        x, y = sine(40, seed)
        for train, test in KFold(5).split(x):
            yield Problem("folds", seed, x[train], x[test], y[train], y[test])
    for seed in (4, 5):
        for n in (20, 40, 80, 160):
            (x, y), (x_test, y_test) = sine(n, seed), sine(400, 100 + seed)
            yield Problem("sines", seed, x, x_test, y, y_test)
    for seed in (0, 1):
        for name in NAMES:
            for kind, n in (("tables", 100), ("wide", 300), ("minibatches", 2000)):
                x, y = TABLES[name].draw(np.random.default_rng(seed), n + 1000)
                yield Problem(kind, seed, x[:n], x[n:], y[:n], y[n:])
    loaded = [load(return_X_y=True) for load in (load_iris, load_wine, load_breast_cancer)]
    for seed in (0, 1):
        for x, y in (*loaded, make_moons(600, noise=0.3, random_state=seed)):
            rows = train_test_split(x, y, train_size=60, random_state=seed, stratify=y)
            yield Problem("classes", seed, *rows)


def fitted(problem: Problem, **settings: Any) -> Fit:
    make = SymmetrizedVIClassifier if problem.kind == "classes" else SymmetrizedVIRegressor
    size = () if problem.kind == "wide" else ((10,), "tanh")
    model = make(*size, random_state=problem.seed, **settings)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        _, seconds = cpu_seconds(lambda: model.fit(problem.x, problem.y))
    density = model.log_predictive_density(problem.x_test, problem.y_test)
    warned = any(issubclass(one.category, ConvergenceWarning) for one in told)
    return Fit(model.elbo_ / len(problem.y), float(density.mean()), seconds, warned)


def row(name: str, kind: str, base: list[Fit], other: list[Fit]) -> str:
    density = [a.log_density - b.log_density for a, b in zip(base, other, strict=True)]
    elbo = [a.elbo - b.elbo for a, b in zip(base, other, strict=True)]
    (d, d_error), (e, e_error) = mean_and_error(density), mean_and_error(elbo)
    seconds = [np.mean([fit.seconds for fit in fits]) for fits in (base, other)]
    within = np.mean(np.array(elbo) >= -0.01)
    silent = sum(e < -0.01 and not fit.warned for e, fit in zip(elbo, base, strict=True))
    return (
        f"{name:11s}{kind:12s}{len(elbo):3d}{d:+10.3f} ({d_error:.3f}){e:+10.3f} ({e_error:.3f})"
        f"{100 * within:8.0f} %{silent:8d}{seconds[0]:9.1f}{seconds[1]:8.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("arms", nargs="+", choices=ARMS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--kinds", nargs="+", default=["folds", "sines", "tables", "classes"])
    parser.add_argument("--each", type=int, default=99, help="problems of a kind, at most")
    args = parser.parse_args()
    by_kind: dict[str, list[Problem]] = {}
    for problem in problems():
        if problem.kind in args.kinds:
            by_kind.setdefault(problem.kind, []).append(problem)
    print(
        f"{'against':11s}{'kind':12s}{'n':>3s}{'log density':>18s}{'ELBO a row':>18s}"
        f"{'within':>9s}{'silent':>8s}{'CPU s':>9s}{'arm':>8s}"
    )
    for kind, all_of_kind in by_kind.items():
        some = all_of_kind[:: -(-len(all_of_kind) // args.each)]
        base = [fitted(problem) for problem in some]
        for arm in args.arms:
            print(row(arm, kind, base, [fitted(p, **ARMS[arm]) for p in some]), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with threadpool_limits(1):
        main()
