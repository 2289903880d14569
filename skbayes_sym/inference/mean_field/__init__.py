"""Independent normals under the symmetrised ELBO (Gelberg et al. 2024).

Reading order: `elbo` (the objective and its gradient), `gated` (the gap as one of its terms),
`bounds` (what is reported after training).

In: an MLP, a likelihood, normal priors, `Batches`. Out: means and variances; bounds in nats.
"""
