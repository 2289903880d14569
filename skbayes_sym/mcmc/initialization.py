"""Exploration: where chains start (``init=``), what warm-up does to their metric, and their draws.

Chains of networks of hundreds of weights and more (``init="ensemble"``) each start as a member of a
deep ensemble does, are annealed to a wide basin (`skbayes_sym.mcmc.annealing`) and
sample it in the coordinates of its curvature (`skbayes_sym.mcmc.annealing`). From the
last tuned step size on the chains are exact; they don't leave their basins, so that every chain is
a posterior of its own and all have one vote.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior, SurrogateGradients
from skbayes_sym.base.model_factory import group_scales, require_mlp
from skbayes_sym.base.requirements import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    FULLY_CONNECTED,
    LIKELIHOOD_WITH_HESSIAN,
    NORMAL_OR_LEARNED_PRIOR,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Requirements,
)
from skbayes_sym.base.rows import Array
from skbayes_sym.laplace.starting_points import (
    StartingModes,
    find_classification_modes,
    find_distinct_modes,
    find_regression_modes,
)
from skbayes_sym.mcmc.annealing import (
    AnnealedApproach,
    Annealing,
    Approach,
    KroneckerAdaptation,
)
from skbayes_sym.mcmc.chains import (
    Block,
    ChainDraws,
    Sampler,
    retuned,
    sample_chains,
    start_blocks,
)
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.kernels import HMC, initial_state
from skbayes_sym.mcmc.warmup import (
    FixedPreconditioner,
    PooledDiagonal,
    PreconditionerAdaptation,
)
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior, Prior
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.preconditioners import DensePreconditioner
from skbayes_sym.numerics.random import generator_from, resume_generator
from skbayes_sym.symmetry.relabelling import relabel
from skbayes_sym.symmetry.units import split_units

NO_EVIDENCE = (
    "annealed chains are in modes of their own, with fewer draws in each than a bridge needs, so "
    "every chain has one vote; ModeWeights('evidence') tries all the same"
)


class ChainInit(NamedTuple):
    """A way to start."""

    requirements: Requirements
    blocks: Callable[[SamplingConfig], list[Block]]
    # Of the metric, during warm-up.
    adaptation: Callable[[SamplingConfig], PreconditionerAdaptation]
    kernel: HMC  # what ``sampler="auto"`` is
    n_chains: int = 64  # where a person doesn't say, as is the next
    n_warmup: int = 1000
    annealing: Annealing | None = None  # what chains do before they warm up


def _prior_blocks(setting: SamplingConfig) -> list[Block]:
    """Draws of the prior, learned scales at their reference, with noise that isn't far too small.

    A chain that starts at a draw of a heavy-tailed scale may be far beyond where the network bends.
    """
    posterior = setting.posterior
    n_theta = setting.model.network.layout.n_params
    generator = generator_from(setting.seeds.start)
    n = setting.n_chains
    position = posterior.sample_prior(n, generator=generator)
    scales = setting.model.prior.learned_scales
    if scales is not None:
        position[:, :n_theta] = scales.sample(n, generator=generator).to(position)
    n_noise = setting.model.likelihood.noise_scale.shape[-1]  # which comes first
    log_noise = position[:, n_theta : n_theta + n_noise]
    if log_noise.shape[1]:
        spread = posterior.data.y.std(dim=0, correction=0).clamp_min(1e-3)
        spread = spread if len(spread) == log_noise.shape[1] else spread.min()
        least = (setting.effort.least_noise * spread).log()
        log_noise.copy_(torch.maximum(log_noise, least.to(log_noise)))
    return start_blocks(
        position.to(posterior.data.x), posterior, block_size=setting.block_size,
        seed=setting.seeds.chains,
    )  # fmt: skip


def _laplace_blocks(setting: SamplingConfig) -> list[Block]:
    """Modes of the network's posterior; a scale that is learned has its evidence's value there."""
    network, likelihood, prior, _ = setting.model
    mlp = require_mlp(network)
    scales = group_scales(prior)
    data = setting.data.double_data
    n = setting.n_chains
    seed = setting.seeds.start
    size = setting.block_size
    effort = setting.effort
    if SOFTMAX.is_met(likelihood):
        starts = find_classification_modes(
            mlp, data, scales, n=min(n, effort.label_modes), seed=seed
        )
    else:

        def search(n: int, seed: int) -> StartingModes:
            return find_regression_modes(mlp, likelihood, data, scales, n=n, seed=seed)

        n_modes = min(n, effort.modes)
        n_more = _n_extra_searches(setting) if setting.weighs else 0
        starts = find_distinct_modes(
            search, setting.model.group, n=n_modes, n_extra=n_more, seed=seed
        )
    position, metric = starts.chains(n, setting.posterior.data.x)
    return start_blocks(
        position, setting.posterior, block_size=size, seed=setting.seeds.chains,
        preconditioners=[DensePreconditioner(part) for part in metric.cholesky.split(size)],
    )  # fmt: skip


def _n_extra_searches(setting: SamplingConfig) -> int:
    """Searches that cost what the chains do, times what the evidence may cost; 1,024 at most."""
    effort = setting.effort
    n_rows = setting.data.n_rows
    p = setting.posterior.n_dims
    n_moves = setting.n_warmup + setting.n_draws * setting.thinning
    chains = setting.allowance().per_gradient * effort.mode_gradients * setting.n_chains * n_moves
    return min(
        int(setting.evidence.effort * chains / (effort.mode_steps * (n_rows + p) * p**2)), 1024
    )


def _ensemble_blocks(setting: SamplingConfig) -> list[Block]:
    """Chains at the starts of an ensemble's members; learned noise at the targets' spread."""
    posterior = setting.posterior
    generator = generator_from(setting.seeds.start)
    theta = setting.model.network.init(setting.n_chains, generator=generator)
    noise = setting.model.likelihood.params.to(theta).expand(len(theta), -1)
    position = torch.cat([theta, noise], 1).to(posterior.data.x)
    size = setting.effort.wide_block if position.device.type == "cpu" else len(theta)
    return start_blocks(position, posterior, block_size=size, seed=setting.seeds.chains)


INITS: dict[str, ChainInit] = {
    "prior": ChainInit(
        Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR), _prior_blocks,
        lambda setting: PooledDiagonal(setting.model.group), HMC(),
    ),
    # Directions that the rows leave to the prior are up to thirty times wider in the damped metric
    # than in others: trajectories as long as 40 gradients allow.
    "laplace": ChainInit(
        Requirements(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR), _laplace_blocks,
        lambda setting: FixedPreconditioner(), HMC(path_length=30.0, max_leapfrog=40),
        16, 150,
    ),
    # Step sizes are about 0.1 in the coordinates of the curvature, so about 60 steps a trajectory.
    # Twelve chains: the squared error of an average of M is about b + v / M, with v .5 to .7 of b
    # on airfoil: eight leave 6 to 9 % to chance, twelve 4 to 6 %.
    "ensemble": ChainInit(
        Requirements(LIKELIHOOD_WITH_HESSIAN, FULLY_CONNECTED, ANY_PRIOR), _ensemble_blocks,
        lambda setting: KroneckerAdaptation(setting.posterior),
        HMC(path_length=6.0, jitter=(0.7, 1.3), max_leapfrog=80), 12, 100, Annealing(),
    ),
}  # fmt: skip


def init_by_size(model: Model, n_rows: int, effort: SamplingDefaults) -> str:
    """Name of the start that a model and its size ask for."""

    def meets(init: str) -> bool:
        parts = model.likelihood, model.network, model.prior
        return all(
            need.is_met(part) for need, part in zip(INITS[init].requirements, parts, strict=True)
        )

    n_weights = model.network.layout.n_params
    work = effort.modes * effort.mode_steps * (n_rows * n_weights**2 + n_weights**3)
    if meets("laplace") and n_weights <= effort.mode_weights and work <= effort.mode_work:
        return "laplace"
    return "ensemble" if n_weights > effort.many_weights and meets("ensemble") else "prior"


def default_prior_scale(network: Network) -> Tensor:
    """Prior standard deviations (P,) that chains come near under: 1, less in wide layers.

    Those of the published protocol for 16 units; beyond, weights of n inputs have ``4 / sqrt(n)``,
    so that units don't all saturate.
    """
    parts = []
    for shape in network.layout.shapes.values():
        fan_in = prod(shape[1:])  # 1 for biases
        scale = min(1.0, 4.0 / sqrt(fan_in))
        parts.append(torch.full((prod(shape),), scale, dtype=torch.float64))
    return torch.cat(parts)


def from_afar(setting: SamplingConfig, annealing: Annealing) -> Approach:
    """The annealing in float32, under given scales where scales are learned."""
    prior: Prior = setting.model.prior
    if prior.learned_scales is not None:
        prior = GaussianPrior(default_prior_scale(setting.model.network))
    elif setting.data.data.x.dtype == torch.float32:
        return annealing
    return AnnealedApproach(annealing, _in_float32(setting, prior))


def density_for(setting: SamplingConfig) -> LogDensity:
    """The posterior; of annealed chains that HMC moves with gradients in float32.

    They cost half as much, and trajectories so short don't tell them apart.
    """
    exact = setting.posterior
    is_rough = setting.annealing is not None and isinstance(setting.kernel, HMC)
    if not is_rough or exact.data.x.dtype == torch.float32:
        return exact
    return SurrogateGradients(exact, _in_float32(setting, setting.model.prior), torch.float32)


def _in_float32(setting: SamplingConfig, prior: Prior) -> NetworkPosterior:
    exact = setting.posterior
    data = Data(*(t.float() if t.is_floating_point() else t for t in exact.data))
    return NetworkPosterior(exact.network, exact.likelihood, prior, data, exact.noise_prior_scale)


class Draws(NamedTuple):
    """Draws to predict with."""

    position: Array  # (C, S, D)
    value: Array  # (C, S), log density, nats
    chain_weights: Array  # (C,)
    stopped: StopReason
    home: Array | None = None  # (C,), the mode that each chain was started in


class Explored(NamedTuple):
    """Findings of chains."""

    chains: ChainDraws
    draws: Draws  # one vote per chain


def explore(setting: SamplingConfig) -> Explored:
    """Run the chains; one vote each."""
    effort = setting.effort
    annealing = setting.annealing
    n_warmup = setting.n_warmup
    explorer = _explorer(setting)
    blocks = continued(setting, explorer.log_density) or INITS[setting.init].blocks(setting)
    n_draws = min(setting.n_draws, effort.explored) if setting.weighs else setting.n_draws
    if annealing and not setting.start:
        explorer = replace(explorer, approach=from_afar(setting, annealing))
    n_coming = explorer.approach.n_steps if explorer.approach else 0
    n_moves = len(blocks) * (n_coming + n_warmup + n_draws * setting.thinning)
    chains = sample_chains(
        explorer, blocks,
        n_warmup=n_warmup, n_draws=n_draws, thin=setting.thinning, n_jobs=setting.n_jobs,
        on_step=setting.progress.stage_callback(effort.exploring, n_moves),
    )  # fmt: skip
    if annealing and n_warmup:
        n_again = len(blocks) * (n_warmup // 2 + n_draws * setting.thinning)
        chains = retuned(
            replace(explorer, approach=None), chains, least_acceptance=effort.least_accepted,
            n_warmup=max(1, n_warmup // 2), thin=setting.thinning, n_jobs=setting.n_jobs,
            on_step=setting.progress.stage_callback(effort.retuning, n_again),
        )  # fmt: skip
    position, value = made(chains)
    votes = np.full(len(position), 1.0 / len(position))
    return Explored(chains, Draws(position, value, votes, chains.stopped))


def _explorer(setting: SamplingConfig) -> Sampler:
    init = INITS[setting.init]
    acceptance = setting.effort.wide_acceptance if init.annealing else 0.8
    density = density_for(setting)
    return Sampler(setting.kernel, density, init.adaptation(setting), acceptance)


def drawn_on(setting: SamplingConfig, explored: Explored) -> Draws:
    """The explored draws, and as many more as were asked for."""
    draws = explored.draws
    blocks = explored.chains.blocks
    n_more = setting.n_draws - draws.position.shape[1]
    if n_more <= 0:
        return draws
    more = sample_chains(
        _explorer(setting), blocks, n_warmup=0, n_draws=n_more, thin=setting.thinning,
        n_jobs=setting.n_jobs,
        on_step=setting.progress.stage_callback(setting.effort.refreshing, len(blocks) * n_more),
    )  # fmt: skip
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    value = np.concatenate([draws.value, more.log_density], axis=1)
    return draws._replace(position=position, value=value)


def made(chains: ChainDraws) -> tuple[Array, Array]:
    """Positions and log densities that were made, rectangular; if none, where the chains are."""
    if not chains.n_draws.any():
        states = [block.state for block in chains.blocks]
        position = torch.cat([s.position for s in states]).cpu().numpy()
        value = torch.cat([s.value for s in states]).cpu().numpy()
        return position[:, None], value[:, None]
    kept = chains.n_draws > 0
    n = int(chains.n_draws[kept].min())
    return chains.draws[kept, :n], chains.log_density[kept, :n]


def on_reference_set(setting: SamplingConfig, theta: Tensor, value: Array) -> Array:
    """Representatives of the draws' orbits, (C, S, P) -> (C, S, P).

    Units are labelled alike; what else the group moves is moved towards the draw of the highest
    density, ``value`` (C, S).
    """
    units, others = split_units(setting.model.group)
    flat = theta.flatten(0, 1)
    if not setting.remove_symmetries or len(flat) < 2 or not setting.model.group.factors:
        return np.asarray(theta.numpy())
    aligned = flat.double()
    if units.factors:
        generator = generator_from(setting.seeds.labels)
        aligned = relabel(aligned, units, n_starts=4, max_sweeps=100, generator=generator).theta
    reference = aligned[int(value.argmax())]
    for factor in others:
        aligned, _ = factor.align(aligned, reference)
    return np.asarray(aligned.to(theta.dtype).reshape(theta.shape).numpy())


def continued(setting: SamplingConfig, density: LogDensity) -> list[Block] | None:
    """Blocks of the previous fit, on this fit's data; None if this one starts anew."""
    previous = setting.start
    posterior = setting.posterior
    if not previous:
        return None
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(block.step_size) for block in previous)
    if n_dims != posterior.n_dims or n_chains != setting.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {setting.n_chains} of {posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    blocks = [_as_tensors(kept, posterior.data.x) for kept in previous]
    return [b._replace(state=initial_state(b.state.position, density)) for b in blocks]


def as_arrays(block: Block) -> Block:
    """The block with NumPy arrays, which any machine can read."""
    return _converted(block, lambda tensor: tensor.cpu().numpy())


def _as_tensors(block: Block, like: Tensor) -> Block:
    """The block with tensors on the device of ``like``, positions in its precision too."""
    moved = _converted(block, lambda array: torch.as_tensor(array).to(like.device))
    state = moved.state._replace(position=moved.state.position.to(like))
    stream = resume_generator(torch.as_tensor(block.random_state), like.device).get_state()
    return moved._replace(state=state, random_state=stream)


def _converted(block: Block, convert: Callable[[Any], Any]) -> Block:
    def each(value: Any) -> Any:
        """An array, or nested tuples of them, plain or named, converted."""
        if not isinstance(value, tuple):
            return convert(value)
        items = [each(item) for item in value]
        return tuple(items) if type(value) is tuple else type(value)(*items)

    scaling: Any = block.preconditioner
    arrays = {f.name: each(vars(scaling)[f.name]) for f in fields(scaling)}
    state, step_size, _, random_state = block
    return Block(each(state), convert(step_size), replace(scaling, **arrays), convert(random_state))
