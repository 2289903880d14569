"""How well chains mixed, and what can't be trusted: each reason with its figure and a remedy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.explore import Draws, Explored
from skbayes_sym.estimators.mcmc.sampling_effort import SamplingEffort
from skbayes_sym.inference.diagnostics import bulk_ess, rank_rhat
from skbayes_sym.inference.log_density import NetworkPosterior
from skbayes_sym.inference.sampling.chains import ChainDraws
from skbayes_sym.inference.sampling.modes.bridge import MIN_DRAWS_PER_DIM, can_bridge
from skbayes_sym.inference.sampling.modes.weigh import (
    Weighing,
    contending,
    mean_log_density_by_mode,
)
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import split_units


def diagnose(
    posterior: NetworkPosterior,
    explored: Explored,
    draws: Draws,
    samples: Array,
    effort: SamplingEffort,
) -> dict[str, Any]:
    """Figures on mixing, before and after symmetries were removed and chains allocated.

    ``draws`` are those that are kept, ``samples`` (C, S, P) their weights on one representative of
    their orbits.
    """
    before, weights, chains = explored.draws.position, draws.chain_weights, explored.chains
    warmup, sampling = chains.warmup, chains.sampling
    functions = functions_of(posterior, draws.position, effort)
    return {
        "function_rhat": rank_rhat(functions, weights),
        "function_ess": bulk_ess(functions, weights),
        "function_rhat_before": rank_rhat(functions_of(posterior, before, effort)),
        "parameter_rhat": rank_rhat(samples, weights),
        "parameter_ess": bulk_ess(samples, weights),
        "parameter_rhat_before": rank_rhat(before),
        "parameter_ess_before": bulk_ess(before),
        "function_rhat_within": _typical(rank_rhat, functions),
        "function_ess_within": _typical(bulk_ess, functions),
        "unseen_basin": 1.0 - effort.missed ** (1.0 / explored.n_starts),
        "n_divergent": sampling.n_divergent.numpy(),
        "acceptance": sampling.mean_acceptance.numpy(),
        "stuck": chains.stuck & (sampling.n_moves.numpy() >= effort.telling_moves),
        "energy_error": sampling.energy_error.numpy(),
        "n_gradients": (warmup.n_gradients + sampling.n_gradients).numpy(),
    }


def _typical(statistic: Callable[[Array], Array], functions: Array) -> Array:
    """Statistic of every chain alone, the median over functions (C, S, Q) -> (C,)."""
    n_chains, n_draws, _ = functions.shape
    each = statistic(functions.swapaxes(0, 1).reshape(1, n_draws, -1)).reshape(n_chains, -1)
    defined = np.isfinite(each).any(1)
    typical = np.full(n_chains, np.nan)
    typical[defined] = np.nanmedian(each[defined], axis=1)
    return typical


def functions_of(posterior: NetworkPosterior, draws: Array, effort: SamplingEffort) -> Array:
    """Outputs at some training rows, and the log noise, of draws (C, S, D): (C, S, Q)."""
    x = posterior.data.x.cpu()
    n_rows = min(len(x), effort.diagnosed_rows)
    rows = np.unique(np.linspace(0, len(x) - 1, n_rows).astype(int))
    position = torch.as_tensor(draws)
    n_params, x = posterior.network.layout.n_params, x[rows].to(position)
    forward = posterior.network.forward  # one chain at a time: hidden units take more than outputs
    outputs = torch.stack([forward(chain, x).flatten(1) for chain in position[..., :n_params]])
    return np.concatenate([outputs.numpy(), draws[..., n_params:]], axis=-1)


def why_not_weigh(group: SymmetryGroup, chains: ChainDraws, effort: SamplingEffort) -> list[str]:
    """Reasons not to try for an evidence; none if there are none."""
    problems = []
    _, others = split_units(group)
    if others:
        named = " and ".join(type(factor).__name__ for factor in others)
        problems.append(
            f"the network's symmetry has a factor that isn't made of exchangeable units ({named}), "
            "whose copies of a mode bridge sampling doesn't know how to count"
        )
    elif not can_bridge(group):
        problems.append(
            f"the symmetry group of several hidden layers has e^{group.log_order:.1f} elements, "
            f"more than the {MAX_ORDER:,} that can be summed over: use one layer, or narrower ones"
        )
    if chains.stuck.mean() > effort.most_stuck:
        problems.append(
            f"{chains.stuck.sum()} of {len(chains.stuck)} chains never moved: raise n_warmup"
        )
    return problems


def decided_weights(weighing: Weighing, effort: SamplingEffort) -> Tensor | None:
    """Weights of the modes that no doubt about their evidence changes, (K,); None if some does.

    A mode that all others are too low to compete with has all the weight, whether or not its
    evidence is known. Otherwise the evidences must be known well enough: if any one of them were
    wrong by its own error, no weight would change by more than a tenth.
    """
    may_matter = contending(weighing.pool, weighing.modes)
    if int(may_matter.sum()) == 1:
        return may_matter.double()
    weights, others = weighing.weights.weights, ~may_matter
    errors = torch.tensor([e.standard_error for e in weighing.estimates], dtype=torch.float64)
    if not bool((errors.isfinite() | others).all()):
        return None  # one that may matter is unknown
    doubt = errors.nan_to_num(0.0)
    for sign in (1.0, -1.0):
        moved = (weights.log() + torch.diag(sign * doubt)).softmax(-1)
        if float((moved - weights).abs().max()) > effort.most_moved:
            return None
    return weights


def why_not(weighing: Weighing, n_dims: int, effort: SamplingEffort) -> list[str]:
    """Reasons not to trust the evidence; none if there are none."""
    error = weighing.weights.log_evidence_standard_error
    highest = int(mean_log_density_by_mode(weighing.pool, weighing.modes).argmax())
    n_draws = int(weighing.modes.counts[highest])
    if n_draws < MIN_DRAWS_PER_DIM * n_dims:
        return [
            f"{n_draws} draws of {n_dims} parameters in the highest mode, fewer than "
            f"{MIN_DRAWS_PER_DIM} a parameter: raise n_draws or n_chains, or use a smaller network"
        ]
    if not error <= effort.most_error:
        return [f"its standard error is {error:.2g} nats: raise n_draws"]
    return []


def doubtful_chains(acceptance: Array, rhat_within: Array, effort: SamplingEffort) -> list[str]:
    """Warnings of annealed chains that shouldn't be believed, by number, each with its figure."""

    def named(chosen: Array, figures: Array) -> str:
        each = ", ".join(f"{i} ({figures[i]:.2f})" for i in np.flatnonzero(chosen))
        return f"of {len(chosen)} chains number {each}"

    warnings, least = [], effort.least_accepted
    slow = acceptance < least  # False for nan
    if slow.any():
        warnings.append(
            f"{named(slow, acceptance)} accepted fewer than {least:.0%} of the proposals: where it "
            "is now its steps are too long, so don't believe its draws. Raise n_warmup."
        )
    moving = rhat_within > effort.most_rhat
    if moving.any():
        warnings.append(
            f"{named(moving, rhat_within)} (R-hat of its own functions) was still on its way: "
            "don't believe its draws. Raise n_warmup or n_draws."
        )
    return warnings


