"""Deep ensembles: modes of the posterior from random starting points.

* `estimators`: `DeepEnsembleRegressor` and `DeepEnsembleClassifier`
* `fit`: train all members in one batched loop

Predictions from weighted members are in `skbayes_sym.base.weighted_draws`.
"""
