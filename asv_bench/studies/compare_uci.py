"""Predictive distributions on the standard table data sets, all models at their defaults.

    python asv_bench/studies/compare_uci.py [--sets concrete energy yacht airfoil] [--splits 20]
                                    [--models NAME ...] [--keep]

The splits of concrete, energy and yacht are the twenty 90/10 splits of the literature (Hernandez-
Lobato & Adams 2015, Gal & Ghahramani 2016), read from ``uci_splits.json`` beside the data (folder
`SKBAYES_SYM_DATA`), so that the published columns stand beside ours; without that file, and for
airfoil, splits are random 90/10 ones of seeds 0, 1, ...

Per model and set: RMSE and mean log density in the units of y (nats per row), CRPS, coverage of
90 % intervals and CPU seconds of one thread (fit and predictions), each a mean over splits with its
standard error, and the paired difference of the log density to the best of scikit-learn's own.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from figures import keep
from paper_tables import load_dataset
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import KFold, cross_val_predict, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from timing import mean_and_error

import skbayes_sym as sk
from skbayes_sym.models import Gaussian

SETS = ("concrete", "energy", "yacht", "airfoil")
AIRFOIL_SPLITS = 5

# Mean negative log density on these splits as published, nats in the units of y.
PUBLISHED = {
    "deep ensembles (Lakshminarayanan et al. 2017)": {
        "concrete": 3.06, "energy": 1.38, "yacht": 1.18,
    },
    "dropout (Gal & Ghahramani 2016)": {"concrete": 3.04, "energy": 1.99, "yacht": 1.55},
    "dropout, grid search (the same, code of 2018)": {
        "concrete": 2.93, "energy": 1.21, "yacht": 1.25,
    },
    "NGBoost (Duan et al. 2020)": {"energy": 0.60},
}  # fmt: skip


class BoostingWithSigma(RegressorMixin, BaseEstimator):
    """Gradient boosting with one normal noise, its size from five-fold cross-validation."""

    def __init__(self, random_state: Any = 0) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> "BoostingWithSigma":
        model = HistGradientBoostingRegressor(random_state=self.random_state)
        folds = KFold(5, shuffle=True, random_state=self.random_state)
        residual = y - cross_val_predict(model, X, y, cv=folds)
        self.sigma_ = float(np.sqrt(np.mean(residual**2)))
        self.model_ = model.fit(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        mean = self.model_.predict(X)
        return (mean, np.full(len(mean), self.sigma_)) if return_std else mean


class GaussianProcess(RegressorMixin, BaseEstimator):
    """scikit-learn's Gaussian process with one length scale a column and learned noise."""

    def fit(self, X: Any, y: Any) -> "GaussianProcess":
        kernel = ConstantKernel(1.0) * RBF(np.ones(X.shape[1]), (1e-2, 1e3)) + WhiteKernel(0.1)
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=0)
        self.model_ = make_pipeline(StandardScaler(), process).fit(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        scaled = self.model_[:-1].transform(X)
        return self.model_[-1].predict(scaled, return_std=return_std)


def _ngboost() -> Any:
    from ngboost import NGBRegressor

    class NGBoost(RegressorMixin, BaseEstimator):
        def fit(self, X: Any, y: Any) -> "NGBoost":
            self.model_ = NGBRegressor(random_state=0, verbose=False).fit(X, y)
            return self

        def predict(self, X: Any, return_std: bool = False) -> Any:
            distribution = self.model_.pred_dist(X)
            return (distribution.loc, distribution.scale) if return_std else distribution.loc

    return NGBoost()


OURS: dict[str, Callable[[], Any]] = {
    name: lambda name=name: getattr(sk, name)(random_state=0)
    for name in (
        "BayesianMLPRegressor", "LaplaceRegressor", "DeepEnsembleRegressor",
        "LayerwiseVIRegressor", "SymmetrizedVIRegressor", "MCMCRegressor",
    )
    if hasattr(sk, name)
} | {
    "BayesianLinearRegressor": lambda: sk.BayesianLinearRegressor(),
    "BayesianMLP, one noise": lambda: sk.BayesianMLPRegressor(
        likelihood=Gaussian(), random_state=0
    ),
}  # fmt: skip
THEIRS: dict[str, Callable[[], Any]] = {
    "GaussianProcess": GaussianProcess,
    "HistGradientBoosting": BoostingWithSigma,
    "NGBoost": _ngboost,
    "BayesianRidge": lambda: make_pipeline(StandardScaler(), BayesianRidge()),
}
SLOW = {"MCMCRegressor", "BayesianMLP, one noise"}  # only where asked for by name


def splits(name: str, n_rows: int, n_splits: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Training and test rows."""
    home = os.environ.get("SKBAYES_SYM_DATA")
    path = Path(home, "uci_splits.json") if home else None
    tests: list[Any] = []
    if path is not None and path.exists():
        tests = json.loads(path.read_text(encoding="utf-8")).get(name, {}).get("test", [])
    for i in range(n_splits):
        if i < len(tests):
            test = np.asarray(tests[i])
            yield np.setdiff1d(np.arange(n_rows), test), test
        else:
            train, test = train_test_split(np.arange(n_rows), test_size=0.1, random_state=i)
            yield train, test


def score_member(model: Any, X: Any, y: Any, train: Any, test: Any) -> dict[str, float]:
    """One fit: figures in the units of y."""
    start = time.process_time()
    fitted = clone(model).fit(X[train], y[train])
    distribution = sk.predictive(fitted, X[test])
    mean, std, interval = distribution.mean(), distribution.std(), distribution.interval(0.9)
    seconds = time.process_time() - start
    inside = (interval[:, 0] <= y[test]) & (y[test] <= interval[:, 1])
    assert np.all(std > 0)
    return {
        "rmse": float(np.sqrt(np.mean((mean - y[test]) ** 2))),
        "log density": float(np.mean(distribution.log_prob(y[test]))),
        "crps": float(np.mean(distribution.crps(y[test]))),
        "coverage": float(np.mean(inside)),
        "CPU s": seconds,
    }


def show(name: str, found: dict[str, list[dict[str, float]]]) -> None:
    """The table of one data set."""
    n_splits = len(next(iter(found.values())))
    print(f"\n{name}, {n_splits} splits: mean (standard error)")
    columns = ("rmse", "log density", "crps", "coverage", "CPU s")
    best = max(
        (m for m in found if m in THEIRS),
        key=lambda m: np.mean([r["log density"] for r in found[m]]),
        default=None,
    )
    print(f"{'':26s}" + "".join(f"{c:>18s}" for c in columns) + f"{'log d. - ' + str(best):>28s}")
    for model, rows in found.items():
        cells = [mean_and_error([r[c] for r in rows]) for c in columns]
        line = f"{model:26s}" + "".join(f"{m:10.3f} ({e:5.3f})" for m, e in cells)
        if best is not None and best != model:
            pairs = zip(rows, found[best], strict=True)
            gain, error = mean_and_error([a["log density"] - b["log density"] for a, b in pairs])
            line += f"{gain:+18.3f} ({error:5.3f})"
        print(line)
    for source, values in PUBLISHED.items():
        if name in values:
            print(f"{source[:48]:50s} log density {-values[name]:8.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS)
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--keep", action="store_true", help="for README and pages")
    args = parser.parse_args()
    models = {**OURS, **THEIRS}
    chosen = args.models or [m for m in models if m not in SLOW]
    for name in args.sets:
        data = load_dataset(name)
        X, y = data.data, data.target
        n_splits = min(args.splits, AIRFOIL_SPLITS) if name == "airfoil" else args.splits
        found: dict[str, list[dict[str, float]]] = {}
        for model in chosen:
            try:
                estimator = models[model]()
            except ImportError:
                continue
            pairs = splits(name, len(y), n_splits)
            found[model] = [score_member(estimator, X, y, *pair) for pair in pairs]
        show(name, found)
        if args.keep:
            keep("uci", name, {m: [r["log density"] for r in rows] for m, rows in found.items()})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        import torch

        torch.set_num_threads(1)
        main()
