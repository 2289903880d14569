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
# Every third measurement is by a good instrument. The fit that knows the errors follows it, and
# its band is that of the function and the learned noise. The other fit gives all measurements the
# same noise.

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (90, 1))
noise_std = np.where(np.arange(90) % 3 == 0, 0.1, 2.0)
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=90) + noise_std * rng.normal(size=90)
grid = np.linspace(0, 10, 200)[:, None]

process = PredictiveStackingRegressor([("process", "gaussian_process")], random_state=0)
figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
fits = {"errors unknown": {}, "noise_std=": {"noise_std": noise_std}}
for ax, (title, known) in zip(axes[:2], fits.items(), strict=True):
    process.fit(X, y, **known)
    low, high = process.predict_interval(grid, 0.9).T
    ax.errorbar(X[:, 0], y, noise_std, fmt=".", color="0.7", ms=4, lw=0.7)
    ax.fill_between(grid[:, 0], low, high, alpha=0.4, label="90 % interval")
    ax.plot(grid, np.sin(grid), "k--", lw=1, label="function")
    ax.set(title=title, ylim=(-5, 5), xlabel="x")
axes[0].legend(loc="lower left")
axes[0].set_ylabel("y")

# %%
# Exposures
# ---------
#
# Faults of machines that ran for a day to a year. Rates of single machines, such as one fault in
# two days, say little where the exposure is short. Predictions are rates per day, and `predictive`
# multiplies them by new exposures.

age = rng.uniform(0, 10, 300)
days = np.exp(rng.uniform(0, np.log(365), 300))
rate = 0.03 * np.exp(0.25 * age)
faults = rng.poisson(days * rate)

members = [("linear", "count_linear"), ("boosting", "count_boosting")]
counts = PredictiveStackingRegressor(members, random_state=0)
counts.fit(age[:, None], faults, exposure=days)

axes[2].scatter(age, faults / days, s=np.sqrt(days), color="0.7", label="faults / days")
axes[2].plot(grid, counts.predict(grid), label="predicted rate")
axes[2].plot(grid, 0.03 * np.exp(0.25 * grid), "k--", lw=1, label="rate")
axes[2].set(title="exposure=", xlabel="age", ylabel="faults per day", ylim=(-0.02, 1))
axes[2].legend(loc="upper left")

in_a_year = predictive(counts, [[2.0], [8.0]], exposure=[365, 365])
print("90 % intervals of the faults in a year at ages 2 and 8:", in_a_year.interval(0.9).tolist())

plt.show()
