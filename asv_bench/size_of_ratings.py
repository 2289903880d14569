"""CPU seconds of a sweep and peak memory of a factorisation, by entries, components and solver.

    python asv_bench/size_of_ratings.py [--part 0.01] [--components 8 16 32 64]

``--part 1`` is 70,000 x 11,000 with 1e7 ratings (MovieLens-10M's size); smaller parts have as many
entries a row and a column. Every fit runs in a process of its own, in float32 on one thread; peak
memory is that process's, the interpreter and its libraries included.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings

ROWS, COLUMNS, ENTRIES, SWEEPS = 70_000, 11_000, 10_000_000, 4


def one(part: float, k: int, solver: str) -> None:
    """Fit twice as many sweeps as half of it, print the difference, memory and its floor."""
    import numpy as np
    import torch

    from skbayes_sym import SymVIMatrixFactorization

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    n, m, n_entries = (max(64, int(part * size)) for size in (ROWS, COLUMNS, ENTRIES))
    # The same mean counts a row and a column as in whole.
    rows = rng.integers(0, n, n_entries).astype(np.int32)
    columns = rng.integers(0, m, n_entries).astype(np.int32)
    values = rng.integers(1, 6, n_entries).astype(np.float32)
    floor = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    settings = {"symmetry": None} if solver == "plain" else {}
    if solver == "gibbs":
        settings = {"solver": "gibbs"}
    seconds = []
    for n_sweeps in (SWEEPS // 2, SWEEPS):
        model = SymVIMatrixFactorization(k, max_iter=n_sweeps, random_state=0, **settings)
        if solver != "gibbs":
            model.set_params(tol=None)
        begin = time.process_time()
        model.fit((rows, columns, values))
        seconds.append(time.process_time() - begin)
    a_sweep = (seconds[1] - seconds[0]) / (SWEEPS - SWEEPS // 2)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{n:>7} x {m:<6} {n_entries:>9} {k:>3}  {solver:<11}{a_sweep:10.2f}"
        f"{seconds[1] - SWEEPS * a_sweep:10.2f}{peak:9.2f}{floor:8.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of a factorisation by its size.")
    parser.add_argument("--part", type=float, nargs="+", default=[0.005, 0.01, 0.02])
    parser.add_argument("--components", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--solvers", nargs="+", default=["symmetrised", "plain", "gibbs"])
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(float(args.one[0]), int(args.one[1]), args.one[2])
        return
    header = "rows x columns     entries   k  solver       s a sweep  the rest  peak GB   floor"
    print(header, flush=True)
    for part in args.part:
        for k in args.components:
            for solver in args.solvers:
                given = [str(part), str(k), solver]
                subprocess.run([sys.executable, __file__, "--one", *given], check=True)


if __name__ == "__main__":
    main()
