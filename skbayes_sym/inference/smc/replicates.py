"""Islands: independent sequential Monte Carlo runs, side by side."""

from typing import NamedTuple

from joblib import Parallel, delayed

from skbayes_sym.inference.log_density import LogPosterior
from skbayes_sym.inference.smc.smc import SMCResult, smc
from skbayes_sym.inference.smc.stages import SMCSettings
from skbayes_sym.numerics.jobs import closing
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.threads import one_thread
from skbayes_sym.symmetry.base import SymmetryGroup


class IslandsResult(NamedTuple):
    """Runs that know nothing of each other."""

    islands: list[SMCResult]
    stopped: Stopped  # "max_iter" after all of them


def run_islands(
    log_posterior: LogPosterior,
    group: SymmetryGroup,
    settings: SMCSettings | None = None,
    *,
    n_islands: int,
    seed: int,
    n_jobs: int | None = None,
    on_step: OnStep | None = None,
) -> IslandsResult:
    """Independent runs of `smc`: their spread is what one run can't say about itself.

    Several small islands find a rare mode at least once more often than one large run of the same
    cost, but their particles must not be pooled with equal weights: each island weighs modes by
    its own few ancestors. Weigh modes by their evidence.

    Parameters
    ----------
    log_posterior, group, settings
        See `smc`. With ``n_jobs`` > 1 they are pickled.
    n_islands : int
    seed : int
        Split into one stream an island, so that results don't depend on ``n_jobs``.
    n_jobs : int, optional
        See `joblib.Parallel`; each island keeps to one thread.
    on_step : callable (n_finished, info) -> bool, optional
        Told of every island, in order, the figures of its last stage; True ends with those so far.

    Returns
    -------
    IslandsResult
    """
    results: list[SMCResult] = []
    islands = Parallel(n_jobs=n_jobs, return_as="generator")(
        delayed(_island)(log_posterior, group, settings, one)
        for one in spawn_seeds(seed, n_islands)
    )
    with Loop() as loop, closing(islands):
        for island in loop.steps(islands):
            results.append(island)
            loop.stop_if("interrupted", island.stopped == "interrupted")
            if on_step is not None and loop.stopped == "max_iter":
                loop.stop_if("callback", on_step(len(results), island.stages[-1].figures()))
    return IslandsResult(results, loop.stopped)


def _island(
    log_posterior: LogPosterior, group: SymmetryGroup, settings: SMCSettings | None, seed: int
) -> SMCResult:
    with one_thread():
        return smc(log_posterior, group, settings, generator=generator_from(seed))
