"""Random transformations of inputs whose half-widths are learned.

Reading order: `augmentation` (what one is, laws of its coefficients, any torch module as one, and
families together), then the families `tabular` and `images`.

In: inputs (N, *I), parameters ``eta``, uniform noise. Out: inputs (N, S, *I), differentiable in
``eta``. (A *symmetry* acts on weights: `skbayes_sym.symmetry`.)
"""
