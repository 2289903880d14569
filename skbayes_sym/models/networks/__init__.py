"""Functions of inputs and flat weight vectors.

Reading order: `network` (the interface, and the base class of new networks), `mlp` (fully connected
networks, with passes for many weight vectors for samplers), `mlp_passes` (moments of the outputs
for VI, and derivatives of the outputs by the weights for Laplace), `modules` (torch modules) and
`convolutional` (convolutional modules).

In: ``theta`` (*B, P), inputs (N, *I). Out: outputs (*B, N, O), and the symmetry group of the
weights.
"""
