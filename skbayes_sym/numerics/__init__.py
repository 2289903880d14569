"""Arithmetic that knows no model and no data; torch only.

Reading order:

* shapes and chance: `layout` (named shapes, one flat vector), `random` (explicit streams, a number
  and its Monte Carlo error);
* linear algebra: `linalg` (Cholesky factors with a remedy, products of layers, ridge regression in
  the smaller dimension, many ridge systems with one matrix), `gaussian` (divergences, quadrature);
* loops: `optimise` (the one gradient loop; does a curve still rise, where does a fixed-point
  iteration lead);
* sums over permutations: `permanent` (and its bounds), `assignment` (and its sampler);
* the machine: `memory` (will it fit), `machine` (waits, constants of a device, threads, jobs);
* `arguments`: what public functions were given, checked in one wording;
* `tables` (columns of tables: names, missing values, levels) and `files` (written whole or not at
  all), which students use where there is no torch.

In and out: tensors; log weights and log densities in nats.
"""
