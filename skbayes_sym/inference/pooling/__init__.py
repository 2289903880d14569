"""Several predictive distributions as one, by the rows that each of them leaves out.

Reading order: `left_out` (densities of rows that a linearised fit leaves out), `weights` (of the
parts of a pool, by these densities), `predictor` (parts and their weights as one), `noise_shape`
(what the rows say of the noise).

In: `skbayes_sym.models`. Out: weights, and a shape of the noise.
"""
