"""Several predictive distributions as one, by the rows that each of them leaves out.

Reading order: `left_out` (densities of rows that a linearised fit leaves out), `weights` (of the
parts of a pool, by these densities), `pooled_predictor` (the parts as one distribution),
`noise_shape` (how its noise changes with the level), `class_calibration` (probabilities of scores).

In: `skbayes_sym.models`. Out: weights, and a shape of the noise.
"""
