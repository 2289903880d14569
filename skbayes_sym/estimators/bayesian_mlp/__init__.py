"""The estimator for people who don't want to choose: Laplace modes and ensemble members pooled.

Reading order: `pool` (what is fitted, and how much of it a data set is worth), `pools`.

In: the methods of `laplace` and `ensemble`. Out: `BayesianMLPRegressor`, `BayesianMLPClassifier`.
"""
