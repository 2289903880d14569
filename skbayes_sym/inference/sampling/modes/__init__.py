"""Posteriors with several modes: which there are, and what each one weighs.

Reading order: `mixtures` (Gaussians fitted to draws: a bridge's proposal, and approximations that
predict), `bridge` (the evidence of one mode modulo the symmetry), `find` (which draws belong
together), `weigh` (a pool of draws, weighed), `confined` (chains in one mode, where its mass is
poorly known).

In: draws of chains and particles, their log densities, the symmetry group. Out: regions, log
evidences with standard errors in nats, weights.
"""
