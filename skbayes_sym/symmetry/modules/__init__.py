"""Symmetries of any torch module: its trace, rules for operations, and the group they leave.

Reading order: `trace` (the module as a list of operations), `atoms` (what is known about axes),
`reader` (labels for all tensors), `rules` (one for each operation), `found` (the group, in words
too), `verification` (a check in numbers); `merging` (trained copies on one another).
"""
