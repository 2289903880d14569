"""Samplers: chains that warm up, run side by side and go on; particles from prior to posterior.

Reading order: `kernels` (moves of many chains as one batch), `warmup` (step sizes, scales,
windows), `blocks` (chains that run together), `chains` (many blocks, anywhere), `chain_count` (how
many chains find all modes), `allowance` (work that may be spent). Networks with many weights:
`annealing` (how chains come to a wide basin), `kronecker` (a preconditioner from the curvature of
every layer). Sequential Monte Carlo: `smc`.

In: a log density, starts or a prior, and the symmetry group. Out: draws (C, S, D) or particles
(N, D), their log densities in nats, and blocks that another run goes on with.
"""
