"""Posteriors with several modes: which there are, and the mass of each.

Reading order: `bridge` (the evidence of one mode modulo the symmetry), `weigh` (a pool of draws,
divided and weighed), `confined` (chains in one mode, where its mass is poorly known).
"""
