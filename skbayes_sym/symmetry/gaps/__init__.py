"""What ignoring a symmetry costs: ``E_q[log q - log q_G]`` of a posterior under a group, nats.

A posterior and a group go in, an `Estimate` with its side or a `GapGradient` comes out. To read:

* ``base``: the one interface, `Gap`.
* ``units``: independent normals under exchanges and flips of units, by way of ``unit_log_ratios``
  (the matrix whose permanent is q_G / q) and ``permanent_estimates`` (exact, or bounds).
* ``rows``: which gap is known of independent rows, by their group:
  ``sign_flips`` (quadrature), ``components`` (permanents; ``anchored_components`` where covariances
  aren't diagonal) and ``rotations``, these by way of
  ``langevin`` (the log ratio), ``isotropic`` (its slopes in few numbers), ``anchors`` (of the
  bound) and ``haar_integral`` (over O(k)).
* ``translations``: no compact group, so a difference of two optima.
"""
