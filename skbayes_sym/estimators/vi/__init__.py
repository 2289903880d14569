"""Symmetrised variational inference (Gelberg et al. 2024).

Reading order: `symmetrized_vi` (what a user meets), `gaps` (what ``gap`` stands for: trained on,
and reported), `mean_field_training` (`MeanFieldVI`: starts, objective, steps, bounds).

In: `Training`, and a `Model` with a normal prior. Out: independent normals over the weights, and
bounds on the evidence in nats.
"""
