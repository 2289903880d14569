"""Groups of the components of a factorisation by name."""

import torch

from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

NAMES = {"auto", "orthogonal", "signed_permutation", "sign_flip"}


def component_group(symmetry: str | SymmetryGroup, n_rows: int, n_components: int) -> SymmetryGroup:
    """The group of that name, acting on rows of U and V one after the other; a group is itself.

    Raises
    ------
    ValueError
        If a group acts on another number of rows and components.
    """
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry in ("auto", "orthogonal"):
        return Orthogonal(index)
    if isinstance(symmetry, str):
        return Units(index.mT, permute=symmetry == "signed_permutation", flip=True)
    given = getattr(symmetry, "index", index)
    if given.numel() != index.numel():
        raise ValueError(
            f"symmetry={type(symmetry).__name__}(...) acts on {given.numel()} numbers, but U and V "
            f"have {n_rows} rows of {n_components} components: number them row by row, those of U "
            "first."
        )
    return symmetry
