"""Figures on how well chains mixed, in functions and in weights."""

from typing import Any

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.draws import Draws
from skbayes_sym.estimators.mcmc.explore import Explored
from skbayes_sym.inference.diagnostics import bulk_ess, rank_rhat
from skbayes_sym.inference.mcmc.chains import ChainDraws
<<<<<<< HEAD
from skbayes_sym.inference.multimodal.bridge import MIN_DRAWS_PER_DIM, can_bridge
from skbayes_sym.inference.multimodal.weights import Weighing, mode_heights
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.symmetry.orbits import MAX_ORDER

# Nats beyond which an evidence is none: its own standard error, and chains and islands apart.
_MOST_ERROR = 1.0

_MOST_STUCK = 0.5  # of the chains: what such a run found is where it started
=======
from skbayes_sym.inference.network_posterior import NetworkPosterior
>>>>>>> main

_TELLING_MOVES = 10  # rejected all, a chain is stuck; fewer may be chance

_DIAGNOSED_ROWS = 50  # training rows whose outputs are watched
_MISSED = 0.01  # probability with which a basin of `unseen_basin` has been missed


def diagnose(
    posterior: NetworkPosterior, explored: Explored, draws: Draws, samples: Array
) -> dict[str, Any]:
    """Figures on mixing, before and after symmetries were removed and chains allocated.

    Parameters
    ----------
    posterior : NetworkPosterior
    explored : Explored
    draws : Draws
        Those that are kept.
    samples : ndarray of shape (C, S, P)
        Their weights on one representative of their orbits.
    """
    before, weights = explored.draws.position, draws.chain_weights
    functions = functions_of(posterior, draws.position)
    return {
        "function_rhat": rank_rhat(functions, weights),
        "function_ess": bulk_ess(functions, weights),
        "function_rhat_before": rank_rhat(functions_of(posterior, before)),
        "parameter_rhat": rank_rhat(samples, weights),
        "parameter_ess": bulk_ess(samples, weights),
        "parameter_rhat_before": rank_rhat(before),
        "parameter_ess_before": bulk_ess(before),
        "unseen_basin": 1.0 - _MISSED ** (1.0 / explored.n_starts),
        **_moves(explored.chains, explored.n_starts),
    }


<<<<<<< HEAD
def why_not_weigh(group: Any, chains: ChainDraws | None) -> list[str]:
    """Reasons not to try for an evidence; none if there are none."""
    problems = []
    if not can_bridge(group):
        problems.append(
            f"the symmetry group of several hidden layers has e^{group.log_order:.1f} elements, "
            f"more than the {MAX_ORDER:,} that can be summed over: use one layer, or narrower ones"
        )
    if chains is not None and chains.stuck.mean() > _MOST_STUCK:
        problems.append(
            f"{chains.stuck.sum()} of {len(chains.stuck)} chains never moved: raise n_warmup"
        )
    return problems


def why_not(weighing: Weighing, n_dims: int) -> list[str]:
    """Reasons not to trust the evidence; none if there are none."""
    total = weighing.weights
    highest = int(mode_heights(weighing.pool, weighing.modes).argmax())
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
            f"chains and islands put it {weighing.spread:.2g} nats apart: raise n_draws or "
            "n_particles"
        )
    return problems


def diagnose(
    posterior: NetworkPosterior,
    chains: ChainDraws | None,
    explored: Array,
    kept: Array,
    chain_weights: Array,
    n_starts: int,
) -> Bunch:
    """Figures on mixing, before and after symmetries were removed and chains shared out."""
    found = Bunch(
        function_rhat=rank_rhat(functions_of(posterior, kept), chain_weights),
        function_ess=bulk_ess(functions_of(posterior, kept), chain_weights),
        function_rhat_before=rank_rhat(functions_of(posterior, explored)),
        parameter_rhat_before=rank_rhat(explored),
        parameter_ess_before=bulk_ess(explored),
        unseen_basin=1.0 - _MISSED ** (1.0 / n_starts),
        warnings=[],
    )
    nothing = np.zeros(n_starts, dtype=np.int64)
    found.update(n_divergent=nothing, acceptance=nothing / 1.0, stuck=nothing.astype(bool))
    found.update(n_gradients=nothing)
    if chains is not None:
        gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
        found.update(
            n_divergent=chains.sampling.n_divergent.numpy(),
            acceptance=chains.sampling.mean_acceptance.numpy(),
            stuck=chains.stuck & (chains.sampling.n_moves.numpy() >= _TELLING_MOVES),
            n_gradients=gradients.numpy(),
        )
    return found


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
=======
def _moves(chains: ChainDraws | None, n_starts: int) -> dict[str, Array]:
    """What the moves of each exploring chain came to; nothing for particles."""
    if chains is None:
        nothing = np.zeros(n_starts, dtype=np.int64)
        return {
            "n_divergent": nothing, "acceptance": nothing / 1.0, "stuck": nothing.astype(bool),
            "n_gradients": nothing,
        }  # fmt: skip
    warmup, sampling = chains.warmup, chains.sampling
    return {
        "n_divergent": sampling.n_divergent.numpy(),
        "acceptance": sampling.mean_acceptance.numpy(),
        "stuck": chains.stuck & (sampling.n_moves.numpy() >= _TELLING_MOVES),
        "n_gradients": (warmup.n_gradients + sampling.n_gradients).numpy(),
    }
>>>>>>> main


def functions_of(posterior: NetworkPosterior, draws: Array) -> Array:
    """Outputs at some training rows, and the log noise, of draws (C, S, D): (C, S, Q)."""
    x = posterior.data.x.cpu()
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _DIAGNOSED_ROWS)).astype(int))
    position = torch.as_tensor(draws)
    n_params = posterior.network.layout.n_params
    outputs = posterior.network.forward(position[..., :n_params], x[rows].to(position))
    return np.concatenate([outputs.flatten(2).numpy(), draws[..., n_params:]], axis=-1)
