"""CPU seconds of a sweep and peak memory of a factorisation, by entries, components and solver.

    python asv_bench/studies/size_of_ratings.py [--part 0.01] [--components 8 16 32 64]

``--part 1`` is 70,000 x 11,000 with 1e7 ratings (MovieLens-10M's size); smaller parts have as many
entries a row and a column. Every fit runs in a process of its own, in float32, on one thread or
``--threads``; peak memory is that process's, the interpreter, its libraries and the data included.
``--whole`` fits until it stops, with a hundredth held out.

Slopes come last: a sweep's seconds go as entries and components to these powers, by least squares
over all fits of a solver. The aim is 1 in entries and at most 2 in components.
"""

import argparse
import resource
import time
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from timing import cpu_seconds, fresh

from skbayes_sym import SymVIMatrixFactorization
from skbayes_sym.factorization.solvers import VI, Gibbs

ROWS, COLUMNS, ENTRIES, SWEEPS = 70_000, 11_000, 10_000_000, 4
LEAST = 0.0005  # seconds, half the last digit that is printed


def ratings(part: float, n_factors: int = 8) -> tuple[Any, Any, Any]:
    """Five stars with offsets and factors, the same mean counts a row and a column as in whole."""
    rng = np.random.default_rng(0)
    n, m, n_entries = (max(64, int(part * size)) for size in (ROWS, COLUMNS, ENTRIES))
    rows = rng.integers(0, n, n_entries, dtype=np.int32)
    columns = rng.integers(0, m, n_entries, dtype=np.int32)
    a, b = (0.4 * rng.standard_normal(size, dtype=np.float32) for size in (n, m))
    u, v = (0.45 * rng.standard_normal((s, n_factors), dtype=np.float32) for s in (n, m))
    values = np.empty(n_entries, dtype=np.float32)
    for begin in range(0, n_entries, 1 << 18):
        i, j = rows[begin : begin + (1 << 18)], columns[begin : begin + (1 << 18)]
        noise = 0.85 * rng.standard_normal(len(i), dtype=np.float32)
        latent = 3.5 + a[i] + b[j] + (u[i] * v[j]).sum(axis=1) + noise
        values[begin : begin + (1 << 18)] = np.clip(np.round(latent), 1, 5)
    return rows, columns, values


def settings_of(solver: str) -> dict[str, Any]:
    """Of Gibbs sampling few draws are kept: all of them are copies of the factors."""
    if solver == "gibbs":
        return {"solver": Gibbs(n_draws=2)}
    return {"solver": VI(symmetry=None)} if solver == "plain" else {}


def peak() -> float:
    """GB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measured(
    measure: Callable[[float, int, str], str], n_threads: int, part: float, k: int, solver: str
) -> str:
    """A line of the table."""
    torch.set_num_threads(n_threads)
    warnings.simplefilter("ignore")
    return measure(part, k, solver)


def whole(part: float, k: int, solver: str) -> str:
    """Fit until it stops; the error of held-out entries, CPU seconds, memory."""
    rows, columns, values = ratings(part)
    held = slice(0, len(values) // 100)
    kept = tuple(array[held.stop :].copy() for array in (rows, columns, values))
    asked = tuple(array[held].copy() for array in (rows, columns, values))
    del rows, columns, values
    floor, begin = peak(), time.process_time()
    model = SymVIMatrixFactorization(k, random_state=0, **settings_of(solver)).fit(kept)
    seconds = time.process_time() - begin
    rmse = np.sqrt(np.mean((model.predict_entries(*asked[:2]) - asked[2]) ** 2))
    n, m = len(model.row_labels_), len(model.column_labels_)
    return (
        f"{n} x {m}, {model.n_observed_} entries, k={k}, {solver}: {model.n_iter_} sweeps "
        f"({model.stop_reason_}), {seconds:.0f} CPU s, RMSE {rmse:.4f}, peak {peak():.2f} GB, "
        f"before the fit {floor:.2f}"
    )


def one(part: float, k: int, solver: str) -> str:
    """A sweep, the rest of a fit, memory and its floor."""
    triplets, floor = ratings(part), peak()
    rows, columns, values = triplets
    n, m, n_entries = int(rows.max()) + 1, int(columns.max()) + 1, len(values)
    a_sweep, rest = sweep(triplets, k, solver)
    return (
        f"{n:>7} x {m:<6} {n_entries:>9} {k:>3}  {solver:<11}{a_sweep:10.3f}{rest:10.2f}"
        f"{peak():9.2f}{floor:8.2f}"
    )


def sweep(triplets: Any, k: int, solver: str) -> tuple[float, float]:
    """CPU seconds of a sweep, by a fit of twice as many as half of it, and of the rest."""
    settings, seconds = settings_of(solver), []
    for n_sweeps in (SWEEPS // 2, SWEEPS):
        model = SymVIMatrixFactorization(k, max_iter=n_sweeps, random_state=0, **settings)
        if solver != "gibbs":
            model.set_params(tol=None)
        seconds.append(cpu_seconds(lambda model=model: model.fit(triplets))[1])
    a_sweep = (seconds[1] - seconds[0]) / (SWEEPS - SWEEPS // 2)
    return a_sweep, seconds[1] - SWEEPS * a_sweep


def slopes(found: list[tuple[str, float, float, float]]) -> None:
    """Powers of entries and components in the seconds of a sweep, by solver."""
    for solver in dict.fromkeys(line[0] for line in found):
        sizes = np.log([line[1:] for line in found if line[0] == solver])
        centred = sizes - sizes.mean(axis=0)
        powers = np.linalg.lstsq(centred[:, :2], centred[:, 2], rcond=None)[0]
        print(f"{solver}: seconds as entries^{powers[0]:.2f} components^{powers[1]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a factorisation by its size.")
    parser.add_argument("--part", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--components", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--solvers", nargs="+", default=["symmetrised", "plain", "gibbs"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--whole", action="store_true", help="fit until it stops")
    args = parser.parse_args()
    measure = whole if args.whole else one
    header = "rows x columns     entries   k  solver       s a sweep  the rest  peak GB   floor"
    if not args.whole:
        print(header, flush=True)
    found = []
    for part, k, solver in product(args.part, args.components, args.solvers):
        line = fresh(measured, measure, args.threads, part, k, solver)
        print(line, flush=True)
        if not args.whole:
            entries, seconds = (float(line.split()[place]) for place in (3, 6))
            found.append((solver, entries, k, max(seconds, LEAST)))
    if not args.whole:
        slopes(found)


if __name__ == "__main__":
    main()
