"""Groups that act on weights and leave the model unchanged: the heart of the package.

Reading order: `group` (what a group is, `Trivial`, `Product`, the check that a prior has it),
`units` (exchanges and sign flips), `axis_units` (the same for any layers, and inside one another),
`orthogonal`, `translation`; `modules` (the group of any torch module); then what is made of a
group: `relabelling` (draws moved onto one copy of a mode), `fundamental_domain` (small groups
listed; one copy of weight space), and `gaps` (what ignoring it costs, in nats).

In: flat weights ``theta`` (*B, P). Out: the same, moved; elements with batch axes (*B,).
"""

from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries, Wreath
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient
from skbayes_sym.symmetry.gaps.unit_gap import (
    Bethe,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
    UnitGap,
)
from skbayes_sym.symmetry.group import (
    NotInvariantError,
    Product,
    SymmetryGroup,
    Trivial,
    check_invariant,
    invariant_subgroup,
)
from skbayes_sym.symmetry.modules.merging import align_modules, merge_modules
from skbayes_sym.symmetry.modules.module_symmetry import ModuleSymmetry, symmetry_of
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.translation import Translation
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup, Units, unit_layers

__all__ = [
    "AxisUnits", "Bethe", "Estimate", "Exact", "ExactUpTo", "Gap", "GapGradient", "Importance",
    "InfoNCE", "ModuleSymmetry", "NotInvariantError", "Orthogonal", "PermanentEstimate", "Product",
    "SignedPermutation", "Soules", "SymmetryGroup", "Translation", "Trivial", "UnitEntries",
    "UnitGap", "UnitGroup", "Units", "Wreath", "align_modules", "check_invariant",
    "invariant_subgroup", "merge_modules", "symmetry_of", "unit_layers",
]  # fmt: skip
