"""Laplace's approximation, with hyperparameters and invariances by its own evidence.

Reading order: `laplace` and `lila` (the four faces), `common` (what they share: constructor to
model and method, architectures), `families` (invariances, and inputs as predictions transform
them), `effort` (units and restarts by the number of rows). By Gauss-Newton: `evidence_method`
(several modes, of how many units). By Adam: `online` (a fit, and its warnings), `averaged_problem`
(weights and hyperparameters by turns, and fitted attributes). Tested through the four estimators,
the mathematics below them in ``tests/inference/laplace``.

In: `Training`, `Model` and `Run` of ``_fit``; `skbayes_sym.inference.laplace`. Out: a normal
posterior over the weights, an evidence, and predictions of the network linearised at the mode.
"""
