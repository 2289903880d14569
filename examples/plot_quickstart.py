"""
Quick start
===========

What a network loses that doesn't know its own symmetries, in one picture.
"""

# %%
# What symmetry changes
# ---------------------
# Thirty-two noisy points of a sine, and a network of ten tanh units. Units can change places and
# flip their signs, in 10! 2^10 ways, and the network computes the same. An approximate posterior
# that tells the units apart has a bound on the evidence that is up to log(10! 2^10) = 22 nats
# lower, so mean-field inference (``symmetry=None``) prefers to switch units off, here all of them.
# ``symmetry="auto"``, the default, averages the posterior over all these ways, and nothing is lost
# by keeping them. Everything is at its default, for three seeds:

import warnings

import numpy as np

from skbayes_sym import SymmetrizedVIRegressor, VariationalAdam

warnings.simplefilter("ignore", UserWarning)  # mean-field fits warn that their noise is too large

rng = np.random.default_rng(1)
x = rng.uniform(-4, 4, size=(40, 1))
t = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(40)
x, t = x[8:], t[8:]
grid_x = np.linspace(-5, 5, 301)[:, None]
inside = np.abs(grid_x[:, 0]) <= 4
truth = np.sin(grid_x[:, 0])


def report(name, fit):
    rmse = np.sqrt(np.mean((fit.predict(grid_x) - truth)[inside] ** 2))
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
# Each bound has two optima, a flat function and one that follows the points, and a fit keeps the
# higher of those that its starts end in. To see the other one we start where it is: from a mode,
# or from one random start. A mean-field posterior *can* follow the points, with the same
# predictions. Its bound is against it, by four nats; the symmetrised bound is in favour.

others = {
    symmetry: SymmetrizedVIRegressor(
        (10,), "tanh", symmetry=symmetry, optimizer=VariationalAdam(init=init), random_state=0
    ).fit(x, t)
    for symmetry, init in ((None, "laplace"), ("auto", "random"))
}
for symmetry, fit in others.items():
    report(f"symmetry={symmetry}, other", fit)

# %%
# The picture: median and 90 % interval of a new observation, first seed. The noise has standard
# deviation 0.3.

import matplotlib.pyplot as plt

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
# Without a screen the picture goes to a file.

import sys
from pathlib import Path

is_page = "sphinx_gallery" in sys.modules  # the gallery takes the picture itself
if plt.get_backend().lower() == "agg" and not is_page:
    path = Path("quickstart.png").resolve()
    figure.savefig(path, dpi=150)
    print(f"no display: the picture is in {path}")
plt.show()
