"""Gaussian posteriors of a network's weights, fitted by their bounds.

Reading order, of independent weights (Gelberg et al. 2024): `elbo` (the symmetrised bound and its
gradient, with a gap that is skipped while it is certified saturated), `mean_field` (what is
reported, from fresh draws, and predictions).

Of layers conditional on those before (Kurle et al. 2022): `hidden_layers`, `layers` (the last one,
their prior, the whole, the bound, and what is kept of a fit).

In: a network, a likelihood, a normal prior, a `Gap`. Out: posteriors, and bounds in nats.
"""
