"""Random transformations of inputs whose half-widths are learned.

Reading order: `half_width` (laws of the coefficients, and their noise), `augmentation` (what an
augmentation is, `Identity`, `Composed`, `InRescaledUnits`), then the families: `tabular`
(columns of a table), `affine` and `pixels` (images), `module` (any torch module); `invariances`
(families together, how they are trained, and what half-widths are chosen by).

In: inputs (N, *I), parameters ``eta``, uniform noise. Out: inputs (N, S, *I), differentiable in
``eta``. (A *symmetry* acts on weights: `skbayes_sym.symmetry`.)
"""
