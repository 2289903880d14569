"""The recipe of sampling: chains and particles, modes and their mass, draws that count."""

import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skbayes_sym.estimators._base import FitContext, Fitted, logger
from skbayes_sym.estimators._data import Array, Scaling
from skbayes_sym.estimators._kept_chains import as_arrays, as_tensors
from skbayes_sym.estimators._mcmc_report import (
    Mode,
    diagnose,
    disagreement,
    list_modes,
    parameter_figures,
    why_not,
)
from skbayes_sym.estimators._progress import Progress
from skbayes_sym.inference.bridge import can_bridge
from skbayes_sym.inference.chain_bound import n_chains_required
from skbayes_sym.inference.mcmc.adaptation import PooledDiagonal
from skbayes_sym.inference.mcmc.base import Kernel, initial_state
from skbayes_sym.inference.mcmc.blocks import Block, Sampler
from skbayes_sym.inference.mcmc.chains import ChainDraws, sample_chains, start_blocks
from skbayes_sym.inference.mcmc.hmc import HMC
from skbayes_sym.inference.mcmc.islands import run_islands
from skbayes_sym.inference.mcmc.nuts import NUTS
from skbayes_sym.inference.mcmc.smc_stages import SMCSettings
from skbayes_sym.inference.mlp_posterior import MLPPosterior
from skbayes_sym.inference.mode_sampling import (
    ModeRun,
    ModeSampler,
    Weighing,
    pool_draws,
    refine,
    share_out,
    weigh,
)
from skbayes_sym.inference.variational import Data
from skbayes_sym.models.activations import ACTIVATIONS
from skbayes_sym.models.likelihoods import BatchedLikelihood
from skbayes_sym.models.networks import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.base import check_invariant
from skbayes_sym.symmetry.relabelling import relabel

# "auto" chains: three modes, the rarest in the reach of 8 % of the starts (Wiese et al. 2023).
_AUTO_MODES, _AUTO_PROBABILITY = (0.57, 0.35, 0.08), 0.99

# Chains of a block. On small problems a call costs the same for 64 chains as for 256; on others
# blocks are what several processes share. Either way the size depends on the problem alone.
_SMALL_BYTES, _SMALL_BLOCK, _BLOCK = 4096, 256, 64

_LEAST_NOISE = 0.3  # at the start, in units of the target's spread: tighter noise is a steep wall
_KERNELS: dict[str, Kernel] = {"hmc": HMC(), "nuts": NUTS()}

# Chains restarted in their mode: moves are cheap there (a few gradients), so draws are spaced.
_REFRESH_WARMUP, _REFRESH_THIN = 100, 4

# Draws of exploring chains that are weighed by evidence: only the bridge uses them.
_MOST_EXPLORED = 50

# Chains that make more draws in a mode whose evidence is poorly known.
_REFINING_CHAINS, _REFINING_DRAWS = 32, 50

_ISLAND_MOVES = 4  # a stage: islands look for modes, their weights come from elsewhere

_EXPLORING, _ISLANDS, _REFRESHING = 0.7, 0.15, 0.15  # shares of the progress reported

CONSTRAINTS: dict[str, list[Any]] = {
    "hidden_layer_sizes": ["array-like", Interval(Integral, 1, None, closed="left")],
    "activation": [StrOptions(set(ACTIVATIONS))],
    "sampler": [StrOptions({"hmc", "smc", "nuts"})],
    "n_chains": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "n_warmup": [Interval(Integral, 0, None, closed="left")],
    "n_draws": [Interval(Integral, 1, None, closed="left")],
    "thinning": [Interval(Integral, 1, None, closed="left")],
    "remove_symmetries": ["boolean"],
    "mode_weights": [StrOptions({"evidence", "chains"})],
    "n_islands": [Interval(Integral, 0, None, closed="left")],
    "n_particles": [Interval(Integral, 2, None, closed="left")],
    "prior_scale": [Interval(Real, 0, None, closed="neither"), "array-like"],
    "standardize": ["boolean"],
    "warm_start": ["boolean"],
    "n_jobs": [Integral, None],
    "device": [str],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
}


class Model(NamedTuple):
    """The recipe's ingredients, fixed before the first move."""

    network: MLP
    prior: GaussianPrior
    likelihood: BatchedLikelihood
    noise_prior_scale: float = 1.0
    y_scaling: Scaling | None = None


