r"""
Directions of the weights that no row sees
==========================================

In a linear model the likelihood of a row doesn't change when the weights move orthogonally to its
input. A mean-field posterior can't follow such directions, and its ELBO is lower for it. Kurle et
al. (2022, section 4) work this out for a single input seen :math:`N` times,

.. math:: y_n = \tfrac1K \mathbf 1^T w + \epsilon_n, \quad \epsilon_n \sim N(0, \sigma_y^2), \quad
          w \sim N(0, K I),

where all is in closed form. The prior over functions is the same for every number of weights
:math:`K`; what changes is only how many directions are unseen.

This example redraws their Figures 1 to 3 with two corrections: the curve that their Figure 1 calls
linear is the gap at :math:`\theta_{mix}^*`, and the optimum of the mean-field bound (their eq. 19)
has another location than printed.
"""

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter
from paper_data import make_repeated_datum
from repeated_datum import (
    MeanFieldLikelihood,
    RankOneGaussian,
    RepeatedDatum,
)

from skbayes_sym import BayesianLinearRegressor, invariance_gap

# %%
# The model, and two posteriors made of the same parameters
# ---------------------------------------------------------
#
# A "mean-field likelihood" :math:`g_0 = N(w; m, \mathrm{diag}\,\lambda)` times the prior is the
# mean-field posterior :math:`q_0`. Averaged over the unseen translations first, it makes the
# invariance-abiding posterior :math:`q_{mix}`. Their difference in ELBO is the invariance gap
# :math:`KL[q_0 \| q_{mix}]`. Each posterior has its own optimal parameters,
# :math:`\theta_0^*` and :math:`\theta_{mix}^*`.

NOISE_VARIANCE = 1.0 / (2.0 * np.pi * np.e)  # then a perfect fit has a log likelihood of 0
WIDTHS = np.unique(np.geomspace(1, 1000, 60).round().astype(int))
BLACK, ORANGE, BLUE, GREEN = "#000000", "#d55e00", "#0072b2", "#009e73"  # told apart by all eyes
PLAIN = StrMethodFormatter("{x:g}")


def model_of(n_rows: int, n_weights: int) -> RepeatedDatum:
    """All inputs 1 / K, all targets 1, prior variance K."""
    X, y = make_repeated_datum(n_rows, n_features=n_weights)
    return RepeatedDatum(X[0], y, NOISE_VARIANCE, np.full(n_weights, float(n_weights)))


# %%
# Figure 3: two weights
# ---------------------
#
# One datum sees the mean of two weights; the grey band is where it is within two standard
# deviations of the target. :math:`q_{mix}` (orange) runs along the band, as the exact posterior
# does at :math:`\theta_{mix}^*`. :math:`q_0` (blue) is narrow in both directions there, though the
# datum says nothing about one of them; at its own optimum it trades fit for a wider circle. The
# dotted circles are :math:`q_0` for :math:`m` moved along the band: the same predictions, the same
# :math:`q_{mix}`, another mean-field posterior.


def circle(q: RankOneGaussian) -> np.ndarray:
    """Two standard deviations around the mean, (2, points)."""
    angle = np.linspace(0, 2 * np.pi, 200)
    root = np.linalg.cholesky(q.covariance)
    return q.loc[:, None] + 2 * root @ np.array([np.cos(angle), np.sin(angle)])


def draw_two_weights(ax: Axes, model: RepeatedDatum, theta: MeanFieldLikelihood) -> None:
    w = np.array([-5.0, 5.0])
    middle, half = 2 * model.exact_site.location, 4 * model.exact_site.variance**0.5
    ax.fill_between(w, middle - half - w, middle + half - w, color="0.85", label="likelihood")
    ax.plot(*circle(model.prior), color="0.5", lw=1, label="prior")
    for i, step in enumerate((-1.7, 1.7)):
        moved = theta._replace(loc=theta.loc + step * np.array([1.0, -1.0]))
        label = None if i else "$q_0$, $m$ moved"
        ax.plot(*circle(model.q_0(moved)), color=BLUE, ls=":", lw=1.5, label=label)
    ax.plot(*circle(model.q_mix(theta)), color=ORANGE, lw=2, label="$q_{mix}$")
    ax.plot(*circle(model.q_0(theta)), color=BLUE, lw=2, label="$q_0$")
    ax.set(xlim=(-3.6, 4.4), ylim=(-3.6, 4.4), aspect="equal", xlabel="first weight")


