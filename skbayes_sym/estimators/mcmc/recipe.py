"""The recipe of sampling: chains and particles, modes and their mass, draws that count."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions

from skbayes_sym.estimators._fit.context import RUN_CONSTRAINTS, FitContext, Fitted, logger
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.mcmc.allocate import share_out_chains
from skbayes_sym.estimators.mcmc.diagnostics import parameter_figures
from skbayes_sym.estimators.mcmc.draws import findings, n_iter, prediction_attributes
from skbayes_sym.estimators.mcmc.explore import explore
from skbayes_sym.estimators.mcmc.setting import Model, open_setting

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "sampler": [StrOptions({"hmc", "smc", "nuts"})],
    "n_chains": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "n_warmup": [Interval(Integral, 0, None, closed="left")],
    "n_draws": [Interval(Integral, 1, None, closed="left")],
    "thinning": [Interval(Integral, 1, None, closed="left")],
    "remove_symmetries": ["boolean"],
    "mode_weights": [StrOptions({"evidence", "chains"})],
    "n_islands": [Interval(Integral, 0, None, closed="left")],
    "n_particles": [Interval(Integral, 2, None, closed="left")],
    "standardize": ["boolean"],
    "warm_start": ["boolean"],
    "n_jobs": [Integral, None],
    "random_state": ["random_state"],
}


def fit_mcmc(estimator: Any, context: FitContext, model: Model) -> Fitted:
    """Explore, weigh what was found, and draw from it."""
    setting = open_setting(estimator, context, model)
    with torch.no_grad():
        explored, blocks = explore(setting)
        draws, weighing, problems = share_out_chains(setting, explored)
        attributes = {
            **prediction_attributes(setting, draws, blocks),
            **findings(setting, explored, draws, weighing, problems),
            "n_iter_": n_iter(explored),
        }
        attributes["diagnostics_"].update(
            parameter_figures(attributes["samples_"], draws.chain_weights)
        )
    setting.progress.end(lambda: attributes)
    _warn(problems, attributes, shared_out=draws.home is not None)
    return Fitted(attributes, draws.stopped)


def _warn(problems: list[str], attributes: Mapping[str, Any], *, shared_out: bool) -> None:
    """Say what can't be trusted."""
    found = attributes["diagnostics_"]
    logger.info(
        "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
        attributes["log_evidence_"], attributes["log_evidence_std_error_"],
        len(attributes["modes_"]), np.nanmax(found.function_rhat, initial=1.0),
    )  # fmt: skip
    if problems:
        found.warnings.append(
            f"the evidence can't be trusted: {'; '.join(problems)}. So log_evidence_ is nan and "
            "every chain has one vote, which weighs modes by where chains start "
            "(mode_weights='chains' asks for that)."
        )
    stuck = int(found.stuck.sum())
    if stuck and not shared_out:  # shared-out chains started anew
        found.warnings.append(
            f"{stuck} of {len(found.stuck)} chains never moved while drawing: raise n_warmup, or "
            "use dtype='float64'."
        )
    for message in found.warnings:
        warn_user(message, ConvergenceWarning)
