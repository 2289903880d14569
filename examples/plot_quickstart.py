"""
Quick start
===========

Fit a Bayesian neural network that knows its own symmetries inside a scikit-learn pipeline, let a
grid search decide whether that helps, and look at what it changes.
"""

# %%
# A table of numbers
# ------------------
# Any scikit-learn tool works as usual: here a pipeline, a split, and a grid search over the one
# parameter that this package is about. ``symmetry=None`` is ordinary mean-field variational
# inference; ``"auto"`` averages the posterior over all exchanges (and, for tanh, sign flips) of
# hidden units.

import numpy as np
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import SymmetrizedVIRegressor

X, y = load_diabetes(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

model = make_pipeline(
    StandardScaler(),
    SymmetrizedVIRegressor(hidden_layer_sizes=(10,), activation="tanh", random_state=0),
)
grid = {"symmetrizedviregressor__symmetry": ["auto", None]}
search = GridSearchCV(model, grid).fit(X_train, y_train)

# %%
# The best model predicts a mean and a standard deviation (observation noise included), quantiles,
# intervals, whole functions, and how much of its uncertainty more data could remove.

mean, std = search.best_estimator_.predict(X_test, return_std=True)
best = search.best_estimator_[-1]
X_scaled = search.best_estimator_[:-1].transform(X_test)
interval = best.predict_interval(X_scaled, coverage=0.9)
covered = np.mean((interval[:, 0] < y_test) & (y_test < interval[:, 1]))
uncertainty = best.predict_uncertainty(X_scaled)

print("diabetes, 5-fold R2 of symmetry =", end=" ")
for params, score in zip(
    search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
):
    print(f"{params['symmetrizedviregressor__symmetry']}: {score:.3f}", end="   ")
print(f"""
test R2                       {search.score(X_test, y_test):.3f}
test log predictive density   {best.log_predictive_density(X_scaled, y_test).mean():.3f} nats
90 % intervals cover          {covered:.0%} of the test set
std of a prediction           {std.mean():.1f}, of which noise {best.noise_std_:.1f}
share of epistemic variance   {np.mean(uncertainty.epistemic / uncertainty.total):.1%}
evidence lower bound          {best.elbo_:.1f} nats ({best.symmetry_gap_:.1f} from symmetry)
""")

# %%
# What symmetry changes
# ---------------------
# Forty noisy points of a sine. A posterior that gives each hidden unit a name pays for it: up to
# log(10! 2^10) = 22 nats for ten tanh units. The plain bound avoids the bill by pruning units, here
# all of them; the symmetrised bound doesn't charge for names. Three random starts each:

rng = np.random.default_rng(1)
x = rng.uniform(-4, 4, size=(40, 1))
t = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(40)
grid_x = np.linspace(-5, 5, 301)[:, None]
inside = np.abs(grid_x[:, 0]) <= 4
truth = np.sin(grid_x[:, 0])

fits = {
    symmetry: [
        SymmetrizedVIRegressor(
            (10,), "tanh", symmetry=symmetry, max_iter=3000, random_state=seed
        ).fit(x, t)
        for seed in range(3)
    ]
    for symmetry in (None, "auto")
}
print("sine, 40 points       RMSE to truth       ELBO   (mean-field + gap)   noise")
for symmetry, starts in fits.items():
    for fit in starts:
        rmse = np.sqrt(np.mean((fit.predict(grid_x) - truth)[inside] ** 2))
        print(
            f"symmetry={symmetry!s:<10}{rmse:15.2f}{fit.elbo_:14.1f}"
            f"{fit.elbo_mean_field_:13.1f} + {fit.symmetry_gap_:4.1f}{fit.noise_std_:10.2f}"
        )

# %%
# The picture: median and 90 % interval of a new observation, first start. The noise has standard
# deviation 0.3.

import matplotlib.pyplot as plt

from skbayes_sym.inspection import PredictiveDisplay

figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
titles = {None: "symmetry=None (mean-field)", "auto": 'symmetry="auto"'}
for axis, (symmetry, starts) in zip(axes, fits.items(), strict=True):
    fit = starts[0]
    PredictiveDisplay.from_estimator(fit, x, t, grid=grid_x[:, 0], coverages=(0.9,), ax=axis)
    axis.plot(grid_x[:, 0], truth, color="0.3", ls="--", lw=1.2)
    axis.set_title(f"{titles[symmetry]}\nELBO {fit.elbo_:.0f} nats, noise {fit.noise_std_:.2f}")
    axis.set_xlabel("x (dashed: the truth)")
axes[1].set_ylabel("")
plt.show()
