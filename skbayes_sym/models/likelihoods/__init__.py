"""Conditional laws of targets given outputs.

Reading order: `likelihood` (what one is, and all that follows from a density or from a
``torch.distributions`` law, by `expectations`), then the laws: `normal_noise`, `heteroscedastic`,
`student_t`, `counts`, `categorical`, `ordinal`; `named` (the strings that stand for them);
`site_rules` (expectations over correlated outputs, which linear models take).

In: outputs of a network (*B, N, O) and targets. Out: log densities in nats, their derivatives and
expectations, and predictive mixtures.
"""
