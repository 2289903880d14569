"""Gaussian posteriors of a network's weights, fitted by their bounds.

Reading order, of independent weights (Gelberg et al. 2024): `elbo` (the symmetrised bound and its
gradient), `gated` (its gap, skipped while it is certified saturated), `bounds` (what is reported,
from fresh draws), `mean_field_predictor`.

Of layers conditional on those before (Kurle et al. 2022): `hidden_layers`, `layers` (the last one,
the whole, and the bound), `scales` (their prior's), `layerwise_posterior` (what is kept of a fit).

In: a network, a likelihood, a normal prior, a `Gap`. Out: posteriors, and bounds in nats.
"""
