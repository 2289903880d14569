"""
Quick start
===========

A predictive distribution for every row of a table, and what a network gains from knowing its own
symmetries.
"""

# %%
# A table with text and missing values
# ------------------------------------
# The stack takes the table as it is. It fits a Gaussian process, trees, a linear model and Bayesian
# networks, and weights them by how well each one predicts rows that it hasn't seen.

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from skbayes_sym import PredictiveStackingRegressor, predictive

X, y = load_diabetes(as_frame=True, return_X_y=True, scaled=False)
X = X.assign(sex=X["sex"].map({1.0: "a", 2.0: "b"})).mask(X > 260)  # text and missing values
X, X_test, y, y_test = train_test_split(X, y, random_state=0)

model = PredictiveStackingRegressor(random_state=0).fit(X, y)
future = predictive(model, X_test)  # mean, std, quantile, interval, cdf, log_prob, crps, sample
low, high = future.interval(0.9).T
is_inside = (low <= y_test) & (y_test <= high)
print(f"{100 * is_inside.mean():.0f} % of the test rows lie in their 90 % interval")

# %%
# Each row has its own interval. The observed value lies outside of about one in ten.

import matplotlib.pyplot as plt
import numpy as np

order = np.argsort(future.mean())
rank = np.arange(len(order))
table_figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
axis.vlines(rank, low[order], high[order], color="tab:blue", alpha=0.35, lw=3)
axis.plot(rank, future.mean()[order], color="tab:blue", lw=1.5, label="predicted mean")
observed = y_test.to_numpy()[order]
inside = is_inside.to_numpy()[order]
axis.plot(rank[inside], observed[inside], "k.", label="observed, inside the interval")
axis.plot(rank[~inside], observed[~inside], "rx", label="observed, outside the interval")
axis.set_title(f"Diabetes progression of {len(order)} new patients, with 90 % intervals")
axis.set_xlabel("test rows, ordered by predicted mean")
axis.set_ylabel("disease progression after a year")
axis.legend(loc="upper left", fontsize="small")

# %%
# What symmetry changes
# ---------------------
# The second picture shows 32 noisy points of a sine, and a network of ten tanh units. There are
# 10! 2^10 ways to permute the units and to flip their signs, and none of them changes the function
# that the network computes. An approximate posterior that ignores this has a bound on the evidence
# that is up to log(10! 2^10) = 22 nats too low. Mean-field inference (``symmetry=None``) avoids the
# loss by switching units off, here all of them. The default, ``symmetry="auto"``, averages the
# posterior over all permutations and sign flips, so that units cost nothing. Everything else is at
# its default, for three seeds:

import warnings

from skbayes_sym import SymmetrizedVIRegressor, VariationalAdam

warnings.simplefilter("ignore", UserWarning)  # mean-field fits warn that their noise is too large

rng = np.random.default_rng(1)
x = rng.uniform(-4, 4, size=(40, 1))
t = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(40)
x, t = x[8:], t[8:]
grid_x = np.linspace(-5, 5, 301)[:, None]
has_data = np.abs(grid_x[:, 0]) <= 4
truth = np.sin(grid_x[:, 0])


def report(name, fit):
    rmse = np.sqrt(np.mean((fit.predict(grid_x) - truth)[has_data] ** 2))
    print(
        f"{name:25}{rmse:10.2f}{fit.elbo_:12.1f}"
        f"{fit.elbo_mean_field_:13.1f} + {fit.symmetry_gap_:4.1f}{fit.noise_std_:10.2f}"
    )


print("sine, 32 points    RMSE to truth        ELBO   (mean-field + gap)     noise")
fits = {}
for symmetry in (None, "auto"):
    for seed in range(3):
        fit = SymmetrizedVIRegressor((10,), "tanh", symmetry=symmetry, random_state=seed).fit(x, t)
        report(f"symmetry={symmetry}", fit)
        fits.setdefault(symmetry, fit)

# %%
# Each bound has two optima: a flat function, and one that follows the points. A fit tries several
# initialisations and keeps the highest optimum. To see the other optimum, we start close to it: at
# a mode, or at a single random initialisation. A mean-field posterior *can* follow the points, with
# nearly the same predictions, but its bound is four nats lower than for the flat function. The
# symmetrised bound ranks the two correctly.

others = {
    symmetry: SymmetrizedVIRegressor(
        (10,), "tanh", symmetry=symmetry, optimizer=VariationalAdam(init=init), random_state=0
    ).fit(x, t)
    for symmetry, init in ((None, "laplace"), ("auto", "random"))
}
for symmetry, fit in others.items():
    report(f"symmetry={symmetry}, other", fit)

# %%
# The figure shows the median and the 90 % interval of a new observation for the first seed. The
# true standard deviation of the noise is 0.3.

from skbayes_sym.inspection import PredictiveDisplay

figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
titles = {None: "symmetry=None (mean-field)", "auto": 'symmetry="auto" (default)'}
for axis, (symmetry, fit) in zip(axes, fits.items(), strict=True):
    other = others[symmetry]
    PredictiveDisplay.from_estimator(fit, x, t, grid=grid_x[:, 0], coverages=(0.9,), ax=axis)
    axis.plot(grid_x[:, 0], truth, color="0.3", ls="--", lw=1.2)
    axis.plot(grid_x[:, 0], other.predict(grid_x), color="tab:red", ls=":", lw=1.5)
    axis.text(
        0.98, 0.03, f"dotted: the other optimum, ELBO {other.elbo_:.0f}", color="tab:red",
        ha="right", transform=axis.transAxes, fontsize="small",
    )  # fmt: skip
    axis.set_title(f"{titles[symmetry]}\nELBO {fit.elbo_:.0f} nats, noise {fit.noise_std_:.2f}")
    axis.set_xlabel("x (dashed: the truth)")
axes[1].set_ylabel("")

# %%
# Without a display, the pictures are written to files.

import sys
from pathlib import Path

is_gallery = "sphinx_gallery" in sys.modules  # it collects the figures itself
if plt.get_backend().lower() == "agg" and not is_gallery:
    for name, picture in (("quickstart_table", table_figure), ("quickstart", figure)):
        path = Path(f"{name}.png").resolve()
        picture.savefig(path, dpi=150)
        print(f"no display: saved {path}")
plt.show()
