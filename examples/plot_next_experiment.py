"""
The next experiment
===================

Which point of a function should be measured next, and which rows should be labelled? The utility of
each candidate is computed from its `~skbayes_sym.predictive` distribution.
"""

# %%
# The lowest point of a function of two variables
# -----------------------------------------------
# Each evaluation of Branin's function stands for an experiment. After eight random points, batches
# of two candidates with the largest joint expected improvement are measured. For comparison, points
# are chosen at random, and by the expected improvement of single points under scikit-learn's
# Gaussian process. The surrogate is the Gaussian process of a stack. Networks can be added as a
# member if a fit may take a second.

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from skbayes_sym import (
    DeepEnsembleClassifier,
    PredictiveStackingClassifier,
    PredictiveStackingRegressor,
    predictive,
)
from skbayes_sym.acquisition import expected_improvement, expected_information_gain, select_batch

N_SEEDS, N_ROUNDS = 2, 11


def branin(u):
    a, b = 15.0 * u[:, 0] - 5.0, 15.0 * u[:, 1]
    bend = b - 5.1 / (4.0 * np.pi**2) * a**2 + 5.0 / np.pi * a - 6.0
    return bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * np.pi)) * np.cos(a) + 10.0


def by_batch(X, y, candidates, rng):
    surrogate = PredictiveStackingRegressor([("process", "gaussian_process")], random_state=0).fit(
        X, y
    )
    distribution = predictive(surrogate, candidates)
    return select_batch(distribution, 2, best=y.min(), maximize=False).rows


def by_process(X, y, candidates, rng):
    kernel = ConstantKernel() * Matern([0.5, 0.5], (0.05, 20.0), nu=2.5)
    process = GaussianProcessRegressor(kernel, alpha=1e-6, normalize_y=True, random_state=0)
    distribution = predictive(process.fit(X, y), candidates)
    return np.argsort(-expected_improvement(distribution, y.min(), maximize=False))[:2]


def at_random(X, y, candidates, rng):
    return rng.choice(len(candidates), 2, replace=False)


WAYS = {"joint improvement": by_batch, "scikit-learn's process": by_process, "random": at_random}
regrets = {name: [] for name in WAYS}
for name, choose in WAYS.items():
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        candidates = rng.random((800, 2))
        X, best = rng.random((8, 2)), []
        for _ in range(N_ROUNDS):
            y = branin(X)
            best.append(y.min() - 0.397887)
            X = np.vstack([X, candidates[choose(X, y, candidates, rng)]])
        regrets[name].append(best)
        if (name, seed) == ("joint improvement", 0):
            measured = X

# sphinx_gallery_start_ignore
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
side = np.linspace(0, 1, 100)
grid = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
left.contourf(side, side, np.log1p(branin(grid)).reshape(100, 100), 20, cmap="Blues")
left.scatter(*measured.T, c=np.arange(len(measured)), cmap="autumn", s=18)
left.set(title="Measured points, from red to yellow", xlabel="x0", ylabel="x1")
for name, curves in regrets.items():
    right.plot(8 + 2 * np.arange(N_ROUNDS), np.mean(curves, axis=0), label=name)
    print(f"{name:24}{np.mean(curves, axis=0)[-1]:8.3f} above the minimum after the last round")
right.set(yscale="log", xlabel="measured points", ylabel="best value minus the minimum")
right.set_title("Lowest value found, means of two runs")
right.legend(frameon=False)
# sphinx_gallery_end_ignore

# %%
# Choose digits to label
# ----------------------
# Labels are often more expensive than images. An ensemble is trained on twenty labelled digits, and
# ten more are labelled at a time. They are chosen at random, by the information that each label
# carries about the model (BALD), by the joint information of all ten, or as the ten images for
# which the two highest class probabilities of a Gaussian process differ least. Here the last choice
# is the best.

warnings.filterwarnings("ignore", ".*far outside the range")  # pixels with ink in few digits
X, y = load_digits(return_X_y=True)
N_BATCHES = 9
choices = ("joint information", "single information", "smallest margin", "random")
accuracy = {name: [] for name in choices}
for name, curves in accuracy.items():
    for seed in range(N_SEEDS):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(X))
        rows, test, labelled = order[:1000], order[1000:], list(order[:20])
        curve = []
        for _ in range(N_BATCHES):
            ensemble = DeepEnsembleClassifier(n_members=5, correction=None, random_state=0)
            ensemble.fit(X[labelled], y[labelled])
            curve.append(ensemble.score(X[test], y[test]))
            rest = np.setdiff1d(rows, labelled)
            distribution = predictive(ensemble, X[rest])
            if name == "joint information":
                chosen = select_batch(distribution, 10, n_draws=100).rows
            elif name == "random":
                chosen = rng.choice(len(rest), 10, replace=False)
            elif name == "smallest margin":
                process = PredictiveStackingClassifier(
                    [("process", "gaussian_process")], random_state=0
                )
                proba = process.fit(X[labelled], y[labelled]).predict_proba(X[rest])
                second, first = np.sort(proba, axis=1)[:, -2:].T
                chosen = np.argsort(first - second)[:10]
            else:
                chosen = np.argsort(-expected_information_gain(distribution))[:10]
            labelled += list(rest[chosen])
        curves.append(curve)

# sphinx_gallery_start_ignore
figure, axes = plt.subplots(figsize=(5, 3.4), layout="constrained")
for name, curves in accuracy.items():
    axes.plot(20 + 10 * np.arange(N_BATCHES), np.mean(curves, axis=0), label=name)
    print(f"{name:20}accuracy {np.mean(curves, axis=0)[-1]:.3f} after {10 + 10 * N_BATCHES} labels")
axes.set(xlabel="labelled digits", ylabel="accuracy on other digits")
axes.set_title("Rules for choosing digits, means of two runs")
axes.legend(frameon=False)
# sphinx_gallery_end_ignore
