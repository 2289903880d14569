"""Stacks of predictive distributions, the default for tables.

* `estimators`: `PredictiveStackingRegressor` and `PredictiveStackingClassifier`
* `members`: default members, and their leave-one-out predictions
* `predictors`: predictions of members of any kind
* `weights`: fit the members one after the other and optimise their weights
* `gaussian_process`: Gaussian process with one length scale per column and a linear part
"""
