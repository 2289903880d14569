"""CPU seconds of default fits and predictions, and what they were promised to be.

    python asv_bench/studies/default_costs.py [--only NAME ...] [--seed 0]
    python asv_bench/studies/default_costs.py --profile [ROWS ...]

Promises are seconds on a core that makes 30 GFLOP/s in the products that a search of ten modes
takes; a figure is what was measured times the speed of this core over that, and its unscaled
seconds stand beside it. Where most of the time isn't arithmetic, a fast core is scaled too far.
Peers are fitted to the same tables: a Gaussian process with a length scale a column, and boosting.
The stacks are measured by ``stack_costs.py``, in units of boosting and next to other commits.
``--profile`` tells the shares of a default pool's fit at 300, 1,000 and 10,000 rows. `compare_all`
takes the figures as a source.
"""

import argparse
import cProfile
import pstats
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from ratios import Ratio, Round, Source
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from time_by_size import data
from timing import cpu_seconds, fresh

import skbayes_sym as sk

SPEED = 30.0  # GFLOP/s of the promises
SMALL = {"150 x 10": 1.0, "300 x 10": 3.0}
NUMBERS = "100,000 x 20"
LABELS = "10,000 x 20, three classes"
DIGITS = "digits, 1,400 rows"
PER_ROWS, ONE, PART = "std of 10,000 rows, ms", "std of one row, ms", "mean / std, 10,000 rows"
# What a line of the profile adds up, by names of functions whose callers aren't counted twice.
SHARES = {
    "width by cross-validation": "validate", "modes and linear model": "search",
    "members": "minimise", "passes over rows": "expansion", "damped steps": "step",
    "evidences": "evaluated", "updates of scales": "update",
}  # fmt: skip


def speed() -> float:
    """GFLOP/s of ten products ``J'J`` of 1,000 rows and 241 weights, float64, one thread."""
    jacobian = torch.randn(10, 1000, 241, dtype=torch.float64)
    seconds = [cpu_seconds(lambda: jacobian.mT @ jacobian)[1] for _ in range(20)]
    return 2.0 * 10 * 1000 * 241**2 / min(seconds[2:]) / 1e9


def best_milliseconds(work: Callable[[], Any], n: int) -> float:
    """Shortest of some runs, which a neighbour on the machine disturbs least."""
    work()
    return 1e3 * min(cpu_seconds(work)[1] for _ in range(n))


def of_small() -> Round:
    """Fits of the pool to small tables, and of peers."""

    def measure(seed: int) -> dict[str, float]:
        found, unit = {}, speed() / SPEED
        for size in SMALL:
            X, y, _ = data(size.replace(" ", ""), False)
            model = sk.BayesianMLPRegressor(random_state=seed)
            seconds = cpu_seconds(lambda m=model, X=X, y=y: m.fit(X, y))[1]
            kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
            process = GaussianProcessRegressor(kernel, normalize_y=True)
            boosting = HistGradientBoostingRegressor(max_iter=200)
            peers = [cpu_seconds(lambda m=m, X=X, y=y: m.fit(X, y))[1] for m in (process, boosting)]
            found |= {
                size: seconds * unit, f"{size}, unscaled": seconds,
                f"{size}, process": peers[0] * unit, f"{size}, boosting": peers[1] * unit,
            }  # fmt: skip
        return found

    sk.BayesianMLPRegressor(random_state=0).fit(*data("60x5", False)[:2])  # loads what it needs
    return measure


def of_predictions() -> Round:
    """Means and standard deviations of a pool of ten modes of twenty units."""
    X, y, _ = data("1000x10", False)
    pool = sk.BayesianMLPRegressor(hidden_layer_sizes=(20,), random_state=0).fit(X, y)
    new = np.random.default_rng(1).standard_normal((10_000, 10))

    def measure(seed: int) -> dict[str, float]:
        unit = speed() / SPEED
        std = best_milliseconds(lambda: pool.predict(new, return_std=True), 5)
        mean = best_milliseconds(lambda: pool.predict(new), 5)
        one = best_milliseconds(lambda: pool.predict(new[:1], return_std=True), 100)
        return {
            PER_ROWS: std * unit, f"{PER_ROWS}, unscaled": std, ONE: one * unit,
            f"{ONE}, unscaled": one, PART: mean / std,
        }  # fmt: skip

    return measure


