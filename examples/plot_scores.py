"""
Weights, densities and class probabilities
==========================================

Three displays of how well models predict: the members of a stack, models that were compared on the
same folds, and the class probabilities of a classifier.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.feature_selection import SelectKBest, f_regression
from sklearn.linear_model import BayesianRidge
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skbayes_sym import (
    BayesianLinearClassifier,
    BayesianLinearRegressor,
    PredictiveStackingRegressor,
)
from skbayes_sym.inspection import (
    ClassCalibrationDisplay,
    ModelComparisonDisplay,
    StackWeightsDisplay,
)
from skbayes_sym.model_selection import compare_models

# %%
# Members of a stack
# ------------------
# The weights maximise the leave-one-out log density of the mixture. A member with a high density
# can have a small weight if another member makes the same predictions.

X, y = load_diabetes(return_X_y=True)
members = [("linear", "linear"), ("trees", "trees")]
stack = PredictiveStackingRegressor(members, random_state=0).fit(X, y)
StackWeightsDisplay.from_estimator(stack)
plt.show()

# %%
# Compared models
# ---------------
# The dashed line is the density of the best model. The standard errors are large because all models
# find the same rows difficult. The table has the standard error of each difference.

models = {
    "10 columns": BayesianLinearRegressor(),
    "2 columns": make_pipeline(SelectKBest(f_regression, k=2), BayesianLinearRegressor()),
    "BayesianRidge": BayesianRidge(),
}
table = compare_models(models, X, y, cv=5)
print(table[["log_density", "difference", "difference_se"]].round(3).to_string())
ModelComparisonDisplay.from_table(table)
plt.show()

# %%
# Class probabilities
# -------------------
# Each point is a bin of 57 patients or fewer. The interval contains the frequencies that agree with
# the observed number.

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X[:, [1, 4]], y, test_size=0.5, random_state=0)
classifier = make_pipeline(StandardScaler(), BayesianLinearClassifier()).fit(X_train, y_train)
ClassCalibrationDisplay.from_estimator(classifier, X_test, y_test, n_bins=5)
plt.show()
