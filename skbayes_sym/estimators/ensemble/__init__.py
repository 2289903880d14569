"""Deep ensembles: `DeepEnsembleRegressor` and `DeepEnsembleClassifier`.

Reading order: `members` (all members in one loop, and what classes are predicted from),
`ensembles`. What is predicted from members is in `skbayes_sym.base.weighted_draws`, as of all weighted
draws.

In: `Training`, `Model` and `Run`. Out: modes (M, P) and their log posterior in nats.
"""
