"""Mixtures of networks without parameters to tune: Laplace modes and ensemble members.

* `estimators`: `BayesianMLPRegressor` and `BayesianMLPClassifier`
* `fit`: choose the members by the size of the data, fit and weight them
"""