class _Seeds(NamedTuple):
    """One seed a purpose."""

    start: int
    chains: int
    islands: int
    modes: int
    refine: int
    refresh: int
    labels: int


class _Draws(NamedTuple):
    """Draws to predict with."""

    position: Array  # (C, S, D)
    value: Array  # (C, S), log density, nats
    chain_weights: Array  # (C,)
    stopped: str  # "complete", "on_step" or "interrupted"
    home: Array | None = None  # (C,), the mode that each chain was started in


class _Setting(NamedTuple):
    """What every stage of a fit needs."""

    estimator: Any
    context: FitContext
    model: Model
    posterior: MLPPosterior
    seeds: _Seeds
    progress: Progress

    @property
    def n_chains(self) -> int:
        """``n_chains``, "auto" resolved."""
        if self.estimator.n_chains == "auto":
            return n_chains_required(_AUTO_MODES, probability=_AUTO_PROBABILITY)
        return int(self.estimator.n_chains)

    @property
    def block_size(self) -> int:
        """Chains that run together."""
        if self.context.device.type != "cpu":
            return self.n_chains
        data, network = self.posterior.data, self.model.network
        row_bytes = len(data.x) * max(network.sizes[1:]) * data.x.element_size()
        return _SMALL_BLOCK if row_bytes <= _SMALL_BYTES else _BLOCK

    def reference(self) -> MLPPosterior:
        """The posterior in float64 on the CPU, where evidences are computed."""
        data = Data(*(_reference_tensor(t) for t in self.posterior.data))
        return MLPPosterior(
            self.model.network, self.model.likelihood, self.model.prior, data,
            self.model.noise_prior_scale,
        )  # fmt: skip


def _reference_tensor(tensor: Tensor) -> Tensor:
    tensor = tensor.cpu()
    return tensor.double() if tensor.is_floating_point() else tensor


def fit_mcmc(estimator: Any, context: FitContext, model: Model) -> Fitted:
    """Explore, weigh what was found, and draw from it."""
    setting = _open(estimator, context, model)
    with torch.no_grad():
        explored, blocks = _explore(setting)
        draws, weighing, problems = _share_out_chains(setting, explored)
        attributes = {
            **_prediction_attributes(setting, draws, blocks),
            **_findings(setting, explored, draws, weighing, problems),
            "n_iter_": _n_iter(explored),
        }
        attributes["diagnostics_"].update(
            parameter_figures(attributes["samples_"], draws.chain_weights)
        )
    setting.progress.end(lambda: attributes)
    _warn(problems, attributes, shared_out=draws.home is not None)
    stop_reason = {"complete": "max_iter", "on_step": "callback"}.get(draws.stopped, draws.stopped)
    return Fitted(attributes, stop_reason)


def _open(estimator: Any, context: FitContext, model: Model) -> _Setting:
    rows = context.rows
    data = Data(
        context.tensor(context.x_scaling.apply(rows.X)),
        context.tensor(rows.y if model.y_scaling is None else model.y_scaling.apply(rows.y)),
        context.tensor(rows.weight),
    )
    posterior = MLPPosterior(
        model.network, model.likelihood, model.prior, data, model.noise_prior_scale
    )
    if estimator.remove_symmetries:
        check_invariant(
            model.network.symmetry(), model.prior.log_prob, model.network.layout,
            what="prior_scale",
            remedy="Give all units of a layer the same scale, or use remove_symmetries=False.",
        )  # fmt: skip
    seeds = _Seeds(*spawn_seeds(context.seed, len(_Seeds._fields)))
    return _Setting(estimator, context, model, posterior, seeds, Progress(context))


# --- exploration ----------------------------------------------------------------------------------


class Explored(NamedTuple):
    """What chains and particles found."""

    chains: ChainDraws | None  # None if only particles explored
    islands: list[Any]  # SMCResult
    draws: _Draws  # one vote a chain, or an island
    starts: int  # how many independent ones


