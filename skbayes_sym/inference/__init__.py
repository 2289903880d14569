"""How beliefs are updated: pure functions over explicit states.

Reading order: `posteriors` (what every method ends with), `predictor` (as rows ask it) and
`log_density` (what samplers start from), `map` (its modes, and scales that they learn). Then a
folder a method:
`gaussian_vi`, `linear`, `laplace`, `factorization`, `sampling`; `modes` (which modes
draws have, what each weighs, chains in one), `laplace_starts` (where chains may start),
`diagnostics`; `pooling` (several distributions as one, by the rows that each
leaves out); `noise_levels` (predictions that integrate over the noise of few rows).
`gaussian_process` predicts without a network.
`solvers` are what a user gives to an estimator.

In: `skbayes_sym.models`, groups and gaps. Out: posteriors, and bounds or evidences in nats.
"""
