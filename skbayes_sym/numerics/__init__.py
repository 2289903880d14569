"""Arithmetic that knows no model and no data; torch only.

Reading order:

* shapes and chance: `layout` (named shapes, one flat vector), `random` (explicit streams),
  `rotated_normals` (noise for stochastic gradients), `monte_carlo` (a number and its error),
  `quadrature`, `constants` (made once a device);
* linear algebra: `linalg` (Cholesky factors with a remedy), `products` (of linear layers, in the
  faster orientation), `gaussian` (divergences),
  `ridge` (regression in the smaller dimension), `resolvent` (many such systems with one matrix);
* loops: `optimise` (the one gradient loop), `convergence` (does a curve still rise),
  `anderson` (where a fixed-point iteration leads);
* sums over permutations: `permanent`, `permanent_bounds`, `sinkhorn`, `assignment`,
  `assignment_sampler`;
* the machine: `memory` (will it fit), `host` (several tensors for one wait), `threads`, `jobs`;
* `arguments`: what public functions were given, checked in one wording.

In and out: tensors; log weights and log densities in nats.
"""
