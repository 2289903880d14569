"""How chains mixed, what can't be trusted; modes weighed by evidence, and new chains in them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.rows import Array
from skbayes_sym.mcmc.bridge import MIN_DRAWS_PER_DIM, can_bridge
from skbayes_sym.mcmc.chains import ChainDraws
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.initialization import Draws, Explored, drawn_on, made
from skbayes_sym.mcmc.mode_evidence import (
    ModeWeighting,
    contending,
    largest_remainders,
    mean_log_density_by_mode,
    pool_draws,
    weigh,
)
from skbayes_sym.mcmc.within_mode import Allowance, ModeRun, ModeSampler, refine
from skbayes_sym.numerics.diagnostics import bulk_ess, rank_rhat
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.fundamental_domain import MAX_ORDER
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import split_units


def diagnose(
    setting: SamplingConfig, explored: Explored, draws: Draws, samples: Array
) -> dict[str, Any]:
    """Figures on mixing, before and after symmetries were removed and chains allocated.

    ``draws`` are those that are kept, ``samples`` (C, S, P) their weights on one representative of
    their orbits.
    """
    before = explored.draws.position
    weights = draws.chain_weights
    effort = setting.effort
    warmup = explored.chains.warmup
    sampling = explored.chains.sampling
    functions = evaluate_functions(setting, draws.position)
    return {
        "function_rhat": rank_rhat(functions, weights),
        "function_ess": bulk_ess(functions, weights),
        "function_rhat_before": rank_rhat(evaluate_functions(setting, before)),
        "parameter_rhat": rank_rhat(samples, weights),
        "parameter_ess": bulk_ess(samples, weights),
        "parameter_rhat_before": rank_rhat(before),
        "parameter_ess_before": bulk_ess(before),
        "function_rhat_within": _typical(rank_rhat, functions),
        "function_ess_within": _typical(bulk_ess, functions),
        "unseen_basin": 1.0 - effort.missed ** (1.0 / len(explored.draws.position)),
        "n_divergent": sampling.n_divergent.numpy(),
        "acceptance": sampling.mean_acceptance.numpy(),
        "stuck": explored.chains.stuck & (sampling.n_moves.numpy() >= effort.telling_moves),
        "energy_error": sampling.energy_error.numpy(),
        "n_gradients": (warmup.n_gradients + sampling.n_gradients).numpy(),
    }


def _typical(statistic: Callable[[Array], Array], functions: Array) -> Array:
    """Statistic of every chain alone, the median over functions (C, S, Q) -> (C,)."""
    n_chains, n_draws, _ = functions.shape
    each = statistic(functions.swapaxes(0, 1).reshape(1, n_draws, -1)).reshape(n_chains, -1)
    defined = np.isfinite(each).any(1)
    typical = np.full(n_chains, np.nan)
    typical[defined] = np.nanmedian(each[defined], axis=1)
    return typical


def evaluate_functions(setting: SamplingConfig, draws: Array) -> Array:
    """Outputs at some training rows, and the log noise, of draws (C, S, D): (C, S, Q)."""
    x = setting.data.data.x.cpu()
    network = setting.model.network
    n_rows = min(len(x), setting.effort.diagnosed_rows)
    rows = np.unique(np.linspace(0, len(x) - 1, n_rows).astype(int))
    position = torch.as_tensor(draws)
    n_params = network.layout.n_params
    x = x[rows].to(position)
    forward = network.forward  # one chain at a time: hidden units take more than outputs
    outputs = torch.stack([forward(chain, x).flatten(1) for chain in position[..., :n_params]])
    return np.concatenate([outputs.numpy(), draws[..., n_params:]], axis=-1)


def evidence_obstacles(
    group: SymmetryGroup, chains: ChainDraws, effort: SamplingDefaults
) -> list[str]:
    """Reasons not to try for an evidence; none if there are none."""
    problems = []
    _, others = split_units(group)
    if others:
        named = " and ".join(type(factor).__name__ for factor in others)
        problems.append(
            f"the network's symmetry has a factor that isn't made of exchangeable units ({named}), "
            "whose copies of a mode bridge sampling doesn't know how to count"
        )
    elif not can_bridge(group):
        problems.append(
            f"the symmetry group of several hidden layers has e^{group.log_order:.1f} elements, "
            f"more than the {MAX_ORDER:,} that can be summed over: use one layer, or narrower ones"
        )
    if chains.stuck.mean() > effort.most_stuck:
        problems.append(
            f"{chains.stuck.sum()} of {len(chains.stuck)} chains never moved: raise n_warmup"
        )
    return problems


def decided_weights(weighing: ModeWeighting, effort: SamplingDefaults) -> Tensor | None:
    """Weights of the modes that no doubt about their evidence changes, (K,); None if some does.

    A mode that all others are too low to compete with has all the weight, whether or not its
    evidence is known. Otherwise the evidences must be known well enough: if any one of them were
    wrong by its own error, no weight would change by more than a tenth.
    """
    may_matter = contending(weighing.pool, weighing.modes)
    if int(may_matter.sum()) == 1:
        return may_matter.double()
    weights = weighing.weights.weights
    others = ~may_matter
    errors = torch.tensor([e.standard_error for e in weighing.estimates], dtype=torch.float64)
    if not bool((errors.isfinite() | others).all()):
        return None  # one that may matter is unknown
    doubt = errors.nan_to_num(0.0)
    for sign in (1.0, -1.0):
        moved = (weights.log() + torch.diag(sign * doubt)).softmax(-1)
        if float((moved - weights).abs().max()) > effort.most_moved:
            return None
    return weights


def evidence_warnings(weighing: ModeWeighting, n_dims: int, effort: SamplingDefaults) -> list[str]:
    """Reasons not to trust the evidence; none if there are none."""
    error = weighing.weights.log_evidence_standard_error
    highest = int(mean_log_density_by_mode(weighing.pool, weighing.modes).argmax())
    n_draws = int(weighing.modes.counts[highest])
    if n_draws < MIN_DRAWS_PER_DIM * n_dims:
        return [
            f"{n_draws} draws of {n_dims} parameters in the highest mode, fewer than "
            f"{MIN_DRAWS_PER_DIM} a parameter: raise n_draws or n_chains, or use a smaller network"
        ]
    if not error <= effort.most_error:
        return [f"its standard error is {error:.2g} nats: raise n_draws"]
    return []


def chain_warnings(acceptance: Array, rhat_within: Array, effort: SamplingDefaults) -> list[str]:
    """Warnings of annealed chains that shouldn't be believed, by number, each with its figure."""

    def named(chosen: Array, figures: Array) -> str:
        each = ", ".join(f"{i} ({figures[i]:.2f})" for i in np.flatnonzero(chosen))
        return f"of {len(chosen)} chains number {each}"

    warnings = []
    least = effort.least_accepted
    slow = acceptance < least  # False for nan
    if slow.any():
        warnings.append(
            f"{named(slow, acceptance)} accepted fewer than {least:.0%} of the proposals: where it "
            "is now its steps are too long, so don't believe its draws. Raise n_warmup."
        )
    moving = rhat_within > effort.most_rhat
    if moving.any():
        warnings.append(
            f"{named(moving, rhat_within)} (R-hat of its own functions) was still on its way: "
            "don't believe its draws. Raise n_warmup or n_draws."
        )
    return warnings


