"""Modes of small networks, their scales and noise set by the evidence.

Reading order: `gauss_newton` (one damped step of many restarts, by systems in the smaller of two
spaces), `evidence_problem` (what a search needs of numbers and of labels), `mode_search` (the
search, and which restarts end in one mode), `beginnings` (targets that are believed or doubted at
first; modes without a part of the rows).

In: a fully connected network, data, a normal prior that learns its scales. Out: modes with
hyperparameters, Cholesky factors and log evidences in nats.
"""
