"""Sequential Monte Carlo: particles carried from the prior to the posterior.

At inverse temperature ``beta`` the particles are draws of ``prior * likelihood^beta``. A stage
raises ``beta`` as far as half of the effective sample survives, resamples by the weights
``likelihood^(beta' - beta)`` (float64 throughout), and moves all particles by kernels fitted to
them. Replicates are runs that know nothing of each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, nan
from typing import NamedTuple

import torch
from joblib import Parallel, delayed
from torch import Tensor

from skbayes_sym.inference.log_density import LogPosterior
from skbayes_sym.inference.sampling.kernels import HMC, Preconditioner, initial_state
from skbayes_sym.inference.sampling.modes.particle_alignment import (
    align_particles,
    full_preconditioner,
    pooled_preconditioner,
)
from skbayes_sym.numerics.machine import closing, one_thread
from skbayes_sym.numerics.optimise import Loop, OnStep, Stopped
from skbayes_sym.numerics.random import generator_from, standard_normal
from skbayes_sym.symmetry.fundamental_domain import FundamentalDomain, has_exact_domain
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.relabelling import DiagonalReference


@dataclass(frozen=True)
class SMCSettings:
    """Settings of a run; measured defaults."""

    n_particles: int = 1024
    ess_fraction: float = 0.5  # of the particles, that a step in temperature leaves
    n_moves: int = 8  # HMC moves a stage
    path_length: float = 1.5  # mean length of a trajectory, in standard deviations
    jitter: tuple[float, float] = (0.5, 1.5)  # range of its factor
    max_leapfrog: int = 16  # most leapfrog steps of a move
    target_acceptance: float = 0.8
    gain: float = 0.7  # of the log step size, per unit of acceptance missed
    step_spread: float = 0.3  # standard deviation of the log step size across particles
    allow_full: bool = True  # whether the aligned full-covariance kernel may be tried
    most_lost: float = 0.1  # of accepted proposals, at the boundary, that it is worth
    pause: int = 2  # stages before it is tried again
    draws_a_dim: int = 2  # particles a dimension that its covariance needs
    restart_every: int = 4  # stages between fresh starts, two, of the alignment
    max_stages: int = 1000


class SMCStage(NamedTuple):
    """Figures of one stage."""

    temperature: float  # beta it moved at
    log_evidence: float  # of the tempered posterior, nats, so far
    full: bool  # aligned full covariance, else scales pooled over coordinate orbits
    acceptance: float  # of the integrator, mean over moves and particles
    step_size: float  # after the stage, in standard deviations
    boundary_loss: float  # accepted proposals lost at the boundary of the domain; 0 if none
    n_eves: int  # prior draws with living descendants
    correlation: float  # of the log likelihood before and after the moves

    def figures(self) -> dict[str, float]:
        """Figures by name, as progress reports want them."""
        return {name: float(value) for name, value in self._asdict().items()}


class Tuning(NamedTuple):
    """Knowledge that one stage hands to the next about its kernels; never a particle's own."""

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


class FittedKernel(NamedTuple):
    """A kernel and where it starts."""

    position: Tensor  # (N, D), in the kernel's domain
    kernel: HMC
    preconditioner: Preconditioner


class SMCResult(NamedTuple):
    """Equally weighted draws of the posterior, and how far to trust them."""

    particles: Tensor  # (N, D), each from a uniformly random copy of its mode
    log_evidence: float  # nats; nan unless `complete`
    log_likelihood: Tensor  # (N,), nats
    eves: Tensor  # int64 (N,): the prior draw that each descends from (Lee & Whiteley 2018)
    stages: tuple[SMCStage, ...]
    n_gradients: int  # of all particles together
    stopped: Stopped  # "tol" at temperature 1, "max_iter" after ``max_stages``

    @property
    def complete(self) -> bool:
        """The particles reached the posterior."""
        return self.stopped == "tol"


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
    fundamental domain (`HMC`): many times better once the units have separated, and
    wasteful before. It is tried every third stage and kept while at most 10 % of the proposals it
    accepts are lost at the boundary. Where the domain has no exact test (several wide hidden
    layers) or the particles are fewer than 2 a dimension, the first kernel does it all.

    ``log_posterior``: invariant under ``group``, with a prior that can be sampled. ``group``: acts
    on the first columns of a position. ``on_step``: told after every stage its number and figures;
    True stops. Returns: after a `KeyboardInterrupt` with the particles of the last whole stage; the
    caller decides whether to raise it again.

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
    stages: list[SMCStage] = []
    with Loop() as loop:
        for _ in loop.steps(range(settings.max_stages)):
            cloud, tuning, stage = run.advance(cloud, tuning)
            stages.append(stage)
            stop = on_step is not None and on_step(len(stages), stage.figures())
            loop.stop_if("tol", stage.temperature == 1.0)
            loop.stop_if("callback", stop)
    g = group.sample((settings.n_particles,), generator=generator)
    return SMCResult(
        group.act(g, cloud.position), cloud.log_evidence if loop.stopped == "tol" else nan,
        cloud.log_likelihood, cloud.eves, tuple(stages), cloud.n_gradients, loop.stopped,
    )  # fmt: skip


