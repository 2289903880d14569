"""
Known errors of measurement, and exposures of counts
====================================================

Some rows are known better than others: an instrument states its error, an average is of few or of
many trials, a count is of a day or of a year. ``fit(X, y, noise_std=...)`` takes the known standard
deviations of measurements, and ``fit(X, y, exposure=...)`` the exposures of counts.

This takes about ten seconds of one core.
"""

import matplotlib.pyplot as plt
import numpy as np

from skbayes_sym import PredictiveStackingRegressor, predictive

# %%
# Known errors
# ------------
#
# Every third measurement is by a good instrument. The model that knows the errors follows these
# measurements. Its intervals include the function and the learned noise, but not the known errors.
# The other model gives all measurements the same noise, and finds no function.

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (90, 1))
noise_std = np.where(np.arange(90) % 3 == 0, 0.1, 2.0)
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=90) + noise_std * rng.normal(size=90)
grid = np.linspace(0, 10, 200)[:, None]

process = PredictiveStackingRegressor([("process", "gaussian_process")], random_state=0)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
fits = {"Errors unknown": {}, "Errors given by noise_std=": {"noise_std": noise_std}}
for ax, (title, known) in zip(axes, fits.items(), strict=True):
    process.fit(X, y, **known)
    low, high = process.predict_interval(grid, 0.9).T
    ax.errorbar(
        X[:, 0], y, noise_std, fmt=".", color="0.6", ms=4, lw=0.7, label="measurement and its error"
    )
    ax.fill_between(grid[:, 0], low, high, alpha=0.4, label="90 % interval")
    ax.plot(grid, np.sin(grid), "k--", lw=1, label="function")
    ax.set(title=title, ylim=(-5, 5), xlabel="x")
axes[0].set_ylabel("y")
handles, labels = axes[0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
plt.show()

# %%
# Exposures
# ---------
#
# The counts are faults of machines that ran for a day to a year. The observed rate of a machine
# that ran for two days says little, and is drawn as a small point. Predictions are rates per day,
# and `predictive` multiplies them by new exposures.

age = rng.uniform(0, 10, 300)
days = np.exp(rng.uniform(0, np.log(365), 300))
rate = 0.03 * np.exp(0.25 * age)
faults = rng.poisson(days * rate)

members = [("linear", "count_linear"), ("boosting", "count_boosting")]
counts = PredictiveStackingRegressor(members, random_state=0)
counts.fit(age[:, None], faults, exposure=days)

_, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.scatter(age, faults / days, s=2 * np.sqrt(days), color="0.7", label="observed rate of a machine")
ax.plot(grid, counts.predict(grid), label="predicted rate")
ax.plot(grid, 0.03 * np.exp(0.25 * grid), "k--", lw=1, label="true rate")
ax.set(title="Faults with exposure=", xlabel="age (years)", ylabel="faults per day")
ax.set_ylim(-0.02, 1)
ax.legend(loc="upper left")

in_a_year = predictive(counts, [[2.0], [8.0]], exposure=[365, 365])
print("90 % intervals of the faults in a year at ages 2 and 8:", in_a_year.interval(0.9).tolist())

plt.show()