def no_evidence(problems: tuple[str, ...], *, decided: bool, shared: bool = False) -> list[str]:
    """Warning of what is missing, if anything is.

    Whether the modes' weights are ``decided``; if not, whether those that may matter have
    ``shared`` the chains among them.
    """
    votes = (
        "the modes that may matter get chains in proportion to how many chains found each."
        if shared
        else "every chain has one vote, which weighs modes by where chains start "
        "(ModeWeights('uniform') asks for that)."
    )
    if problems:
        kept = "the modes keep their weights, which no such doubt could change."
        return [
            f"the evidence can't be trusted: {'; '.join(problems)}. So log_evidence_ is nan and "
            + (kept if decided else votes)
        ]
    if decided:
        return []
    return [f"the modes' evidences are too uncertain to weigh them: raise n_draws. So {votes}"]


def disagreement(
    posterior: NetworkPosterior, kept: Array, members: list[Array], effort: SamplingEffort
) -> list[str]:
    """Warnings of modes whose own chains tell different functions: there are several in them."""
    values, warnings = functions_of(posterior, kept, effort), []
    for i, chains in enumerate(members):
        worst = np.nanmax(rank_rhat(values[chains]), initial=1.0) if len(chains) > 1 else 1.0
        if worst > effort.most_rhat:
            warnings.append(
                f"the chains of mode {i} disagree (function-space R-hat {worst:.2f}): it may be "
                "several modes, weighed by where their chains started. Raise n_draws or thinning."
            )
    return warnings