model = model_of(1, 2)
fig, axes = plt.subplots(1, 2, figsize=(7.2, 4.5), layout="constrained", sharey=True)
draw_two_weights(axes[0], model, model.optimal_theta_mix())
draw_two_weights(axes[1], model, model.optimal_theta_0())
axes[0].set(title=r"at $\theta_{mix}^*$, best for $q_{mix}$", ylabel="second weight")
axes[1].set(title=r"at $\theta_0^*$, best for $q_0$")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
plt.show()

# %%
# Figure 1: the gap
# -----------------
#
# One datum, both axes logarithmic. At :math:`\theta_{mix}^*`, where :math:`q_{mix}` is the exact
# posterior, the gap rises linearly with :math:`K` and soon exceeds what it can be at any optimum
# (the data-related bound, dotted). So optimising the mean-field bound must go elsewhere: at its
# optimum :math:`\theta_0^*` the gap rises, peaks and vanishes as :math:`1 / K`, as the posterior
# gives way to the prior. The paper's caption describes the linear curve as
# :math:`KL[q_0(\theta_0^*) \| q_{mix}(\theta_{mix}^*)]`; that one (dashed) is bounded.


class Gaps(NamedTuple):
    """The three curves of Figure 1, nats."""

    at_mix: float
    at_zero: float
    crossed: float


def gaps(n_weights: int) -> Gaps:
    model = model_of(1, n_weights)
    mix, zero = model.optimal_theta_mix(), model.optimal_theta_0()
    return Gaps(model.gap(mix), model.gap(zero), model.q_0(zero).kl(model.q_mix(mix)))


curves = np.array([gaps(k) for k in WIDTHS])
bound = model_of(1, 1).data_bound()

print("    K   gap at theta_mix*   gap at theta_0*   the caption's KL, nats")
for k in (2, 10, 19, 1000):
    print("{:5d} {:19.4f} {:17.4f} {:17.4f}".format(k, *gaps(k)))
print(f"data-related bound {bound:.3f}, exceeded from K = "
      f"{next(k for k in range(1, 1001) if gaps(k).at_mix > bound)} on")  # fmt: skip

fig, ax = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
ax.plot(WIDTHS, curves[:, 0], color=ORANGE, label=r"gap at $\theta_{mix}^*$ (exact posterior)")
ax.plot(WIDTHS, curves[:, 2], color=GREEN, ls="--",
        label=r"KL[$q_0(\theta_0^*)\,\|\,q_{mix}(\theta_{mix}^*)$]")  # fmt: skip
ax.plot(
    WIDTHS, curves[:, 1], color=BLUE, ls="-.", label=r"gap at $\theta_0^*$ (mean-field optimum)"
)
ax.axhline(bound, color=BLACK, ls=":", label="data-related bound")
ax.set(xscale="log", yscale="log", xlim=(2, 1000), ylim=(0.05, 2000), xlabel="number of weights K",
       ylabel="nats", title="Invariance gap, one datum")  # fmt: skip
ax.xaxis.set_major_formatter(PLAIN)
ax.yaxis.set_major_formatter(PLAIN)
ax.legend(loc="upper left")
plt.show()

# %%
# Figure 2: what the optimum gives up
# -----------------------------------
#
# Ten equal observations. Lines are :math:`q_{mix}`, marks :math:`q_0`; orange at
# :math:`\theta_{mix}^*`, blue at :math:`\theta_0^*`. Both posteriors of one parameter predict the
# same (they lie on each other in the bottom row), but differ in their KL to the prior (top left).
# The ELBO of :math:`q_0` at :math:`\theta_{mix}^*` falls on, to -2072 nats at :math:`K = 1000`.
#
# The invariance-abiding optimum doesn't notice :math:`K`. The mean-field optimum trades fit for KL:
# its variance reverts to the prior's. Its *mean* does not: it is the exact posterior mean for every
# :math:`K`. With eq. 19 as printed the mean would shrink to 0 as well, which no optimum does.


