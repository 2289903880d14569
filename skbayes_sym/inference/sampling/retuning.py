"""Chains that accept too little once they draw warm up again.

A chain that is still on its way comes to places where its frozen steps are too long: what it draws
there are few points, many times over. Draws of its block are thrown away, it warms up where it is,
for half as many rejections as before, and draws anew. Which blocks that happens to depends on them
alone.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from skbayes_sym.inference.sampling.blocks import Block, Sampler, Tally
from skbayes_sym.inference.sampling.chains import ChainDraws, sample_chains
from skbayes_sym.numerics.optimise import OnStep

_ROUNDS = 3


def retuned(
    sampler: Sampler,
    found: ChainDraws,
    *,
    least_acceptance: float,
    n_warmup: int,
    thin: int = 1,
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> ChainDraws:
    """The same chains, those of blocks with a low acceptance after another warm-up.

    Parameters
    ----------
    sampler : Sampler
        That made the draws, without its approach.
    found : ChainDraws
        Returned as it is where every chain accepted enough, or was stopped. It is kept too where
        the further warm-up is stopped.
    least_acceptance : float
        Mean probability of a chain's proposals while drawing.
    n_warmup : int
        Moves of every further warm-up, of which there are at most three. Each aims at half of the
        rejections that the one before aimed at.
    thin, n_jobs, on_step
        See `sample_chains`.
    """
    for _ in range(_ROUNDS):
        chosen = _blocks_below(found, least_acceptance)
        if not found.complete or not chosen:
            return found
        aim = 1.0 - 0.5 * (1.0 - sampler.target_acceptance)
        sampler = replace(sampler, target_acceptance=aim)
        again = sample_chains(
            sampler, [found.blocks[i] for i in chosen], n_warmup=n_warmup,
            n_draws=found.draws.shape[1], thin=thin, n_jobs=n_jobs, on_step=on_step,
        )  # fmt: skip
        if not again.complete:
            return replace(found, stopped=again.stopped)
        found = _replaced(found, chosen, again)
    return found


def _ends(blocks: Sequence[Block]) -> list[int]:
    return [0, *np.cumsum([len(block.step_size) for block in blocks]).tolist()]


def _blocks_below(found: ChainDraws, least: float) -> list[int]:
    low, ends = found.sampling.mean_acceptance < least, _ends(found.blocks)
    return [i for i in range(len(found.blocks)) if bool(low[ends[i] : ends[i + 1]].any())]


def _replaced(found: ChainDraws, chosen: Sequence[int], again: ChainDraws) -> ChainDraws:
    """Draws of the chosen blocks by those they made again; the old ones count as warm-up."""
    ends, blocks = _ends(found.blocks), list(found.blocks)
    chains = np.concatenate([np.arange(ends[i], ends[i + 1]) for i in chosen])
    draws, value = found.draws.copy(), found.log_density.copy()
    draws[chains], value[chains] = again.draws, again.log_density
    warmup, sampling = (Tally(*(t.clone() for t in x)) for x in (found.warmup, found.sampling))
    for total, before, new in zip(warmup, found.sampling, again.warmup, strict=True):
        total[chains] += before[chains] + new
    for total, new in zip(sampling, again.sampling, strict=True):
        total[chains] = new
    for i, block in zip(chosen, again.blocks, strict=True):
        blocks[i] = block
    return ChainDraws(draws, value, found.n_draws, warmup, sampling, blocks, found.stopped)
