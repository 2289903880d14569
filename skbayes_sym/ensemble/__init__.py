"""Deep ensembles: modes of the posterior from random starting points.

* `estimators`: `DeepEnsembleRegressor` and `DeepEnsembleClassifier`
* `fit`: training of all members in one batched loop, and corrections of their uncertainty

Predictions of weighted members are in `skbayes_sym.base.weighted_draws`.
"""