def run_replicates(
    log_posterior: LogPosterior,
    group: SymmetryGroup,
    settings: SMCSettings | None = None,
    *,
    # One a run, so that results don't depend on ``n_jobs`` (`numerics.random.spawn_seeds`).
    seeds: Sequence[int],
    # Of the density, and so of the particles and their random numbers.
    device: torch.device | str = "cpu",
    n_jobs: int | None = None,
    # (n_finished, info) -> bool: told of every run, in order, the figures of its last stage; True
    # ends with those so far.
    on_step: OnStep | None = None,
) -> tuple[list[SMCResult], Stopped]:
    """Independent runs of `smc`, and "max_iter" after all: their spread is what one can't tell.

    Several small runs find a rare mode at least once more often than one large run of the same
    cost, but their particles must not be pooled with equal weights: each run weighs modes by
    its own few ancestors. Weigh modes by their evidence.
    """

    def replicate(seed: int) -> SMCResult:
        with one_thread():
            generator = generator_from(seed, device)
            return smc(log_posterior, group, settings, generator=generator)

    results: list[SMCResult] = []
    jobs = Parallel(n_jobs=n_jobs, return_as="generator")
    replicates = jobs(delayed(replicate)(seed) for seed in seeds)
    with Loop() as loop, closing(replicates):
        for run in loop.steps(replicates):
            results.append(run)
            loop.stop_if("interrupted", run.stopped == "interrupted")
            if on_step is not None and loop.stopped == "max_iter":
                loop.stop_if("callback", on_step(len(results), run.stages[-1].figures()))
    return results, loop.stopped


@dataclass(frozen=True, eq=False)
class Stages:
    """Constants of a run: reweight, resample, fit kernels, move."""

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
        """Steps of the order that a standard normal needs, before anything is known."""
        start = -0.25 * log(self.log_posterior.n_dims)
        return Tuning(None, (start, start), False, 1, 0)

    def advance(self, cloud: Cloud, tuning: Tuning) -> tuple[Cloud, Tuning, SMCStage]:
        """Raise the temperature once and move all particles."""
        beta = next_temperature(cloud.log_likelihood, cloud.temperature, self.settings.ess_fraction)
        weights = (beta - cloud.temperature) * cloud.log_likelihood.double()
        ancestors = systematic_resample(weights, generator=self.generator)
        eves, before = cloud.eves[ancestors], cloud.log_likelihood[ancestors]
        aligned, reference = self.align(cloud.position[ancestors], tuning)
        full = self.use_full(tuning)
        fitted = self.full(aligned, reference) if full else self.pooled(aligned)
        position, figures = self.move(fitted, beta, tuning.log_steps[full])
        accepted, lost, n_gradients, log_step = figures
        after, n = self._log_likelihood(position), len(position)
        log_evidence = cloud.log_evidence + log_mean_weight(weights)
        stage = SMCStage(
            beta, log_evidence, full, accepted / (n * self.settings.n_moves), exp(log_step),
            lost / accepted if accepted else 0.0, len(eves.unique()), _correlation(before, after),
        )  # fmt: skip
        n_gradients = cloud.n_gradients + n + int(n_gradients)
        cloud = Cloud(position, after, eves, beta, log_evidence, n_gradients)
        return cloud, self.next_tuning(tuning, reference, stage), stage

    def align(self, position: Tensor, tuning: Tuning) -> tuple[Tensor, DiagonalReference]:
        """Align the copies of a mode, from the last stage's reference and fresh ones."""
        n_starts = 0 if tuning.n_stages % self.settings.restart_every else 2
        return align_particles(
            position, self.group, tuning.reference, n_starts=n_starts, generator=self.generator
        )

    def use_full(self, tuning: Tuning) -> bool:
        """Whether this stage is the full kernel's."""
        settings, n_dims = self.settings, self.log_posterior.n_dims
        enough = settings.n_particles >= settings.draws_a_dim * n_dims
        possible = settings.allow_full and enough and has_exact_domain(self.group)
        return possible and (tuning.full or tuning.pause == 0)

    def pooled(self, aligned: Tensor) -> FittedKernel:
        """Scales that the group leaves alone: no boundary is needed."""
        return FittedKernel(aligned, self._kernel(None), pooled_preconditioner(aligned, self.group))

    def full(self, aligned: Tensor, reference: DiagonalReference) -> FittedKernel:
        """The covariance of one copy, within that copy."""
        domain = FundamentalDomain(self.group, reference)
        inside, _ = domain.enter(aligned)  # labels above may be a sweep behind the reference
        return FittedKernel(inside, self._kernel(domain), full_preconditioner(inside))

    def move(
        self, fitted: FittedKernel, beta: float, log_step: float
    ) -> tuple[Tensor, tuple[float, float, float, float]]:
        """Make all moves of a stage; the step size follows the mean acceptance after each.

        The figures are sums over particles and moves, of acceptances, of what of them was lost at
        the boundary and of gradients, and the last log step size: nothing works beyond (-25, 5).
        """
        settings, target = self.settings, self.log_posterior.tempered(beta)
        state = initial_state(fitted.position, target)
        # Sums stay on the device until the end: the host waits for a move's length only.
        size = torch.full((), log_step, dtype=torch.float64, device=state.value.device)
        sums = torch.zeros(3, dtype=torch.float64, device=size.device)
        for _ in range(settings.n_moves):
            noise = standard_normal(state.value.shape, generator=self.generator, like=state.value)
            state, info = fitted.kernel.step(
                state, target, step_size=(size + settings.step_spread * noise).exp(),
                preconditioner=fitted.preconditioner, generator=self.generator,
            )  # fmt: skip
            probability = info.acceptance
            missed = probability.mean() - settings.target_acceptance
            size = (size + settings.gain * missed).clamp(-25.0, 5.0)
            outside = torch.zeros_like(info.accepted) if info.outside is None else info.outside
            lost = torch.where(outside, probability, 0.0)
            sums += torch.stack([probability.sum(), lost.sum(), info.n_gradients.sum().double()])
        accepted, at_boundary, n_gradients, last = torch.cat([sums, size.reshape(1)]).tolist()
        return state.position, (accepted, at_boundary, n_gradients, last)

    def next_tuning(self, tuning: Tuning, reference: DiagonalReference, stage: SMCStage) -> Tuning:
        """Step sizes of each kernel, and which one is next."""
        works = stage.full and stage.boundary_loss <= self.settings.most_lost
        pause = self.settings.pause if stage.full else max(tuning.pause - 1, 0)
        pooled, full = tuning.log_steps
        log_step = log(stage.step_size)
        log_steps = (pooled, log_step) if stage.full else (log_step, full)
        return Tuning(reference, log_steps, works, pause, tuning.n_stages + 1)

    def _kernel(self, domain: FundamentalDomain | None) -> HMC:
        path, jitter = self.settings.path_length, self.settings.jitter
        return HMC(path, jitter, self.settings.max_leapfrog, domain=domain)

    def _log_likelihood(self, position: Tensor) -> Tensor:
        """(N,); -inf where it isn't finite."""
        value = self.log_posterior.log_likelihood(position)
        return value.masked_fill(~value.isfinite(), -torch.inf)


