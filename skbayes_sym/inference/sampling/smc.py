"""Sequential Monte Carlo: particles carried from the prior to the posterior.

At inverse temperature ``beta`` the particles are draws of ``prior * likelihood^beta``. A stage
raises ``beta`` as far as half of the effective sample survives, resamples, and moves all particles
by kernels fitted to them.
"""

from math import nan
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogPosterior
from skbayes_sym.inference.sampling.smc_stages import SMCSettings, Stage, Stages
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped
from skbayes_sym.symmetry.base import SymmetryGroup


class SMCResult(NamedTuple):
    """Equally weighted draws of the posterior, and how far to trust them."""

    particles: Tensor  # (N, D), each from a uniformly random copy of its mode
    log_evidence: float  # nats; nan unless `complete`
    log_likelihood: Tensor  # (N,), nats
    eves: Tensor  # int64 (N,): the prior draw that each descends from (Lee & Whiteley 2018)
    stages: tuple[Stage, ...]
    n_gradients: int  # of all particles together
    stopped: Stopped  # "tol" at temperature 1, "max_iter" after ``max_stages``

    @property
    def complete(self) -> bool:
        """The particles reached the posterior."""
        return self.stopped == "tol"

    @property
    def temperatures(self) -> list[float]:
        """``beta`` of every stage, increasing; 1.0 last if done."""
        return [stage.temperature for stage in self.stages]


def smc(
    log_posterior: LogPosterior,
    group: SymmetryGroup,
    settings: SMCSettings | None = None,
    *,
    generator: torch.Generator,
    on_step: OnStep | None = None,
) -> SMCResult:
    """Adaptive tempering from prior to posterior (Del Moral, Doucet & Jasra 2006).

    Two kernels move the particles, each with its own step size. The first scales entries by
    standard deviations of aligned particles, pooled over coordinate orbits, and commutes with
    the group. The second uses the full covariance of aligned particles and is confined to the
    fundamental domain (`ConfinedHMC`): many times better once the units have separated, and
    wasteful before. It is tried every third stage and kept while at most 10 % of the proposals it
    accepts are lost at the boundary. Where the domain has no exact test (several wide hidden
    layers) or the particles are fewer than 2 a dimension, the first kernel does it all.

    Parameters
    ----------
    log_posterior : LogPosterior
        Invariant under ``group``, with a prior that can be sampled.
    group : Trivial, Units or a Product of them
        Acts on the first columns of a position.
    settings : SMCSettings, optional
    generator : torch.Generator
    on_step : callable (stage, info) -> bool, optional
        Told after every stage its number and figures; True stops.

    Returns
    -------
    SMCResult
        After a `KeyboardInterrupt` with the particles of the last whole stage; the caller decides
        whether to raise it again.

    Raises
    ------
    ValueError
        If no prior draw has a likelihood.

    Notes
    -----
    The evidence estimate is the product of the mean weights: without adaptation unbiased for the
    evidence itself, so its log is low on average, on hard posteriors by many nats (few prior draws
    have descendants in the mode). A mode that no particle visited is invisible to every figure
    here; so is one that is much narrower than others and takes over late.

    Step sizes follow the mean acceptance over all particles. A step size that a particle inherited
    would depend on its position, and the move would not leave the target invariant.

    Cost: about ``n_particles * n_moves * max_leapfrog`` gradients a stage at most.
    """
    settings = settings or SMCSettings()
    run = Stages(log_posterior, group, settings, generator)
    cloud, tuning = run.from_prior(), run.first_tuning()
    stages: list[Stage] = []
    with Loop() as loop:
        for _ in loop.steps(range(settings.max_stages)):
            cloud, tuning, stage = run.advance(cloud, tuning)
            stages.append(stage)
            stop = on_step is not None and on_step(len(stages), stage.figures())
            loop.stop_if("tol", stage.temperature == 1.0)
            loop.stop_if("callback", stop)
    g = group.sample((settings.n_particles,), generator=generator)
    return SMCResult(
        group.act(g, cloud.position),
        cloud.log_evidence if loop.stopped == "tol" else nan,
        cloud.log_likelihood,
        cloud.eves,
        tuple(stages),
        cloud.n_gradients,
        loop.stopped,
    )
