"""Random transformations of inputs with learned half-widths.

Reading order: `augmentation` (the interface, distributions of the coefficients, torch modules as
augmentations, and composition), then the families `tabular` and `images`.

In: inputs (N, *I), parameters ``eta``, uniform noise. Out: inputs (N, S, *I), differentiable with
respect to ``eta``. (A *symmetry* acts on weights: `skbayes_sym.symmetry`.)
"""
