"""Laplace's approximation, with hyperparameters and invariances by its own evidence.

Reading order: `laplace` and `lila` (the four faces), `common` (what they share: constructor to
model and method), `architectures` and `families` (what ``network`` and ``families`` stand for),
`optimizers` (Gauss-Newton or Adam), `effort` (units and restarts by the number of rows). By
Gauss-Newton: `evidence_method` (several modes, of how many units), `mode_predictions`. By Adam:
`online` (a fit), `averaged_problem` (its nouns, and fitted attributes), `alternation` (weights and
hyperparameters by turns), `fit_warnings` (warnings), `predict` (the linearised network). Tested
through the four estimators, the mathematics below them in ``tests/inference/laplace``.

In: `Training`, `Model` and `Run` of ``_fit``; `skbayes_sym.inference.laplace`. Out: a normal
posterior over the weights, an evidence, and predictions of the network linearised at the mode.
"""
