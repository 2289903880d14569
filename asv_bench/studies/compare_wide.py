"""Predictive distributions on tables with many columns, all models at their defaults.

    python asv_bench/studies/compare_wide.py [--seeds 2] [--first 50] [--models NAME ...]

Simulated: a ``line`` is a sum of five columns in noise; a ``bend`` has a product of two columns
beside two others; the columns of ``causes`` are mixtures of twelve, and four columns matter, three
of them bent. Classes have twice this as logit, with labels drawn from it. Tables come from the
seeds ``first``, ``first + 1``, ...; constants were chosen on others.

Per table and model: mean log density (numbers) or log probability (classes) of 2,000 new rows, nats
per row, and CPU seconds of one thread, both means over the seeds.
"""

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from compare_uci import BoostingWithSigma
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import skbayes_sym as sk

N_NEW = 2_000
SMALLEST = 1e-15  # probability that a log is made of
# Kind, rows and columns.
NUMBERS = (("line", 90, 100), ("line", 250, 50), ("bend", 250, 50), ("causes", 800, 200),
           ("causes", 1_600, 100), ("causes", 4_000, 60))  # fmt: skip
CLASSES = (("line", 90, 30), ("line", 120, 200), ("bend", 300, 60), ("causes", 800, 200),
           ("causes", 1_600, 100))  # fmt: skip


def _process(n_columns: int) -> Any:
    kernel = ConstantKernel(1.0) * RBF(n_columns**0.5, (1e-2, 1e4)) + WhiteKernel(0.3)
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


def _class_process(n_columns: int) -> Any:
    kernel = ConstantKernel(1.0, (1e-2, 1e4)) * RBF(n_columns**0.5, (1e-2, 1e4))
    return make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel))


def _logistic(_: int) -> Any:
    search = LogisticRegressionCV(scoring="neg_log_loss", max_iter=1_000)
    return make_pipeline(StandardScaler(), search)


OF_NUMBERS: dict[str, Callable[[int], Any]] = {
    "BayesianMLPRegressor": lambda _: sk.BayesianMLPRegressor(random_state=0),
    "LaplaceRegressor": lambda _: sk.LaplaceRegressor(random_state=0),
    "BayesianRidge": lambda _: make_pipeline(StandardScaler(), BayesianRidge()),
    "Gaussian process": _process,
    "HistGradientBoosting": lambda _: BoostingWithSigma(),
}
OF_CLASSES: dict[str, Callable[[int], Any]] = {
    "BayesianMLPClassifier": lambda _: sk.BayesianMLPClassifier(random_state=0),
    "LaplaceClassifier": lambda _: sk.LaplaceClassifier(random_state=0),
    "LogisticRegressionCV": _logistic,
    "Gaussian process": _class_process,
    "HistGradientBoosting": lambda _: HistGradientBoostingClassifier(random_state=0),
}


def table(kind: str, n: int, p: int, seed: int) -> tuple[Any, Any, Any]:
    """Rows (n, p), their signal (n,) and its noise's standard deviation."""
    rng = np.random.default_rng([seed, n, p])
    if kind == "causes":
        X = rng.normal(size=(n, 12)) @ rng.normal(size=(12, p)) + 0.5 * rng.normal(size=(n, p))
        z = X / X.std(axis=0)
        return X, 2.0 * np.sin(z[:, 0]) + z[:, 1] * z[:, 2] + z[:, 3], 0.5
    X = rng.normal(size=(n, p))
    if kind == "line":
        return X, 1.2 * X[:, :5].sum(axis=1), 1.0
    return X, 1.5 * X[:, 0] + X[:, 1] * X[:, 2] + X[:, 3], 0.3


def score_member(
    model: Any, kind: str, n: int, p: int, seed: int, *, classes: bool
) -> tuple[float, float]:
    """Nats per new row, and CPU seconds."""
    X, signal, noise = table(kind, n + N_NEW, p, seed)
    rng = np.random.default_rng([seed, n, p, 1])
    if classes:
        y = (2.0 * signal + rng.logistic(size=len(X)) > 0.0).astype(int)
    else:
        y = signal + noise * rng.normal(size=len(X))
    start = time.process_time()
    model.fit(X[:n], y[:n])
    if classes:
        chosen = model.predict_proba(X[n:])[np.arange(N_NEW), y[n:]]
        nats = np.log(np.clip(chosen, SMALLEST, None))
    else:
        nats = sk.predictive(model, X[n:]).log_prob(y[n:])
    return float(np.mean(nats)), time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=50)
    parser.add_argument("--models", nargs="+", default=None)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for tables, models in ((NUMBERS, OF_NUMBERS), (CLASSES, OF_CLASSES)):
        classes = models is OF_CLASSES
        shown = [name for name in models if args.models is None or name in args.models]
        print(f"\n{'classes' if classes else 'numbers':22s}" + "".join(f"{m:>24s}" for m in shown))
        for kind, n, p in tables:
            line = f"{kind:8s}{n:6,d} x {p:<5d}"
            for name in shown:
                found = [
                    score_member(models[name](p), kind, n, p, args.first + i, classes=classes)
                    for i in range(args.seeds)
                ]
                nats, seconds = np.mean(found, axis=0)
                line += f"{nats:15.3f} ({seconds:5.1f} s)"
            print(line, flush=True)


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
