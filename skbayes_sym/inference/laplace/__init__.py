"""Laplace's approximation: a normal around a mode, and the evidence it implies.

Reading order: `curvature` (gradients of the outputs, and the Gauss-Newton matrix plus the prior's:
Kronecker or full), `marginal_likelihood` (the evidence and its gradient), `online_training`
(weights and hyperparameters by turns), `laplace_posterior` (linearised predictions, of one mode or
several). `search` finds modes by Gauss-Newton steps and the evidence; `labels_predictive` refines
those of classes, and members of an ensemble; `predictors` has all of these as values.

In: a recording network, a likelihood, a normal prior, an augmentation. Out: `LaplacePosterior` and
log evidences in nats.
"""
