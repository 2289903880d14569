"""Posteriors with several modes: which there are, and what each one weighs.

Reading order: `gaussian_mixture` (a fitted proposal), `bridge_ratio` and `bridge` (the evidence of
one mode modulo the symmetry), `find` (which draws belong together), `weigh` (a pool of draws,
weighed), `confined` (chains in one mode), of which `refine` asks for more; to predict with,
`mixture_of_laplace` (one Gaussian a mode) and `low_rank` (one a chain).

In: draws of chains and particles, their log densities, the symmetry group. Out: regions, log
evidences with standard errors in nats, weights.
"""
