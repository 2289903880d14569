"""
Wide networks: who keeps the data
=================================

Mean-field posteriors of wide networks ignore the data (Coker et al. 2022), and Kurle et al. (2022,
section 5) blame the directions of every layer's weights that no datum sees. Here networks of one
hidden layer with 10 to 1000 tanh units, three splits of two data sets, and three posteriors:

- mean-field: ``symmetry=None``;
- exact last layer: ``last_layer="collapsed"``, independent normals for the hidden layer;
- inducing: ``last_layer="collapsed", hidden_posterior="global_inducing"``.

The prior over functions is the same for every width (weights of variance 2 / fan-in in the first
layer, 1 / fan-in in the last), so all widths share one limit, a Gaussian process. It is fitted too,
as Bayesian linear regression on 20,000 random units with the noise learned.

What is printed, averages over the splits: test log predictive density per point (nats, of y scaled
by the training rows), its difference to mean-field at the same width with the standard error of
the paired differences, ELBO, learned noise (1 is "nothing but noise") and CPU seconds of `fit`.

Expect (test log density, means of three splits; in brackets the gain on mean-field):

======== ============ =============== ================= =================
data     width        mean-field      exact last layer  inducing
======== ============ =============== ================= =================
yacht    10           1.54            1.65 (+0.11)      1.55 (+0.01)
yacht    50           1.34            1.89 (+0.55)      1.80 (+0.46)
yacht    200          -0.99           2.28 (+3.27)      2.27 (+3.26)
yacht    1000         -1.39           -0.73 (+0.66)     -0.75 (+0.64)
yacht    limit        -0.74
sine     10           -0.59           -0.56 (+0.03)     -0.56 (+0.03)
sine     50           -0.85           -0.59 (+0.26)     -0.61 (+0.24)
sine     200          -1.55           -0.59 (+0.96)     -0.60 (+0.95)
sine     1000         -1.57           -0.60 (+0.97)     -0.60 (+0.97)
sine     limit        -0.60
======== ============ =============== ================= =================

Mean-field collapses: from 200 units on the learned noise is 0.8 to 1.2, which is to say that the
network explains nothing. The other two don't, but the widest networks lose their *features*: at
1000 units they are at the Gaussian process of infinite width, which on yacht is 3 nats a point
worse than 200 units that have learned theirs. The standard errors over the splits (0.01 to 0.05)
are those of overlapping training sets.

Run ``python reproduce_kurle_width.py`` (15 minutes of one core; ``--n-jobs 4`` uses more), or with
``--fast`` for a smoke run. The environment variable ``SKBAYES_SYM_DATA`` names the folder of the
data.
"""

import argparse
import time
import warnings
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from joblib import Parallel, delayed
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split

from skbayes_sym import InvarianceAbidingRegressor, SymmetrizedVIRegressor
from skbayes_sym.datasets import load_dataset

METHODS = {
    "mean-field": {"symmetry": None},
    "exact last layer": {"last_layer": "collapsed"},
    "inducing": {"last_layer": "collapsed", "hidden_posterior": "global_inducing"},
}
STYLES = {
    "mean-field": ("#d55e00", "o"),
    "exact last layer": ("#0072b2", "s"),
    "inducing": ("#009e73", "^"),
}
LIMIT_UNITS = 20_000


class Outcome(NamedTuple):
    """What one fit on one split gave."""

    log_density: float  # per test point
    elbo: float
    noise: float
    cpu_seconds: float


def load_split(name, split):
    """Training and test rows, scaled by the training rows."""
    X, y = load_dataset(name, return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=split)
    centre, scale = X.mean(axis=0), X.std(axis=0)
    unit = y.std()
    return (
        (X - centre) / scale,
        (y - y.mean()) / unit,
        (X_test - centre) / scale,
        (y_test - y.mean()) / unit,
    )


