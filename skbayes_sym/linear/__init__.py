"""Bayesian linear models (Kurle et al. 2022).

* `estimators`: `BayesianLinearRegressor` and `BayesianLinearClassifier`
* `fit`: fit the posterior and its hyperparameters; with normal noise in closed form
* `design`: inputs in the units of the prior
* `conjugate`: regression with normal noise from its sufficient statistics
* `known_errors`: the same for rows whose errors are known
* `sites`: variational inference with one Gaussian site per row, for other likelihoods
* `hyperparameters`: maximise the bound over prior scale and noise at given sites
* `low_rank`: posterior of a model with more weights than rows, without a K x K array
* `predict`: predictions of a linear model with a normal posterior
"""
