"""Markov chains: how they warm up, run side by side and go on.

Reading order: `adaptation` (step sizes, scales, windows), `blocks` (chains that run together),
`chains` (many blocks, anywhere), `chain_count` (how many chains find all modes). Of networks with
many weights: `microcanonical` (dynamics of unit velocity, with and without rejections) and
`kronecker` (a preconditioner from the curvature of every layer), `annealing` (how chains come to a
wide basin), `retuning` (of those that accept too little once they draw).

Tested elsewhere: `blocks` (with `chains`).

In: a kernel of `inference.kernels`, a log density, starts. Out: draws (C, S, D), their log
densities in nats, and blocks that another run goes on with.
"""
