"""What can't be trusted of a sampled fit: each reason with its figure and a remedy."""

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.diagnostics import functions_of
from skbayes_sym.estimators.mcmc.modes import Mode
from skbayes_sym.estimators.mcmc.wide import LEAST_ACCEPTED
from skbayes_sym.inference.diagnostics import rank_rhat
from skbayes_sym.inference.modes.bridge import MIN_DRAWS_PER_DIM, can_bridge
from skbayes_sym.inference.modes.weigh import (
    Weighing,
    contending,
    mean_log_density_by_mode,
)
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.sampling.chains import ChainDraws
from skbayes_sym.symmetry.base import SymmetryGroup
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER
from skbayes_sym.symmetry.units import split_units

# Nats beyond which an evidence is none: its own standard error, and chains and replicates apart.
_MOST_ERROR = 1.0

_MOST_MOVED = 0.1  # of the weight of a mode, by doubts about its evidence

_MOST_STUCK = 0.5  # of the chains: what such a run found is where it started

_MOST_RHAT = 1.5  # between chains of one mode, or within one; far beyond what a short run gives


def why_not_weigh(group: SymmetryGroup, chains: ChainDraws | None) -> list[str]:
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
    if chains is not None and chains.stuck.mean() > _MOST_STUCK:
        problems.append(
            f"{chains.stuck.sum()} of {len(chains.stuck)} chains never moved: raise n_warmup"
        )
    return problems


def decided_weights(weighing: Weighing) -> Tensor | None:
    """Weights of the modes that no doubt about their evidence changes, (K,); None if some does.

    A mode that all others are too low to compete with has all the weight, whether or not its
    evidence is known. Otherwise the evidences must be known well enough: if any one of them were
    wrong by as much as the sources disagree, or by its own error, no weight would change by more
    than a tenth.
    """
    may_matter = contending(weighing.pool, weighing.modes)
    if int(may_matter.sum()) == 1:
        return may_matter.double()
    weights, others = weighing.weights.weights, ~may_matter
    errors = torch.tensor([e.standard_error for e in weighing.estimates], dtype=torch.float64)
    if not bool((errors.isfinite() | others).all()):
        return None  # one that may matter is unknown
    doubt = errors.nan_to_num(0.0).clamp_min(np.nan_to_num(weighing.spread))
    for sign in (1.0, -1.0):
        moved = (weights.log() + torch.diag(sign * doubt)).softmax(-1)
        if float((moved - weights).abs().max()) > _MOST_MOVED:
            return None
    return weights


def why_not(weighing: Weighing, n_dims: int) -> list[str]:
    """Reasons not to trust the evidence; none if there are none."""
    total = weighing.weights
    highest = int(mean_log_density_by_mode(weighing.pool, weighing.modes).argmax())
    n_draws = int(weighing.modes.counts[highest])
    if n_draws < MIN_DRAWS_PER_DIM * n_dims:
        return [
            f"{n_draws} draws of {n_dims} parameters in the highest mode, fewer than "
            f"{MIN_DRAWS_PER_DIM} a parameter: raise n_draws or n_chains, or use a smaller network"
        ]
    problems = []
    if not total.log_evidence_standard_error <= _MOST_ERROR:
        problems.append(
            f"its standard error is {total.log_evidence_standard_error:.2g} nats: raise n_draws"
        )
    if weighing.spread > _MOST_ERROR:
        problems.append(
            f"chains and replicates put it {weighing.spread:.2g} nats apart: raise n_draws or "
            "n_particles"
        )
    return problems


def doubtful_chains(acceptance: Array, rhat_within: Array) -> list[str]:
    """Annealed chains that shouldn't be believed, by number, each with its figure."""
    found = []
    slow = acceptance < LEAST_ACCEPTED  # False for nan
    if slow.any():
        found.append(
            f"{_named(slow, acceptance)} accepted fewer than {LEAST_ACCEPTED:.0%} of the "
            "proposals: where it is now its steps are too long, so don't believe its draws. Raise "
            "n_warmup."
        )
    moving = rhat_within > _MOST_RHAT
    if moving.any():
        found.append(
            f"{_named(moving, rhat_within)} (R-hat of its own functions) was still on its way: "
            "don't believe its draws. Raise n_warmup or n_draws."
        )
    return found


def _named(chosen: Array, figures: Array) -> str:
    each = ", ".join(f"{i} ({figures[i]:.2f})" for i in np.flatnonzero(chosen))
    return f"of {len(chosen)} chains number {each}"


def no_evidence(problems: tuple[str, ...], *, decided: bool, shared: bool = False) -> list[str]:
    """One warning of what is missing, if anything is.

    Whether the modes' weights are ``decided``; if not, whether those that may matter have
    ``shared`` the chains among them.
    """
    votes = (
        "the modes that may matter share the chains by how many found each."
        if shared
        else "every chain has one vote, which weighs modes by where chains start "
        "(mode_weights='uniform' asks for that)."
    )
    if problems:
        kept = "the modes keep their weights, which no such doubt could change."
        return [
            f"the evidence can't be trusted: {'; '.join(problems)}. So log_evidence_ is nan and "
            + (kept if decided else votes)
        ]
    if decided:
        return []
    return [f"errors of the modes' evidences leave their weights open: raise n_draws. So {votes}"]


def disagreement(posterior: NetworkPosterior, kept: Array, modes: list[Mode]) -> list[str]:
    """Modes whose own chains tell different functions: there is more than one mode in them."""
    values, found = functions_of(posterior, kept), []
    for i, mode in enumerate(modes):
        if len(mode.members) < 2:
            continue
        worst = np.nanmax(rank_rhat(values[mode.members]), initial=1.0)
        if worst > _MOST_RHAT:
            found.append(
                f"the chains of mode {i} disagree (function-space R-hat {worst:.2f}): it may be "
                "several modes, weighed by where their chains started. Raise n_draws or thinning."
            )
    return found


def stuck_chains(stuck: Array) -> list[str]:
    """One warning of chains that never moved, if there are any."""
    n = int(stuck.sum())
    if not n:
        return []
    return [
        f"{n} of {len(stuck)} chains never moved while drawing: raise n_warmup, or give "
        "X as float64."
    ]
