"""Starts of exploring chains, and what warm-up does to their metric: ``init=``.

Chains of networks of hundreds of weights and more (``init="ensemble"``) each start as a member of a
deep ensemble does, are annealed to a wide basin (`skbayes_sym.inference.sampling.annealing`) and
sample it in the coordinates of its curvature (`skbayes_sym.inference.sampling.annealing`). From the
last tuned step size on the chains are exact; they don't leave their basins, so that every chain is
a posterior of its own and all have one vote.
"""

from collections.abc import Callable
from math import prod, sqrt
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.building import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.compatibility import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    CURVED_LIKELIHOOD,
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators.mcmc.sampling_effort import SamplingEffort
from skbayes_sym.estimators.mcmc.setting import SamplingSetting
from skbayes_sym.inference.laplace_starts import (
    Starts,
    best_starts,
    labels_starts,
    regression_starts,
)
from skbayes_sym.inference.log_density import LogDensity, NetworkPosterior, RoughGradients
from skbayes_sym.inference.sampling.annealing import (
    Annealing,
    Approach,
    Detour,
    KroneckerAdaptation,
)
from skbayes_sym.inference.sampling.chains import Block, start_blocks
from skbayes_sym.inference.sampling.kernels import HMC, DensePreconditioner
from skbayes_sym.inference.sampling.warmup import (
    FixedPreconditioner,
    PooledDiagonal,
    PreconditionerAdaptation,
)
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GaussianPrior, Prior
from skbayes_sym.numerics.random import generator_from

NO_EVIDENCE = (
    "annealed chains are in modes of their own, with fewer draws in each than a bridge needs, so "
    "every chain has one vote; ModeWeights('evidence') tries all the same"
)


class ChainInit(NamedTuple):
    """A way to start."""

    needs: Needs
    blocks: Callable[[SamplingSetting], list[Block]]
    # Of the metric, during warm-up.
    adaptation: Callable[[SamplingSetting], PreconditionerAdaptation]
    kernel: HMC  # what ``sampler="auto"`` is
    n_chains: int = 64  # where a person doesn't say, as is the next
    n_warmup: int = 1000
    annealing: Annealing | None = None  # what chains do before they warm up


def _prior_blocks(setting: SamplingSetting) -> list[Block]:
    """Draws of the prior, learned scales at their reference, with noise that isn't far too small.

    A chain that starts at a draw of a heavy-tailed scale may be far beyond where the network bends.
    """
    posterior, n_theta = setting.posterior, setting.model.network.layout.n_params
    generator, n = generator_from(setting.seeds.start), setting.n_chains
    position = posterior.sample_prior(n, generator=generator)
    scales = setting.model.prior.learned
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


def _laplace_blocks(setting: SamplingSetting) -> list[Block]:
    """Modes of the network's posterior; a scale that is learned has its evidence's value there."""
    network, likelihood, prior, _ = setting.model
    mlp, scales, data = fully_connected(network), scales_by_group(prior), setting.data.double_data
    n, seed, size, effort = (
        setting.n_chains, setting.seeds.start, setting.block_size, setting.effort,
    )  # fmt: skip
    if SOFTMAX.is_met(likelihood):
        starts = labels_starts(mlp, data, scales, n=min(n, effort.label_modes), seed=seed)
    else:

        def search(n: int, seed: int) -> Starts:
            return regression_starts(mlp, likelihood, data, scales, n=n, seed=seed)

        n_modes = min(n, effort.modes)
        n_more = _more_searches(setting) if setting.weighs else 0
        starts = best_starts(search, setting.model.group, n=n_modes, n_most=n_more, seed=seed)
    position, metric = starts.chains(n, setting.posterior.data.x)
    return start_blocks(
        position, setting.posterior, block_size=size, seed=setting.seeds.chains,
        preconditioners=[DensePreconditioner(part) for part in metric.cholesky.split(size)],
    )  # fmt: skip


def _more_searches(setting: SamplingSetting) -> int:
    """Searches that cost what the chains do, times what the evidence may cost; 1,024 at most."""
    effort, n_rows, p = setting.effort, setting.data.n_rows, setting.posterior.n_dims
    n_moves = setting.n_warmup + setting.n_draws * setting.thinning
    chains = setting.allowance().per_gradient * effort.mode_gradients * setting.n_chains * n_moves
    return min(
        int(setting.evidence.effort * chains / (effort.mode_steps * (n_rows + p) * p**2)), 1024
    )


