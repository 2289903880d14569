"""Figures on how well chains mixed, in functions and in weights."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators.mcmc.draws import Draws, Explored
from skbayes_sym.inference.diagnostics import bulk_ess, rank_rhat
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.inference.sampling.chains import ChainDraws

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
        "function_rhat_within": _typical(rank_rhat, functions),
        "function_ess_within": _typical(bulk_ess, functions),
        "unseen_basin": 1.0 - _MISSED ** (1.0 / explored.n_starts),
        **_moves(explored.chains, explored.n_starts),
    }


def _moves(chains: ChainDraws | None, n_starts: int) -> dict[str, Array]:
    """What the moves of each exploring chain came to; nothing for particles."""
    if chains is None:
        nothing = np.zeros(n_starts, dtype=np.int64)
        return {
            "n_divergent": nothing, "acceptance": nothing / 1.0, "stuck": nothing.astype(bool),
            "n_gradients": nothing, "energy_error": nothing * np.nan,
        }  # fmt: skip
    warmup, sampling = chains.warmup, chains.sampling
    return {
        "n_divergent": sampling.n_divergent.numpy(),
        "acceptance": sampling.mean_acceptance.numpy(),
        "stuck": chains.stuck & (sampling.n_moves.numpy() >= _TELLING_MOVES),
        "energy_error": sampling.energy_error.numpy(),
        "n_gradients": (warmup.n_gradients + sampling.n_gradients).numpy(),
    }


def _typical(statistic: Callable[[Array], Array], functions: Array) -> Array:
    """Of every chain alone, the median over functions (C, S, Q) -> (C,)."""
    n_chains, n_draws, _ = functions.shape
    own = statistic(functions.swapaxes(0, 1).reshape(1, n_draws, -1)).reshape(n_chains, -1)
    defined = np.isfinite(own).any(1)
    typical = np.full(n_chains, np.nan)
    typical[defined] = np.nanmedian(own[defined], axis=1)
    return typical


def functions_of(posterior: NetworkPosterior, draws: Array) -> Array:
    """Outputs at some training rows, and the log noise, of draws (C, S, D): (C, S, Q)."""
    x = posterior.data.x.cpu()
    rows = np.unique(np.linspace(0, len(x) - 1, min(len(x), _DIAGNOSED_ROWS)).astype(int))
    position = torch.as_tensor(draws)
    n_params, x = posterior.network.layout.n_params, x[rows].to(position)
    forward = posterior.network.forward  # one chain at a time: hidden units take more than outputs
    outputs = torch.stack([forward(chain, x).flatten(1) for chain in position[..., :n_params]])
    return np.concatenate([outputs.numpy(), draws[..., n_params:]], axis=-1)
