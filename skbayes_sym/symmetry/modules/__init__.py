"""Symmetries of any torch module: `reader` traces it and labels axes with `atoms` by `rules`, one
for each operation; `found` makes the group, in words too; `merging` brings trained copies together.
"""
