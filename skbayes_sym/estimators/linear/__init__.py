"""Bayesian linear models by Gaussian sites (Kurle et al. 2022).

* `linear_models`: what a user meets
* `coefficients`: what the two share: parameters, coefficients, outputs
* `site_inference`: `SiteInference`: sites, hyperparameters, the mean-field optimum, what came of
  it; with normal noise the posterior and the evidence in closed form
* `design`: inputs in the units of the prior, where updates begin, coefficients of what is found

In: `Training`, and a `Model` whose network is one layer. Out: `LinearFit`.
"""
