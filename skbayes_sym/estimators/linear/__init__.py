"""Bayesian linear models by Gaussian sites (Kurle et al. 2022).

* `regressor`, `classifier`: what a user meets
* `base`: what the two share: parameters, coefficients, outputs
* `method`: `SiteInference`: sites, hyperparameters, the mean-field optimum
* `conjugate`: normal noise, which has the posterior and the evidence in closed form
* `design`: inputs in the units of the prior, and the space they span
* `start`: where the updates begin, and the ranges of learned scales
* `found`: what came of it: coefficients, bounds, sites
* `variance_scale`: how much of the logits' variance predictions of classes keep

In: `Training`, and a `Model` whose network is one layer. Out: `SiteFit`.
"""
