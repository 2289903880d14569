"""Posteriors with several modes: which there are, and what each one weighs.

Reading order: `gaussian_mixture` (a fitted proposal), `bridge_ratio` and `bridge` (the evidence of
one mode modulo the symmetry), `modes` (which draws belong together), `weights` (a pool of draws,
weighed); to predict with, `mixture_of_laplace` (one Gaussian a mode) and `low_rank` (one a chain).

In: draws of chains and particles, their log densities, the symmetry group. Out: regions, log
evidences with standard errors in nats, weights.
"""
