"""What a user should know after a Laplace fit: collapse, and missing convergence."""

from collections.abc import Mapping
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.context import logger
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.numerics.convergence import last_tenth_gain

_COLLAPSE_NATS = 0.01  # a mode this close (a datum) to a constant prediction has collapsed ...
_COLLAPSE_GROWTH = 10.0  # ... if the prior precision grew by this factor on the way

_FEWEST_UPDATES = 20  # whose last tenth says anything


def report(
    attributes: Mapping[str, Any],
    *,
    log_likelihood: float,
    baseline: float,
    start_precision: float,
    total_weight: float,
    tol: float,
) -> None:
    """Warn of a network that predicts a constant, or of an evidence that still rises.

    Parameters
    ----------
    log_likelihood, baseline : float
        Of the data at the mode and of the best constant, nats.
    start_precision : float
        Prior precision at the start.
    tol : float
        Nats a datum.
    """
    logger.info("log evidence %.6g", attributes["log_evidence_"])
    grown = attributes["prior_precision_"].max() / start_precision
    constant = log_likelihood < baseline + _COLLAPSE_NATS * total_weight
    if constant and grown > _COLLAPSE_GROWTH:
        warn_user(
            "the network has collapsed onto a constant prediction: the prior precision grew "
            f"{grown:.0f}-fold while it still underfitted. If the data have any signal, start "
            "from a larger prior_scale, raise burn_in or max_iter, or use another learning_rate "
            "or random_state.",
            ConvergenceWarning,
        )
        return
    curve = attributes["log_evidence_history_"]
    gain = last_tenth_gain(curve)
    if len(curve) >= _FEWEST_UPDATES and gain.exceeds(tol * total_weight):
        warn_user(
            f"not converged: the last tenth of the {len(curve)} hyperparameter updates still "
            f"raised the log evidence by {gain.value / total_weight:.2g} nats a datum "
            f"(tol={tol:g}). Raise max_iter, learning_rate or hyper_learning_rate.",
            ConvergenceWarning,
        )
