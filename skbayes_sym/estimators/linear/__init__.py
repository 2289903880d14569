"""Bayesian linear models by Gaussian sites (Kurle et al. 2022).

* `regressor`, `classifier`: what a user meets
* `base`: what the two share: parameters, coefficients, outputs
* `method`: `SiteInference`: sites, hyperparameters, the mean-field optimum, what came of it
* `conjugate`: normal noise, which has the posterior and the evidence in closed form
* `design`: inputs in the units of the prior, where updates begin, coefficients of what is found

In: `Training`, and a `Model` whose network is one layer. Out: `SiteFit`.
"""
