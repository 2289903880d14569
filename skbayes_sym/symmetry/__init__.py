"""Groups that act on weights and leave the model unchanged: the heart of the package.

Reading order: `group` (what a group is, `Trivial`, `Product`, the check that a prior has it),
`units` (exchanges and sign flips), `axis_units` and `wreath` (the same for any layers),
`orthogonal`, `translation`; `modules` (the group of any torch module); then what is made of a
group: `reference` (a Gaussian for every unit, and the labels that fit it), `fundamental_domain`
(small groups listed; one copy of weight space), `relabelling` (draws moved onto one copy of a
mode), and `gaps` (what ignoring it costs, in nats).

In: flat weights ``theta`` (*B, P). Out: the same, moved; elements with batch axes (*B,).
"""

from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.axis_units import AxisUnits, UnitEntries
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Bethe,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
)
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap
from skbayes_sym.symmetry.group import (
    NotInvariantError,
    Product,
    SymmetryGroup,
    Trivial,
    check_invariant,
    invariant_subgroup,
)
from skbayes_sym.symmetry.modules.found import ModuleSymmetry, symmetry_of
from skbayes_sym.symmetry.modules.merging import aligned, merge
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.translation import Translation
from skbayes_sym.symmetry.units import SignedPermutation, UnitGroup, Units, unit_layers
from skbayes_sym.symmetry.wreath import Wreath

__all__ = [
    "AxisUnits",
    "Bethe",
    "Estimate",
    "Exact",
    "ExactUpTo",
    "Gap",
    "GapGradient",
    "Importance",
    "InfoNCE",
    "ModuleSymmetry",
    "NotInvariantError",
    "Orthogonal",
    "PermanentEstimate",
    "Product",
    "SignedPermutation",
    "Soules",
    "SymmetryGroup",
    "Translation",
    "Trivial",
    "UnitEntries",
    "UnitGap",
    "UnitGroup",
    "Units",
    "Wreath",
    "aligned",
    "check_invariant",
    "invariant_subgroup",
    "merge",
    "symmetry_of",
    "unit_layers",
]
