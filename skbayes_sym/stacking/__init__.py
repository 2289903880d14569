"""Stacks of predictive distributions, the default for tables.

* `estimators`: `PredictiveStackingRegressor` and `PredictiveStackingClassifier`
* `base`: members by name, checks, fits and summaries that both share
* `members`: one file per model of the default stack, and their registry
* `defaults`: constants behind the default stack
* `task`: training data as members receive them, and what a fitted member returns
* `folds`: folds of distinct rows, of whole groups, or of the user's ``cv``
* `predictors`: predictions of fitted members
* `tree_arrays`: trees of scikit-learn's ensembles as arrays, in which they are pickled and saved
* `tree_walk`: leaves of few rows in many trees at once
* `fitted_members`: fitted members as pipelines of scikit-learn
* `scoring`: leave-one-out scores, noise models and calibration of the members
* `several_targets`: one stack for each of several targets, and their joint distribution
* `group_columns`: find columns whose values are groups of rows that resemble each other
* `fit`: fit the members one after the other and optimise their weights
"""
