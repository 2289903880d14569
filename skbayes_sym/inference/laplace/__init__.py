"""Laplace's approximation: a normal around a mode, and the evidence it implies.

Reading order: `jacobian` (gradients of the outputs), `curvature` (the Gauss-Newton matrix from
them: Kronecker, diagonal, full), `precision` (the matrix plus the prior's, as a distribution),
`posterior` (its linearised predictions), `marginal_likelihood` (the evidence and its gradient),
`tangent_kernel` and `subset` (a bound of it from a few rows),
`training` (weights and hyperparameters by turns). For small regression networks `gauss_newton`, in
the smaller of the two spaces of `systems`, and `evidence_modes` find many modes at once, begun in
the two ways of `mode_search`, which `mode_mixture` puts together, `held_out` (the same without a
part of the rows); for classes `class_terms` (labels given logits), `class_evidence` (sums over
rows), `class_modes`, begun in the two ways of `class_mode_search`, `class_refinement` (a Gaussian
better than Laplace's), `class_predictive` and `class_refit` (the same for members of an ensemble,
in the smaller of two spaces). `determined` says what any network's data determine of it at one
mode.

Tested elsewhere: `precision` (with `posterior`).

In: a recording network, a likelihood, a normal prior, an augmentation. Out: `LaplacePosterior` and
log evidences in nats.
"""
