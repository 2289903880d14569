"""Functions of inputs and flat weights.

Reading order: `network` (what one is, and what one's own inherits), `mlp` (with its passes for many
weight vectors, for sampling), `mlp_passes` (mean and variance of the weights, for VI; outputs by
weights, for Laplace), `modules` (any torch module), `convolutional` (some of them).

In: ``theta`` (*B, P), inputs (N, *I). Out: outputs (*B, N, O); the group they don't change under.
"""
