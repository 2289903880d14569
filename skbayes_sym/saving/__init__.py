"""Fitted models in one file without pickle.

Reading order: `files` (`save` and `load`: arrays and a JSON header, there whole or not at all),
`values` (what a file may name, what state a fit can leave, and nouns as JSON and back), `checks`
(types, shapes and ranges of what a file holds).

In: a fitted estimator or pipeline. Out: a safetensors file; nothing in it is ever run.
"""
