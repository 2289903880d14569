"""Peak memory and CPU seconds of every estimator at its defaults.

    python asv_bench/studies/memory.py [--table TABLE ...] [--rows N ...] [--seconds 300]
        [--limit GB] [--steps N] [NAME ...]

Each fit and the prediction of 20 rows run in a process of their own. Printed are rows of a csv
table: the growth of the resident memory at its peak beyond the imported package, training data
included, and the CPU seconds, or why there is no fit. Tables with more columns than rows are fitted
under a limit: the address space may grow by ``--limit`` gigabytes (2 by default) beyond that of the
imported package. With ``--steps`` Adam makes at most so many steps in every stage, and annealed
chains as many moves of their warm-up and draws, which shows the memory of all stages in less time.

``--rows`` measures tables of 10 columns with these numbers of rows instead, and prints the exponent
of the growth of the memory from each to the next: 1 if it is proportional to the rows, and less if
a part of it is constant. The limit of the address space then holds for these tables.
"""

import argparse
import json
import math
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

# Numbers of rows and columns, and of classes for classifiers.
TABLES = {
    "1,000 x 8": (1000, 8, 3),
    "10,000 x 100": (10_000, 100, 3),
    "1,000,000 x 10": (1_000_000, 10, 3),
    "120 x 1,100": (120, 1100, 5),
    "60 x 5,000": (60, 5000, 2),
}

NAMES = (
    "PredictiveStackingRegressor", "PredictiveStackingClassifier", "BayesianMLPRegressor",
    "BayesianMLPClassifier", "LaplaceRegressor", "LaplaceClassifier", "DeepEnsembleRegressor",
    "DeepEnsembleClassifier", "BayesianLinearRegressor", "BayesianLinearClassifier",
    "SymmetrizedVIRegressor", "SymmetrizedVIClassifier", "LayerwiseVIRegressor", "MCMCRegressor",
    "MCMCClassifier", "LILARegressor", "LILAClassifier", "SymVIMatrixFactorization",
)  # fmt: skip

MATRIX = "SymVIMatrixFactorization"
N_LADDER_COLUMNS = 10


class OutOfTime(BaseException):
    """Raised when a fit has used its CPU seconds; estimators don't handle it."""


def table_size(table: str) -> tuple[int, int, int]:
    """Numbers of rows, columns and classes of a table, such as "1,000 x 8"."""
    if table in TABLES:
        return TABLES[table]
    n_rows, n_columns = (int(number.replace(",", "")) for number in table.split(" x "))
    return n_rows, n_columns, 3


def make_table(name: str, table: str) -> tuple[Any, ...]:
    """Arguments of ``fit``: rows and targets or classes, or a matrix with missing entries."""
    import numpy as np

    n_rows, n_columns, n_classes = table_size(table)
    random = np.random.default_rng(0)
    if n_columns > n_rows:
        X = (random.random((n_rows, n_columns)) < 0.3) * 1.0
    else:
        X = random.normal(size=(n_rows, n_columns))
    if name == MATRIX:
        X[random.random(X.shape) < 0.5] = np.nan
        return (X,)
    score = X[:, :5].sum(axis=1) + np.sin(2.0 * X[:, 0]) + 0.3 * random.normal(size=n_rows)
    if name.endswith("Classifier"):
        edges = np.quantile(score, np.linspace(0.0, 1.0, n_classes + 1)[1:-1])
        return X, np.digitize(score, edges)
    return X, score


def limit_steps(steps: int) -> None:
    """Let Adam make at most so many steps in the fits of this process."""
    from skbayes_sym.base import progress
    from skbayes_sym.laplace import invariant_evidence
    from skbayes_sym.numerics.optimise import minimise

    def few_steps(*args: Any, max_iter: int, **settings: Any) -> Any:
        return minimise(*args, max_iter=min(steps, max_iter), **settings)

    progress.minimise = few_steps
    invariant_evidence.minimise = few_steps


