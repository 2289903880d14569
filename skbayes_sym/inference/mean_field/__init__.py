"""Mean-field variational inference with the symmetrised bound (Gelberg et al. 2024).

Reading order: `elbo` (the objective and its gradient), `gated` (its gap, skipped while it is
certified saturated), `bounds` (what is reported, from fresh draws), `mean_field_predictor`.

In: a network, a likelihood, a normal prior, a `Gap`. Out: `MeanFieldGaussian`, bounds in nats.
"""
