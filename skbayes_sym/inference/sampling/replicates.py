"""Replicates: independent sequential Monte Carlo runs, side by side."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from joblib import Parallel, delayed

from skbayes_sym.inference.log_density import LogPosterior
from skbayes_sym.inference.sampling.smc import SMCResult, smc
from skbayes_sym.inference.sampling.smc_stages import SMCSettings
from skbayes_sym.numerics.jobs import closing
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.threads import one_thread
from skbayes_sym.symmetry.base import SymmetryGroup


class Replicates(NamedTuple):
    """Runs that know nothing of each other."""

    runs: list[SMCResult]
    stopped: Stopped  # "max_iter" after all of them


def run_replicates(
    log_posterior: LogPosterior,
    group: SymmetryGroup,
    settings: SMCSettings | None = None,
    *,
    seeds: Sequence[int],
    device: torch.device | str = "cpu",
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> Replicates:
    """Independent runs of `smc`: their spread is what one run can't say about itself.

    Several small runs find a rare mode at least once more often than one large run of the same
    cost, but their particles must not be pooled with equal weights: each run weighs modes by
    its own few ancestors. Weigh modes by their evidence.

    Parameters
    ----------
    log_posterior, group, settings
        See `smc`. With ``n_jobs`` > 1 they are pickled.
    seeds : sequence of int
        One a run, so that results don't depend on ``n_jobs`` (`numerics.random.spawn_seeds`).
    device : torch.device or str, default="cpu"
        Where the density is, and so the particles and their random numbers.
    n_jobs : int, optional
        See `joblib.Parallel`; each run keeps to one thread.
    on_step : callable (n_finished, info) -> bool, optional
        Told of every run, in order, the figures of its last stage; True ends with those so far.

    Returns
    -------
    Replicates
    """
    results: list[SMCResult] = []
    replicates = Parallel(n_jobs=n_jobs, return_as="generator")(
        delayed(_replicate)(log_posterior, group, settings, one, device) for one in seeds
    )
    with Loop() as loop, closing(replicates):
        for run in loop.steps(replicates):
            results.append(run)
            loop.stop_if("interrupted", run.stopped == "interrupted")
            if on_step is not None and loop.stopped == "max_iter":
                loop.stop_if("callback", on_step(len(results), run.stages[-1].figures()))
    return Replicates(results, loop.stopped)


def _replicate(
    log_posterior: LogPosterior,
    group: SymmetryGroup,
    settings: SMCSettings | None,
    seed: int,
    device: torch.device | str,
) -> SMCResult:
    with one_thread():
        return smc(log_posterior, group, settings, generator=generator_from(seed, device))
