"""Symmetry groups of torch modules, found from their traced graph.

* `module_symmetry`: `symmetry_of`, the group with its report, and its numerical check
* `graph_analysis`: trace the module and label all tensor axes
* `rules`: one rule per operation
* `axis_partition`: partitions of axes into interchangeable parts
* `merging`: align and average trained copies of a module
"""
