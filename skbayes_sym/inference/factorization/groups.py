"""The group of the rows of U and V: what a prior has, or a part of it by name."""

import torch

from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

NAMES = "auto", "orthogonal", "signed_permutation", "sign_flip"
MOST_PERMUTED = 14  # components whose signed permutations are summed exactly


def rows_group(
    symmetry: str | SymmetryGroup, prior: str | float, n_rows: int, n_components: int
) -> SymmetryGroup:
    """The group of that name, acting on rows of U and V one after the other; a group is itself.

    "auto" is all that the prior has: rotations, but only flips and exchanges of components (flips
    alone beyond 14 of them) where these have scales of their own, "ard".

    Raises ValueError if rotations are asked for that the prior doesn't have, or a group acts on
    another number of rows and components.
    """
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry == "auto":
        finite = "signed_permutation" if n_components <= MOST_PERMUTED else "sign_flip"
        symmetry = finite if prior == "ard" else "orthogonal"
    if symmetry == "orthogonal":
        if prior == "ard":
            raise ValueError(
                "symmetry='orthogonal' is no symmetry of prior='ard', whose components have "
                "scales of their own: use symmetry='auto' (exchanges and flips of components), or "
                "prior='learn'."
            )
        return Orthogonal(index)
    if isinstance(symmetry, str):
        return Units(index.mT, permute=symmetry == "signed_permutation", flip=True)
    acted_on = getattr(symmetry, "index", index)
    if acted_on.numel() != index.numel():
        raise ValueError(
            f"symmetry={type(symmetry).__name__}(...) acts on {acted_on.numel()} numbers, but U "
            f"and V have {n_rows} rows of {n_components} components: number them row by row, "
            "those of U first."
        )
    return symmetry
