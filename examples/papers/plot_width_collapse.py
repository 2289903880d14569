r"""
Wide networks: who keeps the data
=================================

The mean-field posterior of a wide network ignores the data (Coker et al. 2022). Kurle et al. (2022,
section 5) blame the directions of every layer's weights that no datum sees, and propose posteriors
that leave them alone. Here networks with one hidden layer of 10 to 1000 tanh units on two data
sets, with three posteriors:

- mean-field: ``symmetry=None``;
- exact last layer: `LayerwiseVIRegressor`, independent normals for the hidden layer;
- global inducing: the same with ``hidden_posterior="global_inducing"``.

The prior over functions is the same for every width (weights of variance 2 / fan-in in the first
layer, 1 / fan-in in the last), so all widths share one limit, a Gaussian process. It is fitted too,
as Bayesian linear regression on 20,000 random units.

The data come from the folder that the environment variable ``SKBAYES_SYM_DATA`` names. This takes
about four minutes of one core.
"""

import time
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from paper_data import load_dataset
from sklearn.model_selection import train_test_split

from skbayes_sym import BayesianLinearRegressor, LayerwiseVIRegressor, SymmetrizedVIRegressor

# %%
# What is fitted
# --------------
#
# Three splits, 80 % of the rows to train on, inputs and targets scaled by the training rows.
# Mean-field gets 1000 steps throughout. A step of the others takes longer the wider the network,
# but wide networks settle sooner: with 1000 steps no density of the widest differs by 0.03.

SPLITS = range(3)
WIDTHS = (10, 50, 200, 1000)
MAX_STEPS, LIMIT_UNITS = 1000, 20_000
METHODS = {
    "mean-field": (SymmetrizedVIRegressor, {"symmetry": None}),
    "exact last layer": (LayerwiseVIRegressor, {}),
    "global inducing": (LayerwiseVIRegressor, {"hidden_posterior": "global_inducing"}),
}
STEPS = {  # of the last two, by width
    "yacht": dict(zip(WIDTHS, (1000, 800, 800, 200), strict=True)),
    "sinusoidal": dict(zip(WIDTHS, (800, 300, 200, 200), strict=True)),
}


class Outcome(NamedTuple):
    """What one fit on one split gave."""

    log_density: float  # per test point, nats, of scaled targets
    elbo: float  # nats
    noise: float  # 1 is "nothing but noise"
    cpu_seconds: float


def outcome(model, X, X_test, y, y_test):
    start = time.process_time()
    model.fit(X, y)
    seconds = time.process_time() - start
    density = model.log_predictive_density(X_test, y_test).mean()
    return Outcome(density, model.elbo_, model.noise_std_, seconds)


def network(name, width, method, split, n_features):
    make, parameters = METHODS[method]
    return make(
        (width,), "tanh", tol=None, prior=[(2 / n_features) ** 0.5, width**-0.5],
        max_iter=min(MAX_STEPS, 1000 if method == "mean-field" else STEPS[name][width]),
        n_predict_samples=100, random_state=split, **parameters,
    )  # fmt: skip


def limit(split, X, X_test, y, y_test):
    """The network of infinite width: a linear model on random hidden units."""
    n_features = X.shape[1]
    rng = np.random.default_rng(split)
    weights = rng.normal(scale=(2 / n_features) ** 0.5, size=(n_features + 1, LIMIT_UNITS))

    def units(rows):
        return np.tanh(np.column_stack([rows, np.ones(len(rows))]) @ weights)

    model = BayesianLinearRegressor(prior=LIMIT_UNITS**-0.5, fit_intercept=False, standardize=False)
    return outcome(model, units(X), units(X_test), y, y_test)


def scaled_split(X, y, split):
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=split)
    centre, scale, mean, unit = X.mean(axis=0), X.std(axis=0), y.mean(), y.std()
    return (
        (X - centre) / scale,
        (X_test - centre) / scale,
        (y - mean) / unit,
        (y_test - mean) / unit,
    )


def study(name, X, y):
    """Outcomes by (method, width), one per split; the limit under ("limit", inf)."""
    cases = [(method, width) for width in WIDTHS for method in METHODS]
    outcomes = {case: [] for case in [*cases, ("limit", np.inf)]}
    for split in SPLITS:
        data = scaled_split(X, y, split)
        for method, width in cases:
            model = network(name, width, method, split, X.shape[1])
            outcomes[method, width].append(outcome(model, *data))
        outcomes["limit", np.inf].append(limit(split, *data))
    return {case: np.array(runs) for case, runs in outcomes.items()}


results = {}
for name in STEPS:
    try:
        results[name] = study(name, *load_dataset(name, return_X_y=True))
    except OSError as error:  # no file and no network
        print(error)

# %%
# What they keep
# --------------
#
# Test log predictive density by width: mean of three splits, the bar from the lowest to the
# highest. Mean-field collapses: from 200 units on it explains next to nothing. The other two don't.
#
# But the widest networks lose their *features*. At 1000 units the hidden weights are back at the
# prior, and what is left is the Gaussian process of infinite width (dashed) with its fixed kernel:
# the same density, and an ELBO within a few nats of the limit's log evidence. On yacht that is 3
# nats per point worse than 200 units that have learned theirs. Mean-field ends below even that.

STYLES = {
    "mean-field": ("#d55e00", "o", 0.92),
    "exact last layer": ("#0072b2", "s", 1.0),
    "global inducing": ("#009e73", "^", 1.08),
}


def draw(ax, name, outcomes):
    for method, (colour, marker, offset) in STYLES.items():
        runs = np.array([outcomes[method, width][:, 0] for width in WIDTHS])
        mean = runs.mean(axis=1)
        bars = mean - runs.min(axis=1), runs.max(axis=1) - mean
        ax.errorbar(np.array(WIDTHS) * offset, mean, bars, color=colour, marker=marker, ms=5,
                    lw=1.5, capsize=3, label=method)  # fmt: skip
    at_limit = outcomes["limit", np.inf][:, 0].mean()
    ax.axhline(at_limit, color="black", ls="--", lw=1.2, label="infinite width, fixed features")
    ax.set(title=name, xscale="log", xlabel="hidden units")
    ax.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    ax.minorticks_off()


fig, axes = plt.subplots(1, len(results), figsize=(7.2, 3.8), layout="constrained", squeeze=False)
for ax, (name, outcomes) in zip(axes[0], results.items(), strict=True):
    draw(ax, name, outcomes)
axes[0, 0].set_ylabel("test log density, nats per point")
fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4,
           fontsize="small")  # fmt: skip
plt.show()

# %%
# The figures. "Gain" is on mean-field at the same width, with the standard error of the paired
# differences (of splits whose training sets overlap); the noise is that of scaled targets.

for name, outcomes in results.items():
    print(f"\n{name:10}  units  posterior         density       gain          ELBO  noise  CPU s")
    for (method, width), runs in outcomes.items():
        reference = outcomes["mean-field", width if np.isfinite(width) else WIDTHS[-1]]
        gain = runs[:, 0] - reference[:, 0]
        error = gain.std(ddof=1) / len(gain) ** 0.5
        density, elbo, noise, seconds = runs.mean(axis=0)
        print(f"{width:17.0f}  {method:16} {density:8.3f}  {gain.mean():+6.3f} +-{error:6.3f} "
              f"{elbo:8.1f} {noise:6.2f} {seconds:6.1f}")  # fmt: skip
