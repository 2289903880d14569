"""CPU time of the default stacks in units of scikit-learn's boosting, next to peers and old code.

    python asv_bench/studies/stack_costs.py [--quick] [--seed 0] [--against COMMIT] [--no-peers]

The unit is the CPU time of ``HistGradientBoostingRegressor().fit`` on 1,000 x 8 rows, measured in
the same run, before and after everything else. Tables are simulated: smooth functions with noise,
eight columns of numbers; class labels that are easy to tell apart; handwritten digits; and a table
of 38 numbers and 30 columns of text. A target is printed next to each figure that has one. Log
densities of new rows stand next to the times of fits, since a fast fit of a poor model is no gain.

Peers, as far as they are installed: boosting for quantiles, with a conformal correction from a
quarter of the rows; CatBoost with uncertainty; NGBoost; scikit-learn's Gaussian process.
``--against`` checks another commit of this repository out into a temporary folder, and measures
its stacks by this script in a process of their own. Commits without stacks, such as e741c86, are
measured by their mixtures of networks, which were the default then, and without the table with
text, which these don't read. ``--quick`` leaves 10,000 rows, digits and text out.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from threadpoolctl import threadpool_limits
from timing import cpu_seconds

import skbayes_sym as sk

Array = NDArray[np.float64]
ROOT = Path(__file__).resolve().parents[2]
QUICK = {"100 x 8", "1,000 x 8", "240 labels"}

FITS = {
    "100 x 8": 6.0, "1,000 x 8": 50.0, "10,000 x 8": 120.0, "240 labels": 15.0, "digits": 80.0,
    "1,000 x 68, 30 of text": 100.0,
}  # fmt: skip
# Of the models of 1,000 and 10,000 rows, in units; one row in milliseconds, a pickle in megabytes.
PREDICTIONS = {
    "mean": 4.0, "interval": 12.0, "mean of one row, ms": 3.0, "interval of one row, ms": 3.0,
    "probabilities of one row, ms": 3.0, "pickle, MB": 5.0,
}  # fmt: skip


class Table(NamedTuple):
    """Training rows and new ones."""

    X: Any
    y: Any
    X_new: Any
    y_new: Any
    has_classes: bool = False


def numbers(n_rows: int, seed: int) -> Table:
    """Eight normal columns, a smooth function of three, and noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows + 2000, 8))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=len(X))
    return Table(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])


def labels(seed: int) -> Table:
    """240 rows of three classes that are easy to tell apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(3, size=1240)
    X = rng.normal(size=(1240, 5)) + 3.0 * np.eye(3, 5)[y]
    return Table(X[:240], y[:240], X[240:], y[240:], has_classes=True)


def digits(seed: int) -> Table:
    """1,400 images of handwritten digits."""
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    train, new = order[:1400], order[1400:]
    return Table(X[train], y[train], X[new], y[new], has_classes=True)


def text(seed: int) -> Table:
    """1,000 rows of 38 numbers and 30 columns of text with 4 to 20 levels."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(2000, 38)), columns=[f"x{j}" for j in range(38)])
    effect = np.zeros(2000)
    for j in range(30):
        n_levels = int(rng.integers(4, 21))
        level = rng.integers(n_levels, size=2000)
        frame[f"text{j}"] = np.array([f"level {k}" for k in range(n_levels)])[level]
        if j < 3:
            effect += rng.normal(size=n_levels)[level]
    y = effect + frame["x0"].to_numpy() + 0.5 * rng.normal(size=2000)
    return Table(frame[:1000], y[:1000], frame[1000:], y[1000:])


TABLES: dict[str, Callable[[int], Table]] = {
    "100 x 8": lambda seed: numbers(100, seed),
    "1,000 x 8": lambda seed: numbers(1000, seed),
    "10,000 x 8": lambda seed: numbers(10_000, seed),
    "240 labels": labels,
    "digits": digits,
    "1,000 x 68, 30 of text": text,
}


def measure_unit() -> float:
    """CPU seconds of the unit, the shorter of two fits."""
    table = numbers(1000, 0)
    fits = [HistGradientBoostingRegressor() for _ in range(3)]
    return min(cpu_seconds(lambda m=m: m.fit(table.X, table.y))[1] for m in fits)


HAS_STACKS = hasattr(sk, "PredictiveStackingRegressor")


def make_model(has_classes: bool, seed: int) -> Any:
    """Default stack, or the mixture of networks of a commit without stacks."""
    kind = "PredictiveStacking" if HAS_STACKS else "BayesianMLP"
    model_class = getattr(sk, kind + ("Classifier" if has_classes else "Regressor"))
    return model_class(random_state=seed)


def milliseconds(call: Callable[[], Any]) -> float:
    """Median CPU time of twenty calls, after one that computes what is kept."""
    call()
    return 1e3 * float(np.median([cpu_seconds(call)[1] for _ in range(20)]))


def measure_stack(names: list[str], seed: int) -> dict[str, float]:
    """CPU seconds of fits and predictions of the default stacks, by name."""
    found = {}
    new = np.random.default_rng(1).normal(size=(10_000, 8))
    for name in names:
        if not HAS_STACKS and name.endswith("text"):
            continue
        table = TABLES[name](seed)
        model = make_model(table.has_classes, seed)
        _, found[f"fit {name}"] = cpu_seconds(lambda m=model, t=table: m.fit(t.X, t.y))
        log_density = model.log_predictive_density(table.X_new, table.y_new)
        found[f"log density {name}"] = float(np.mean(log_density))
        if name not in {"1,000 x 8", "10,000 x 8"}:
            continue
        of = f"model of {name.split()[0]} rows"
        model.predict(new[:10])
        _, found[f"mean, {of}"] = cpu_seconds(lambda m=model: m.predict(new))
        _, found[f"interval, {of}"] = cpu_seconds(lambda m=model: m.predict_interval(new))
        found[f"mean of one row, ms, {of}"] = milliseconds(lambda m=model: m.predict(new[:1]))
        found[f"interval of one row, ms, {of}"] = milliseconds(
            lambda m=model: m.predict_interval(new[:1])
        )
        classifier = make_model(has_classes=True, seed=seed).fit(table.X, table.y > 0.0)
        found[f"probabilities of one row, ms, {of}"] = milliseconds(
            lambda m=classifier: m.predict_proba(new[:1])
        )
        found[f"pickle, MB, {of}"] = len(pickle.dumps(model)) / 1e6
    return found


