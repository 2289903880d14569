"""Predicted class probabilities on small tables, all models at their defaults.

    python asv_bench/studies/compare_classifiers.py [--sets iris wine breast_cancer digits moons]
                                            [--splits 10] [--models NAME ...] [--keep]

Splits are stratified and random, of seeds 1000, 1001, ...: 70 % of the rows to train, at most 500
(200 of moons), up to 1,000 others to test. Constants were chosen on other splits of these sets
(seeds 100 to 113). ``overlap2`` and ``overlap3`` are two and three classes whose labels are drawn
at random for 30 % of 300 training rows; ``line2`` (1,500 training rows) and ``line3`` (400) are two
and three classes whose logits are linear, so that a linear model is right.

``LogisticRegressionCV`` chooses its penalty by log loss, the Gaussian process has one length scale
a column. Per model and set: mean log loss (nats per row), Brier score (sum over classes), accuracy,
and CPU seconds of one thread (fit and predictions), each a mean over splits with its standard
error; at the end the mean log loss over the sets and the largest distance to the best on any.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from figures import keep
from sklearn import datasets
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits
from timing import mean_and_error

import skbayes_sym as sk

SETS = ("iris", "wine", "breast_cancer", "digits", "moons")
EXTRA = ("overlap2", "overlap3", "line2", "line3")
FIRST_SEED = 1000
MOST_TRAINED = {"moons": 200, "overlap2": 300, "overlap3": 300, "line2": 1500, "line3": 400}
SMALLEST = 1e-15  # probability that a loss is made of


def _gaussian_process(n_features: int) -> Any:
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(np.ones(n_features), (1e-2, 1e3))
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel))


OURS: dict[str, Callable[[int], Any]] = {
    "BayesianMLPClassifier": lambda _: sk.BayesianMLPClassifier(random_state=0),
    "LaplaceClassifier": lambda _: sk.LaplaceClassifier(random_state=0),
    "DeepEnsembleClassifier": lambda _: sk.DeepEnsembleClassifier(random_state=0),
    "DeepEnsemble as trained": lambda _: sk.DeepEnsembleClassifier(correction=None, random_state=0),
    "BayesianLinearClassifier": lambda _: sk.BayesianLinearClassifier(random_state=0),
    "SymmetrizedVIClassifier": lambda _: sk.SymmetrizedVIClassifier(random_state=0),
}
THEIRS: dict[str, Callable[[int], Any]] = {
    "LogisticRegressionCV": lambda _: make_pipeline(
        StandardScaler(), LogisticRegressionCV(max_iter=2000, scoring="neg_log_loss")
    ),
    "GaussianProcess": _gaussian_process,
    "HistGradientBoosting": lambda _: HistGradientBoostingClassifier(random_state=0),
}
SLOW = {"SymmetrizedVIClassifier"}  # only where asked for by name


def load(name: str) -> tuple[np.ndarray, np.ndarray]:
    if name == "moons":
        return datasets.make_moons(1200, noise=0.3, random_state=7)
    if name == "overlap2":
        return datasets.make_classification(
            1300, 8, n_informative=4, n_redundant=0, flip_y=0.3, class_sep=0.7, random_state=7
        )
    if name == "overlap3":
        return datasets.make_classification(
            1300, 6, n_informative=4, n_redundant=0, n_classes=3, n_clusters_per_class=1,
            flip_y=0.3, class_sep=0.8, random_state=7,
        )  # fmt: skip
    if name.startswith("line"):
        return _line(int(name[-1]), MOST_TRAINED[name] + 1000)
    return getattr(datasets, f"load_{name}")(return_X_y=True)


def _line(n_classes: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Labels drawn by logits that are linear in twelve columns, of standard deviation 1.3."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((n, 12))
    slopes = rng.standard_normal((12, n_classes))
    logits = 1.3 * x @ (slopes / np.linalg.norm(slopes, axis=0))
    return x, (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)


def split(name: str, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and test rows."""
    n_train = min(int(0.7 * len(y)), MOST_TRAINED.get(name, 500))
    n_test = min(len(y) - n_train, 1000)
    cut = StratifiedShuffleSplit(1, train_size=n_train, test_size=n_test, random_state=seed)
    return next(cut.split(y[:, None], y))


def score_member(
    model: Any, X: Any, y: Any, rows: tuple[np.ndarray, np.ndarray]
) -> dict[str, float]:
    """One fit."""
    train, test = rows
    start = time.process_time()
    fitted = clone(model).fit(X[train], y[train])
    p = fitted.predict_proba(X[test])
    seconds = time.process_time() - start
    hit = y[test][:, None] == fitted.classes_
    return {
        "log loss": float(-np.log(np.maximum(p[hit], SMALLEST)).mean()),
        "Brier": float(((p - hit) ** 2).sum(axis=1).mean()),
        "accuracy": float(hit[range(len(test)), p.argmax(axis=1)].mean()),
        "CPU s": seconds,
    }


def show(name: str, found: dict[str, list[dict[str, float]]]) -> None:
    """The table of one data set."""
    n_splits = len(next(iter(found.values())))
    print(f"\n{name}, {n_splits} splits: mean (standard error)")
    columns = ("log loss", "Brier", "accuracy", "CPU s")
    print(f"{'':26s}" + "".join(f"{c:>18s}" for c in columns))
    for model, rows in found.items():
        cells = [mean_and_error([r[c] for r in rows]) for c in columns]
        print(f"{model:26s}" + "".join(f"{m:10.3f} ({e:5.3f})" for m, e in cells), flush=True)


def show_all(everything: dict[str, dict[str, list[dict[str, float]]]]) -> None:
    """Over all sets."""
    models = list(next(iter(everything.values())))
    loss = np.array(
        [[np.mean([r["log loss"] for r in found[m]]) for m in models] for found in
         everything.values()]
    )  # fmt: skip
    behind = loss - loss.min(axis=1, keepdims=True)
    print(f"\n{'over all sets':26s}{'mean log loss':>16s}{'most behind':>16s}  on")
    for j, model in enumerate(models):
        worst = int(behind[:, j].argmax())
        print(f"{model:26s}{loss[:, j].mean():16.3f}{behind[worst, j]:16.3f}  "
              f"{list(everything)[worst]}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=SETS + EXTRA)
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--models", nargs="+", default=None)
    parser.add_argument("--keep", action="store_true", help="for README and pages")
    args = parser.parse_args()
    models = {**OURS, **THEIRS}
    chosen = args.models or [m for m in models if m not in SLOW]
    everything: dict[str, Any] = {}
    for name in args.sets:
        X, y = load(name)
        seeds = range(args.first_seed, args.first_seed + args.splits)
        cuts = [split(name, y, seed) for seed in seeds]
        everything[name] = {
            model: [score_member(models[model](X.shape[1]), X, y, rows) for rows in cuts]
            for model in chosen
        }
        show(name, everything[name])
        if args.keep:
            losses = {m: [r["log loss"] for r in rows] for m, rows in everything[name].items()}
            keep("classes", name, losses)
    show_all(everything)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with threadpool_limits(1):
        import torch

        torch.set_num_threads(1)
        main()