def no_evidence(problems: tuple[str, ...], *, decided: bool, shared: bool = False) -> list[str]:
    """Warning of what is missing, if anything is.

    Whether the modes' weights are ``decided``; if not, whether those that may matter have
    ``shared`` the chains among them.
    """
    votes = (
        "the modes that may matter get chains in proportion to how many chains found each."
        if shared
        else "every chain has one vote, which weighs modes by where chains start "
        "(ModeWeights('uniform') asks for that)."
    )
    if problems:
        kept = "the modes keep their weights, which no such doubt could change."
        return [
            f"the evidence can't be trusted: {'; '.join(problems)}. So log_evidence_ is nan and "
            + (kept if decided else votes)
        ]
    if decided:
        return []
    return [f"the modes' evidences are too uncertain to weigh them: raise n_draws. So {votes}"]


def disagreement(setting: SamplingConfig, kept: Array, members: list[Array]) -> list[str]:
    """Warnings of modes whose own chains tell different functions: there are several in them."""
    values = evaluate_functions(setting, kept)
    warnings = []
    for i, chains in enumerate(members):
        worst = np.nanmax(rank_rhat(values[chains]), initial=1.0) if len(chains) > 1 else 1.0
        if worst > setting.effort.most_rhat:
            warnings.append(
                f"the chains of mode {i} disagree (function-space R-hat {worst:.2f}): it may be "
                "several modes, weighed by where their chains started. Raise n_draws or thinning."
            )
    return warnings


