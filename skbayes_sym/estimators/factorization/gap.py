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
from skbayes_sym.inference.factorization.gaps import (
    AnchoredRotationGap,
    IsotropicRotationGap,
    SignedPermutationGap,
    SignFlipGap,
)
from skbayes_sym.inference.factorization.vi import FactorPosterior
from skbayes_sym.numerics.random import generator_from

COVARIANCES: dict[str, CovarianceFamily] = {
    "isotropic": IsotropicCovariance(),
    "row": RowCovariance(),
    "diag": DiagonalCovariance(),
    "full": FullCovariance(),
}
MAX_PERMUTED = 14  # components whose signed permutations are summed exactly


def gap_term(
    symmetry: str, covariance: CovarianceFamily, n_components: int, generator: torch.Generator
) -> Any:
    """The gap of a posterior with such covariances under the group of that name."""
    if symmetry == "orthogonal":
        if n_components == 1:  # O(1) is a sign flip
            return SignFlipGap()
        kind = IsotropicRotationGap if covariance.is_isotropic else AnchoredRotationGap
        return kind(generator)
    return SignFlipGap() if symmetry == "signflip" else SignedPermutationGap(generator)


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
    k = posterior.mean.shape[1]
    gap = gap_term(symmetry, covariance, k, generator)
    with one_thread(), torch.no_grad():
        value, error = gap.report(posterior, n_draws=None if n_draws == "auto" else int(n_draws))
    return Bunch(value=value, standard_error=error, kind="KL at this posterior", side=gap.side(k))


def fitted_posterior(estimator: Any) -> FactorPosterior:
    """The fitted rows in float64, turned back to the axes along which they were fitted.

    A diagonal covariance is diagonal there only, and finite groups exchange and flip those axes.
    """
    turn = estimator._orientation_
    mean = np.concatenate([side.mean for side in estimator.posterior_]) @ turn.T
    cov = turn @ np.concatenate([side.cov for side in estimator.posterior_]) @ turn.T
    noise = (estimator.noise_std_ / estimator.scale_) ** 2
    return FactorPosterior(torch.as_tensor(mean), torch.as_tensor(cov), noise).to(torch.float64)
