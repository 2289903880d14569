"""Variational inference for neural networks.

Mean-field posteriors with the symmetrised bound (Gelberg et al. 2024)

* `estimators`: `SymmetrizedVIRegressor` and `SymmetrizedVIClassifier`
* `gaps`: the ``gap`` parameter: the symmetry gap in training and in reported bounds
* `fit`: starting points, objective, steps and final bounds
* `elbo`: the symmetrised bound and its gradient
* `mean_field`: terms of the bounds from fresh draws, and predictions

Posteriors of layers conditional on earlier layers (Kurle et al. 2022)

* `layerwise`: `LayerwiseVIRegressor`
* `hidden_layers`: posteriors of hidden layers: independent normals or global inducing points
* `layerwise_posterior`: the posterior of the last layer, the bound, and the fitted state
"""
