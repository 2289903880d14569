"""Posteriors of models: how they are found, drawn from and judged.

Reading order: `log_density` and `network_posterior` (what is approximated), `posteriors` (plain
approximations), `map` (modes), `diagnostics` (have chains mixed), `effective_noise` (of a fitted
network). Then one folder a method: `mean_field`, `layerwise`, `linear`, `laplace`, `factorization`,
`mcmc`, `smc`, `multimodal`, none of which imports another; `kernels` is what samplers share, and
`reference` what the papers printed. Over the methods: `mode_sampling` (chains that stay in their
modes) and the objects of two constructor parameters, `samplers` and `solvers`.

Tested elsewhere: `samplers` (settings in `estimators/mcmc`, moves in `kernels`),
`solvers` (in `estimators/factorization`, sweeps in `factorization`).

In: a `Model` and `Data`. Out: frozen results; log densities and bounds in nats, summed over data.
"""
