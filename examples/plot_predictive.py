"""
Predictions over a feature, and row by row
==========================================

`~skbayes_sym.inspection.PredictiveDisplay` draws the quantiles of a regressor over one feature, the
intervals of rows next to the observed targets, and the probabilities of a classifier.
"""

# %%
# One feature
# -----------
# Forty points of a sine. The grid extends beyond the data, where the intervals should widen.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes, load_iris
from sklearn.model_selection import train_test_split

from skbayes_sym import (
    BayesianLinearRegressor,
    Chains,
    MCMCRegressor,
    ModeWeights,
    SymmetrizedVIClassifier,
)
from skbayes_sym.inspection import PredictiveDisplay

rng = np.random.default_rng(1)
x = rng.uniform(-4, 4, size=(40, 1))
y = np.sin(x[:, 0]) + 0.3 * rng.standard_normal(40)

chains = MCMCRegressor(
    (4,), sampler=Chains(init="prior", n_warmup=300), prior=1.0, n_chains=32,
    remove_symmetries=ModeWeights("uniform"), random_state=0,
)  # fmt: skip
display = PredictiveDisplay.from_estimator(chains.fit(x, y), x, y, grid=np.linspace(-7, 7, 200))
display.ax_.set_title("Quantiles beyond the data")

# %%
# Many features
# -------------
# Each bar is the 90 % interval of a row, drawn at its predicted median. The legend counts the
# observed targets inside and outside of their intervals.

X, t = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, t_train, t_test = train_test_split(X, t, random_state=0)
linear = BayesianLinearRegressor().fit(X_train, t_train)
display = PredictiveDisplay.from_estimator(
    linear, X_test, t_test, y_name="disease progression after a year"
)  # fmt: skip
display.ax_.set_title("Intervals of new patients")

# %%
# With ``feature=`` one column varies over its range, and the others have their medians. The names
# come from the data frame. The body mass index of this data set is standardised.

display = PredictiveDisplay.from_estimator(
    linear, X_test, feature="bmi", y_name="disease progression after a year"
)  # fmt: skip
display.ax_.set_title("Prediction over one column")

# %%
# Classes
# -------
# Probabilities over one feature. The marks at the bottom are the observed rows, with one line for
# each class.

iris = load_iris(as_frame=True)
length, species = iris.data[["petal length (cm)"]], iris.target_names[iris.target]
clf = SymmetrizedVIClassifier((5,), "tanh", random_state=0).fit(length, species)
display = PredictiveDisplay.from_estimator(clf, length, species)
display.ax_.set_title("Probabilities of three species of iris")
plt.show()
