"""Wide networks, each layer's posterior conditional on those before it.

Reading order: `layerwise_vi` (what a user meets), `layerwise_training` (two starts, the higher
bound).

In: `Training`, and a `Model` with a Gaussian likelihood. Out: `LayerwisePosterior`, and a lower
bound in nats.
"""
