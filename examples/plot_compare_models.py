"""
Five posteriors of one network
==============================

The same small network five times, on the same folds of the same patients: mean-field variational
inference without and with its symmetries, sampling, a Laplace approximation and a deep ensemble.
One call lays out what is known of each.
"""

# %%
# The models
# ----------
# How far a disease progressed in a year, from body mass, blood pressure and a blood value: 150
# patients, who leave room for doubt. All five models have two tanh units. The Laplace approximation
# learns the scales of its prior; the others have the same one.

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
# Every model is fitted to the same five folds and, for its evidence, to all rows. Seeds are the
# same too. ``difference`` is that of the mean log density of a held-out patient to the best
# model's; its standard error is of the differences patient by patient. Those are far smaller than
# the errors of the means, since what is hard to predict is so for all.

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
# Leave-one-out densities of the sampler come from one fit, by importance sampling. They should be
# those of its folds up to what the draws and a fifth of the rows make out.

gap = table.loc["MCMC", "loo"] - table.loc["MCMC", "log_density"]
print(f"MCMC: leave-one-out minus 5-fold {gap:+.3f} nats per row, "
      f"{table.loc['MCMC', 'loo_unreliable']:.0f} rows unreliable")  # fmt: skip

# %%
# The picture
# -----------
# Bars are two standard errors. Models whose bar reaches the line are as good as the best, as far
# as 150 patients can tell.

import matplotlib.pyplot as plt


def draw(*columns):
    """A panel a column, bars of two standard errors."""
    _, panels = plt.subplots(1, len(columns), sharey=True, figsize=(8, 2.6), layout="constrained")
    for panel, name in zip(panels, columns, strict=True):
        bars = 2 * table[f"{name}_se"] if f"{name}_se" in table else None
        panel.errorbar(table[name], table.index, xerr=bars, fmt="o")
        panel.set_xlabel(name)
    plt.show()


draw("difference", "rmse", "calibration_error")

# %%
# A lower bound on the evidence (of variational inference) says that it is at least so much.
# The bound of mean-field inference rises when the symmetries are counted; that of the sampler and
# of Laplace's method are estimates.

draw("evidence", "fit_seconds")
