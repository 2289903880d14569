"""Convergence diagnostics of chains, and warnings about them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from skbayes_sym.base.rows import Array
from skbayes_sym.mcmc.chains import ChainDraws
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.draws import PosteriorDraws
from skbayes_sym.mcmc.mode_weights import Mode
from skbayes_sym.numerics.diagnostics import bulk_ess, rank_rhat

NO_EVIDENCE_OF_ANNEALED_CHAINS = (
    "annealed chains don't mix and have fewer draws in each mode than bridge sampling needs, so "
    "all chains have equal weights; ModeWeights('evidence') estimates the evidence nevertheless"
)


def collect_diagnostics(
    config: SamplingConfig,
    chains: ChainDraws,
    initial_draws: PosteriorDraws,
    draws: PosteriorDraws,
    samples: Array,
    modes: list[Mode],
) -> dict[str, Any]:
    """Collect the convergence diagnostics of a fit and every warning.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    chains : ChainDraws
        Initial chains.
    initial_draws : PosteriorDraws
        Draws of the initial chains.
    draws : PosteriorDraws
        Draws that are kept.
    samples : ndarray of shape (C, S, P)
        Network weights of ``draws``, on one representative of their orbit.
    modes : list of Mode
        Modes of the posterior, empty if they weren't weighted.

    Returns
    -------
    dict
        ``diagnostics_`` of the estimator.
    """
    diagnostics = compute_diagnostics(config, chains, initial_draws, draws, samples)
    problems = draws.evidence_problems
    is_annealed = config.annealing is not None
    is_reallocated = draws.chain_modes is not None

    warnings = list[str]()
    if draws.evidence or problems:
        warnings = describe_missing_evidence(
            problems, has_robust_weights=draws.has_robust_weights, is_reallocated=is_reallocated
        )
    if is_reallocated:
        # The initial chains, which may have been stuck, are no longer used.
        warnings = mode_warnings(config, draws.position, modes) + warnings
    else:
        n_stuck = int(diagnostics["stuck"].sum())
        if n_stuck:
            warnings.append(
                f"{n_stuck} of {len(diagnostics['stuck'])} chains never moved while drawing: raise "
                "n_warmup, or give X as float64."
            )
        if is_annealed:
            acceptance = diagnostics["acceptance"]
            rhat_within = diagnostics["function_rhat_within"]
            warnings += chain_warnings(acceptance, rhat_within, config.defaults)

    reason = "; ".join(problems)
    if not draws.has_reliable_evidence and not reason:
        reason = "modes weren't weighted by evidence"
        if is_annealed:
            reason = NO_EVIDENCE_OF_ANNEALED_CHAINS
    return {**diagnostics, "evidence_problems": reason, "warnings": warnings}


def compute_diagnostics(
    config: SamplingConfig,
    chains: ChainDraws,
    initial_draws: PosteriorDraws,
    draws: PosteriorDraws,
    samples: Array,
) -> dict[str, Any]:
    """Compute convergence diagnostics before and after symmetry removal and reallocation.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    chains : ChainDraws
        Initial chains.
    initial_draws : PosteriorDraws
        Draws of the initial chains.
    draws : PosteriorDraws
        Draws that are kept.
    samples : ndarray of shape (C, S, P)
        Network weights of ``draws``, on one representative of their orbit.

    Returns
    -------
    dict
        R-hat and effective sample sizes of functions and parameters, and statistics of each initial
        chain, under the names of ``diagnostics_``.

    Notes
    -----
    A basin that attracts a fraction b of the starting points is missed by all n chains with
    probability ``(1 - b)^n``. ``detectable_basin`` is the b for which that is ``miss_probability``.
    """
    defaults = config.defaults
    before = initial_draws.position
    weights_before = before[..., : samples.shape[-1]]  # without the parameters of the likelihood
    weights = draws.chain_weights
    functions = evaluate_functions(config, draws.position)
    n_moves = chains.sampling.n_moves.numpy()
    n_gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
    return {
        "function_rhat": rank_rhat(functions, weights),
        "function_ess": bulk_ess(functions, weights),
        "function_rhat_before": rank_rhat(evaluate_functions(config, before)),
        "parameter_rhat": rank_rhat(samples, weights),
        "parameter_ess": bulk_ess(samples, weights),
        "parameter_rhat_before": rank_rhat(weights_before),
        "parameter_ess_before": bulk_ess(weights_before),
        "function_rhat_within": _median_within_chains(rank_rhat, functions),
        "function_ess_within": _median_within_chains(bulk_ess, functions),
        "detectable_basin": 1.0 - defaults.miss_probability ** (1.0 / len(before)),
        "n_divergent": chains.sampling.n_divergent.numpy(),
        "acceptance": chains.sampling.mean_acceptance.numpy(),
        "stuck": chains.stuck & (n_moves >= defaults.min_moves_stuck),
        "energy_error": chains.sampling.energy_error.numpy(),
        "n_gradients": n_gradients.numpy(),
    }


def _median_within_chains(statistic: Callable[[Array], Array], functions: Array) -> Array:
    """Statistic of each chain on its own, median over functions: (C, S, Q) -> (C,)."""
    n_chains, n_draws, _ = functions.shape
    values = statistic(functions.swapaxes(0, 1).reshape(1, n_draws, -1)).reshape(n_chains, -1)
    is_defined = np.isfinite(values).any(1)
    median = np.full(n_chains, np.nan)
    median[is_defined] = np.nanmedian(values[is_defined], axis=1)
    return median


def evaluate_functions(config: SamplingConfig, draws: Array) -> Array:
    """Evaluate the network at a subsample of the training rows, and the likelihood's parameters.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    draws : ndarray of shape (C, S, D)
        Positions of the draws.

    Returns
    -------
    ndarray of shape (C, S, Q)
    """
    x = config.data.data.x.cpu()
    network = config.model.network
    n_rows = min(len(x), config.defaults.n_diagnostic_rows)
    rows = np.unique(np.linspace(0, len(x) - 1, n_rows).astype(int))
    position = torch.as_tensor(draws)
    n_params = network.layout.n_params
    x = x[rows].to(position)
    # One chain at a time, because hidden units take more memory than outputs.
    theta = position[..., :n_params]
    outputs = torch.stack([network.forward(chain, x).flatten(1) for chain in theta])
    return np.concatenate([outputs.numpy(), draws[..., n_params:]], axis=-1)


def chain_warnings(acceptance: Array, rhat_within: Array, defaults: SamplingDefaults) -> list[str]:
    """Warnings that name the annealed chains whose draws shouldn't be trusted.

    Parameters
    ----------
    acceptance : ndarray of shape (C,)
        Mean acceptance probability of each chain.
    rhat_within : ndarray of shape (C,)
        R-hat of the functions of each chain on its own.
    defaults : SamplingDefaults
        Limits on both.

    Returns
    -------
    list of str
    """

    def list_chains(selected: Array, statistic: Array) -> str:
        listed = ", ".join(f"{i} ({statistic[i]:.2f})" for i in np.flatnonzero(selected))
        return f"of {len(selected)} chains number {listed}"

    warnings = []
    is_low = acceptance < defaults.min_acceptance  # False for nan
    if is_low.any():
        warnings.append(
            f"{list_chains(is_low, acceptance)} accepted fewer than "
            f"{100 * defaults.min_acceptance:.0f} % of the proposals: their steps are too long for "
            "the region they have reached, so don't trust their draws. Raise n_warmup."
        )
    is_moving = rhat_within > defaults.max_rhat
    if is_moving.any():
        warnings.append(
            f"{list_chains(is_moving, rhat_within)} (R-hat of its own functions) have not "
            "converged: don't trust their draws. Raise n_warmup or n_draws."
        )
    return warnings


def describe_missing_evidence(
    problems: tuple[str, ...], *, has_robust_weights: bool, is_reallocated: bool = False
) -> list[str]:
    """Describe why the evidence or the weights of the modes are missing, if they are.

    Parameters
    ----------
    problems : tuple of str
        Reasons why the evidence can't be trusted.
    has_robust_weights : bool
        Whether the weights of the modes hold despite these problems.
    is_reallocated : bool, default=False
        Whether chains were restarted in the modes that may matter. Otherwise the initial chains are
        kept.

    Returns
    -------
    list of str
        At most one warning.
    """
    if is_reallocated:
        fallback = (
            "the modes that may have mass get chains in proportion to how many chains found each."
        )
    else:
        fallback = (
            "all chains have equal weights, which depend on where chains start "
            "(ModeWeights('uniform') does this without a warning)."
        )
    if problems and has_robust_weights:
        fallback = "the modes keep their weights, which these problems can't change."
    if problems:
        reasons = "; ".join(problems)
        return [f"the evidence can't be trusted: {reasons}. So log_evidence_ is nan and {fallback}"]
    if has_robust_weights:
        return []
    return [f"the modes' evidences are too uncertain to weight them: raise n_draws. So {fallback}"]


def mode_warnings(config: SamplingConfig, position: Array, modes: list[Mode]) -> list[str]:
    """Warnings about modes whose chains have different functions and may be several modes.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    position : ndarray of shape (C, S, D)
        Draws that are kept.
    modes : list of Mode
        Modes with the indices of their chains.

    Returns
    -------
    list of str
    """
    functions = evaluate_functions(config, position)
    warnings = []
    for i, mode in enumerate(modes):
        if len(mode.chains) < 2:
            continue
        max_rhat = np.nanmax(rank_rhat(functions[mode.chains]), initial=1.0)
        if max_rhat > config.defaults.max_rhat:
            warnings.append(
                f"the chains of mode {i} disagree (function-space R-hat {max_rhat:.2f}): it may be "
                "several modes, weighted by where their chains started. Raise n_draws or thinning."
            )
    return warnings
