"""Sampled posteriors (Wiese et al. 2023): `MCMCRegressor` and `MCMCClassifier`.

Reading order, which is the order of a fit: `mcmc` (parameters become a method), `sampling` (the
story, and what a fit keeps), `sampling_effort` (every number behind "auto"), `setting` (what is
decided before the first move), `chain_starts`, `explore` (chains from their own starts), `trust`
(how chains mixed, reasons not to weigh modes), `allocate` (modes weighed by evidence, new chains in
them, what that may cost).

In: `Training`, `Model` and `Run`. Out: draws (C, S, P) with weights (C,), modes, log evidence in
nats.
"""
