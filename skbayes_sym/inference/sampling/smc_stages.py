"""One stage of tempered sequential Monte Carlo: reweight, resample, fit kernels, move."""

from dataclasses import dataclass
from math import exp, log
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import LogPosterior
from skbayes_sym.inference.sampling.kernels.base import Preconditioner, initial_state
from skbayes_sym.inference.sampling.kernels.confined import ConfinedHMC
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.kernels.particle_alignment import (
    align_particles,
    full_preconditioner,
    pooled_preconditioner,
)
from skbayes_sym.inference.sampling.tempering import (
    log_mean_weight,
    next_temperature,
    systematic_resample,
)
from skbayes_sym.numerics.random import standard_normal
from skbayes_sym.symmetry.base import SymmetryGroup, Trivial
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.reference import DiagonalReference

_RESTART_EVERY = 4  # stages between fresh starts of the alignment
_N_RESTARTS = 2
_PATH = (0.5, 1.5)  # range of the factor of the path length
_GAIN = 0.7  # of the log step size, per unit of acceptance missed
_LOG_STEPS = (-25.0, 5.0)  # range of the log step size: nothing works beyond
_JITTER = 0.3  # standard deviation of the log step size across particles
_MOST_LOST = 0.1  # of accepted proposals, at the boundary, that the full kernel is worth
_PAUSE = 2  # stages before it is tried again
_DRAWS_A_DIMENSION = 2  # particles a dimension that a covariance needs


@dataclass(frozen=True)
class SMCSettings:
    """How a run goes; measured defaults.

    Parameters
    ----------
    n_particles : int
    ess_fraction : float
        Effective fraction of the particles that a step in temperature leaves.
    n_moves : int
        HMC moves a stage.
    path_length : float
        Mean length of a trajectory, in standard deviations.
    max_leapfrog : int
        Most leapfrog steps of a move.
    target_acceptance : float
    allow_full : bool
        Whether the aligned full-covariance kernel may be tried.
    max_stages : int
    """

    n_particles: int = 1024
    ess_fraction: float = 0.5
    n_moves: int = 8
    path_length: float = 1.5
    max_leapfrog: int = 16
    target_acceptance: float = 0.8
    allow_full: bool = True
    max_stages: int = 1000


class Stage(NamedTuple):
    """What one stage did."""

    temperature: float  # beta it moved at
    log_evidence: float  # of the tempered posterior, nats, so far
    full: bool  # aligned full covariance, else scales pooled over coordinate orbits
    acceptance: float  # of the integrator, mean over moves and particles
    step_size: float  # after the stage, in standard deviations
    boundary_loss: float  # accepted proposals lost at the boundary of the domain; 0 if none
    n_eves: int  # prior draws with living descendants
    correlation: float  # of the log likelihood before and after the moves

    def figures(self) -> dict[str, float]:
        """By name, as progress reports want them."""
        return {name: float(value) for name, value in self._asdict().items()}


class Tuning(NamedTuple):
    """What one stage hands to the next about its kernels; never a particle's own."""

    reference: DiagonalReference | None
    log_steps: tuple[float, float]  # of the pooled and of the full kernel
    full: bool  # which of them worked last
    pause: int  # stages of the pooled one left before the full one is tried
    n_stages: int


class Cloud(NamedTuple):
    """Equally weighted particles at one temperature."""

    position: Tensor
    log_likelihood: Tensor
    eves: Tensor
    temperature: float
    log_evidence: float
    n_gradients: int


class Moved(NamedTuple):
    """What the moves of a stage did, summed over particles and moves."""

    acceptance: float
    boundary_loss: float
    log_step: float
    n_gradients: int


class Fitted(NamedTuple):
    """A kernel and where it starts."""

    position: Tensor  # (N, D), in the kernel's domain
    kernel: ConfinedHMC
    preconditioner: Preconditioner


