"""Groups that act on the weights of a model and leave it unchanged.

* `group`: the interface of groups, `Trivial`, `Product`, and checks that a density is invariant
* `units`: exchanges and sign flips of units with one sign
* `axis_units`: units along axes of the parameters of any network, and units inside units
* `orthogonal`: rotations and reflections
* `translation`: translations in the null space of the inputs
* `modules`: the group of any torch module
* `relabelling`: moves draws onto one copy of a mode
* `fundamental_domain`: enumeration of small groups, and one copy of weight space
* `gaps`: the symmetry gap, which is what a posterior loses by ignoring the group, in nats

Groups act on flat weights ``theta`` (*B, P). Their elements have batch axes (*B,).
"""

from typing import TYPE_CHECKING

from skbayes_sym.numerics.lazy_imports import lazy_names
from skbayes_sym.numerics.random import Estimate

if TYPE_CHECKING:
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

_MODULES = {
    "axis_units": ("AxisUnits", "UnitEntries", "Wreath"),
    "gaps.gap": ("Gap", "GapGradient"),
    "gaps.unit_gap": (
        "Bethe",
        "Exact",
        "ExactUpTo",
        "Importance",
        "InfoNCE",
        "PermanentEstimate",
        "Soules",
        "UnitGap",
    ),
    "group": (
        "NotInvariantError",
        "Product",
        "SymmetryGroup",
        "Trivial",
        "check_invariant",
        "invariant_subgroup",
    ),
    "modules.merging": ("align_modules", "merge_modules"),
    "modules.module_symmetry": ("ModuleSymmetry", "symmetry_of"),
    "orthogonal": ("Orthogonal",),
    "translation": ("Translation",),
    "units": ("SignedPermutation", "UnitGroup", "Units", "unit_layers"),
}

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
