"""Samplers: chains that warm up, run side by side and go on; the mass of the modes they find.

Reading order: `kernels` (moves of many chains as one batch), `warmup` (step sizes, scales,
windows), `chains` (blocks that run anywhere), `chain_count` (how many chains find all modes).
Networks with many weights: `annealing` (how chains come to a wide basin, and the curvature of every
layer as their preconditioner).
Modes: `bridge` (the evidence of one), `weigh` (which there are, and
the weight of each), `confined` (more draws of those poorly known).

In: a log density, starts or a prior, and the symmetry group. Out: draws (C, S, D), their log
densities in nats, blocks that another run goes on with, and modes with their evidence.
"""
