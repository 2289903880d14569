"""Posteriors of wide networks, each layer conditional on draws of those before it.

Reading order: `scales` (of the layers' priors, given or learned), `layers` (a hidden posterior and
a last layer together, and their bound), `collapsed` (mean-field hidden layers, the last one exact),
`global_inducing` (sites at inducing points in every layer), `layerwise_posterior` (as kept after a
fit).

In: an MLP, a Gaussian likelihood, rows. Out: a lower bound in nats, and draws of functions.
"""
