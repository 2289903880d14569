"""Weights of modes by their evidence, and chains restarted in the modes in proportion to them."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.mcmc.bridge import MIN_DRAWS_PER_DIM, can_bridge
from skbayes_sym.mcmc.chains import ChainDraws
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.draws import PosteriorDraws, collect_draws, extend_chains
from skbayes_sym.mcmc.mode_evidence import (
    ModeEvidence,
    apportion_chains,
    estimate_mode_evidence,
    mean_log_density_by_mode,
    pool_draws,
    select_relevant_modes,
)
from skbayes_sym.mcmc.within_mode import ChainSettings, ComputeBudget, ModeSampler, refine_evidence
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.progress import part_of_progress, reporting_to
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import split_units


class Mode(NamedTuple):
    """A mode of the posterior modulo its symmetry.

    Parameters
    ----------
    weight : float
        Posterior mass of the mode, relative to all modes that were found; nan if unknown.
    log_evidence : float
        Log of the mode's part of p(y | X) in nats, with all symmetric copies.
    std_error : float
        Standard error of ``log_evidence`` in nats.
    chains : ndarray of int
        Indices of the mode's chains in ``samples_``.
    n_initial_chains : int
        Number of initial chains that ended in the mode.
    mean_log_posterior : float
        Mean log density of the mode's draws in nats.
    """

    weight: float
    log_evidence: float
    std_error: float
    chains: Array
    n_initial_chains: int
    mean_log_posterior: float


def weight_by_evidence(
    config: SamplingConfig, chains: ChainDraws, draws: PosteriorDraws
) -> PosteriorDraws:
    """Estimate the evidence of each mode and restart chains in the modes in proportion to it.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    chains : ChainDraws
        Initial chains.
    draws : PosteriorDraws
        Draws of the initial chains, with equal weights.

    Returns
    -------
    PosteriorDraws
        ``draws``, extended to the requested number, if the evidence isn't wanted or can't be
        estimated.
    """
    if draws.stopped != "max_iter" or not config.uses_evidence:
        return draws
    problems = tuple(find_evidence_obstacles(config.model.group, chains, config.defaults))
    if problems:
        return extend_chains(config, chains, draws)._replace(evidence_problems=problems)
    generator = generator_from(config.seeds.modes)
    budget, reserve = evidence_budget(config, chains)
    try:
        # Find the modes and estimate their evidence, with further draws where it is uncertain.
        receiver = config.progress.stage_receiver(config.defaults.evidence_progress)
        with reporting_to(receiver):
            evidence = _estimate_evidence(config, draws, generator, budget)
        problems = tuple(evidence_warnings(evidence, config.posterior.n_dims, config.defaults))

        # If the errors leave the weights open, chains are allocated to the relevant modes by the
        # number of initial chains that found each, and the reported weights are nan.
        weights = robust_weights(evidence, config.defaults)
        has_robust_weights = weights is not None
        if weights is None:
            allocation = _chain_proportions(evidence, len(draws.position))
            is_relevant = select_relevant_modes(evidence.pool, evidence.modes)
            weights = torch.where(is_relevant, torch.nan, 0.0)
        else:
            allocation = weights
        evidence = evidence._replace(summary=evidence.summary._replace(weights=weights))

        # Restart chains in the modes.
        budget.remaining += reserve
        new_draws = _restart_chains(config, evidence, allocation, generator, budget)
    except KeyboardInterrupt:
        return draws._replace(stopped="interrupted")
    return new_draws._replace(
        evidence=evidence, evidence_problems=problems, has_robust_weights=has_robust_weights
    )


def evidence_budget(config: SamplingConfig, chains: ChainDraws) -> tuple[ComputeBudget, float]:
    """Divide the remaining computation between the evidence and the restarted chains.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit. A fit may cost ``1 + mode_weights.budget`` times as much as the
        requested chains.
    chains : ChainDraws
        Initial chains, which determine the cost so far.

    Returns
    -------
    budget : ComputeBudget
        Budget of the evidence. It is half of the remaining budget, or everything but the
        cost of the restarted chains' draws if that is more. It is at most ``mode_weights.budget``
        times the cost of the requested chains.
    reserve : float
        Multiplications reserved for restarted chains, in addition to the evidence's remainder.
    """
    budget = config.make_budget()
    relative_budget = config.mode_weights.budget
    n_gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
    n_moves = chains.warmup.n_moves + chains.sampling.n_moves
    spent = budget.move_cost(n_gradients, n_moves, config.block_size)

    # The requested chains may be longer than the initial ones.
    n_requested = config.n_warmup + config.n_draws * config.thinning
    n_completed = config.n_warmup + chains.draws.shape[1] * config.thinning
    requested = spent * n_requested / n_completed
    left = (1.0 + relative_budget) * requested - spent
    budget.remaining = min(relative_budget * requested, max(0.5 * left, left - requested))
    return budget, left - budget.remaining


def find_evidence_obstacles(
    group: SymmetryGroup, chains: ChainDraws, defaults: SamplingDefaults
) -> list[str]:
    """List the reasons why the evidence can't be estimated.

    Parameters
    ----------
    group : SymmetryGroup
        Symmetry of the posterior.
    chains : ChainDraws
        Initial chains.
    defaults : SamplingDefaults
        Limit on the fraction of stuck chains.

    Returns
    -------
    list of str
    """
    problems = []
    _, other_factors = split_units(group)
    if other_factors:
        names = " and ".join(type(factor).__name__ for factor in other_factors)
        problems.append(
            f"the network's symmetry has a factor that isn't made of exchangeable units ({names}), "
            "and bridge sampling can't count the copies of a mode under it"
        )
    elif not can_bridge(group):
        problems.append(
            f"the symmetry group of several hidden layers has e^{group.log_order:.1f} elements, "
            f"more than the {MAX_ORDER:,} that can be summed over: use one layer, or narrower ones"
        )
    if chains.stuck.mean() > defaults.max_stuck_fraction:
        problems.append(
            f"{chains.stuck.sum()} of {len(chains.stuck)} chains never moved: raise n_warmup"
        )
    return problems


def _estimate_evidence(
    config: SamplingConfig,
    draws: PosteriorDraws,
    generator: torch.Generator,
    budget: ComputeBudget,
) -> ModeEvidence:
    """Find modes and estimate their evidence, with further draws of modes that have too few.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    draws : PosteriorDraws
        Draws of the initial chains.
    generator : torch.Generator
        Random stream of alignment, bridge sampling and starting points.
    budget : ComputeBudget
        It is reduced by the cost of this function.

    Returns
    -------
    ModeEvidence
    """
    defaults = config.defaults
    posterior = config.float64_posterior
    group = config.model.group
    n_chains = defaults.refinement_chains
    position = torch.as_tensor(draws.position)
    log_density = torch.as_tensor(draws.log_density)
    pool = pool_draws(position, log_density, group, generator=generator)
    with part_of_progress(0.0, 0.2):
        evidence = estimate_mode_evidence(posterior, pool, group, generator=generator)

    # A value of the density costs a third of a gradient.
    budget.remaining -= defaults.evaluations_per_draw * len(pool.draws) * budget.gradient_cost / 3.0

    # Make fewer draws per mode if half of the budget doesn't pay for all of them, but no fewer than
    # bridge sampling needs.
    max_draws = defaults.refinement_draws
    sampler = _make_mode_sampler(config, max_draws, generator)
    cost = budget.batch_cost(sampler.settings.n_calls, n_chains)
    n_affordable = int(max_draws * min(1.0, budget.fraction(0.5) / cost))
    n_sufficient = defaults.sufficient_draws_per_parameter * config.posterior.n_dims
    min_draws = -(-n_sufficient // n_chains)
    n_draws = min(max(n_affordable, min_draws), max_draws)
    with part_of_progress(0.2, 1.0):
        return refine_evidence(
            posterior,
            evidence,
            _make_mode_sampler(config, n_draws, generator),
            n_chains=n_chains,
            seed=config.seeds.refinement,
            budget=budget,
        )


def _make_mode_sampler(
    config: SamplingConfig, n_draws: int, generator: torch.Generator
) -> ModeSampler:
    """Sampler of chains that are restarted in a mode."""
    defaults = config.defaults
    posterior = config.posterior
    n_warmup = min(defaults.mode_warmup, max(config.n_warmup, defaults.min_mode_warmup))
    settings = ChainSettings(
        n_warmup,
        n_draws,
        thin=defaults.mode_thinning * config.thinning,
        block_size=config.block_size,
        n_jobs=config.n_jobs,
    )
    return ModeSampler(posterior, config.model.group, settings, posterior.data.x, generator)


def evidence_warnings(evidence: ModeEvidence, n_dims: int, defaults: SamplingDefaults) -> list[str]:
    """List the reasons not to trust the estimated evidence.

    Parameters
    ----------
    evidence : ModeEvidence
        Modes and their evidence.
    n_dims : int
        Number of parameters D.
    defaults : SamplingDefaults
        Limit on the standard error.

    Returns
    -------
    list of str
    """
    standard_error = evidence.summary.log_evidence_standard_error
    highest = int(mean_log_density_by_mode(evidence.pool, evidence.modes).argmax())
    n_draws = int(evidence.modes.counts[highest])
    if n_draws < MIN_DRAWS_PER_DIM * n_dims:
        return [
            f"{n_draws} draws of {n_dims} parameters in the highest mode, fewer than "
            f"{MIN_DRAWS_PER_DIM} a parameter: raise n_draws or n_chains, or use a smaller network"
        ]
    if not standard_error <= defaults.max_standard_error:  # True for nan
        return [f"its standard error is {standard_error:.2g} nats: raise n_draws"]
    return []


def robust_weights(evidence: ModeEvidence, defaults: SamplingDefaults) -> Tensor | None:
    """Weights of the modes if the uncertainty of their evidence can't change them.

    Parameters
    ----------
    evidence : ModeEvidence
        Modes and their evidence.
    defaults : SamplingDefaults
        Limit on the change of a weight.

    Returns
    -------
    Tensor of shape (K,) or None
        A mode that lies far above all others has all the weight, even if its evidence is unknown.
        Otherwise None if the evidence of a relevant mode is unknown, or if some weight changes by
        more than a tenth when the log evidence of one mode changes by its standard error.
    """
    is_relevant = select_relevant_modes(evidence.pool, evidence.modes)
    if int(is_relevant.sum()) == 1:
        return is_relevant.double()
    weights = evidence.summary.weights
    standard_errors = [estimate.standard_error for estimate in evidence.estimates]
    errors = torch.tensor(standard_errors, dtype=torch.float64)
    if not bool((errors.isfinite() | ~is_relevant).all()):
        return None
    shifts = torch.diag(errors.nan_to_num(0.0))
    for sign in (1.0, -1.0):
        shifted = (weights.log() + sign * shifts).softmax(-1)
        if float((shifted - weights).abs().max()) > defaults.max_weight_change:
            return None
    return weights


def _chain_proportions(evidence: ModeEvidence, n_initial_chains: int) -> Tensor:
    """Fraction of the chains that found each relevant mode, (K,).

    If no initial chain stayed in a relevant mode, draws are counted instead of chains, including
    those of the chains that refined the evidence.
    """
    is_relevant = select_relevant_modes(evidence.pool, evidence.modes)
    modes = assign_chains(evidence, n_initial_chains)
    if not bool(is_relevant[modes].any()):
        modes = evidence.modes.labels
    counts = torch.bincount(modes, minlength=len(is_relevant)).double() * is_relevant
    return counts / counts.sum()


def _restart_chains(
    config: SamplingConfig,
    evidence: ModeEvidence,
    proportions: Tensor,
    generator: torch.Generator,
    budget: ComputeBudget,
) -> PosteriorDraws:
    """Restart chains in the modes.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    evidence : ModeEvidence
        Modes and their evidence.
    proportions : Tensor of shape (K,)
        Weight of each mode, in proportion to which chains are allocated.
    generator : torch.Generator
        Random stream of the starting points.
    budget : ComputeBudget
        Limits the thinning and the length of trajectories.

    Returns
    -------
    PosteriorDraws
        Draws of the restarted chains. Each mode's weight is divided equally among its chains.
    """
    n_chains = config.n_chains
    counts = apportion_chains(proportions, n_chains)
    used_modes = counts.nonzero().flatten().tolist()
    sampler = _make_mode_sampler(config, config.n_draws, generator)
    n_moves = sampler.settings.n_draws * sampler.settings.thin

    # Run the chains of one mode after the other, until sampling is stopped.
    positions = []
    log_densities = []
    chain_modes = []
    stopped: StopReason = "max_iter"
    seeds = spawn_seeds(config.seeds.reallocation, len(used_modes))
    for mode, seed in zip(used_modes, seeds, strict=True):
        n_in_mode = int(counts[mode])
        n_blocks = -(-n_in_mode // config.block_size)
        fraction = n_in_mode / n_chains
        progress = config.defaults.reallocation_progress * n_in_mode / n_chains
        chains = sampler.sample_mode(
            evidence,
            mode,
            n_in_mode,
            seed=seed,
            budget=config.make_budget(budget.fraction(fraction)),
            on_step=config.progress.stage_callback(progress, n_blocks * n_moves),
        )
        position, log_density = collect_draws(chains)
        positions.append(position)
        log_densities.append(log_density)
        chain_modes.append(np.full(len(position), mode))
        stopped = chains.stopped
        if not chains.complete:
            break

    # Cut all chains to the same number of draws.
    n_draws = min(position.shape[1] for position in positions)
    chain_mode = np.concatenate(chain_modes)
    weight = proportions.numpy()[chain_mode] / np.bincount(chain_mode)[chain_mode]
    return PosteriorDraws(
        np.concatenate([position[:, :n_draws] for position in positions]),
        np.concatenate([log_density[:, :n_draws] for log_density in log_densities]),
        weight / weight.sum(),
        stopped,
        chain_modes=chain_mode,
    )


def assign_chains(evidence: ModeEvidence, n_initial_chains: int) -> Tensor:
    """Mode in which each initial chain spent most of its draws, int64 (n_initial_chains,)."""
    is_initial = evidence.pool.chains < n_initial_chains  # these chains come first in the pool
    visits = torch.zeros(n_initial_chains, evidence.modes.regions.n_modes)
    index = (evidence.pool.chains[is_initial], evidence.modes.labels[is_initial])
    return visits.index_put_(index, torch.ones(()), accumulate=True).argmax(dim=1)


def list_modes(
    evidence: ModeEvidence, n_initial_chains: int, chain_modes: Array | None, offset: float
) -> list[Mode]:
    """Describe the modes, ordered by evidence and then by mean log density.

    Parameters
    ----------
    evidence : ModeEvidence
        Modes and their evidence.
    n_initial_chains : int
        Number of initial chains, which come first in the pool of draws.
    chain_modes : ndarray of shape (C,) or None
        Mode of each chain that is kept; by default the initial chains are kept.
    offset : float
        Log Jacobian that converts log densities of scaled targets to those of the original
        targets, in nats.

    Returns
    -------
    list of Mode
    """
    final_mode = assign_chains(evidence, n_initial_chains).numpy()
    if chain_modes is None:
        chain_modes = final_mode
    modes = []
    for k, estimate in enumerate(evidence.estimates):
        values = evidence.pool.values[evidence.modes.labels == k]
        modes.append(
            Mode(
                weight=float(evidence.summary.weights[k]),
                log_evidence=estimate.log_evidence + offset,
                std_error=estimate.standard_error,
                chains=np.flatnonzero(chain_modes == k),
                n_initial_chains=int((final_mode == k).sum()),
                mean_log_posterior=float(values.mean()) + offset,
            )
        )

    def sort_key(mode: Mode) -> tuple[float, float]:
        return float(np.nan_to_num(mode.log_evidence, nan=-np.inf)), mode.mean_log_posterior

    return sorted(modes, key=sort_key, reverse=True)
