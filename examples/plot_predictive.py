"""
Predictions over a feature, and row by row
==========================================

`~skbayes_sym.inspection.PredictiveDisplay` draws a regressor's quantiles as a fan over one feature,
the intervals of rows beside what was observed, and a classifier's probabilities.
"""

# %%
# One feature
# -----------
# Forty points of a sine. The grid goes beyond the data, where the fan should widen.

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
PredictiveDisplay.from_estimator(chains.fit(x, y), x, y, grid=np.linspace(-7, 7, 200))

# %%
# Many features
# -------------
# The bars are 90 % intervals, each at the median that was predicted for its row. Those that miss
# their observation are counted.

X, t = load_diabetes(return_X_y=True, as_frame=True)
X_train, X_test, t_train, t_test = train_test_split(X, t, random_state=0)
linear = BayesianLinearRegressor().fit(X_train, t_train)
PredictiveDisplay.from_estimator(
    linear, X_test, t_test, y_name="disease progression after a year"
)  # fmt: skip

# %%
# One of them over its range, the others at their medians; names come from the data frame.

PredictiveDisplay.from_estimator(
    linear, X_test, feature="bmi", y_name="disease progression after a year"
)  # fmt: skip

# %%
# Classes
# -------
# Probabilities over one feature. The marks below are the observations, a line per class.

iris = load_iris(as_frame=True)
length, species = iris.data[["petal length (cm)"]], iris.target_names[iris.target]
clf = SymmetrizedVIClassifier((5,), "tanh", random_state=0).fit(length, species)
PredictiveDisplay.from_estimator(clf, length, species)
plt.show()
