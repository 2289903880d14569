"""Symmetry groups of torch modules, found from their traced graph.

* `module_symmetry`: `symmetry_of`, which returns the group with a report
* `graph_analysis`: traces the module, and labels the axes of all tensors
* `rules`: one rule for each operation, and how to add a rule
* `selection_rules`: rules of operations that select, move or order entries
* `module_exchange`: exchanges of whole submodules, such as experts
* `overall_signs`: signs of whole parameters, such as those before a layer norm
* `axis_partition`: partition of axes into blocks that are permuted together, with a glossary
* `pieces`: parts of parameters whose axes are such blocks
* `group_assembly`: makes a group from the partition
* `numerical_check`: tries random elements of the group on the module
* `validation`: checks of the modules and inputs that users pass
* `merging`: aligns and averages trained copies of a module
"""