class Allocation(NamedTuple):
    """The draws that count, and the modes they were allocated by."""

    draws: Draws
    weighing: ModeWeighting | None = None  # None where modes weren't weighed
    problems: tuple[str, ...] = ()  # why the evidence can't be trusted
    decided: bool = False  # whether the modes' weights are, even so

    @property
    def is_trusted(self) -> bool:
        """Whether there is an evidence to trust."""
        return self.weighing is not None and not self.problems


class Mode(NamedTuple):
    """A mode of the posterior modulo its symmetry."""

    weight: float  # posterior mass, of all modes found; nan where it couldn't be decided
    log_evidence: float  # log of its part of p(y | X), all symmetric copies counted, nats
    std_error: float  # of log_evidence, nats
    members: Array  # its chains in samples_
    n_explorers: int  # chains that ended there on their own
    mean_log_posterior: float  # over its draws, nats


def allocate_chains(setting: SamplingConfig, explored: Explored) -> Allocation:
    """Draws weighed by evidence; the explored ones, and why, where that can't be had."""
    draws = explored.draws
    effort = setting.effort
    if draws.stopped != "max_iter" or not setting.weighs:
        return Allocation(draws)
    problems = tuple(evidence_obstacles(setting.model.group, explored.chains, effort))
    if problems:
        return Allocation(drawn_on(setting, explored), problems=problems)
    generator = generator_from(setting.seeds.modes)
    (allowance, rest) = evidence_budget(setting, explored)
    try:
        weighing = _weigh(setting, explored, generator, allowance)
        problems = tuple(evidence_warnings(weighing, setting.posterior.n_dims, effort))
        weights = decided_weights(weighing, effort)
        shares = weights
        decided = weights is not None
        if weights is None or shares is None:
            may_matter = contending(weighing.pool, weighing.modes)
            weights = torch.where(may_matter, torch.nan, 0.0)
            # Votes of the chains that found each; where no exploring chain stayed in any that may
            # matter, of the draws of those that were to refine a mode.
            homes = final_modes(weighing, len(explored.draws.position))
            if not bool(may_matter[homes].any()):
                homes = weighing.modes.labels
            votes = torch.bincount(homes, minlength=len(may_matter)).double() * may_matter
            shares = votes / votes.sum()
        weighing = weighing._replace(weights=weighing.weights._replace(weights=weights))
        allowance.left += rest
        new = _refreshed(setting, weighing, shares, generator, allowance)
        return Allocation(new, weighing, problems, decided)
    except KeyboardInterrupt:
        return Allocation(draws._replace(stopped="interrupted"))


