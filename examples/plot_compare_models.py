"""
Five posteriors of one network
==============================

This example fits the same small network with five methods on the same folds of the same patients:
variational inference without and with symmetry, sampling, a Laplace approximation and a deep
ensemble. One call computes all their scores.
"""

# %%
# The models
# ----------
# The target is the progression of a disease in a year, and the columns are body mass, blood
# pressure and a blood value of 150 patients. All five models have two tanh units. The Laplace
# approximation learns the scales of its prior. The other models have the same fixed scale.

import numpy as np
from sklearn.datasets import load_diabetes

from skbayes_sym import (
    Chains,
    DeepEnsembleRegressor,
    LaplaceRegressor,
    MCMCRegressor,
    ModeWeights,
    SymmetrizedVIRegressor,
)
from skbayes_sym.model_selection import compare_models

X, y = load_diabetes(return_X_y=True, as_frame=True)
patients = np.random.default_rng(0).permutation(len(X))[:150]
X, y = X[["bmi", "bp", "s5"]].iloc[patients], y.iloc[patients]

network = {"hidden_layer_sizes": (2,), "activation": "tanh"}
chains = {
    "sampler": Chains(init="prior", n_warmup=300), "prior": 1.0, "n_chains": 32,
    "remove_symmetries": ModeWeights("evidence"),
}  # fmt: skip
models = {
    "MFVI": SymmetrizedVIRegressor(**network, symmetry=None),
    "SymVI": SymmetrizedVIRegressor(**network),
    "MCMC": MCMCRegressor(**network, **chains),
    "LA": LaplaceRegressor(**network),
    "DE": DeepEnsembleRegressor(**network),
}

# %%
# The table
# ---------
# Every model is fitted to the same five folds with the same seed and, for its evidence, to all
# rows. ``difference`` is the difference between the mean log density of a model and of the best
# model. Its standard error refers to the differences of single patients. It is much smaller than
# the standard errors of the means, because patients who are hard to predict are hard for every
# model.

table = compare_models(models, X, y, cv=5)
print("log density, nats per row:")
columns = ["log_density", "log_density_se", "difference", "difference_se", "loo", "loo_se"]
print(table[columns].round(3).to_string())
print("\nother scores of held-out rows, and seconds per fold:")
columns = ["rmse", "calibration_error", "fit_seconds", "predict_seconds"]
print(table[columns].round(3).to_string())
print("\nevidence, nats, of a fit to all rows:")
columns = ["evidence", "evidence_se", "evidence_source", "evidence_side"]
print(table[columns].round(2).to_string())

# %%
# The leave-one-out density of the sampler is estimated from one fit, by importance sampling. It
# should agree with the density of the folds, apart from the error of the draws and the smaller
# training sets of the folds.

gap = table.loc["MCMC", "loo"] - table.loc["MCMC", "log_density"]
print(f"MCMC: leave-one-out minus 5-fold {gap:+.3f} nats per row, "
      f"{table.loc['MCMC', 'loo_unreliable']:.0f} rows unreliable")  # fmt: skip

# %%
# The figure
# ----------
# Bars are two standard errors. If the bar of a model reaches zero, 150 patients don't show a
# difference to the best model.

import matplotlib.pyplot as plt

UNITS = {
    "difference": "nats per row", "rmse": "units of y", "calibration_error": "fraction",
    "evidence": "nats", "fit_seconds": "seconds",
}  # fmt: skip


def draw(title, *columns):
    """Draw one panel per column, with bars of two standard errors."""
    figure, panels = plt.subplots(
        1, len(columns), sharey=True, figsize=(8, 2.8), layout="constrained"
    )
    figure.suptitle(title)
    for panel, name in zip(panels, columns, strict=True):
        bars = 2 * table[f"{name}_se"] if f"{name}_se" in table else None
        panel.errorbar(table[name], table.index, xerr=bars, fmt="o")
        panel.set_xlabel(f"{name} ({UNITS[name]})")
    plt.show()


draw("Predictions of held-out patients", "difference", "rmse", "calibration_error")

# %%
# Variational inference gives a lower bound on the log evidence, which is higher if the symmetry is
# taken into account. The sampler and Laplace's method give estimates, and the ensemble has none.

draw("Evidence and time of a fit", "evidence", "fit_seconds")
