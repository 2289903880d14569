"""Symmetries of any torch module: its trace, rules for operations, and the group they leave.

Reading order: `atoms` (what is known about axes), `reader` (the trace of a module, with labels for
all axes), `rules` (one for each operation), `found` (the group, in words too, and its check in
numbers); `merging` (trained copies on one another).
"""