def _explore(setting: _Setting) -> tuple[Explored, list[Block]]:
    estimator = setting.estimator
    chains, blocks, stopped = None, [], "complete"
    if estimator.sampler != "smc":
        chains = _run_chains(setting)
        blocks, stopped = chains.blocks, chains.stopped
    elif not estimator.n_islands:
        raise ValueError("sampler='smc' explores by islands: n_islands must be at least 1, got 0.")
    islands: list[Any] = []
    if stopped == "complete" and (chains is None or _weighs_by_evidence(estimator)):
        found = run_islands(
            setting.posterior, setting.model.network.symmetry(), setting.posterior.kinds,
            SMCSettings(n_particles=estimator.n_particles, n_moves=_ISLAND_MOVES),
            n_islands=estimator.n_islands, seed=setting.seeds.islands, n_jobs=estimator.n_jobs,
            on_step=setting.progress.phase(_ISLANDS, estimator.n_islands),
        )  # fmt: skip
        islands, stopped = found.islands, found.stopped
    if chains is not None:
        draws = _one_vote_each(*_made(chains), stopped)
    else:
        finished = [i for i in islands if i.stopped == "complete"]
        if not finished:
            raise KeyboardInterrupt
        position = torch.stack([i.particles for i in finished]).cpu()
        value = torch.stack([setting.posterior(i.particles) for i in finished]).cpu()
        draws = _one_vote_each(position.numpy(), value.numpy(), stopped)
    return Explored(chains, islands, draws, len(draws.position)), blocks


def _weighs_by_evidence(estimator: Any) -> bool:
    return estimator.mode_weights == "evidence" and estimator.remove_symmetries


def _one_vote_each(position: Array, value: Array, stopped: str) -> _Draws:
    return _Draws(position, value, np.full(len(position), 1.0 / len(position)), stopped)


def _made(chains: ChainDraws) -> tuple[Array, Array]:
    """The draws that were made, rectangular; without any, where the chains are."""
    if not chains.n_draws.any():
        states = [block.state for block in chains.blocks]
        position = torch.cat([s.position for s in states]).cpu().numpy()
        value = torch.cat([s.value for s in states]).cpu().numpy()
        return position[:, None], value[:, None]
    kept = chains.n_draws > 0
    n = int(chains.n_draws[kept].min())
    return chains.draws[kept, :n], chains.log_density[kept, :n]


def _run_chains(setting: _Setting) -> ChainDraws:
    estimator = setting.estimator
    blocks = _continued(setting) or start_blocks(
        _starts(setting), setting.posterior, block_size=setting.block_size,
        seed=setting.seeds.chains,
    )  # fmt: skip
    n_draws = estimator.n_draws
    if _weighs_by_evidence(estimator):
        n_draws = min(n_draws, _MOST_EXPLORED)
    n_moves = len(blocks) * (estimator.n_warmup + n_draws * estimator.thinning)
    return sample_chains(
        _explorer(setting), blocks,
        n_warmup=estimator.n_warmup, n_draws=n_draws, thin=estimator.thinning,
        n_jobs=estimator.n_jobs, on_step=setting.progress.phase(_EXPLORING, n_moves),
    )  # fmt: skip


def _explorer(setting: _Setting) -> Sampler:
    posterior = setting.posterior
    kernel = _KERNELS[setting.estimator.sampler]
    return Sampler(kernel, posterior, PooledDiagonal(posterior.kinds))


def _drawn_on(setting: _Setting, explored: Explored) -> _Draws:
    """The explored draws, and as many more as were asked for."""
    estimator, draws = setting.estimator, explored.draws
    n_more = estimator.n_draws - draws.position.shape[1]
    if explored.chains is None or n_more <= 0:
        return draws
    more = sample_chains(
        _explorer(setting), explored.chains.blocks, n_warmup=0, n_draws=n_more,
        thin=estimator.thinning, n_jobs=estimator.n_jobs,
        on_step=setting.progress.phase(_REFRESHING, len(explored.chains.blocks) * n_more),
    )  # fmt: skip
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    value = np.concatenate([draws.value, more.log_density], axis=1)
    return draws._replace(position=position, value=value)


def _starts(setting: _Setting) -> Tensor:
    """Draws of the prior, with noise that isn't far too small."""
    generator = generator_from(setting.seeds.start)
    posterior = setting.posterior
    position = posterior.sample_prior(setting.n_chains, generator=generator)
    own = position[:, setting.model.network.layout.n_params :]
    if own.shape[1]:
        spread = posterior.data.y.std(dim=0, correction=0).clamp_min(1e-3)
        own.copy_(torch.maximum(own, (_LEAST_NOISE * spread).log().to(own)))
    return position.to(posterior.data.x)