def _ensemble_blocks(setting: SamplingSetting) -> list[Block]:
    """Chains at the starts of an ensemble's members; learned noise at the targets' spread."""
    posterior, generator = setting.posterior, generator_from(setting.seeds.start)
    theta = setting.model.network.init(setting.n_chains, generator=generator)
    noise = setting.model.likelihood.params.to(theta).expand(len(theta), -1)
    position = torch.cat([theta, noise], 1).to(posterior.data.x)
    size = setting.effort.wide_block if position.device.type == "cpu" else len(theta)
    return start_blocks(position, posterior, block_size=size, seed=setting.seeds.chains)


INITS: dict[str, ChainInit] = {
    "prior": ChainInit(
        Needs(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR), _prior_blocks,
        lambda setting: PooledDiagonal(setting.model.group), HMC(),
    ),
    # Directions that the rows leave to the prior are up to thirty times wider in the damped metric
    # than in others: trajectories as long as 40 gradients allow.
    "laplace": ChainInit(
        Needs(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED), _laplace_blocks,
        lambda setting: FixedPreconditioner(), HMC(path_length=30.0, max_leapfrog=40),
        16, 150,
    ),
    # Step sizes are about 0.1 in the coordinates of the curvature, so about 60 steps a trajectory.
    # Twelve chains: the squared error of an average of M is about b + v / M, with v .5 to .7 of b
    # on airfoil: eight leave 6 to 9 % to chance, twelve 4 to 6 %.
    "ensemble": ChainInit(
        Needs(CURVED_LIKELIHOOD, FULLY_CONNECTED, ANY_PRIOR), _ensemble_blocks,
        lambda setting: KroneckerAdaptation(setting.posterior),
        HMC(path_length=6.0, jitter=(0.7, 1.3), max_leapfrog=80), 12, 100, Annealing(),
    ),
}  # fmt: skip


def init_by_size(model: Model, n_rows: int, effort: SamplingEffort) -> str:
    """Name of the start that a model and its size ask for."""

    def meets(init: str) -> bool:
        parts = model.likelihood, model.network, model.prior
        return all(need.is_met(part) for need, part in zip(INITS[init].needs, parts, strict=True))

    n_weights = model.network.layout.n_params
    work = effort.modes * effort.mode_steps * (n_rows * n_weights**2 + n_weights**3)
    if meets("laplace") and n_weights <= effort.mode_weights and work <= effort.mode_work:
        return "laplace"
    return "ensemble" if n_weights > effort.many_weights and meets("ensemble") else "prior"


def usual_scale(network: Network) -> Tensor:
    """Prior standard deviations (P,) that chains come near under: 1, less in wide layers.

    Those of the published protocol for 16 units; beyond, weights of n inputs have ``4 / sqrt(n)``,
    so that units don't all saturate.
    """
    parts = []
    for shape in network.layout.shapes.values():
        fan_in = prod(shape[1:])  # 1 for biases
        parts.append(torch.full((prod(shape),), min(1.0, 4.0 / sqrt(fan_in))))
    return torch.cat(parts).double()


def from_afar(setting: SamplingSetting, annealing: Annealing) -> Approach:
    """The annealing in float32, under given scales where scales are learned."""
    prior: Prior = setting.model.prior
    if prior.learned is not None:
        prior = GaussianPrior(usual_scale(setting.model.network))
    elif setting.data.data.x.dtype == torch.float32:
        return annealing
    return Detour(annealing, _in_float32(setting, prior))


def density_for(setting: SamplingSetting) -> LogDensity:
    """The posterior; of annealed chains that HMC moves with gradients in float32.

    They cost half as much, and trajectories so short don't tell them apart.
    """
    exact = setting.posterior
    is_rough = setting.annealing is not None and isinstance(setting.kernel, HMC)
    if not is_rough or exact.data.x.dtype == torch.float32:
        return exact
    return RoughGradients(exact, _in_float32(setting, setting.model.prior), torch.float32)


def _in_float32(setting: SamplingSetting, prior: Prior) -> NetworkPosterior:
    exact = setting.posterior
    data = Data(*(t.float() if t.is_floating_point() else t for t in exact.data))
    return NetworkPosterior(exact.network, exact.likelihood, prior, data, exact.noise_prior_scale)