class Summary(NamedTuple):
    """One posterior of Figure 2."""

    kl: float
    expected_log_likelihood: float
    elbo: float
    output_variance: float


def summary(model: RepeatedDatum, q: RankOneGaussian) -> Summary:
    return Summary(
        q.kl(model.prior), model.expected_log_likelihood(q), model.elbo(q), q.output_variance
    )


def figure_2(n_weights: int) -> list[Summary]:
    """q_mix and q_0 at the optimum of q_mix, then both at the optimum of q_0."""
    model = model_of(10, n_weights)
    thetas = model.optimal_theta_mix(), model.optimal_theta_0()
    return [summary(model, q(theta)) for theta in thetas for q in (model.q_mix, model.q_0)]


values = np.array([figure_2(k) for k in WIDTHS])  # (widths, posteriors, quantities)
panels = {
    "KL from the prior": (0, "nats", {"yscale": "log", "ylim": (0.3, 3000)}),
    "expected log likelihood": (1, "nats", {"ylim": (-75, 10)}),
    "ELBO": (2, "nats", {"ylim": (-85, 10)}),
    "variance of the output": (3, "squared unit of y", {"ylim": (-0.05, 1.05)}),
}
fig, axes = plt.subplots(2, 2, figsize=(7.2, 6.0), layout="constrained", sharex=True)
for ax, (title, (column, unit, scale)) in zip(axes.T.flat, panels.items(), strict=True):
    for row, (theta, colour) in enumerate((("mix", ORANGE), ("0", BLUE))):
        name = rf"at $\theta_{{{theta}}}^*$"
        lines, marks = values[:, 2 * row, column], values[::4, 2 * row + 1, column]
        ax.plot(WIDTHS, lines, color=colour, lw=2, label=f"$q_{{mix}}$ {name}")
        mark = {"marker": "o^"[row], "ms": 5, "mfc": "white", "ls": "", "color": colour}
        ax.plot(WIDTHS[::4], marks, label=f"$q_0$ {name}", **mark)
    ax.set(title=title, ylabel=unit, xscale="log", **scale)
    ax.xaxis.set_major_formatter(PLAIN)
axes[0, 0].yaxis.set_major_formatter(PLAIN)
for ax in axes[1]:
    ax.set_xlabel("number of weights K")
fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
fig.suptitle("Ten observations of one input")
plt.show()

print("  K   ELBO(q_mix*)  ELBO(q_0*)  mean and variance of the output at q_0*   eq. 19 as printed")
for k in (1, 2, 10, 50, 1000):
    model = model_of(10, k)
    optimum, printed = model.q_0(model.optimal_theta_0()), model.q_0(model.printed_theta_0())
    print(
        f"{k:4d}   {model.log_evidence():9.4f} {model.elbo(optimum):12.3f}"
        f"       {optimum.output_mean:.4f}   {optimum.output_variance:.4f}"
        f"                      {printed.output_mean:.4f}  ELBO {model.elbo(printed):.2f}"
    )

# %%
# The same with data of one's own
# -------------------------------
#
# `~skbayes_sym.BayesianLinearRegressor` finds the invariance-abiding optimum for any linear
# model, and reports what mean-field would lose: ``symmetry_gap_``, or
# `~skbayes_sym.invariance_gap` for any estimator of the package. Here 20 points of a sine and more
# and more random cosines as features, the prior over functions held fixed.

rng = np.random.default_rng(0)
x = np.linspace(-3, 3, 20)
y = np.sin(x) + 0.1 * rng.normal(size=20)
print("features   log evidence   mean-field ELBO   gap")
for k in (5, 20, 100, 500, 2000):
    features = np.cos(np.outer(x, rng.normal(size=k)) + rng.uniform(0, 2 * np.pi, size=k))
    reg = BayesianLinearRegressor(
        prior=(2.0 / k) ** 0.5,
        noise_std=0.1,
        fit_intercept=False,
        standardize=False,
    ).fit(features, y)
    gap = invariance_gap(reg)
    print(f"{k:8d} {reg.log_evidence_:14.2f} {reg.elbo_mean_field_:17.2f} {gap.value:5.1f}")
