"""Fitted models in one file without pickle.

Reading order: `files` (`save` and `load`: arrays and a JSON header, there whole or not at all),
`values` (nouns as JSON and back), `classes` (what a file may name, and what state a fit can leave).

In: a fitted estimator or pipeline. Out: a safetensors file; nothing in it is ever run.
"""
