"""Fitted models in one file without pickle.

Reading order: `save` and `load`, `file` (arrays and a JSON header), `values` (nouns as JSON and
back), `classes` (what a file may name), `first_edition` (older files in today's words).

In: a fitted estimator or pipeline. Out: a safetensors file; nothing in it is ever run.
"""
