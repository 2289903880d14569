"""Predictive distributions on public tables as they are read, all models at their defaults.

    SKBAYES_SYM_DATA=FOLDER python asv_bench/studies/compare_tables.py [--tables NAME ...]
        [--half judging] [--splits 5] [--rows 1000] [--models NAME ...] [--store FILE] [--keep]
        [--keep-left-out]

The tables are ``FOLDER/tables/regression/*.csv.gz`` and ``FOLDER/tables/classification/*.csv.gz``,
the target last: words, gaps and all. Every second one of each kind in alphabetical order sets
constants ("settling", `SEEN` too), the others don't ("judging"), and each half has a summary of its
own. Splits are random: 80 % of the rows to train, at most ``--rows``, and at most 500 others to
test.

Members of the stack, and peers that predict points, are stacks of one: left-out residuals give
them the noise that members have. "CatBoost variance" and "CatBoost ensemble" have CatBoost's own
uncertainty instead: a mean and a variance for each row (``RMSEWithUncertainty``), and the virtual
ensembles of a model with posterior sampling (Malinin et al. 2021). NGBoost predicts a normal.

Words are one-hot for peers, save for CatBoost's classes, TabICL and TabPFN; gaps stay gaps for
these and for LightGBM and CatBoost. Models that aren't installed, and pretrained ones without
weights, are skipped with a message. ``--store`` keeps every fit and repeats none. The leave-one-out
log densities that stacks report are compared with those of new rows.
"""

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from figures import keep
from sklearn.base import BaseEstimator, RegressorMixin, is_classifier
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits
from timing import mean_and_error

import skbayes_sym as sk

MOST_NEW = 500
SEEN = {"parkinsons"}  # a rule for the prior's scales was written for it
LEAST = 1e-15  # probability that a log density is made of
# Members of the stack by their names in the stored figures.
MEMBERS = {
    "linear": "linear",
    "forest": "trees",
    "boosting": "boosting",
    "process": "gaussian_process",
}
NUMBERS = ("log density", "crps", "rmse", "coverage", "CPU s")
LABELS = ("log density", "accuracy", "CPU s")
# Log density of a stack that it reports, and that of new rows with known classes.
LEFT_OUT = "left out"
NEW_ROWS = "new rows"


def _stack(labels: bool, members: Any) -> Any:
    kind = sk.PredictiveStackingClassifier if labels else sk.PredictiveStackingRegressor
    return kind(members, random_state=0)


def _pool(labels: bool, X: Any) -> Any:
    kind = sk.BayesianMLPClassifier if labels else sk.BayesianMLPRegressor
    return kind(random_state=0)


def _point(model: Any) -> Any:
    """A peer as it is if it predicts classes, with noise if it predicts numbers."""
    return model if is_classifier(model) else _stack(False, [("peer", model)])


def _lightgbm(labels: bool, X: Any) -> Any:
    import lightgbm

    kind = lightgbm.LGBMClassifier if labels else lightgbm.LGBMRegressor
    return _point(kind(n_jobs=1, random_state=0, verbose=-1))


CATBOOST = {"thread_count": 1, "random_state": 0, "verbose": 0, "allow_writing_files": False}


def _catboost(labels: bool, X: Any) -> Any:
    import catboost

    if labels:
        return catboost.CatBoostClassifier(cat_features=_words(X), **CATBOOST)
    return _point(catboost.CatBoostRegressor(**CATBOOST))  # no clone of it has categories


class CatBoostUncertainty(RegressorMixin, BaseEstimator):
    """CatBoost with a normal distribution for each row.

    Parameters
    ----------
    posterior_sampling : bool, default=False
        Whether to sample from the posterior by stochastic gradient Langevin boosting. Truncations
        of the model are then a virtual ensemble, whose variance is added to that of the noise.
    """

    def __init__(self, posterior_sampling: bool = False) -> None:
        self.posterior_sampling = posterior_sampling

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a mean and a variance."""
        import catboost

        self.model_ = catboost.CatBoostRegressor(
            loss_function="RMSEWithUncertainty",
            posterior_sampling=self.posterior_sampling,
            **CATBOOST,
        ).fit(X, y)
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict means, and with ``return_std`` standard deviations."""
        if self.posterior_sampling:
            values = self.model_.virtual_ensembles_predict(
                X, prediction_type="TotalUncertainty", virtual_ensembles_count=10
            )
        else:
            values = self.model_.predict(X, prediction_type="RMSEWithUncertainty")
        values = np.asarray(values)
        mean = values[:, 0]
        # The other columns are variances: of the virtual ensemble, if there is one, and of noise.
        return (mean, np.sqrt(values[:, 1:].sum(axis=1))) if return_std else mean