def _weigh(
    setting: SamplingConfig, explored: Explored, generator: torch.Generator, allowance: Allowance
) -> ModeWeighting:
    """Modes and their evidence, with more draws from modes that have too few."""
    reference = setting.reference
    group = setting.model.group
    effort = setting.effort
    n_dims = setting.posterior.n_dims
    n_chains = effort.refining_chains
    position, value = map(torch.as_tensor, (explored.draws.position, explored.draws.value))
    pool = pool_draws(position, value, group, generator=generator)
    weighing = weigh(reference, pool, group, generator=generator)
    allowance.left -= effort.evaluations * len(pool.draws) * allowance.per_gradient / 3.0
    # Fewer draws where two modes couldn't have all, as long as they are enough to be bridged.
    most = effort.refining_draws
    sampler = _mode_sampler(setting, most, generator)
    fewest = -(-effort.enough_draws * n_dims // n_chains)
    n = int(most * min(1.0, allowance.part(0.5) / allowance.work(sampler.plan.n_calls, n_chains)))
    sampler = _mode_sampler(setting, min(max(n, fewest), most), generator)
    return refine(
        reference, weighing, sampler, n_chains=n_chains, seed=setting.seeds.refine,
        allowance=allowance,
    )  # fmt: skip


def _mode_sampler(setting: SamplingConfig, n_draws: int, generator: torch.Generator) -> ModeSampler:
    effort = setting.effort
    posterior = setting.posterior
    n_warmup = min(effort.refresh_warmup, max(setting.n_warmup, effort.least_warmup))
    thin = effort.refresh_thin * setting.thinning
    run = ModeRun(n_warmup, n_draws, thin, setting.block_size, setting.n_jobs)
    return ModeSampler(posterior, setting.model.group, run, posterior.data.x, generator)


def _refreshed(
    setting: SamplingConfig, weighing: ModeWeighting, shares: Tensor, generator: torch.Generator,
    allowance: Allowance,
) -> Draws:  # fmt: skip
    """New chains in the modes, as many as their shares (K,) say, as far as ``allowance`` goes."""
    n_chains = setting.n_chains
    counts = largest_remainders(shares, n_chains)
    used = counts.nonzero().flatten().tolist()
    sample = _mode_sampler(setting, setting.n_draws, generator)
    n_moves = sample.plan.n_draws * sample.plan.thin
    parts = []
    homes = []
    stopped: StopReason = "max_iter"
    for k, seed in zip(used, spawn_seeds(setting.seeds.refresh, len(used)), strict=True):
        n = int(counts[k])
        n_blocks = -(-int(counts[k]) // setting.block_size)
        on_step = setting.progress.stage_callback(
            setting.effort.refreshing * n / n_chains, n_blocks * n_moves
        )
        share = setting.allowance(allowance.part(n / n_chains))
        chains = sample(weighing, k, n, seed=seed, allowance=share, on_step=on_step)
        parts.append(made(chains))
        homes.append(np.full(len(parts[-1][0]), k))
        stopped = chains.stopped
        if not chains.complete:
            break
    n_draws = min(p[0].shape[1] for p in parts)
    home = np.concatenate(homes)
    position, value = (np.concatenate([p[i][:, :n_draws] for p in parts]) for i in (0, 1))
    weight = shares.numpy()[home] / np.bincount(home)[home]
    return Draws(position, value, weight / weight.sum(), stopped, home)


def final_modes(weighing: ModeWeighting, n_explorers: int) -> Tensor:
    """The mode in which each explorer spent most of its draws, int64 (n_explorers,)."""
    explored = weighing.pool.chains < n_explorers
    table = torch.zeros(n_explorers, weighing.modes.regions.n_modes)
    visits = weighing.pool.chains[explored], weighing.modes.labels[explored]
    return table.index_put_(visits, torch.ones(()), accumulate=True).argmax(dim=1)


def list_modes(
    weighing: ModeWeighting,
    n_explorers: int,  # chains that explored; they come first in the pool
    home: Array | None,  # (C,): the mode of each chain that is kept; by default the explorers are
    offset: float,  # turns log densities of scaled targets into those of targets as given, nats
) -> list[Mode]:
    """The modes, the largest evidence first, and then the highest."""
    pool = weighing.pool
    modes = weighing.modes
    ended = final_modes(weighing, n_explorers).numpy()
    kept = ended if home is None else home
    listed = []
    for k, estimate in enumerate(weighing.estimates):
        here = modes.labels == k
        listed.append(
            Mode(
                float(weighing.weights.weights[k]), estimate.log_evidence + offset,
                estimate.standard_error, np.flatnonzero(kept == k), int((ended == k).sum()),
                float(pool.values[here].mean()) + offset,
            )
        )  # fmt: skip

    def height(mode: Mode) -> tuple[float, float]:
        return float(np.nan_to_num(mode.log_evidence, nan=-np.inf)), mode.mean_log_posterior

    return sorted(listed, key=height, reverse=True)


def evidence_budget(setting: SamplingConfig, explored: Explored) -> tuple[Allowance, float]:
    """Work left to the evidence, and multiplications left to new chains beside what it leaves.

    For the evidence at most ``effort`` times what was asked for: half of what is left of all
    that a fit may cost, or all but new chains' draws if that is more.
    """
    ledger = setting.allowance()
    cost = setting.evidence.effort
    chains = explored.chains
    n_gradients = chains.warmup.n_gradients + chains.sampling.n_gradients
    n_moves = chains.warmup.n_moves + chains.sampling.n_moves
    work = ledger.move_cost(n_gradients, n_moves, setting.block_size)
    wanted = setting.n_warmup + setting.n_draws * setting.thinning
    asked = work * wanted / (setting.n_warmup + chains.draws.shape[1] * setting.thinning)
    rest = (1.0 + cost) * asked - work
    ledger.left = min(cost * asked, max(0.5 * rest, rest - asked))
    return ledger, rest - ledger.left
