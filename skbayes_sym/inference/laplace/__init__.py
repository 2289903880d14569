"""Laplace's approximation: a normal around a mode, and the evidence it implies.

Reading order: `jacobian` (gradients of the outputs), `precision` (the Gauss-Newton matrix plus the
prior's, as a distribution), `curvature` (how data make it: Kronecker, diagonal, full),
`laplace_posterior` (its linearised predictions), `marginal_likelihood` (the evidence and its
gradient), `online_training` (weights and hyperparameters by turns). `search` finds modes by
Gauss-Newton steps and the evidence; `mode_mixture` puts them together, `labels_predictive` predicts
classes by them, and `member_refit` by members of an ensemble; `predictors` has all of these as
values. `determined` says what any network's data determine of it at one mode.

In: a recording network, a likelihood, a normal prior, an augmentation. Out: `LaplacePosterior` and
log evidences in nats.
"""
