"""
Sales beyond the last date
==========================

A stack reads a column of dates as text and learns a weekly pattern and a level. After the last
training date it continues the level as a random walk with drift, so that its intervals widen with
the distance. Compare this with trees, whose mean and intervals stay as they were on the last day.

This takes about ten seconds of one core.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from skbayes_sym import PredictiveStackingRegressor

# %%
# Four hundred days of sales
# --------------------------
#
# Sales have a trend, a weekly and a yearly pattern, and noise. The first 300 days are for training,
# less than a year.

rng = np.random.default_rng(3)
t = np.arange(400)
week = np.array([0.0, -2.0, -3.0, -1.0, 4.0, 9.0, 6.0])[t % 7]
year = 15.0 * np.sin(2.0 * np.pi * (t + 100.0) / 365.0)
y = 100.0 + 0.1 * t + week + year + rng.normal(0.0, 3.0, size=400)
table = pd.DataFrame({"date": pd.date_range("2023-01-02", periods=400).strftime("%d/%m/%Y")})

members = [("linear", "linear"), ("trees", "trees"), ("process", "gaussian_process")]
model = PredictiveStackingRegressor(members, random_state=0).fit(table[:300], y[:300])
print(model.summary_)

# %%
# The next hundred days
# ---------------------
#
# A warning names the column whose values are beyond the training data.

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    interval = model.predict_interval(table)
    median = model.predict_quantiles(table, [0.5])[:, 0]
print(caught[0].message)

inside = (interval[:, 0] < y) & (y < interval[:, 1])
print(f"in their 90 % intervals until day 300: {100 * inside[:300].mean():.0f} %")
print(f"in their 90 % intervals after day 300: {100 * inside[300:].mean():.0f} %")

# %%
# Without dates, the model can't know that the rows are in time order. Trees that read the number of
# the day repeat their predictions for the last day.

trees = PredictiveStackingRegressor([("trees", "trees")], random_state=0)
numbers = np.column_stack([t, t % 7])
trees.fit(numbers[:300], y[:300])
repeated = trees.predict_interval(numbers)

# %%

days = pd.to_datetime(table["date"], dayfirst=True)
fig, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, sharey=True, layout="constrained")
for ax, bounds, title in (
    (axes[0], interval, "column of dates: random walk with drift after the last date"),
    (axes[1], repeated, "column of numbers, trees: the last day is repeated"),
):
    ax.fill_between(days, *bounds.T, color="#9ecae1", lw=0, label="90 % interval")
    ax.plot(days, y, ".", ms=3, color="black", label="sales")
    ax.axvline(days[300], color="grey", lw=1)
    ax.set(title=title, ylabel="sales")
axes[0].plot(days, median, color="#08519c", lw=1, label="median")
axes[0].legend(loc="upper left", frameon=False, ncols=3)
axes[1].tick_params(axis="x", rotation=20)
plt.show()
