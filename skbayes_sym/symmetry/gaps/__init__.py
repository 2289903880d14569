"""The cost of ignoring a symmetry: ``E_q[log q - log q_G]`` of a posterior under a group, nats.

A posterior and a group go in, an `Estimate` with its side or a `GapGradient` comes out. To read:

* ``gap``: the one interface, `Gap`. * ``unit_gap``: independent normals under exchanges and flips
of units, by way of a matrix of log ratios whose permanent is q_G / q, and ``permanent_estimates``
(exact, or bounds). * ``row_gaps``: independent rows under flips (quadrature) and exchanges
(permanents) of components, and which gap is known of a group; ``rotations``: of rows under O(k), by
way of ``langevin`` (the log ratio, and anchors of the bound) and ``haar_integral`` (over O(k)). *
``translations``: no compact group, so a difference of two optima."""