def _continued(setting: _Setting) -> list[Block] | None:
    """Blocks of the previous fit, on this fit's data."""
    previous = getattr(setting.estimator, "_blocks_", None)
    if not setting.estimator.warm_start or not previous:
        return None
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(b.step_size) for b in previous)
    if n_dims != setting.posterior.n_dims or n_chains != setting.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {setting.n_chains} of {setting.posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    like = setting.posterior.data.x
    return [
        b._replace(state=initial_state(b.state.position, setting.posterior))
        for b in (as_tensors(kept, like) for kept in previous)
    ]


# --- modes, and draws shared out over them --------------------------------------------------------


def _share_out_chains(
    setting: _Setting, explored: Explored
) -> tuple[_Draws, Weighing | None, list[str]]:
    """Draws weighed by evidence; the explored ones, and why, where that can't be had."""
    estimator, draws = setting.estimator, explored.draws
    if draws.stopped != "complete" or not _weighs_by_evidence(estimator):
        return draws, None, []
    group = setting.model.network.symmetry()
    if not can_bridge(group):
        return (
            draws,
            None,
            ["the symmetry group of several wide hidden layers has no exact fundamental domain"],
        )
    generator = generator_from(setting.seeds.modes)
    try:
        weighing = _weigh(setting, explored, generator)
        problems = why_not(weighing, setting.posterior.n_dims, explored.chains)
        if problems:
            return _drawn_on(setting, explored), weighing, problems
        return _refreshed(setting, weighing, generator), weighing, []
    except KeyboardInterrupt:
        return draws._replace(stopped="interrupted"), None, []


def _weigh(setting: _Setting, explored: Explored, generator: torch.Generator) -> Weighing:
    """Modes and their evidence, with more draws from modes that have too few."""
    reference, group = setting.reference(), setting.model.network.symmetry()
    n_dims, chains = setting.posterior.n_dims, explored.chains
    position = explored.draws.position if chains else np.empty((0, 1, n_dims))
    values = explored.draws.value if chains else np.empty((0, 1))
    pool = pool_draws(
        torch.as_tensor(position), torch.as_tensor(values),
        [i.particles for i in explored.islands if i.stopped == "complete"],
        reference, group, generator=generator,
    )  # fmt: skip
    found = weigh(reference, pool, group, generator=generator)
    plan = _mode_run(setting)._replace(n_draws=_REFINING_DRAWS)
    return refine(
        reference, found, group, _mode_sampler(setting, plan, generator),
        n_chains=_REFINING_CHAINS, seed=setting.seeds.refine,
    )  # fmt: skip


def _mode_run(setting: _Setting) -> ModeRun:
    estimator = setting.estimator
    return ModeRun(
        _REFRESH_WARMUP, estimator.n_draws, _REFRESH_THIN * estimator.thinning,
        setting.block_size, estimator.n_jobs,
    )  # fmt: skip


def _mode_sampler(setting: _Setting, plan: ModeRun, generator: torch.Generator) -> ModeSampler:
    posterior = setting.posterior
    return ModeSampler(posterior, posterior.kinds, plan, posterior.data.x, generator)


def _refreshed(setting: _Setting, weighing: Weighing, generator: torch.Generator) -> _Draws:
    """New chains in the modes, as many as their mass asks for."""
    counts = share_out(weighing.weights.weights, setting.n_chains)
    used = counts.nonzero().flatten().tolist()
    plan = _mode_run(setting)
    sample, n_moves = _mode_sampler(setting, plan, generator), plan.n_draws * plan.thin
    parts, homes, stopped = [], [], "complete"
    for k, seed in zip(used, spawn_seeds(setting.seeds.refresh, len(used)), strict=True):
        n, n_blocks = int(counts[k]), -(-int(counts[k]) // plan.block_size)
        on_step = setting.progress.phase(_REFRESHING * n / setting.n_chains, n_blocks * n_moves)
        found = sample(weighing, k, n, seed=seed, on_step=on_step)
        parts.append(_made(found))
        homes.append(np.full(len(parts[-1][0]), k))
        stopped = found.stopped
        if stopped != "complete":
            break
    n_draws, home = min(p[0].shape[1] for p in parts), np.concatenate(homes)
    weight = weighing.weights.weights.numpy()[home] / np.bincount(home)[home]
    return _Draws(
        np.concatenate([p[0][:, :n_draws] for p in parts]),
        np.concatenate([p[1][:, :n_draws] for p in parts]),
        weight / weight.sum(),
        stopped,
        home,
    )


# --- what is kept ---------------------------------------------------------------------------------


def _prediction_attributes(setting: _Setting, draws: _Draws, blocks: list[Block]) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays, and what a warm start needs."""
    context, model = setting.context, setting.model
    theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
    attributes = {
        "samples_": _on_reference_set(setting, theta),
        "chain_weights_": draws.chain_weights,
        "log_posterior_samples_": draws.value.astype(np.float64) + _offset(setting),
        "network_": model.network,
        "x_mean_": context.x_scaling.mean,
        "x_scale_": context.x_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_blocks_": [as_arrays(block) for block in blocks],
        "_training_data_": tuple(t.cpu().numpy() for t in setting.posterior.data),
        "_cache": {},
    }
    if model.y_scaling is not None:
        attributes["noise_std_samples_"] = noise_std.double().numpy() * model.y_scaling.scale
        attributes["y_mean_"], attributes["y_scale_"] = model.y_scaling
    return attributes


def _on_reference_set(setting: _Setting, theta: Tensor) -> Array:
    """One representative of every draw's orbit."""
    group = setting.model.network.symmetry()
    flat = theta.flatten(0, 1)
    if not setting.estimator.remove_symmetries or not group.factors or len(flat) < 2:
        return np.asarray(theta.numpy())
    aligned = relabel(
        flat.double(), [f.index for f in group.factors],
        signed=setting.model.network.activation.is_odd, n_starts=4, max_sweeps=100,
        generator=generator_from(setting.seeds.labels),
    ).theta  # fmt: skip
    return np.asarray(aligned.to(theta.dtype).reshape(theta.shape).numpy())


def _offset(setting: _Setting) -> float:
    """Turns log densities of scaled targets into those of the targets as given, nats."""
    scaling = setting.model.y_scaling
    if scaling is None:
        return 0.0
    return -float(setting.context.rows.weight.sum() * np.log(scaling.scale).sum())


def _findings(
    setting: _Setting,
    explored: Explored,
    draws: _Draws,
    weighing: Weighing | None,
    problems: list[str],
) -> dict[str, Any]:
    """Modes, evidence and diagnostics."""
    trusted = weighing is not None and not problems
    offset = _offset(setting)
    modes: list[Mode] = []
    if weighing is not None:
        n_explorers = explored.starts if explored.chains else 0
        modes = list_modes(weighing, n_explorers, draws.home, offset, trusted)
    found = diagnose(
        setting.posterior, explored.chains, explored.draws.position, draws.position,
        draws.chain_weights, explored.starts,
    )  # fmt: skip
    if draws.home is not None:
        found.warnings += disagreement(setting.posterior, draws.position, modes)
    log_z = weighing.weights if trusted and weighing is not None else None
    return {
        "modes_": modes,
        "log_evidence_": log_z.log_evidence + offset if log_z else float("nan"),
        "log_evidence_std_error_": log_z.log_evidence_std_error if log_z else float("nan"),
        "diagnostics_": found,
    }


def _n_iter(explored: Explored) -> int:
    if explored.chains is None:
        return max((len(i.stages) for i in explored.islands), default=0)
    tally = explored.chains.warmup.n_moves + explored.chains.sampling.n_moves
    return int(tally.max())


def _warn(problems: list[str], attributes: Mapping[str, Any], *, shared_out: bool) -> None:
    """Say what can't be trusted."""
    found = attributes["diagnostics_"]
    logger.info(
        "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
        attributes["log_evidence_"], attributes["log_evidence_std_error_"],
        len(attributes["modes_"]), np.nanmax(found.function_rhat, initial=1.0),
    )  # fmt: skip
    if problems:
        found.warnings.append(
            "the evidence can't be trusted (" + "; ".join(problems) + "): log_evidence_ is nan and "
            "every chain has one vote, which weighs modes by where chains start. Use a smaller "
            "network (one hidden layer), more draws, or ask for this by mode_weights='chains'."
        )
    stuck = int(found.stuck.sum())
    if stuck and not shared_out:  # shared-out chains started anew
        found.warnings.append(
            f"{stuck} of {len(found.stuck)} chains never moved while drawing: raise n_warmup, or "
            "use dtype='float64'."
        )
    for message in found.warnings:
        warnings.warn(message, ConvergenceWarning, stacklevel=6)
