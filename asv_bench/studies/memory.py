"""Peak memory of every estimator on tables with more columns than rows, under a limit.

    python asv_bench/studies/memory.py [--limit GB] [NAME ...]

Each fit and its predictions run in a process of their own, whose address space may grow by
``--limit`` gigabytes (2 by default) beyond what importing the package takes. Printed are the
growth of the resident memory at its peak, the seconds, and what was raised where it was refused.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

TABLES = {
    "120 x 1,100": (120, 1100, 0),
    "60 x 5,000": (60, 5000, 0),
    "120 x 1,100, 5 classes": (120, 1100, 5),
    "60 x 5,000, 2 classes": (60, 5000, 2),
}

NAMES = (
    "PredictiveStacking", "BayesianMLP", "Laplace", "DeepEnsemble", "BayesianLinear",
    "SymmetrizedVI", "MCMC", "LILA", "LayerwiseVI", "SymVIMatrixFactorization",
)  # fmt: skip


def fit_one(name: str, table: str, limit: float) -> dict[str, object]:
    """Fit one estimator at its defaults in this process, after limiting its memory."""
    import numpy as np

    import skbayes_sym

    n_rows, n_columns, n_classes = TABLES[table]
    random = np.random.default_rng(0)
    X = (random.random((n_rows, n_columns)) < 0.3) * 1.0
    score = X[:, :5].sum(1) + 0.3 * random.normal(size=n_rows)
    target = np.exp(score)
    if n_classes:
        edges = np.quantile(score, np.linspace(0.0, 1.0, n_classes + 1)[1:-1])
        target = np.digitize(score, edges)
    kind = "Classifier" if n_classes else "Regressor"
    if name == "SymVIMatrixFactorization":
        model = skbayes_sym.SymVIMatrixFactorization(random_state=0)
        arguments = (
            np.where(random.random(X.shape) < 0.5, X + random.normal(size=X.shape), np.nan),
        )
    else:
        model = getattr(skbayes_sym, name + kind)(random_state=0)
        arguments = (X, target)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = int(pages * resource.getpagesize() + limit * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    outcome = "fitted"
    try:
        model.fit(*arguments)
        if name != "SymVIMatrixFactorization":
            model.predict(X[:20])
    except MemoryError as error:
        outcome = f"MemoryError: {error}"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = time.perf_counter() - start
    return {"outcome": outcome, "peak": (peak - before) / 1e6, "seconds": seconds}


def fit_elsewhere(name: str, table: str, limit: float, most_seconds: float) -> dict[str, object]:
    """`fit_one` in a process of its own."""
    arguments = [name, table, str(limit)]
    command = [sys.executable, "-W", "ignore", __file__, "--child", *arguments]
    start = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=most_seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"outcome": "not ready", "peak": float("nan"), "seconds": most_seconds}
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [""])[-1]
        outcome = f"ended with {done.returncode}: {reason}"
        return {"outcome": outcome, "peak": float("nan"), "seconds": time.perf_counter() - start}
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=float, default=2.0, help="gigabytes beyond the imports")
    parser.add_argument("--seconds", type=float, default=1800.0, help="most, of each fit")
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("names", nargs="*", default=NAMES)
    options = parser.parse_args()
    print(f"{'estimator':26}{'table':26}{'GB':>6}{'s':>7}  outcome")
    for table in options.table or TABLES:
        n_classes = TABLES[table][2]
        for name in options.names:
            if n_classes and name in ("LayerwiseVI", "SymVIMatrixFactorization"):
                continue
            result = fit_elsewhere(name, table, options.limit, options.seconds)
            print(
                f"{name:26}{table:26}{result['peak']:6.2f}{result['seconds']:7.1f}  "
                f"{result['outcome']}",
                flush=True,
            )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(fit_one(sys.argv[2], sys.argv[3], float(sys.argv[4]))))
    else:
        main()