def _catboost_uncertainty(posterior_sampling: bool) -> Callable[[bool, Any], Any]:
    def make(labels: bool, X: Any) -> Any:
        import_module("catboost")
        return None if labels else CatBoostUncertainty(posterior_sampling)

    return make


def _ngboost(labels: bool, X: Any) -> Any:
    from ngboost import NGBRegressor

    return None if labels else NGBRegressor(random_state=0, verbose=False)


def _quantile_forest(labels: bool, X: Any) -> Any:
    from quantile_forest import RandomForestQuantileRegressor

    return None if labels else RandomForestQuantileRegressor(random_state=0)


def _tabular(name: str) -> Callable[[bool, Any], Any]:
    def make(labels: bool, X: Any) -> Any:
        import pytabkit

        kind = getattr(pytabkit, f"{name}_{_kind_of(labels)}")
        return _point(kind(random_state=0, n_threads=1))

    return make


# Models with pretrained weights: module and beginning of the class names.
PRETRAINED = {"TabICL": "tabicl", "TabPFN": "tabpfn"}


def _pretrained(name: str) -> Callable[[bool, Any], Any]:
    @cache
    def load(labels: bool) -> Any:
        """Class of the model, after a trial that needs its weights."""
        kind = getattr(import_module(PRETRAINED[name]), name + _kind_of(labels))
        rows = np.random.default_rng(0).normal(size=(20, 2))
        try:
            kind(random_state=0).fit(rows, np.arange(20) % 2).predict(rows)
        except Exception as error:  # every version fails in its own way without weights
            raise ImportError(f"no weights ({type(error).__name__}: {error})") from error
        return kind

    return lambda labels, X: load(labels)(random_state=0)


def _kind_of(labels: bool) -> str:
    return "Classifier" if labels else "Regressor"


MODELS: dict[str, Callable[[bool, Any], Any]] = {
    "stack": lambda labels, X: _stack(labels, None),
    "pool": _pool,
    **{name: lambda labels, X, m=m: _stack(labels, [(m, m)]) for name, m in MEMBERS.items()},
    "LightGBM": _lightgbm,
    "CatBoost": _catboost,
    "CatBoost variance": _catboost_uncertainty(posterior_sampling=False),
    "CatBoost ensemble": _catboost_uncertainty(posterior_sampling=True),
    "NGBoost": _ngboost,
    "quantile forest": _quantile_forest,
    "RealMLP": _tabular("RealMLP_TD"),
    "TabM": _tabular("TabM_D"),
    **{name: _pretrained(name) for name in PRETRAINED},
}


def _words(X: pd.DataFrame) -> list[str]:
    return [c for c in X if X[c].dtype.kind not in "fiub"]


def read(model: str, labels: bool, X: pd.DataFrame) -> pd.DataFrame:
    """A table as a model takes it."""
    words = _words(X)
    if model in ("stack", "pool", *MEMBERS, *PRETRAINED):
        return X
    if model == "CatBoost" and labels:
        return X.assign(**{c: X[c].astype(object).fillna("missing").astype(str) for c in words})
    X = pd.get_dummies(X, columns=words, dtype=float)
    X.columns = [f"x{i}" for i in range(X.shape[1])]  # some names aren't for LightGBM
    if model == "LightGBM" or model.startswith("CatBoost"):
        return X
    return X.fillna(X.median()).fillna(0.0)


