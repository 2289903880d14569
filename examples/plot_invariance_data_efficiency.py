"""
Learned invariances save data
=============================

Digits turned by any angle, and ever fewer of them (after Figure 3 of Immer et al. 2022, which has
CIFAR-10). The non-invariant network has to see every digit at every angle; learning that the angle
doesn't matter replaces data. Augerino learns extents with the weights, by the likelihood; at these
settings they fall back to 0.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy import ndimage
from sklearn.datasets import load_digits

from skbayes_sym import LILAClassifier

FAST = "--fast" in sys.argv  # a smoke run: fewer iterations, not the figures below
FEWER = {"max_iter": 20, "n_hyper_updates": 4} if FAST else {}
SIZES, N_TEST = (100, 200, 400, 800), 500
METHODS = {
    "non-invariant": {"invariances": None},
    "Augerino": {"objective": "augerino"},
    "LILA": {"invariance_learning_rate": 0.2},
}

X, y = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(X))
turned = np.array(
    [
        ndimage.rotate(X[i].reshape(8, 8), rng.uniform(-180, 180), reshape=False, order=1).ravel()
        for i in order
    ],
    dtype=np.float32,
)
X_test, y_test = turned[-N_TEST:], y[order][-N_TEST:]

# %%
# The prior of Augerino's network is fixed. Accuracy on 500 digits has a standard error of about
# 0.015.

accuracy = {name: [] for name in METHODS}
for n in SIZES:
    for name, params in METHODS.items():
        model = LILAClassifier(
            (100,), image_shape=(8, 8), learning_rate=0.05, batch_size=min(n, 100), tol=1.0,
            random_state=0, **params, **FEWER,
        ).fit(turned[:n], y[order][:n])  # fmt: skip
        accuracy[name].append(model.score(X_test, y_test))
        angle = np.rad2deg(model.invariance_.get("rotation", 0.0))
        print(f"n = {n:4d}  {name:14s} accuracy {accuracy[name][-1]:.3f}, rotation ±{angle:.0f}°")

# %%

figure, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
styles = (("o:", "#555555"), ("s--", "#d55e00"), ("^-", "#0072b2"))
for (name, values), (style, colour) in zip(accuracy.items(), styles, strict=True):
    error = np.sqrt(np.array(values) * (1 - np.array(values)) / N_TEST)
    ax.errorbar(SIZES, values, error, fmt=style, color=colour, capsize=2, label=name)
ax.set_xscale("log")
ax.set_xticks(SIZES, [str(n) for n in SIZES])
ax.minorticks_off()
ax.set(xlabel="training digits, each turned at random", ylabel="test accuracy")
ax.legend()

plt.show()