@dataclass(frozen=True, eq=False)
class Stages:
    """What stays the same over all stages of a run."""

    log_posterior: LogPosterior
    group: SymmetryGroup
    settings: SMCSettings
    generator: torch.Generator

    def from_prior(self) -> Cloud:
        """Particles at temperature 0."""
        n = self.settings.n_particles
        position = self.log_posterior.sample_prior(n, generator=self.generator)
        log_likelihood = self._log_likelihood(position)
        if not bool((log_likelihood > -torch.inf).any()):
            raise ValueError(
                f"the log likelihood is finite at none of {n} draws of the prior: check the data "
                "and the prior, or take more particles."
            )
        eves = torch.arange(n, device=position.device)
        return Cloud(position, log_likelihood, eves, 0.0, 0.0, 0)

    def first_tuning(self) -> Tuning:
        """Before anything is known: steps of the order that a standard normal needs."""
        start = -0.25 * log(self.log_posterior.n_dims)
        return Tuning(None, (start, start), False, 1, 0)

    def advance(self, cloud: Cloud, tuning: Tuning) -> tuple[Cloud, Tuning, Stage]:
        """Raise the temperature once and move all particles."""
        beta = next_temperature(cloud.log_likelihood, cloud.temperature, self.settings.ess_fraction)
        weights = (beta - cloud.temperature) * cloud.log_likelihood.double()
        ancestors = systematic_resample(weights, generator=self.generator)
        eves, before = cloud.eves[ancestors], cloud.log_likelihood[ancestors]
        aligned, reference = self.align(cloud.position[ancestors], tuning)
        full = self.use_full(tuning)
        fitted = self.full(aligned, reference) if full else self.pooled(aligned)
        position, moved = self.move(fitted, beta, tuning.log_steps[full])
        after = self._log_likelihood(position)
        log_evidence = cloud.log_evidence + log_mean_weight(weights)
        n_gradients = cloud.n_gradients + moved.n_gradients
        stage = Stage(
            beta,
            log_evidence,
            full,
            moved.acceptance,
            exp(moved.log_step),
            moved.boundary_loss,
            len(eves.unique()),
            _correlation(before, after),
        )
        cloud = Cloud(position, after, eves, beta, log_evidence, n_gradients)
        return cloud, next_tuning(tuning, reference, stage), stage

    def align(self, position: Tensor, tuning: Tuning) -> tuple[Tensor, DiagonalReference]:
        """One representative of each orbit, from the last stage's reference and fresh ones."""
        restart = tuning.n_stages % _RESTART_EVERY == 0
        return align_particles(
            position,
            self.group,
            tuning.reference,
            n_starts=_N_RESTARTS if restart else 0,
            generator=self.generator,
        )

    def use_full(self, tuning: Tuning) -> bool:
        """Whether this stage is the full kernel's."""
        enough = self.settings.n_particles >= _DRAWS_A_DIMENSION * self.log_posterior.n_dims
        possible = self.settings.allow_full and enough and has_exact_domain(self.group)
        return possible and (tuning.full or tuning.pause == 0)

    def pooled(self, aligned: Tensor) -> Fitted:
        """Scales that the group leaves alone: no boundary is needed."""
        anywhere = DiagonalReference(*(torch.empty(0, dtype=torch.float64) for _ in range(2)))
        everywhere = FundamentalDomain(Trivial(), anywhere)
        return Fitted(aligned, self._kernel(everywhere), pooled_preconditioner(aligned, self.group))

    def full(self, aligned: Tensor, reference: DiagonalReference) -> Fitted:
        """The covariance of one copy, within that copy."""
        domain = FundamentalDomain(self.group, reference)
        inside, _ = domain.enter(aligned)  # labels above may be a sweep behind the reference
        return Fitted(inside, self._kernel(domain), full_preconditioner(inside))

    def move(self, fitted: Fitted, beta: float, log_step: float) -> tuple[Tensor, Moved]:
        """All moves of a stage; the step size follows the mean acceptance after each."""
        target = self.log_posterior.tempered(beta)
        state = initial_state(fitted.position, target)
        n = len(fitted.position)
        # Sums stay on the device until the end: the host waits for a move's length only.
        size = torch.full((), log_step, dtype=torch.float64, device=state.value.device)
        sums = torch.zeros(3, dtype=torch.float64, device=size.device)
        for _ in range(self.settings.n_moves):
            noise = standard_normal((n,), generator=self.generator, like=state.value)
            move = fitted.kernel.move(
                state,
                target,
                step_size=(size + _JITTER * noise).exp(),
                preconditioner=fitted.preconditioner,
                generator=self.generator,
            )
            state, probability = move.state, move.info.acceptance
            missed = probability.mean() - self.settings.target_acceptance
            size = (size + _GAIN * missed).clamp(*_LOG_STEPS)
            at_boundary = torch.where(move.outside, probability, 0.0)
            sums += torch.stack(
                [probability.sum(), at_boundary.sum(), move.info.n_gradients.sum().double()]
            )
        accepted, lost, n_gradients, log_step = torch.cat([sums, size.reshape(1)]).tolist()
        acceptance = accepted / (n * self.settings.n_moves)
        loss = lost / accepted if accepted else 0.0
        return state.position, Moved(acceptance, loss, log_step, n + int(n_gradients))

    def _kernel(self, domain: FundamentalDomain) -> ConfinedHMC:
        settings = self.settings
        return ConfinedHMC(domain, HMC(settings.path_length, _PATH, settings.max_leapfrog))

    def _log_likelihood(self, position: Tensor) -> Tensor:
        """What isn't finite has no likelihood."""
        found = self.log_posterior.log_likelihood(position)
        return found.masked_fill(~found.isfinite(), -torch.inf)


def next_tuning(tuning: Tuning, reference: DiagonalReference, stage: Stage) -> Tuning:
    """Step sizes of each kernel, and which one is next."""
    works = stage.full and stage.boundary_loss <= _MOST_LOST
    pause = _PAUSE if stage.full else max(tuning.pause - 1, 0)
    pooled, full = tuning.log_steps
    log_steps = (pooled, log(stage.step_size)) if stage.full else (log(stage.step_size), full)
    return Tuning(reference, log_steps, works, pause, tuning.n_stages + 1)


def _correlation(before: Tensor, after: Tensor) -> float:
    """Pearson's; nan where either is constant or infinite."""
    a, b = before.double() - before.double().mean(), after.double() - after.double().mean()
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())
