"""Warnings where a fit can't be trusted yet."""

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.warnings import warn_user
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
    tenth = max(1, len(result.loss_curve) // 10)
    if tol is None or result.stopped != "max_iter" or len(result.loss_curve) < 2 * tenth:
        return
    last, before = result.loss_curve[-tenth:], result.loss_curve[-2 * tenth : -tenth]
    gain = (np.mean(before) - np.mean(last)) / total_weight
    noise = np.hypot(np.std(last), np.std(before)) / (tenth**0.5 * total_weight)
    if gain > tol + 3.0 * noise:
        warn_user(
            f"not converged: the last tenth of the {result.n_iter} steps still raised {what} by "
            f"{gain:.2g} nats per row (tol={tol:g}). Raise max_iter or learning_rate.",
            ConvergenceWarning,
        )


def warn_unconverged(message: str) -> None:
    """A `ConvergenceWarning` at the user's own line."""
    warn_user(message, ConvergenceWarning)
