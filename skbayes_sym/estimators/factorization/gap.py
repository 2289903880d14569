"""The gap of a factorisation under rotations of its factors, or a finite part of them."""

from typing import Any

import numpy as np
import torch
from sklearn.utils import Bunch, check_random_state

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.inference.factorization.covariance import (
    CovarianceFamily,
    DiagonalCovariance,
    FullCovariance,
    IsotropicCovariance,
    RowCovariance,
)
from skbayes_sym.inference.factorization.vi import FactorPosterior
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.rows import row_gap
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


def factor_gap_of_fit(estimator: Any, *, n_draws: Any, random_state: Any) -> Bunch:
    """See `skbayes_sym.invariance_gap`; ``symmetry=None`` is asked about all of O(k)."""
    if estimator.solver not in {"vi", "mfvi_analytic"}:
        raise TypeError(
            f"solver={estimator.solver!r} has no variational posterior: invariance_gap takes fits "
            "with solver='vi' or 'mfvi_analytic'."
        )
    posterior = fitted_posterior(estimator)
    symmetry, covariance = "orthogonal", COVARIANCES["full"]
    if estimator.solver == "vi":
        symmetry, covariance = estimator.symmetry or symmetry, COVARIANCES[estimator.covariance]
    generator = generator_from(int(check_random_state(random_state).randint(2**31 - 1)))
    group = component_group(symmetry, *posterior.mean.shape)
    gap = row_gap(group, is_isotropic=covariance.is_isotropic)
    with one_thread(), torch.no_grad():
        number = None if n_draws == "auto" else int(n_draws)
        value, error = gap.estimate(posterior, number, generator=generator)
    return Bunch(value=value, standard_error=error, kind="KL at this posterior", side=gap.side)


def fitted_posterior(estimator: Any) -> FactorPosterior:
    """The fitted rows in float64, turned back to the axes along which they were fitted.

    A diagonal covariance is diagonal there only, and finite groups exchange and flip those axes.
    """
    turn = estimator._orientation_
    mean = np.concatenate([side.mean for side in estimator.posterior_]) @ turn.T
    cov = turn @ np.concatenate([side.cov for side in estimator.posterior_]) @ turn.T
    noise = (estimator.noise_std_ / estimator.scale_) ** 2
    return FactorPosterior(torch.as_tensor(mean), torch.as_tensor(cov), noise).to(torch.float64)
