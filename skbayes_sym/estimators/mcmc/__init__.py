"""Sampled posteriors (Wiese et al. 2023): `MCMCRegressor` and `MCMCClassifier`.

Reading order, which is the order of a fit: `setting` (who looks for modes, and what else is decided
before the first move), `starts` (of the chains), `wide` (those of large networks), `warm_start`,
`trust` (reasons not to weigh modes), `budget` (what weighing them may cost), `explore` (chains and
particles from their own starts), `allocate` (modes weighed by evidence, new chains in them),
`draws` and `modes` (what is kept), `diagnostics` (how well chains mixed), `sampled` (all of it),
`method` (the story), `base` (parameters become a method), `estimator`; and `approximate` (draws
condensed to Gaussians).

In: `Training`, `Model` and `Run`. Out: draws (C, S, P) with weights (C,), modes, log evidence in
nats. Tests of `starts`, `trust`, `budget` and `draws` have files of their name; the other stages
are tested through the estimators: what they find (`test_estimator`), weigh (`test_evidence`), keep
when stopped (`test_stops`) and get right on data that others have sampled (`test_oracles`).
"""
