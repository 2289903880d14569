r"""
What lies between two draws
===========================

A deep network's chains end in modes of their own. Are these the same function under other names of
the hidden units, or other functions? `loss_barrier` walks the straight line between two draws,
before and after the second's units are matched with the first's (Ainsworth et al. 2023; Rossi et
al. 2023). Below, what is left of a chain when its draws are condensed to one Gaussian:
``approximate("low_rank")``.

This takes about ten seconds of one core.
"""

import warnings
from copy import copy
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import MCMCRegressor, loss_barrier
from skbayes_sym.estimators.samplers import Annealing, Chains

warnings.simplefilter("ignore", ConvergenceWarning)  # chains in modes of their own: see below

# %%
# Four chains of two layers of sixteen units
# ------------------------------------------

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (200, 2))
f = np.sin(2 * X[:, 0]) * np.cos(X[:, 1])
y = f + 0.1 * rng.standard_normal(200)
X_test = rng.uniform(-2.0, 2.0, (1000, 2))
y_test = np.sin(2 * X_test[:, 0]) * np.cos(X_test[:, 1])
y_test = y_test + 0.1 * rng.standard_normal(1000)
model = MCMCRegressor(
    (16, 16), "tanh", n_chains=4, n_draws=50,
    sampler=Chains(init=Annealing(n_hot=1500, n_settle=375), n_warmup=50), random_state=0,
    remove_symmetries=False,
).fit(X, y)  # fmt: skip

# %%
# Between chains, and within one
# ------------------------------

chains = loss_barrier(model, (0, -1), (1, -1))
within = loss_barrier(model, (0, 0), (0, -1))
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for ax, found, title in zip(axes, (chains, within), ("two chains", "one chain"), strict=True):
    found.plot(ax)
    ax.set(title=title)
    print(
        f"{title:10}  distance {found.distance_before:5.1f}, aligned {found.distance_after:5.1f}"
        f"   barrier {found.barrier_before:6.2f}, aligned {found.barrier_after:6.2f} nats per row"
    )
axes[1].set(ylabel="")

# %%
# Matching takes away more than half of what lies between two chains. What stays says that they are
# other functions, or that the matching, a local optimum, missed the right labels. Weights of
# aligned chains look alike all the same: judge chains by their functions,
# ``diagnostics_.function_rhat``. Within a chain the draws are as far apart, with a tenth of the
# barrier, and no labels to change: matching gains nothing there.
#
# One Gaussian per chain
# ----------------------
#
# The covariance of a chain's draws has as many directions as there are draws. Weights of a network
# are correlated, so the variances alone, each weight for itself, are a far worse law.

condensed = model.approximate("low_rank", n_samples=500)
law = condensed.posterior_
diagonal = copy(condensed)
diagonal.__dict__.pop("_cache", None)
alone = replace(law, factor=0 * law.factor, variance=law.factor.square().sum(2) + law.variance)
n_weights = model.samples_.shape[-1]
drawn = alone.sample(500, generator=torch.Generator().manual_seed(0))
diagonal.samples_ = drawn[None, :, :n_weights].numpy()

figure, axes = plt.subplots(1, 3, figsize=(9, 3), sharey=True, layout="constrained")
line = np.column_stack([np.linspace(-2, 2, 200), np.full(200, 0.5)])
for ax, (name, each) in zip(
    axes,
    {"draws": model, "a Gaussian per chain": condensed, "its variances alone": diagonal}.items(),
    strict=True,
):
    mean, std = each.predict(line, return_std=True)
    ax.fill_between(line[:, 0], mean - 2 * std, mean + 2 * std, alpha=0.3, lw=0)
    ax.plot(line[:, 0], mean)
    ax.plot(line[:, 0], np.sin(2 * line[:, 0]) * np.cos(0.5), "k:", lw=1)
    ax.set(title=name, xlabel="$x_1$ at $x_2 = 0.5$")
    rmse = np.sqrt(np.mean((each.predict(X_test) - y_test) ** 2))
    density = each.log_predictive_density(X_test, y_test).mean()
    print(f"{name:20} RMSE {rmse:.3f}, log density {density:.3f} nats per row")

# %%
# A Gaussian per chain predicts much of what the draws do, and far more than the variances alone. It
# isn't as good: a chain's region is bent. (One Gaussian for all chains would say nothing: their
# mean is no mode.)
plt.show()