def fit_one(
    name: str, table: str, limit: float, seconds: float, steps: int | None = None
) -> dict[str, object]:
    """Fit one estimator at its defaults in this process, within limits of memory and time."""
    import skbayes_sym

    model = getattr(skbayes_sym, name)(random_state=0)
    if steps is not None:
        limit_steps(steps)
    if steps is not None and name.startswith("MCMC"):
        kernel = skbayes_sym.HMC(max_leapfrog=2)
        model.sampler = skbayes_sym.Chains(kernel, init="ensemble", n_warmup=steps)
        model.n_draws = steps
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    arguments = make_table(name, table)
    n_rows, n_columns, _ = table_size(table)
    if n_columns > n_rows or table not in TABLES:
        n_pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
        max_bytes = int(n_pages * resource.getpagesize() + limit * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))

    def end(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    start = time.process_time()
    outcome = "fitted"
    try:
        model.fit(*arguments)
        if name != MATRIX:
            model.predict(arguments[0][:20])
    except OutOfTime:
        outcome = f"not finished in {seconds:.0f} s"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cpu_seconds = time.process_time() - start
    return {"outcome": outcome, "peak": (peak - before) / 1e6, "seconds": cpu_seconds}


def fit_elsewhere(
    name: str, table: str, limit: float, seconds: float, steps: int | None = None
) -> dict[str, object]:
    """`fit_one` in a process of its own."""
    arguments = [name, table, str(limit), str(seconds)]
    if steps is not None:
        arguments.append(str(steps))
    command = [sys.executable, "-W", "ignore", __file__, "--child", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [""])[-1]
        outcome = f"ended with {done.returncode}: {reason}"
        return {"outcome": outcome, "peak": float("nan"), "seconds": float("nan")}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def describe(result: dict[str, Any]) -> str:
    """Peak and seconds of a fit, and its outcome if it isn't fitted."""
    figures = f"{result['peak']:.2f} GB, {result['seconds']:.1f} s"
    if result["outcome"] == "fitted":
        return figures
    if result["outcome"].startswith("not finished"):
        return f"{result['peak']:.2f} GB, {result['outcome']}"
    return f"{result['outcome']} (after {figures})"


def measure_growth(names: Sequence[str], options: argparse.Namespace) -> None:
    """Print the peak memory of tables with increasing numbers of rows, and its exponents."""
    tables = [f"{n_rows:,} x {N_LADDER_COLUMNS}" for n_rows in options.rows]
    print(", ".join(f'"{title}"' for title in ["", *tables, "exponents"]))
    for name in names:
        print(f'"{name}"', end="", flush=True)
        peaks = []
        for table in tables:
            result = fit_elsewhere(name, table, options.limit, options.seconds, options.steps)
            peaks.append(float(result["peak"]))  # type: ignore[arg-type]
            print(f', "{describe(result)}"', end="", flush=True)
        exponents = []
        for (n_low, low), (n_high, high) in pairwise(zip(options.rows, peaks, strict=True)):
            exponents.append(f"{math.log(high / low) / math.log(n_high / n_low):.2f}")
        print(f', "{" ".join(exponents)}"', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=2.0, help="gigabytes beyond the imports")
    parser.add_argument("--seconds", type=float, default=300.0, help="most, of each fit, CPU")
    parser.add_argument("--steps", type=int, help="most, of Adam in every stage")
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--rows", type=int, nargs="+", help="of tables whose growth is printed")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    if options.rows:
        measure_growth(options.names, options)
        return
    tables = options.table or list(TABLES)
    print(", ".join(f'"{title}"' for title in ["", *tables]))
    for name in options.names:
        print(f'"{name}"', end="", flush=True)
        for table in tables:
            result = fit_elsewhere(name, table, options.limit, options.seconds, options.steps)
            print(f', "{describe(result)}"', end="", flush=True)
        print(flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        name, table, limit, seconds, *steps = sys.argv[2:]
        result = fit_one(name, table, float(limit), float(seconds), *map(int, steps))
        print(json.dumps(result))
    else:
        main()
