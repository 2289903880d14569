"""Symmetrised variational inference (Gelberg et al. 2024).

Reading order: `estimator` (what a user meets), `gaps` (what ``gap`` stands for: trained on, and
reported), `method` (`MeanFieldVI`: starts, objective, steps, bounds).

In: `Training`, and a `Model` with a normal prior. Out: independent normals over the weights, and
bounds on the evidence in nats.
"""
