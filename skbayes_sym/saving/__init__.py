"""Fitted models in files, without pickle.

`save` and `load` are what a user meets; `file` is the format (safetensors with a JSON header),
`values` what an attribute becomes in it, `classes` which classes a file may name, `first_edition`
how old files read in today's words.

Tested elsewhere: `save` (with `load`, in `test_saving` and `test_pipelines`), `load` (there, too),
`file` (there, too), `values` (there, too), `classes` (there, too).

In: a fitted estimator. Out: the same, bit for bit.
"""
