"""Mixtures of networks without parameters to tune: Laplace modes and ensemble members.

* `estimators`: `BayesianMLPRegressor` and `BayesianMLPClassifier`
* `defaults`: constants behind the mixtures, and the plan of their fit
* `fit`: fit the components of a mixture and weight them by leave-one-out predictions
* `groups`: noise of a mixture in groups of rows that it hasn't seen
"""
