"""CPU seconds of a default fit by the size of the table.

    python asv_bench/studies/time_by_size.py [--models NAME ...] [--sizes 1000x10 ...] [--limit 240]
                                             [--keep] [--draw PICTURE]

A smooth function of the first five columns with noise, for numbers, and its sign for classes. Every
estimator at its defaults, in one thread; the fit and the prediction of 1,000 rows are counted
together. A fit that takes more than ``--limit`` CPU seconds is ended by its callback and shown as
what its share of the steps says, with a tilde; one that has no steps to count is shown as
"> limit". Sizes beyond one that took longer than the limit are left out ("-").
``--draw`` makes a picture of the time by rows, and prints the largest jump of every model: how much
the time between two sizes grows beyond their rows, or shrinks.
"""

import argparse
import multiprocessing
import re
import resource
import time
import warnings

import numpy as np
from figures import keep
from sklearn.base import BaseEstimator, clone, is_classifier

import skbayes_sym as sk

SIZES = ("1000x10", "10000x20", "50000x20")
MODELS: dict[str, BaseEstimator] = {
    "PredictiveStackingRegressor": sk.PredictiveStackingRegressor(random_state=0),
    "PredictiveStackingClassifier": sk.PredictiveStackingClassifier(random_state=0),
    "BayesianLinearRegressor": sk.BayesianLinearRegressor(),
    "BayesianLinearClassifier": sk.BayesianLinearClassifier(random_state=0),
    "BayesianMLPRegressor": sk.BayesianMLPRegressor(random_state=0),
    "BayesianMLPClassifier": sk.BayesianMLPClassifier(random_state=0),
    "LaplaceRegressor": sk.LaplaceRegressor(random_state=0),
    "LaplaceClassifier": sk.LaplaceClassifier(random_state=0),
    "LILARegressor": sk.LILARegressor(random_state=0),
    "SymmetrizedVIRegressor": sk.SymmetrizedVIRegressor(random_state=0),
    "SymmetrizedVIClassifier": sk.SymmetrizedVIClassifier(random_state=0),
    "LayerwiseVIRegressor": sk.LayerwiseVIRegressor(random_state=0),
    "DeepEnsembleRegressor": sk.DeepEnsembleRegressor(random_state=0),
    "DeepEnsembleClassifier": sk.DeepEnsembleClassifier(random_state=0),
    "MCMCRegressor": sk.MCMCRegressor(random_state=0),
}


class Share:
    """Callback: the share of the blocks done, and a stop when the time is over."""

    def __init__(self, share, limit):
        self.share, self.limit, self.done = share, limit, 0

    def setup(self, estimator, context):
        """Nothing."""

    def on_fit_task_begin(self, estimator, context):
        """Nothing."""

    def on_fit_task_end(self, estimator, context, **_):
        """Count a block."""
        if context.task_name == "block":
            self.done += 1
            self.share.value = self.done / 100
        return time.process_time() > self.limit

    def teardown(self, estimator, context):
        """Nothing."""


def data(size, classes):
    """Rows and targets of a size such as "1000x10", and 1,000 more rows."""
    n, d = (int(part) for part in size.split("x"))
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n + 1000, d))
    smooth = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3] + 0.3 * X[:, 4]
    y = smooth + 0.5 * rng.standard_normal(len(X))
    return X[:n], (y > 0).astype(int)[:n] if classes else y[:n], X[n:]


def fit(name, size, limit, share, seconds):
    """In a process of its own."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(1.6 * limit), int(1.6 * limit) + 5))
    warnings.simplefilter("ignore")
    model = clone(MODELS[name])
    X, y, X_new = data(size, is_classifier(model))
    start = time.process_time()
    model.set_callbacks(Share(share, start + limit)).fit(X, y)
    seconds.value = time.process_time() - start
    model.predict(X_new)
    if model.stop_reason_ != "callback" if hasattr(model, "stop_reason_") else True:
        share.value = 1.0
        seconds.value = time.process_time() - start


def draw(seconds, path):
    """A line a model on logarithmic axes; prints jumps."""
    import matplotlib.pyplot as plt

    for name, by_rows in seconds.items():
        rows, taken = np.array(sorted(by_rows.items())).T
        plt.loglog(rows, taken, "o-", label=name)
        if len(rows) > 1:
            growth = taken[1:] / taken[:-1]
            up, down = growth / (rows[1:] / rows[:-1]), 1.0 / growth
            most, least = int(up.argmax()), int(down.argmax())
            print(f"{name}: at most {up[most]:.2f} times the growth of the rows, up to "
                  f"{rows[most + 1]:,.0f}; at most {max(down[least], 1.0):.2f} times less for more "
                  f"rows, at {rows[least + 1]:,.0f}")  # fmt: skip
    plt.xlabel("rows")
    plt.ylabel("CPU seconds of a default fit")
    plt.legend()
    plt.savefig(path, dpi=150)


def measured(name, size, limit):
    """What the table shows, and whether the fit came to its end."""
    share, seconds = multiprocessing.Value("d", 0.0), multiprocessing.Value("d", 0.0)
    process = multiprocessing.Process(target=fit, args=(name, size, limit, share, seconds))
    process.start()
    process.join()
    if seconds.value and share.value == 1.0:
        return f"{float(f'{seconds.value:.2g}'):g}", True
    if share.value > 0.0:
        return f"~{(seconds.value or 1.6 * limit) / share.value:.0f}", False
    return f"> {1.6 * limit:.0f}", False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--limit", type=float, default=240.0, help="CPU seconds per fit")
    parser.add_argument("--keep", action="store_true", help="for the guide")
    parser.add_argument("--draw", help="file of a picture of the time by rows")
    options = parser.parse_args()
    seconds = {}
    print(f"{'CPU seconds':26}" + "".join(f"{size:>12}" for size in options.sizes))
    for name in options.models:
        print(f"{name:26}", end="", flush=True)
        ended = True
        for size in options.sizes:
            shown, ended = measured(name, size, options.limit) if ended else ("-", False)
            print(f"{shown:>12}", end="", flush=True)
            if ended:
                seconds.setdefault(name, {})[int(size.split("x")[0])] = float(shown)
            if options.keep and re.fullmatch(r"~?[\d.]+", shown):
                keep("seconds", size, {name: [float(shown.lstrip("~"))]})
        print()
    if options.draw:
        draw(seconds, options.draw)
