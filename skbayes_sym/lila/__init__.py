"""Invariances learned by a differentiable Laplace evidence (Immer, van der Ouderaa et al. 2022).

* `estimators`: `LILARegressor` and `LILAClassifier`

The averaged network and its evidence are in `skbayes_sym.laplace`, the transformations in
`skbayes_sym.models.augmentations`.
"""
