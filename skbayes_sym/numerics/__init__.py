"""Numbers without models or data: torch, NumPy and SciPy only.

Whatever sits above starts from `layout` (names in one flat vector), `random` (explicit streams),
`monte_carlo` (a number with its standard error), `optimise` (the one gradient loop, and what stops
it), `convergence` (whether a curve still rises), `memory` (refused before it is allocated),
`threads` and `jobs`.

* Linear algebra: `linalg` (Cholesky factors with a remedy in their errors), `gaussian`
  (divergences), `ridge` (Bayesian regression in the smaller dimension), `resolvent` (many ridges
  of one matrix), `quadrature`.
* Permutations: `assignment` (the best one), `permanent` and `permanent_bounds` (sums over all),
  `sinkhorn` (doubly stochastic matrices), `assignment_sampler` (random ones).

In: tensors with any batch axes first. Out: the same, and logarithms in nats.
"""
