"""Variational inference of linear models by Gaussian sites.

Reading order: `expectations` (what a site asks of a likelihood), `sites` (their fixed point),
`hyperparameters` (prior scale and noise learned at sites), `posterior` (of more weights than rows).

In: features, targets and weights of rows. Out: a Gaussian over coefficients; ELBO in nats.
"""
