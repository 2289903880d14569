"""Warnings after a Laplace fit: collapse, and missing convergence."""

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.laplace.averaged_problem import Evaluated, LaplaceFit, Problem
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.optimise import last_tenth_gain

FEWEST_UPDATES = 20  # whose last tenth says anything; of fewer the weights' own loss does


def best_constant(data: Training, likelihood: Likelihood) -> float:
    """Log likelihood of the best constant prediction in scaled targets, nats.

    That of class frequencies, or of the mean with normal noise; minus infinity where nothing is
    known of it.
    """
    weight = data.rows.weight
    if data.rows.y.ndim == 1:
        counts = np.bincount(data.rows.y, weights=weight)
        counts = counts[counts > 0]
        return float(np.sum(counts * np.log(counts / counts.sum())))
    if not likelihood.noise_scale.numel():
        return -np.inf
    spread = data.target_spread
    level = spread if likelihood.n_params else likelihood.noise_scale.double().numpy()
    terms = 0.5 * (spread / level) ** 2 + np.log(level) + 0.5 * np.log(2 * np.pi)
    return float(-weight.sum() * np.sum(terms))


def warn_if_collapsed(problem: Problem, mode: Evaluated, found: LaplaceFit) -> bool:
    """Warn of a network that predicts a constant."""
    data = problem.data
    constant = best_constant(data, problem.model.likelihood)
    # A hundredth of a nat per row, with a prior precision that has grown by a factor of ten.
    is_constant = mode.terms.log_likelihood < constant + 0.01 * data.total_weight
    smallest = max(found.prior_scale.min(), 1e-100)  # whose square is still a number
    growth = float(smallest**-2.0 / problem.precisions.max())
    if not is_constant or growth <= 10.0:
        return False
    warn_user(
        "the network has collapsed onto a constant prediction: the prior precision grew "
        f"{growth:.0f}-fold while it still underfitted. If the data have any signal, give "
        "prior a number, raise burn_in or max_iter, or use another learning_rate or "
        "random_state.",
        ConvergenceWarning,
    )
    return True


def warn_if_fisher_vanished(problem: Problem, mode: Evaluated) -> None:
    """Warn of an empirical Fisher matrix that knows no curvature any more."""
    empirical, expected = problem.traces(mode.point)
    if empirical >= 0.1 * expected:
        return
    warn_user(
        f"the empirical Fisher matrix has vanished: its trace is {empirical / expected:.1%} of the "
        "Gauss-Newton matrix's, since the network fits its labels. The evidence then prefers small "
        "prior precisions, and learns half-widths no more. Use curvature='kron-sketch', "
        "which costs the same, or leave Updates.n and Updates.burn_in at 'auto'.",
        UserWarning,
    )


def warn_unless_evidence_converged(curve: Array, tol: float | None, total_weight: float) -> None:
    """Warn if the last tenth of the updates still raised the log evidence by ``tol`` per row."""
    gain = last_tenth_gain(curve.tolist())
    if tol is None or len(curve) < FEWEST_UPDATES or not gain.exceeds(tol * total_weight):
        return
    warn_user(
        f"not converged: the last tenth of the {len(curve)} hyperparameter updates still raised "
        f"the log evidence by {gain.value / total_weight:.2g} nats per row (tol={tol:g}). Raise "
        "max_iter, learning_rate or Updates.learning_rate.",
        ConvergenceWarning,
    )
