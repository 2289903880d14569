"""Wide networks, each layer's posterior conditional on those before it.

Reading order: `estimator` (what a user meets), `method` (two starts, the higher bound).

In: `Training`, and a `Model` with a Gaussian likelihood. Out: `LayerwisePosterior`, and a lower
bound in nats.
"""