def run_one(name, split, width, method, max_iter):
    """Fit one posterior of one width on one split."""
    X, y, X_test, y_test = load_split(name, split)
    model = SymmetrizedVIRegressor(
        (width,), "tanh", prior_scale=[(2 / X.shape[1]) ** 0.5, width**-0.5],
        max_iter=max_iter, n_predict_samples=100, random_state=split, **METHODS[method],
    )  # fmt: skip
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.process_time() - start
    density = model.log_predictive_density(X_test, y_test).mean()
    return Outcome(density, model.elbo_, model.noise_std_, seconds)


def run_limit(name, split):
    """The network of infinite width: a linear model on random hidden units."""
    X, y, X_test, y_test = load_split(name, split)
    rng = np.random.default_rng(split)
    weights = rng.normal(scale=(2 / X.shape[1]) ** 0.5, size=(X.shape[1] + 1, LIMIT_UNITS))

    def features(rows):
        return np.tanh(np.column_stack([rows, np.ones(len(rows))]) @ weights)

    model = InvarianceAbidingRegressor(prior_scale=LIMIT_UNITS**-0.5, fit_intercept=False)
    start = time.process_time()
    model.fit(features(X), y)
    seconds = time.process_time() - start
    density = model.log_predictive_density(features(X_test), y_test).mean()
    return Outcome(density, model.elbo_, model.noise_std_, seconds)


def show(outcomes, limits, widths):
    """The table; ``outcomes`` maps (width, method) to arrays (splits, 4)."""
    print(f"{'width':>6}  {'':18} {'density':>8} {'minus mean-field':>18} {'ELBO':>8} "
          f"{'noise':>6} {'CPU s':>6}")  # fmt: skip
    for width in widths:
        reference = outcomes[width, "mean-field"][:, 0]
        for method in METHODS:
            runs = outcomes[width, method]
            gain = runs[:, 0] - reference
            error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else np.nan
            density, elbo, noise, seconds = runs.mean(axis=0)
            print(f"{width:6d}  {method:18} {density:8.3f} {gain.mean():+9.3f} +-{error:6.3f} "
                  f"{elbo:8.0f} {noise:6.2f} {seconds:6.0f}")  # fmt: skip
    density, elbo, noise, seconds = limits.mean(axis=0)
    print(f"{'inf':>6}  {'Gaussian process':18} {density:8.3f} {'':18} {elbo:8.0f} {noise:6.2f} "
          f"{seconds:6.0f}")  # fmt: skip


def draw(ax, name, outcomes, limits, widths):
    """Test log density by width."""
    for method, (colour, marker) in STYLES.items():
        values = np.array([outcomes[width, method][:, 0] for width in widths])
        ax.errorbar(widths, values.mean(axis=1), values.std(axis=1), color=colour, marker=marker,
                    capsize=3, label=method)  # fmt: skip
    ax.axhline(limits[:, 0].mean(), color="black", ls=":", label="infinite width")
    ax.set(title=name, xscale="log", xlabel="width", ylabel="test log density, nats a point")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fast", action="store_true", help="two small widths, few steps")
    parser.add_argument("--n-jobs", type=int, default=1)
    arguments = parser.parse_args()
    widths, n_splits, max_iter = ((10, 50, 200, 1000), 3, 1000)
    if arguments.fast:
        widths, n_splits, max_iter = ((5, 10), 2, 60)
    _, axes = plt.subplots(1, 2, figsize=(9.0, 4.0), layout="constrained")
    for ax, name in zip(axes, ("yacht", "sinusoidal"), strict=True):
        cases = [(width, method) for width in widths for method in METHODS]
        runs = Parallel(n_jobs=arguments.n_jobs)(
            delayed(run_one)(name, split, *case, max_iter)
            for case in cases
            for split in range(n_splits)
        )
        runs = np.array(runs).reshape(len(cases), n_splits, -1)
        outcomes = dict(zip(cases, runs, strict=True))
        limits = np.array([run_limit(name, split) for split in range(n_splits)])
        print(f"\n{name}")
        show(outcomes, limits, widths)
        draw(ax, name, outcomes, limits, widths)
    axes[1].legend()
    plt.show()


if __name__ == "__main__":
    main()
