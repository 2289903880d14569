"""Costs that the docs name, beside what they should be in proportion to, for `compare_all`.

A gradient of chains, the search for modes beside exploration, canonical rows beside `np.unique`, a
symmetrised sweep of a factorisation beside a plain one, a fit of Laplace by Adam beside what it was
and by rows, and how often a step waits for a GPU.
"""

import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # benchmarks

import device_waits
import numpy as np
import size_of_ratings
import torch
from benchmarks.chains import Shape, make_problem
from benchmarks.matrix_factorization import SymmetrizedSweep
from ratios import Ratio, Round, Source
from time_by_size import data
from timing import cpu_seconds, cpu_times, fresh, median_ratio

from skbayes_sym import Chains, EvidenceAdam, LaplaceRegressor, MCMCRegressor, ModeWeights, Updates
from skbayes_sym.base.rows import canonical_rows
from skbayes_sym.models.networks.mlp import RELU

GRADIENTS = {  # chains, shape, how many of them share the cost, and the most it may be, ms
    "4 chains, 120 rows x 1, 3 units, all chains": (4, Shape(120, 1, (3,)), 1, 0.1),
    "2 chains, 1,200 rows x 5, four layers of 16, a chain": (
        2, Shape(1_200, 5, (16,) * 4, RELU), 2, 0.2
    ),
}  # fmt: skip
CALLS = 400
WHOLE = "with weights of modes / without"
SORTED = "np.unique(axis=0) / canonical rows, 400,000 x 10"
SWEEPS = ("40 x 40", "300 x 64")
RATINGS = "700 x 110 ratings with 1e5 entries"
EXACT, BY_ROWS = 'hyper="exact" / "auto", 20,000 rows', "slope in rows, 20,000 to 100,000"
WAITS = {"VI, 50 units": 0.05, "ensemble": 0.0, "Laplace, Kronecker": 0.0}


def of_gradients() -> Round:
    """Milliseconds a call, float32."""
    problems = {
        name: make_problem(shape, n_chains, torch.float32)
        for name, (n_chains, shape, *_) in GRADIENTS.items()
    }

    def measure(seed: int) -> dict[str, float]:
        found = {}
        for name, (posterior, position) in problems.items():

            def calls(density: Any = posterior, at: Any = position) -> None:
                for _ in range(CALLS):
                    density.evaluate(at)

            calls()
            found[name] = 1e3 * cpu_seconds(calls)[1] / (CALLS * GRADIENTS[name][2])
        return found

    return measure


def of_modes() -> Round:
    """A fit of few chains, the search for modes and their weights included, beside exploration."""
    X, y, _ = data("200x5", False)

    def fit(weights: str, seed: int) -> Callable[[], Any]:
        model = MCMCRegressor(
            (5,), sampler=Chains(init="prior", n_warmup=50), prior=1.0, n_chains=16, n_draws=100,
            remove_symmetries=ModeWeights(weights), random_state=seed,
        )  # fmt: skip
        return lambda: model.fit(X, y)

    def measure(seed: int) -> dict[str, float]:
        arms = {"with": fit("evidence", seed), "without": fit("uniform", seed)}
        return {WHOLE: median_ratio(cpu_times(arms, 1, seed), "with", "without")}

    return measure


def of_rows() -> Round:
    """Sorting and merging, beside what sorts all columns."""
    rng = np.random.default_rng(0)
    X, y, weight = rng.normal(size=(400_000, 10)), rng.normal(size=(400_000, 1)), np.ones(400_000)
    table = np.column_stack([X, y])
    arms = {
        "unique": lambda: np.unique(table, axis=0, return_inverse=True),
        "ours": lambda: canonical_rows(X, y, weight),
    }

    def measure(seed: int) -> dict[str, float]:
        return {SORTED: median_ratio(cpu_times(arms, 1, seed), "unique", "ours")}

    return measure


def of_sweeps() -> Round:
    """Medians."""
    triplets = size_of_ratings.ratings(0.01)

    def measure(seed: int) -> dict[str, float]:
        found = {}
        for shape in SWEEPS:
            benchmark = SymmetrizedSweep()
            benchmark.setup(shape, "full")
            found[shape] = benchmark.track_ratio(shape, "full")
        symmetrised, plain = (
            np.median([size_of_ratings.sweep(triplets, 8, solver)[0] for _ in range(5)])
            for solver in ("symmetrised", "plain")
        )
        return {**found, RATINGS: float(symmetrised / plain)}

    return measure


def of_laplace() -> Round:
    """Whole fits of 3,000 steps."""
    tables = {n: data(f"{n}x10", False)[:2] for n in (20_000, 100_000)}

    def seconds(n_rows: int, hyper: str, seed: int) -> float:
        model = LaplaceRegressor(
            optimizer=EvidenceAdam(updates=Updates(gradient=hyper)), random_state=seed
        )
        return cpu_seconds(lambda: model.fit(*tables[n_rows]))[1]

    def measure(seed: int) -> dict[str, float]:
        small, large = (seconds(n, "auto", seed) for n in tables)
        slope = log(large / small) / log(5.0)
        return {EXACT: seconds(20_000, "exact", seed) / small, BY_ROWS: slope}

    return measure


def of_waits() -> Round:
    """Counted on the pretend device, which a process has to begin with."""
    return lambda seed: {name: fresh(waits_of, name) for name in WAITS}


def waits_of(name: str) -> float:
    """Of a step."""
    device_waits.pretend_cuda.load()
    case = device_waits.CASES[name]
    few, many = (device_waits.count(case, n)[0] for n in case.n_steps[1:])
    return few.per(many, case.n_steps[2] - case.n_steps[1]).waits


SOURCES = (
    Source("gradients", "A gradient, CPU milliseconds",
           tuple(Ratio(name, most) for name, (*_, most) in GRADIENTS.items()), of_gradients),
    Source("modes", "MCMC, 16 chains of 50 + 100, 200 rows x 5", (Ratio(WHOLE, 2.0, by="worst"),),
           of_modes),
    Source("rows", "Canonical rows", (Ratio(SORTED, 7.0, at_most=False),), of_rows),
    Source("sweeps", "Factorisation, symmetrised / plain sweep",
           tuple(Ratio(name, 1.3) for name in (*SWEEPS, RATINGS)), of_sweeps),
    Source("laplace", "LaplaceRegressor by Adam, 3,000 steps",
           (Ratio(EXACT, at_most=False), Ratio(BY_ROWS, 1.0)), of_laplace),
    Source("waits", "Waits of a step on a GPU, counted",
           tuple(Ratio(name, most) for name, most in WAITS.items()), of_waits),
)  # fmt: skip
