"""Posteriors of a network layer by layer (Ober & Aitchison 2021).

Reading order: `base` (the parts, and the ELBO they train on), `collapsed` (the last layer
integrated out), `global_inducing` (inducing points for every layer), `posterior` (a fitted one).

In: an MLP, a Gaussian likelihood, `Batches`. Out: draws of all weights; moments of the outputs.
"""
