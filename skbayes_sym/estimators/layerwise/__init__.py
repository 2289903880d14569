"""Wide networks, each layer's posterior conditional on those before it.

Reading order: `estimator` (what a user meets), `parts` (the hidden posterior and the last layer by
name), `method` (two starts, the higher bound), `found` (what came of it).

In: `Training`, and a `Model` with a Gaussian likelihood. Out: `LayerwisePosterior`, and a lower
bound in nats.
"""
