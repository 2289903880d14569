"""Sampled posteriors (Wiese et al. 2023): `MCMCRegressor` and `MCMCClassifier`.

Reading order, which is the order of a fit: `mcmc` (parameters become a method), `sampling` (the
story, and what a fit keeps), `setting` (every number behind "auto", and what is decided before the
first move), `exploring` (chains from their own starts), `weighing` (how chains mixed, modes weighed
by evidence, new chains in them, what that may cost).

In: `Training`, `Model` and `Run`. Out: draws (C, S, P) with weights (C,), modes, log evidence in
nats.
"""