class ConformalQuantiles:
    """Boosting for two quantiles, widened until they cover the rows that were held out."""

    def fit(self, X: Array, y: Array) -> "ConformalQuantiles":
        n = 3 * len(y) // 4
        self.models_ = [
            HistGradientBoostingRegressor(loss="quantile", quantile=q).fit(X[:n], y[:n])
            for q in (0.05, 0.95)
        ]
        low, high = (model.predict(X[n:]) for model in self.models_)
        self.margin_ = float(np.quantile(np.maximum(low - y[n:], y[n:] - high), 0.9))
        return self

    def predict(self, X: Array) -> tuple[Array, Array]:
        low, high = (model.predict(X) for model in self.models_)
        return low - self.margin_, high + self.margin_


def peers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names and constructors of the peers that are installed."""
    yield "boosting for quantiles, conformal", ConformalQuantiles
    try:
        from catboost import CatBoostRegressor  # type: ignore[import-not-found]

        yield (
            "CatBoost with uncertainty",
            lambda: CatBoostRegressor(
                loss_function="RMSEWithUncertainty", verbose=False, thread_count=1
            ),
        )
    except ImportError:
        print("CatBoost isn't installed")
    try:
        from ngboost import NGBRegressor  # type: ignore[import-not-found]

        yield "NGBoost", lambda: NGBRegressor(verbose=False)
    except ImportError:
        print("NGBoost isn't installed")
    kernel = ConstantKernel() * RBF(np.ones(8)) + WhiteKernel()
    yield "GaussianProcessRegressor", lambda: GaussianProcessRegressor(kernel, normalize_y=True)


def print_peers(unit: float, names: list[str], seed: int) -> None:
    """Fits and predictions of 10,000 rows by the peers, in units."""
    new = np.random.default_rng(1).normal(size=(10_000, 8))
    sizes = [name for name in names if name.endswith(" x 8")]
    for peer, make in peers():
        cells = []
        for name in sizes:
            if peer == "GaussianProcessRegressor" and name == "10,000 x 8":
                continue
            table, model = TABLES[name](seed), make()
            _, fitting = cpu_seconds(lambda m=model, t=table: m.fit(t.X, t.y))
            is_process = isinstance(model, GaussianProcessRegressor)
            options = {"return_std": True} if is_process else {}
            _, predicting = cpu_seconds(lambda m=model, o=options: m.predict(new, **o))
            cells.append(f"{name}: fit {fitting / unit:.1f}, predict {predicting / unit:.2f}")
        print(f"  {peer:36}{'; '.join(cells)}", flush=True)


def measure_commit(commit: str, names: list[str], seed: int) -> dict[str, float]:
    """The same figures of another commit, by this script in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        old = Path(folder) / "old"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(old), commit], check=True)
        try:
            command = [sys.executable, __file__, "--json", "--seed", str(seed), "--names", *names]
            environment = {**os.environ, "PYTHONPATH": str(old)}
            found = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
        finally:
            subprocess.run([*git, "remove", "--force", str(old)], check=True)
    return json.loads(found.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def target_of(name: str) -> float | None:
    """The target of a figure, if it has one."""
    if name.startswith("fit "):
        return FITS[name.removeprefix("fit ")]
    kind, _, rows = name.rpartition(", model of ")
    return PREDICTIONS.get(kind) if kind != "pickle, MB" or rows == "1,000 rows" else None


def in_units(name: str, value: float, unit: float) -> float:
    """Times in units; densities, milliseconds and megabytes as they are."""
    has_own_unit = "log density" in name or ", ms" in name or ", MB" in name
    return value if has_own_unit else value / unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 and 1,000 rows and labels alone")
    parser.add_argument("--names", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--against", metavar="COMMIT", help="measure another commit, too")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--json", action="store_true", help="print seconds as json alone")
    args = parser.parse_args()
    names = [name for name in args.names if not args.quick or name in QUICK]
    make_model(has_classes=False, seed=0).fit(*numbers(40, 0)[:2])  # imports what it needs
    if args.json:
        print(json.dumps(measure_stack(names, args.seed)))
        return

    before = measure_unit()
    now = measure_stack(names, args.seed)
    old = measure_commit(args.against, names, args.seed) if args.against else {}
    unit = min(before, measure_unit())
    print(f"a unit is {unit:.3f} CPU seconds: HistGradientBoostingRegressor().fit on 1,000 x 8")
    print(f"{'':44}{'now':>9}{args.against or '':>10}{'target':>9}")
    for name, value in now.items():
        previous = f"{in_units(name, old[name], unit):10.2f}" if name in old else f"{'':10}"
        most = target_of(name)
        said = "" if most is None else f"{most:9.0f}"
        missed = most is not None and in_units(name, value, unit) > most
        print(f"{name:44}{in_units(name, value, unit):9.2f}{previous}{said}{' missed' * missed}")
    if not args.no_peers:
        print("peers, in units; predictions are of 10,000 rows")
        print_peers(unit, names, args.seed)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        main()