def _correlation(before: Tensor, after: Tensor) -> float:
    """Pearson's; nan where either is constant or infinite."""
    a, b = before.double() - before.double().mean(), after.double() - after.double().mean()
    return float((a * b).sum() / (a.square().sum() * b.square().sum()).sqrt())


def effective_fraction(log_weights: Tensor) -> float:
    """Kish's effective sample size over their number, ``(mean w)^2 / mean w^2``, in [1/N, 1]."""
    w, log_n = log_weights.double(), log(len(log_weights))
    once, twice = torch.logsumexp(w, dim=0), torch.logsumexp(2.0 * w, dim=0)
    return exp(2.0 * float(once) - float(twice) - log_n)


def log_mean_weight(log_weights: Tensor) -> float:
    """Log of the mean weight, nats: what the evidence gains by the step."""
    return float(torch.logsumexp(log_weights.double(), dim=0)) - log(len(log_weights))


def next_temperature(log_likelihood: Tensor, beta: float, ess_fraction: float) -> float:
    """Inverse temperature in (beta, 1] at which the weights' effective fraction is as given.

    By bisection on the log of the step from 1e-14 on, which heavy-tailed likelihoods of prior draws
    need. The log likelihood (N,) of particles at ``beta`` in [0, 1) may be -inf, not nan.
    """
    log_likelihood = log_likelihood.cpu().double()  # the search is the host's
    if effective_fraction((1.0 - beta) * log_likelihood) >= ess_fraction:
        return 1.0
    low, high = log(1e-14), log(1.0 - beta)
    for _ in range(60):
        middle = 0.5 * (low + high)
        if effective_fraction(exp(middle) * log_likelihood) >= ess_fraction:
            low = middle
        else:
            high = middle
    return beta + exp(low)


def systematic_resample(log_weights: Tensor, *, generator: torch.Generator) -> Tensor:
    """Ancestors of N equally weighted particles, int64 (N,), in increasing order.

    Particle ``i`` has ``N w_i`` children on average, rounded up or down: one uniform number sets
    N equidistant points on the cumulative weights (Kitagawa 1996).
    """
    n = len(log_weights)
    ends = torch.softmax(log_weights.double(), dim=0).cumsum(dim=0)
    shift = torch.rand(1, generator=generator, device=generator.device, dtype=torch.float64)
    points = (torch.arange(n, device=ends.device) + shift.to(ends.device)) / n
    # Rounding may leave the last end below the last point; particles of no weight get none.
    return torch.searchsorted(ends / ends[-1], points, right=True).clamp_max(n - 1)
