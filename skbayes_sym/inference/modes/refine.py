"""More draws of modes whose mass is poorly known."""

from math import log

import torch

from skbayes_sym.inference.log_density import LogDensity
from skbayes_sym.inference.modes.confined import ModeSampler
from skbayes_sym.inference.modes.weigh import (
    LEAST_WEIGHT,
    Pool,
    Weighing,
    contending,
    mean_log_density_by_mode,
    weigh,
)
from skbayes_sym.inference.sampling.allowance import Allowance
from skbayes_sym.inference.sampling.chains import ChainDraws
from skbayes_sym.numerics.random import spawn_seeds
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain

_WELL_KNOWN = 0.3  # nats of error up to which a mode's evidence needs no further draws
_ROUNDS = 2  # of further draws

# Multiplications that bridging takes: with a draw four of the proposal are compared, and each of
# them is entered in the domain of every mode, by an assignment of some five microseconds.
_BRIDGED = 6 * 1.5e5

_MOST_REFINED = 8  # modes that get more, the highest: where none has enough draws, more won't do


def refine(
    log_density: LogDensity,
    weighing: Weighing,
    sampler: ModeSampler,
    *,
    n_chains: int,
    seed: int,
    allowance: Allowance | None = None,
) -> Weighing:
    """Draw more from modes that matter and whose evidence is poorly known, and weigh again.

    A mode that few chains reached, or particles with few ancestors, has too few independent draws
    to be bridged. Chains started from those it has make more.

    Parameters
    ----------
    log_density : LogDensity
        See `weigh`.
    weighing : Weighing
    sampler : ModeSampler
    n_chains : int
        For each such mode.
    seed : int
    allowance : Allowance, optional
        What it may cost: modes have their turns, the highest first, as long as it lasts. No end by
        default.

    Returns
    -------
    Weighing
        ``weighing`` itself if nothing was to be done.

    Raises
    ------
    KeyboardInterrupt
        If the chains were interrupted.
    """
    allowance = allowance or Allowance(0.0)
    for round_seed in spawn_seeds(seed, _ROUNDS):
        unsure = [k for k in _contenders(weighing) if _matters(weighing, k)]
        pool = weighing.pool
        for k, mode_seed in zip(unsure, spawn_seeds(round_seed, len(unsure)), strict=True):
            bridging = _BRIDGED * n_chains * sampler.plan.n_draws * weighing.modes.regions.n_modes
            if not allowance.affords(allowance.work(sampler.plan.n_calls, n_chains) + bridging):
                break
            allowance.spend(bridging)
            found = sampler(weighing, k, n_chains, seed=mode_seed, allowance=allowance)
            if not found.complete:
                raise KeyboardInterrupt
            pool = _with_chains(pool, found, weighing.modes.regions.domains[k])
        if pool is weighing.pool:
            return weighing
        weighing = weigh(log_density, pool, sampler.group, generator=sampler.generator)
    return weighing


def _matters(weighing: Weighing, k: int) -> bool:
    """Whether more draws of mode ``k`` can change the weights or the whole evidence."""
    value, error = weighing.estimates[k].log_evidence, weighing.estimates[k].standard_error
    if error <= _WELL_KNOWN:  # False for nan
        return False
    highest = value + 3.0 * error - weighing.weights.log_evidence
    return not highest < log(LEAST_WEIGHT)  # True for nan


def _contenders(weighing: Weighing) -> list[int]:
    """Modes that aren't hopeless, the highest first."""
    height = mean_log_density_by_mode(weighing.pool, weighing.modes)
    may_matter = contending(weighing.pool, weighing.modes)
    order: list[int] = height.argsort(descending=True, stable=True)[:_MOST_REFINED].tolist()
    return [k for k in order if may_matter[k]]


def _with_chains(pool: Pool, run: ChainDraws, domain: FundamentalDomain) -> Pool:
    """The pool and these chains, on the domain's copy."""
    n_chains, n_draws, _ = run.draws.shape
    draws = domain.enter(torch.as_tensor(run.draws).flatten(0, 1).double())[0]
    names = 1 + int(pool.chains.max()) + torch.arange(n_chains)
    return Pool(
        torch.cat([pool.draws, draws]),
        torch.cat([pool.values, torch.as_tensor(run.log_density).flatten().double()]),
        torch.cat([pool.chains, names.repeat_interleave(n_draws)]),
        torch.cat([pool.sources, torch.zeros(len(draws), dtype=torch.int64)]),
    )
