"""
Intervals for new groups
========================

Rows of a group, such as the visits of a patient, have more in common than their columns show. If a
single row is held out, the model has seen other rows of its group. Intervals based on such
residuals are too narrow for *new* groups. With ``groups=`` the members of a stack leave out whole
groups.

This takes about twenty seconds of one core.
"""

import matplotlib.pyplot as plt
import numpy as np

from skbayes_sym import PredictiveStackingRegressor

members = [("linear", "linear"), ("boosting", "boosting"), ("process", "gaussian_process")]
stack = PredictiveStackingRegressor(members, random_state=0)

# %%
# Random intercepts
# -----------------
#
# Each group has an intercept of its own. ``age`` differs from row to row, and ``size`` from group
# to group, so that flexible models recognise a group by its size and learn its intercept. Their
# intervals are too narrow near the sizes of known groups, and needlessly wide elsewhere. The widest
# are cut off in the figure.


def make_rows(n_groups, n_rows, std, seed):
    """Rows of groups, whose intercepts have a standard deviation."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), n_rows)
    age = rng.uniform(0, 1, len(groups))
    size = rng.normal(size=n_groups)[groups]
    intercept = std * rng.normal(size=n_groups)[groups]
    y = 2 * age + intercept + 0.3 * rng.normal(size=len(groups))
    return np.column_stack([age, size]), y, groups


def coverage(model, X, y):
    """Fraction of the targets in their 90 % intervals."""
    low, high = model.predict_interval(X, 0.9).T
    return np.mean((low <= y) & (y <= high))


X, y, groups = make_rows(25, 8, 0.6, seed=0)
X_new, y_new, _ = make_rows(100, 1, 0.6, seed=1)
by_rows = PredictiveStackingRegressor(members, random_state=0).fit(X, y)
by_groups = PredictiveStackingRegressor(members, random_state=0).fit(X, y, groups=groups)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
order = np.argsort(X_new[:, 0])
models = (left, by_rows, "Rows held out"), (right, by_groups, "Groups held out")
for axes, model, title in models:
    low, high = model.predict_interval(X_new, 0.9).T
    is_covered = (low <= y_new) & (y_new <= high)
    axes.vlines(X_new[order, 0], low[order], high[order], color="0.8", lw=2)
    axes.scatter(
        X_new[is_covered, 0], y_new[is_covered], s=10, color="C0", label="inside", zorder=3
    )
    axes.scatter(
        X_new[~is_covered, 0], y_new[~is_covered], s=14, color="C3", label="outside", zorder=3
    )
    axes.set(title=f"{title}: {100 * is_covered.mean():.0f} % covered", xlabel="age")
    axes.set_ylim(-2.5, 4.5)
left.set_ylabel("y")
figure.legend(title="90 % intervals", handles=right.collections[1:], loc="outside right center")
plt.show()

# %%
# More variance between groups
# ----------------------------
#
# The coverage in 400 new groups, averaged over two training sets. The line is the nominal 90 %.

stds = [0.0, 0.3, 0.6, 1.2]
covered = np.empty((2, len(stds)))
for i, std in enumerate(stds):
    results = []
    for seed in range(2):
        X, y, groups = make_rows(25, 8, std, seed=10 + seed)
        X_new, y_new, _ = make_rows(400, 1, std, seed=20 + seed)
        without = coverage(stack.fit(X, y), X_new, y_new)
        results.append((without, coverage(stack.fit(X, y, groups=groups), X_new, y_new)))
    covered[:, i] = np.mean(results, axis=0)

_, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
for values, label in zip(covered, ("rows held out", "groups held out"), strict=True):
    axes.plot(stds, values, "o-", label=label)
axes.axhline(0.9, color="0.5", lw=1, ls="--")
axes.set(xlabel="standard deviation between groups", ylabel="coverage of 90 % intervals")
axes.set(title="Coverage in new groups", ylim=(0.0, 1.0))
axes.legend(loc="lower left")
plt.show()
