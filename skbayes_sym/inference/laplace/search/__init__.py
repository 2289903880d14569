"""Modes of small networks, their scales and noise set by the evidence.

Reading order: `gauss_newton` (one damped step of many restarts, by systems in the smaller of two
spaces), `evidence_problem` (what a search needs of a model) as `numbers` and `labels` have it,
`mode_search` (the search), `copies` (restarts that end in the same mode), `beginnings` (targets
that are believed or doubted at first), `refine` (a Gaussian better than Laplace's for labels),
`held_out` (modes without a part of the rows).

In: a fully connected network, data, a normal prior that learns its scales. Out: modes with
hyperparameters, Cholesky factors and log evidences in nats.
"""