def score_member(model: Any, X: Any, y: Any, train: Any, test: Any) -> dict[str, float]:
    """One fit: figures in the units of y."""
    start, observed = time.process_time(), y[test]
    fitted = model.fit(X.iloc[train], y[train])
    if is_classifier(fitted):
        proba = fitted.predict_proba(X.iloc[test])
        seconds = time.process_time() - start
        hit = observed[:, None] == fitted.classes_
        likely = (proba * hit).sum(axis=1).clip(LEAST)
        right = fitted.classes_[proba.argmax(axis=1)] == observed
        figures = dict(zip(LABELS, (np.log(likely).mean(), right.mean(), seconds), strict=True))
        # A class that training rows lack has no probability that leave-one-out scores could show.
        return figures | left_out_figures(fitted, np.log(likely[hit.any(axis=1)]))
    distribution = sk.predictive(fitted, X.iloc[test])
    mean, (low, high) = distribution.mean(), distribution.interval(0.9).T
    log_density = distribution.log_prob(observed)
    seconds = time.process_time() - start
    values = (
        log_density.mean(), distribution.crps(observed).mean(),
        np.mean((mean - observed) ** 2) ** 0.5, np.mean((low <= observed) & (observed <= high)),
        seconds,
    )  # fmt: skip
    return dict(zip(NUMBERS, map(float, values), strict=True)) | left_out_figures(
        fitted, log_density
    )


def left_out_figures(fitted: Any, log_density: Any) -> dict[str, float]:
    """Leave-one-out log density that a stack reports, and its mean log density of new rows."""
    if not hasattr(fitted, "stack_log_density_"):
        return {}
    reported, _ = fitted.stack_log_density_
    return {LEFT_OUT: float(reported), NEW_ROWS: float(np.mean(log_density))}


def compare_left_out(title: str, results: Mapping[str, Mapping[str, Any]], *, store: bool) -> None:
    """Print reported leave-one-out densities of stacks beside their densities on new rows.

    Parameters
    ----------
    title : str
        Half of the tables.
    results : mapping
        Figures of every split, by table and model.
    store : bool
        Whether to keep the figures of the default stack for the pages.
    """
    for model in MODELS:
        splits = {
            table: [fit for fit in by_model.get(model, {}).values() if LEFT_OUT in fit]
            for table, by_model in results.items()
        }
        splits = {table: fits for table, fits in splits.items() if fits}
        if not splits:
            continue
        print(f"\n{title}, {model}: log density of left-out and of new rows, nats per row")
        print(f"{'':20s}{'left out':>10s}{'new rows':>10s}{'difference':>12s}{'error':>8s}")
        averages = []
        is_kept = store and model == "stack" and title == "judging"
        for table, fits in splits.items():
            left_out = np.array([fit[LEFT_OUT] for fit in fits])
            density = np.array([fit[NEW_ROWS] for fit in fits])
            difference, error = mean_and_error(left_out - density)
            averages.append(difference)
            print(f"{table:20s}{np.mean(left_out):10.3f}{np.mean(density):10.3f}"
                  f"{difference:12.3f}{error:8.3f}")  # fmt: skip
            if is_kept:
                found = {LEFT_OUT: left_out, NEW_ROWS: density, "difference": left_out - density}
                keep("reported", table, found)
        difference, error = mean_and_error(averages)
        print(f"{'average':20s}{'':20s}{difference:12.3f}{error:8.3f}")
        if is_kept:
            keep("reported", "average", {"difference": averages})


