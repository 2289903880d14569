"""Warnings where a fit can't be trusted yet."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.numerics.convergence import last_tenth_gain
from skbayes_sym.numerics.optimise import OptimiseResult


def warn_unless_converged(
    result: OptimiseResult, tol: float | None, total_weight: float, what: str = "the ELBO"
) -> None:
    """A warning with the figure if the last tenth of all steps still raised the objective.

    Parameters
    ----------
    result : OptimiseResult
    tol : float or None
        Nats per unit of sample weight that count as converged; None asks for no test.
    total_weight : float
    what : str
        What was raised.
    """
    gain = last_tenth_gain([-loss for loss in result.loss_curve])
    if tol is not None and result.stopped == "max_iter" and gain.exceeds(tol * total_weight):
        warn_user(
            f"not converged: the last tenth of the {result.n_iter} steps still raised {what} by "
            f"{gain.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
            "max_iter or learning_rate.",
            ConvergenceWarning,
        )


def warn_if_noise_explains_all(found: Mapping[str, Any], data: Training) -> None:
    """Warn of a learned noise that is no less than the targets' own standard deviation."""
    if data.y_scaling is None or "noise_std_" not in found:
        return
    spread = data.target_spread * data.y_scaling.scale
    if (np.atleast_1d(found["noise_std_"]) >= spread).any():
        warn_user(
            f"the learned noise, {np.max(found['noise_std_']):.3g}, is no less than the standard "
            f"deviation of y, {spread.max():.3g}: the posterior has collapsed onto the prior and "
            "explains nothing. Use fewer hidden units, a smaller prior_scale, more data, or "
            "LayerwiseVIRegressor.",
            ConvergenceWarning,
        )


def warn_unconverged(message: str) -> None:
    """A `ConvergenceWarning` at the user's own line."""
    warn_user(message, ConvergenceWarning)
