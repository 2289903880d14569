"""Laplace's approximation, with hyperparameters and invariances by its own evidence.

Reading order: `estimator` and `lila` (the four faces), `base` (what they share: constructor to
model and method), `networks` and `invariances` (what ``network`` and ``invariances`` stand for),
`optimizers` (Gauss-Newton or Adam), `effort` (units and restarts by the number of rows). By
Gauss-Newton: `modes` (several modes, of how many units), `mode_predictions`. By Adam:
`method` (a fit), `problem` (its nouns), `curvature` (what is kept of H), `alternation` (weights and
hyperparameters by turns), `evaluation` (the evidence as reported), `found` (fitted attributes),
`convergence` (warnings), `predict` (the linearised network). The parts are tested through the four
estimators, the mathematics below them in ``tests/inference/laplace``.

In: `Training`, `Model` and `Run` of ``_fit``; `skbayes_sym.inference.laplace`. Out: a normal
posterior over the weights, an evidence, and predictions of the network linearised at the mode.
"""
