"""The cost of ignoring a symmetry: ``E_q[log q - log q_G]`` of a posterior under a group, nats.

A posterior and a group go in, an `Estimate` with its side or a `GapGradient` comes out. To read:
``gap``, the one interface; ``unit_gap``, independent normals under exchanges and flips of units, by
a matrix of log ratios whose permanent (exact, or bounded) is q_G / q; ``unit_tables``, units that a
module's group has, inside one another too; ``drawn_gap``, of normals that depend on one another;
``row_gaps``, independent rows under flips and exchanges of components, and which gap is known of a
group; ``rotations``, of rows under O(k), by ``haar_integral``; ``translations``, a difference of
two optima."""
