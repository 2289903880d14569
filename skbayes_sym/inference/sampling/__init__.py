"""Samplers: chains that warm up, run side by side and go on; particles from prior to posterior.

Reading order: `kernels` (moves of many chains as one batch), `warmup` (step sizes, scales,
windows), `blocks` (chains that run together), `chains` (many blocks, anywhere), `chain_count` (how
many chains find all modes), `allowance` (work that may be spent). Of networks with many weights:
`microcanonical` (dynamics of unit velocity) and `kronecker` (a preconditioner from the curvature of
every layer), `annealing` (how chains come to a wide basin), `retuning` (of those that accept too
little once they draw). Sequential Monte Carlo: `tempering` (how far a stage goes, who survives),
`smc_stages` (one stage), `smc` (all of them), `replicates` (independent runs, side by side).

Tested elsewhere: `blocks` (with `chains`), `smc_stages` (with `smc`).

In: a log density, starts or a prior, and the symmetry group. Out: draws (C, S, D) or particles
(N, D), their log densities in nats, and blocks that another run goes on with.
"""
