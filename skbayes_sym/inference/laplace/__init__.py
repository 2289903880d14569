"""Laplace approximations, and the evidence that they give.

Reading order: `jacobian` (of a recorded pass through the network), `curvature` (Gauss-Newton in
three structures), `marginal_likelihood` (the evidence and its gradient), `training` (weights and
hyperparameters by turns), `precision` and `posterior` (what is kept, and the linearised
predictive). Beside them, for small regressions, many restarts at once: `gauss_newton` and
`evidence_modes`.

Tested elsewhere: `precision` (with `posterior`).

In: a network that records its passes. Out: log evidence in nats; Gaussian weights and functions.
"""
