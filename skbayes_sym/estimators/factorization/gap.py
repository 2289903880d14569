"""The gap of a factorisation under rotations of its factors, or a finite part of them."""

from typing import Any

import torch

from skbayes_sym.inference.factorization.covariance import (
    CovarianceFamily,
    DiagonalCovariance,
    FullCovariance,
    IsotropicCovariance,
    RowCovariance,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

COVARIANCES: dict[str, CovarianceFamily] = {
    "isotropic": IsotropicCovariance(),
    "row": RowCovariance(),
    "diag": DiagonalCovariance(),
    "full": FullCovariance(),
}
MAX_PERMUTED = 14  # components whose signed permutations are summed exactly


def component_group(symmetry: str, n_rows: int, n_components: int) -> Orthogonal | Units:
    """The group of that name, acting on rows of U and V one after the other."""
    index = torch.arange(n_rows * n_components).view(n_rows, n_components)
    if symmetry == "orthogonal":
        return Orthogonal(index)
    return Units(index.mT, permute=symmetry == "signed_permutation", flip=True)


def check_symmetry(estimator: Any) -> None:
    """Raise ValueError where the group's average isn't available for the covariance."""
    if estimator.solver != "vi" or estimator.symmetry in {None, "orthogonal"}:
        return
    if not COVARIANCES[estimator.covariance].is_elementwise:
        raise ValueError(
            f"symmetry={estimator.symmetry!r} needs a diagonal covariance, got "
            f"covariance={estimator.covariance!r}: use 'diag', or symmetry='orthogonal'."
        )
    if estimator.symmetry == "signed_permutation" and estimator.n_components > MAX_PERMUTED:
        raise ValueError(
            f"symmetry='signed_permutation' sums over 2^n_components subsets, too many for "
            f"n_components={estimator.n_components}: use at most {MAX_PERMUTED}, or "
            "symmetry='orthogonal'."
        )
