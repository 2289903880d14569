"""Symmetrised variational inference (Gelberg et al. 2024).

Reading order: `estimator` (what a user meets), `gaps` (what ``gap`` stands for: trained on, and
reported), `starts` (where training starts, by name), `method` (`MeanFieldVI`: objective, steps,
bounds), `collapse` (whether scatter of the weights is taken for noise), `found` (what came of it).

In: `Training`, and a `Model` with a normal prior. Out: independent normals over the weights, and
bounds on the evidence in nats.
"""
