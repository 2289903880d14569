"""Which gap is known of a posterior whose rows are independent, by its group."""

from functools import singledispatch

from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.gaps.anchored_components import AnchoredComponentGap
from skbayes_sym.symmetry.gaps.base import Gap, RowPosterior
from skbayes_sym.symmetry.gaps.components import ComponentGap
from skbayes_sym.symmetry.gaps.rotations import AnchoredRotationGap, IsotropicRotationGap
from skbayes_sym.symmetry.gaps.sign_flips import SignFlipGap
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units


@singledispatch
def row_gap(
    group: SymmetryGroup, *, is_isotropic: bool, is_elementwise: bool = True
) -> Gap[RowPosterior]:
    """The gap of rows under rotations, or under flips and exchanges of their components.

    Parameters
    ----------
    group : Orthogonal or Units
        Other groups: ``row_gap.register``.
    is_isotropic : bool
        Whether every covariance is a multiple of the identity: rotations are then exact.
    is_elementwise : bool, default=True
        Whether every covariance is diagonal: finite groups are then exact.

    Raises
    ------
    TypeError
        If no gap is known for the group.
    """
    raise TypeError(
        f"no gap of independent rows is known under {type(group).__name__}: give one of your own, "
        "solver=VI(gap=...)."
    )


@row_gap.register
def _(group: Orthogonal, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    if group.n_components == 1:  # O(1) is a sign flip
        return SignFlipGap(Units(group.index.mT, permute=False, flip=True))
    return IsotropicRotationGap(group) if is_isotropic else AnchoredRotationGap(group)


@row_gap.register
def _(group: Units, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    if not is_elementwise:
        return AnchoredComponentGap(group)
    return ComponentGap(group) if group.permutes else SignFlipGap(group)
