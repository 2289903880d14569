"""Where exploring chains start, and what warm-up does to their metric: ``init=``."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    ANY_LIKELIHOOD,
    ANY_NETWORK,
    ANY_PRIOR,
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators.mcmc import wide
from skbayes_sym.estimators.mcmc.setting import Plan, Setting
from skbayes_sym.inference.laplace_starts import Starts, labels_starts, regression_starts
from skbayes_sym.inference.sampling.annealing import Approach
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.inference.sampling.chains import start_blocks
from skbayes_sym.inference.sampling.kernels.base import DensePreconditioner
from skbayes_sym.inference.sampling.kernels.hmc import HMC
from skbayes_sym.inference.sampling.warmup import (
    FixedPreconditioner,
    PooledDiagonal,
    PreconditionerAdaptation,
)
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.random import generator_from

_LEAST_NOISE = 0.3  # at the start, in units of the target's spread: tighter noise is a steep wall

# Directions that the rows leave to the prior are up to thirty times wider in the damped metric than
# in others: trajectories as long as so many gradients allow.
_IN_THE_METRIC = HMC(path_length=30.0, max_leapfrog=40)

# Modes that chains start at, in turn. Of classes fewer: they are found one after the other.
_MOST_MODES, _MOST_CLASS_MODES = 16, 4


class Init(NamedTuple):
    """One way to start."""

    needs: Needs
    blocks: Callable[[Setting], list[Block]]
    adaptation: Callable[[Setting], PreconditionerAdaptation]  # of the metric, during warm-up
    kernel: HMC  # what ``sampler="auto"`` is
    plan: Plan = Plan()
    approach: Approach | None = None  # what chains do before they warm up
    target_acceptance: float = 0.8


def _prior_blocks(setting: Setting) -> list[Block]:
    return start_blocks(
        _draws_of_the_prior(setting), setting.posterior, block_size=setting.block_size,
        seed=setting.seeds.chains,
    )  # fmt: skip


def _laplace_blocks(setting: Setting) -> list[Block]:
    n_chains, size = setting.chains.n_chains, setting.block_size
    starts = _laplace_starts(setting)
    position, metric = starts.chains(n_chains, setting.posterior.data.x)
    parts = [DensePreconditioner(part) for part in metric.cholesky.split(size)]
    return start_blocks(
        position, setting.posterior, block_size=size, seed=setting.seeds.chains,
        preconditioners=parts,
    )  # fmt: skip


def _laplace_starts(setting: Setting) -> Starts:
    """Modes of the network's posterior; a scale that is learned has its evidence's value there."""
    network, likelihood, prior, _ = setting.model
    mlp, scales = fully_connected(network), scales_by_group(prior)
    data, seed, n = setting.data.double_data, setting.seeds.start, setting.chains.n_chains
    if SOFTMAX.is_met(likelihood):
        return labels_starts(mlp, data, scales, n=min(n, _MOST_CLASS_MODES), seed=seed)
    return regression_starts(mlp, likelihood, data, scales, n=min(n, _MOST_MODES), seed=seed)


def _draws_of_the_prior(setting: Setting) -> Tensor:
    """Draws of the prior, learned scales at their reference, with noise that isn't far too small.

    A chain that starts at a draw of a heavy-tailed scale may be far beyond where the network bends.
    """
    posterior, n_theta = setting.posterior, setting.model.network.layout.n_params
    generator, n = generator_from(setting.seeds.start), setting.chains.n_chains
    position = posterior.sample_prior(n, generator=generator)
    scales = setting.model.prior.learned
    if scales is not None:
        position[:, :n_theta] = scales.sample(n, generator=generator).to(position)
    n_noise = setting.model.likelihood.noise_scale.shape[-1]  # which comes first
    own = position[:, n_theta : n_theta + n_noise]
    if own.shape[1]:
        spread = posterior.data.y.std(dim=0, correction=0).clamp_min(1e-3)
        spread = spread if len(spread) == own.shape[1] else spread.min()
        own.copy_(torch.maximum(own, (_LEAST_NOISE * spread).log().to(own)))
    return position.to(posterior.data.x)


# By the name that ``init=`` takes.
INITS: dict[str, Init] = {
    "prior": Init(
        Needs(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR), _prior_blocks,
        lambda setting: PooledDiagonal(setting.model.group), HMC(),
    ),
    "laplace": Init(
        Needs(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED), _laplace_blocks,
        lambda setting: FixedPreconditioner(), _IN_THE_METRIC,
        Plan(n_chains=_MOST_MODES, n_warmup=150),
    ),
    "ensemble": Init(
        wide.NEEDS, wide.ensemble_blocks, wide.adaptation, wide.KERNEL, wide.PLAN, wide.APPROACH,
        wide.TARGET_ACCEPTANCE,
    ),
}  # fmt: skip

# What init="auto" finds modes for: metrics of so many weights, and Gauss-Newton systems of so many
# multiplications, some twenty seconds of one core.
_MOST_WEIGHTS, _MOST_WORK, _STEPS = 500, 1e12, 100


def has_modes_to_find(model: Model, n_rows: int) -> bool:
    """Whether Gauss-Newton steps can find modes of a model, in seconds."""
    needs, p = INITS["laplace"].needs, model.network.layout.n_params
    able = (
        needs.network.is_met(model.network)
        and needs.likelihood.is_met(model.likelihood)
        and needs.prior.is_met(model.prior)
    )
    work = _MOST_MODES * _STEPS * (n_rows * p**2 + p**3)
    return able and p <= _MOST_WEIGHTS and work <= _MOST_WORK
