"""The group of the components of a factorisation: by name, or what its prior has."""

import torch

from skbayes_sym.inference.factorization.problem import Factorisation
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

NAMES = {"auto", "orthogonal", "signed_permutation", "sign_flip"}
MOST_PERMUTED = 14  # components whose signed permutations are summed exactly


def group_name(symmetry: str, n_components: int, *, has_scales: bool) -> str:
    """What "auto" is: all rotations, but only flips and exchanges if components have own scales.

    Raises
    ------
    ValueError
        If rotations are asked for that the prior doesn't have.
    """
    if has_scales and symmetry == "orthogonal":
        raise ValueError(
            "symmetry='orthogonal' is no symmetry of prior_scale='ard', whose components have "
            "scales of their own: use symmetry='auto' (exchanges and flips of components), or "
            "prior_scale='learn'."
        )
    if symmetry != "auto":
        return symmetry
    if not has_scales:
        return "orthogonal"
    return "signed_permutation" if n_components <= MOST_PERMUTED else "sign_flip"


def model_group(symmetry: str | SymmetryGroup, model: Factorisation, n_rows: int) -> SymmetryGroup:
    """The group that the posterior of this model is averaged over."""
    if isinstance(symmetry, str):
        has_scales = model.prior_scale == "ard"
        symmetry = group_name(symmetry, model.n_components, has_scales=has_scales)
    return component_group(symmetry, n_rows, model.n_components)


def component_group(symmetry: str | SymmetryGroup, n_rows: int, n_components: int) -> SymmetryGroup:
    """The group of that name, acting on rows of U and V one after the other; a group is itself.

    Raises
    ------
    ValueError
        If a group acts on another number of rows and components.
    """
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry == "orthogonal":
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
