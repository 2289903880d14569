"""Variational inference for neural networks.

Mean-field posteriors with the symmetrised bound (Gelberg et al. 2024)

* `estimators`: `SymmetrizedVIRegressor` and `SymmetrizedVIClassifier`
* `gaps`: `Symmetrized`, and the estimates of the symmetry gap in training and in reported bounds
* `fit`: starting points, ascent and reported bounds
* `elbo`: the symmetrised bound and its gradient
* `mean_field`: expected log likelihood by fresh draws, and predictions

* `noise`: the noise level of few rows, for both kinds of posterior

Posteriors of layers conditional on earlier layers (Kurle et al. 2022)

* `layerwise`: `LayerwiseVIRegressor` and its training
* `hidden_layers`: posteriors of hidden layers, by independent normals or global inducing points
* `layerwise_posterior`: the posterior of the last layer, the bound and the fitted posterior
"""
