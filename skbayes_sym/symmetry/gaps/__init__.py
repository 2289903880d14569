"""Symmetry gaps: ``E_q[log q - log q_G]`` of a posterior q under a group G, in nats.

Every gap takes a posterior and returns an `Estimate` or a `GapGradient`. Its ``side`` says whether
this is a lower bound, exact or an upper bound.

* `gap`: the interface
* `unit_gap`: independent normals under permutations and sign flips of units, by the permanent of a
  matrix of log density ratios
* `unit_tables`: the same for the unit groups of torch modules, including nested ones
* `monte_carlo_gap`: normals with full covariance, by sampling
* `row_gaps`: independent rows under permutations and sign flips of components
* `rotations`: independent rows under rotations and reflections O(k)
* `haar_integral`: integral over O(k) with respect to the Haar measure
* `translations`: linear models under translations, as a difference of two optima
"""