def of_labels() -> Round:
    """Fits of the pool of classes, their log loss, and boosting's."""

    def measure(seed: int) -> dict[str, float]:
        found, unit = {}, speed() / SPEED
        tables = {
            LABELS: (*make_classification(12_000, 20, n_informative=8, n_classes=3, flip_y=0.05,
                                          random_state=seed), 2000),
            DIGITS: (*load_digits(return_X_y=True), 397),
        }  # fmt: skip
        for name, (X, y, n_new) in tables.items():
            X, X_new, y, y_new = train_test_split(X, y, test_size=n_new, random_state=seed)
            models = {
                "": sk.BayesianMLPClassifier(random_state=seed),
                ", boosting": HistGradientBoostingClassifier(max_iter=200),
            }
            for peer, model in models.items():
                seconds = cpu_seconds(lambda m=model, X=X, y=y: m.fit(X, y))[1]
                p = model.predict_proba(X_new)[
                    np.arange(n_new), np.searchsorted(model.classes_, y_new)
                ]
                found[name + peer] = seconds * unit
                found[f"{name}{peer}, log loss"] = -float(np.log(p.clip(1e-15)).mean())
            found[f"{name}, unscaled"] = found[name] / unit
        return found

    return measure


def _large(seed: int) -> tuple[float, float]:
    """CPU seconds and peak of memory, GB, in a process of its own."""
    torch.set_num_threads(1)
    X, y, _ = data("100000x20", False)
    seconds = cpu_seconds(lambda: sk.BayesianMLPRegressor(random_state=seed).fit(X, y))[1]
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def of_large() -> Round:
    """A fit of the pool to a large table."""

    def measure(seed: int) -> dict[str, float]:
        unit = speed() / SPEED
        seconds, gigabytes = fresh(_large, seed)
        return {
            NUMBERS: seconds * unit, f"{NUMBERS}, unscaled": seconds,
            f"{NUMBERS}, memory, GB": gigabytes,
        }  # fmt: skip

    return measure


def _beside(names: dict[str, float], *others: str) -> tuple[Ratio, ...]:
    return tuple(
        ratio for name, most in names.items()
        for ratio in (Ratio(name, most), *(Ratio(f"{name}, {other}") for other in others))
    )  # fmt: skip


SOURCES = (
    Source("small", "Default pool on small tables, CPU s at 30 GFLOP/s",
           _beside(SMALL, "unscaled", "gaussian_process", "boosting"), of_small),
    Source("predictions", "Predictions of a pool of 10 x 20 units at 30 GFLOP/s",
           (*_beside({PER_ROWS: 250.0, ONE: 1.0}, "unscaled"), Ratio(PART, 0.1)), of_predictions),
    Source("labels", "Default pool of classes, CPU s at 30 GFLOP/s",
           _beside({LABELS: 25.0, DIGITS: 15.0}, "unscaled", "log loss", "boosting",
                   "boosting, log loss"), of_labels),
    Source("large", "Default pool on a large table, CPU s at 30 GFLOP/s",
           (*_beside({NUMBERS: 120.0}, "unscaled"), Ratio(f"{NUMBERS}, memory, GB", 1.5)),
           of_large),
)  # fmt: skip


def shares(rows: int) -> None:
    """Print which share of a fit is spent in which of its parts; parts contain one another."""
    X, y, _ = data(f"{rows}x10", False)
    profile = cProfile.Profile(time.process_time)
    model = sk.BayesianMLPRegressor(random_state=0)
    _, seconds = cpu_seconds(lambda: profile.runcall(model.fit, X, y))
    stats: Any = pstats.Stats(profile)
    print(f"\n{rows:,} rows x 10: {seconds:.1f} CPU s under the profiler; {model.summary_}")
    spent = dict.fromkeys(SHARES, 0.0)
    for (file, _, name), (*_, whole, _) in stats.stats.items():
        for part, function in SHARES.items():
            if "skbayes_sym" in file and name == function:
                spent[part] = max(spent[part], whole)
    for part, whole in spent.items():
        print(f"  {part:28}{100 * whole / seconds:5.0f} %")
    longest = sorted(stats.stats.items(), key=lambda item: -item[1][2])[:8]
    for (_, _, name), (_, calls, alone, *_) in longest:
        print(f"  {name[:50]:52}{100 * alone / seconds:3.0f} % in {calls:,} calls")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [source.name for source in SOURCES]
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile", nargs="*", type=int)
    args = parser.parse_args()
    if args.profile is not None:
        for rows in args.profile or (300, 1000, 10_000):
            shares(rows)
        return
    print(f"this core makes {speed():.0f} GFLOP/s; promises are for {SPEED:.0f}")
    for source in (s for s in SOURCES if s.name in args.only):
        print(source.title, flush=True)
        found = source.prepare()(args.seed)
        for ratio in source.ratios:
            value, most = found.get(ratio.name, float("nan")), ratio.bound
            said = "" if most is None else f"at most {most:g}{'' if value <= most else ', MISSED'}"
            print(f"  {ratio.name:44}{value:10.3g}   {said}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        torch.set_num_threads(1)
        main()
