"""Fitted models in one file without pickle.

Reading order: `save` and `load`, `file` (arrays and a JSON header), `values` (nouns as JSON and
back), `classes` (what a file may name), `validate` (what state a fit can leave), `replace` (files
there whole or not at all).

In: a fitted estimator or pipeline. Out: a safetensors file; nothing in it is ever run.
"""
