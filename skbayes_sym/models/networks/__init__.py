"""Functions of inputs and flat weights.

Reading order: `network` (what a network is, and what one's own inherits), `activations`, `mlp`;
its hand-written passes `mlp_moments` (mean and variance of the weights, for VI), `mlp_batched`
(many weight vectors, for sampling) and `mlp_factors` (outputs by weights, formed or not);
`recording` (a forward pass with its intermediates, for Laplace), `modules` (any torch module),
`convolutional` (some of them).

In: ``theta`` (*B, P), inputs (N, *I). Out: outputs (*B, N, O); the group they don't change under.
"""