def _ahead(stack: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far the stack is ahead in the splits that both have, nats per row."""
    gains = [fit["log density"] - other[s]["log density"] for s, fit in stack.items() if s in other]
    return float(np.mean(gains))


def summary(title: str, found: Mapping[str, Mapping[str, Any]], *, store: bool) -> None:
    """Print how far the stack is ahead of every model over tables; the half that judges is kept."""
    means = {
        table: {m: np.mean([f["log density"] for f in fits.values()]) for m, fits in by.items()}
        for table, by in found.items()
    }
    print(f"\n{title}, {len(found)} tables: the stack's log density less a model's, nats per row")
    print(f"{'':18s}{'tables':>8s}{'mean':>9s}{'median':>9s}{'worst':>9s}  {'on':20s}"
          f"{'rank':>6s}{'CPU s':>8s}")  # fmt: skip
    for model in MODELS:
        tables = [t for t in means if model in means[t] and "stack" in means[t]]
        if not tables:
            continue
        ahead = np.array([_ahead(found[t]["stack"], found[t][model]) for t in tables])
        seconds = [f["CPU s"] for t in tables for f in found[t][model].values()]
        if store and "judging" in title:
            kind = "classes" if "classification" in title else "numbers"
            keep("ahead", kind, {model: -ahead})
            keep("ahead", f"{kind}, best", {model: [-ahead.min()]})
            keep("ahead", f"{kind}, CPU s", {model: [np.mean(seconds)]})
        ranks = [sum(v > means[t][model] for v in means[t].values()) + 1 for t in tables]
        print(f"{model:18s}{len(tables):8d}{ahead.mean():9.3f}{np.median(ahead):9.3f}"
              f"{ahead.min():9.3f}  {tables[int(ahead.argmin())]:20s}{np.mean(ranks):6.1f}"
              f"{np.mean(seconds):8.1f}")  # fmt: skip


def main() -> None:
    folder = Path(os.environ["SKBAYES_SYM_DATA"]) / "tables"
    paths = {
        kind: sorted(folder.glob(f"{kind}/*.csv.gz")) for kind in ("regression", "classification")
    }
    half = {
        (name := path.name.removesuffix(".csv.gz")): (
            kind, ("settling", "judging")[i % 2 and name not in SEEN], path
        )
        for kind, every in paths.items() for i, path in enumerate(every)
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", default=list(half), choices=half)
    parser.add_argument("--half", choices=("settling", "judging"))
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000, help="most that are learned from")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--keep", action="store_true", help="for README and pages")
    parser.add_argument(
        "--keep-left-out", action="store_true", help="comparison of reported scores, for its page"
    )
    args = parser.parse_args()
    stored: dict[str, Any] = {}
    if args.store is not None and args.store.exists():
        stored = json.loads(args.store.read_text(encoding="utf-8"))
    for name in args.tables:
        kind, which, path = half[name]
        if args.half not in (None, which):
            continue
        table = pd.read_csv(path)
        X, y = table.iloc[:, :-1], table.iloc[:, -1].to_numpy()
        print(f"\n{name} ({which}), {len(y):,} x {X.shape[1]}", flush=True)
        n_train, labels = min(args.rows, int(0.8 * len(y))), kind == "classification"
        for model in args.models:
            fits = stored.setdefault(name, {}).setdefault(model, {})
            for seed in [s for s in range(args.splits) if str(s) not in fits]:
                try:
                    estimator = MODELS[model](labels, X)
                except ImportError as error:
                    print(f"{model} is skipped: {error}", flush=True)
                    break
                if estimator is None:
                    break
                train, test = train_test_split(
                    np.arange(len(y)), train_size=n_train,
                    test_size=min(MOST_NEW, len(y) - n_train), random_state=seed,
                )  # fmt: skip
                fits[str(seed)] = score_member(estimator, read(model, labels, X), y, train, test)
                if args.store is not None:
                    args.store.write_text(json.dumps(stored, indent=1), encoding="utf-8")
            if not fits:
                del stored[name][model]
                continue
            means = pd.DataFrame(fits).mean(axis=1)
            print(f"{model:18s}" + "".join(f"  {n} {v:9.4g}" for n, v in means.items()), flush=True)
        if args.keep:
            densities = {
                m: [f["log density"] for f in fits.values()] for m, fits in stored[name].items()
            }
            keep("tables", name, densities)
    for kind in paths:
        for which in ("settling", "judging"):
            found = {t: by for t, by in stored.items() if half[t][:2] == (kind, which)}
            if found:
                summary(f"{kind}, {which}", found, store=args.keep)
    for which in ("settling", "judging"):
        found = {t: by for t, by in stored.items() if half[t][1] == which}
        compare_left_out(which, found, store=args.keep_left_out)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        import torch

        torch.set_num_threads(1)
        main()
