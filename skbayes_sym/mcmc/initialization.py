"""Starting points of chains: draws of the prior, Laplace modes, random networks, previous fits.

Chains of networks of hundreds of weights and more (``init="ensemble"``) each start at a random
initialisation, like the members of a deep ensemble. They are annealed to a wide basin, which they
sample in the coordinates of its curvature (`skbayes_sym.mcmc.kronecker`). The chains are exact once
the step size is tuned. They don't leave their basins, so the chains don't mix and are weighted
equally.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity
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
from skbayes_sym.laplace.starting_points import (
    StartingModes,
    find_classification_modes,
    find_distinct_modes,
    find_regression_modes,
)
from skbayes_sym.mcmc.annealing import Annealing
from skbayes_sym.mcmc.chains import Block, start_blocks
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.kernels import HMC, initial_state
from skbayes_sym.mcmc.kronecker import KroneckerAdaptation
from skbayes_sym.mcmc.warmup import (
    FixedPreconditioner,
    PooledDiagonal,
    PreconditionerAdaptation,
)
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.network import Network
from skbayes_sym.numerics.preconditioners import DensePreconditioner
from skbayes_sym.numerics.random import generator_from, resume_generator


@dataclass(frozen=True)
class ChainInit:
    """Way to start chains, with the sampler settings that suit it.

    Parameters
    ----------
    requirements : Requirements
        Models that can be started this way.
    make_blocks : callable (SamplingConfig) -> list of Block
        Blocks of chains at their starting points.
    make_adaptation : callable (SamplingConfig) -> PreconditionerAdaptation
        Adaptation of the preconditioner during warm-up.
    kernel : HMC
        Kernel of ``sampler="auto"``.
    n_chains : int, default=64
        Default number of chains.
    n_warmup : int, default=1000
        Default number of warm-up moves.
    annealing : Annealing or None, default=None
        Moves before the warm-up.
    progress : float, default=0.0
        Fraction of the reported progress of a fit that ``make_blocks`` makes.
    """

    requirements: Requirements
    make_blocks: Callable[[SamplingConfig], list[Block]]
    make_adaptation: Callable[[SamplingConfig], PreconditionerAdaptation]
    kernel: HMC
    n_chains: int = 64
    n_warmup: int = 1000
    annealing: Annealing | None = None
    progress: float = 0.0


def _start_at_prior(config: SamplingConfig) -> list[Block]:
    """Start chains at draws of the prior.

    Learned prior scales start at their reference value, because a chain that starts at a draw of a
    heavy-tailed scale may be far beyond the range in which the network is nonlinear. The noise
    isn't started far below the spread of the targets.
    """
    posterior = config.posterior
    n_chains = config.n_chains
    generator = generator_from(config.seeds.initialization)
    position = posterior.sample_prior(n_chains, generator=generator)
    n_theta = config.model.network.layout.n_params
    scales = config.model.prior.learned_scales
    if scales is not None:
        position[:, :n_theta] = scales.sample(n_chains, generator=generator).to(position)

    # The noise parameters come first among those of the likelihood.
    n_noise = config.model.likelihood.noise_scale.shape[-1]
    log_noise = position[:, n_theta : n_theta + n_noise]
    if log_noise.shape[1]:
        spread = posterior.data.y.std(dim=0, correction=0).clamp_min(1e-3)
        if len(spread) != log_noise.shape[1]:
            spread = spread.min()
        minimum = (config.defaults.min_initial_noise * spread).log()
        log_noise.copy_(torch.maximum(log_noise, minimum.to(log_noise)))
    return start_blocks(
        position.to(posterior.data.x),
        posterior,
        block_size=config.block_size,
        seed=config.seeds.chains,
    )


def _start_at_laplace_modes(config: SamplingConfig) -> list[Block]:
    """Start chains at modes of the posterior, with learned scales at the maximum of the evidence.

    The inverse of the damped curvature at each mode is the metric of its chains.
    """
    network, likelihood, prior, _ = config.model
    mlp = require_mlp(network)
    scales = group_scales(prior)
    data = config.data.double_data
    seed = config.seeds.initialization
    if SOFTMAX.is_met(likelihood):
        n_modes = min(config.n_chains, config.defaults.classification_modes)
        starts = find_classification_modes(mlp, data, scales, n=n_modes, seed=seed)
    else:

        def search(n: int, seed: int) -> StartingModes:
            return find_regression_modes(mlp, likelihood, data, scales, n=n, seed=seed)

        n_modes = min(config.n_chains, config.defaults.regression_modes)
        if config.uses_evidence:
            n_extra = _n_extra_searches(config)
        else:
            n_extra = 0
        starts = find_distinct_modes(
            search, config.model.group, n=n_modes, n_extra=n_extra, seed=seed
        )
    position, metric = starts.chains(config.n_chains, config.posterior.data.x)
    block_size = config.block_size
    return start_blocks(
        position,
        config.posterior,
        block_size=block_size,
        seed=config.seeds.chains,
        preconditioners=[DensePreconditioner(part) for part in metric.cholesky.split(block_size)],
    )


def _n_extra_searches(config: SamplingConfig) -> int:
    """Number of further searches for modes, at most 1,024.

    They may cost as much as the chains do, multiplied by the budget of `ModeWeights`.
    """
    defaults = config.defaults
    n_rows = config.data.n_rows
    n_dims = config.posterior.n_dims
    n_moves = config.n_warmup + config.n_draws * config.thinning
    gradient_cost = config.make_budget().gradient_cost
    chain_cost = gradient_cost * defaults.max_gradients_per_move * config.n_chains * n_moves
    search_cost = defaults.gauss_newton_steps * (n_rows + n_dims) * n_dims**2
    return min(int(config.mode_weights.budget * chain_cost / search_cost), 1024)


def _start_at_random_networks(config: SamplingConfig) -> list[Block]:
    """Start chains like the members of a deep ensemble.

    Learned noise starts at the spread of the targets.
    """
    posterior = config.posterior
    generator = generator_from(config.seeds.initialization)
    theta = config.model.network.init(config.n_chains, generator=generator)
    noise = config.model.likelihood.params.to(theta).expand(len(theta), -1)
    position = torch.cat([theta, noise], 1).to(posterior.data.x)
    is_cpu = position.device.type == "cpu"
    if is_cpu:
        block_size = config.defaults.annealed_block
    else:
        block_size = len(theta)
    return start_blocks(position, posterior, block_size=block_size, seed=config.seeds.chains)


INITS: dict[str, ChainInit] = {
    "prior": ChainInit(
        Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR),
        make_blocks=_start_at_prior,
        make_adaptation=lambda config: PooledDiagonal(config.model.group),
        kernel=HMC(),
    ),
    # In the damped metric, directions that the data don't inform are up to thirty times wider than
    # others. The trajectories are therefore as long as 40 gradients allow.
    "laplace": ChainInit(
        Requirements(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR),
        make_blocks=_start_at_laplace_modes,
        make_adaptation=lambda _: FixedPreconditioner(),
        kernel=HMC(path_length=30.0, max_leapfrog=40),
        n_chains=16,
        n_warmup=150,
        progress=0.25,
    ),
    # Step sizes are about 0.1 in the coordinates of the curvature, so a trajectory has about 60
    # steps. The squared error of an average over M chains is about b + v / M, where v is 0.5 to 0.7
    # times b on airfoil. Chance then contributes 6 to 9 % of the error of eight chains and 4 to 6 %
    # of the error of twelve.
    "ensemble": ChainInit(
        Requirements(LIKELIHOOD_WITH_HESSIAN, FULLY_CONNECTED, ANY_PRIOR),
        make_blocks=_start_at_random_networks,
        make_adaptation=lambda config: KroneckerAdaptation(config.posterior),
        kernel=HMC(path_length=6.0, jitter=(0.7, 1.3), max_leapfrog=80),
        n_chains=12,
        n_warmup=100,
        annealing=Annealing(),
    ),
}


def choose_init(model: Model, n_rows: int, defaults: SamplingDefaults) -> str:
    """Choose how chains start, from the model and its size.

    Parameters
    ----------
    model : Model
        Network, likelihood, prior and symmetry group.
    n_rows : int
        Number of training rows.
    defaults : SamplingDefaults
        Limits on the number of weights and on the work of a search for modes.

    Returns
    -------
    str
        Key of `INITS`.
    """

    def is_possible(init: str) -> bool:
        parts = (model.likelihood, model.network, model.prior)
        requirements = INITS[init].requirements
        return all(need.is_met(part) for need, part in zip(requirements, parts, strict=True))

    n_weights = model.network.layout.n_params
    n_steps = defaults.regression_modes * defaults.gauss_newton_steps
    work = n_steps * (n_rows * n_weights**2 + n_weights**3)
    is_small = n_weights <= defaults.laplace_max_weights and work <= defaults.laplace_max_work
    if is_small and is_possible("laplace"):
        return "laplace"
    if n_weights > defaults.ensemble_min_weights and is_possible("ensemble"):
        return "ensemble"
    return "prior"


def default_prior_scale(network: Network) -> Tensor:
    """Default prior standard deviations of annealed chains.

    Weights of layers with up to 16 inputs, and all biases, have standard deviation 1, as in the
    published protocol for 16 units. Weights of layers with n > 16 inputs have ``4 / sqrt(n)``, so
    that not all units saturate.

    Parameters
    ----------
    network : Network
        Network with P parameters.

    Returns
    -------
    Tensor of shape (P,), float64
    """
    parts = []
    for shape in network.layout.shapes.values():
        fan_in = prod(shape[1:])  # 1 for biases
        scale = min(1.0, 4.0 / sqrt(fan_in))
        parts.append(torch.full((prod(shape),), scale, dtype=torch.float64))
    return torch.cat(parts)


def restore_blocks(config: SamplingConfig, log_density: LogDensity) -> list[Block] | None:
    """Restore the chains of the previous fit on the data of this one, for a warm start.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit, with the ``previous_blocks``.
    log_density : LogDensity
        Log density that the chains sample in this fit.

    Returns
    -------
    list of Block or None
        None if the fit has no predecessor.

    Raises
    ------
    ValueError
        If the number of chains or parameters differs from that of the previous fit.
    """
    previous = config.previous_blocks
    if not previous:
        return None
    posterior = config.posterior
    n_dims = previous[0].state.position.shape[1]
    n_chains = sum(len(block.step_size) for block in previous)
    if n_dims != posterior.n_dims or n_chains != config.n_chains:
        raise ValueError(
            f"warm_start=True, but the previous fit has {n_chains} chains of {n_dims} parameters "
            f"and this one {config.n_chains} of {posterior.n_dims}: data, "
            "hidden_layer_sizes or n_chains changed."
        )
    blocks = [_to_tensors(block, posterior.data.x) for block in previous]
    return [b._replace(state=initial_state(b.state.position, log_density)) for b in blocks]


def to_arrays(block: Block) -> Block:
    """Convert the tensors of a block to NumPy arrays, which can be read on any machine."""
    return _convert_block(block, lambda tensor: tensor.cpu().numpy())


def _to_tensors(block: Block, like: Tensor) -> Block:
    """Convert arrays to tensors on the device of ``like``, with positions in its precision."""
    moved = _convert_block(block, lambda array: torch.as_tensor(array).to(like.device))
    state = moved.state._replace(position=moved.state.position.to(like))
    # A generator's state fits one kind of device, so its stream is resumed on the new one.
    random_state = resume_generator(torch.as_tensor(block.random_state), like.device).get_state()
    return moved._replace(state=state, random_state=random_state)


def _convert_block(block: Block, convert: Callable[[Any], Any]) -> Block:
    """Apply ``convert`` to every array or tensor of a block."""

    def convert_nested(value: Any) -> Any:
        """Convert an array, or each array of nested plain or named tuples."""
        if not isinstance(value, tuple):
            return convert(value)
        items = [convert_nested(item) for item in value]
        if type(value) is tuple:
            return tuple(items)
        return type(value)(*items)

    preconditioner: Any = block.preconditioner
    arrays = {
        f.name: convert_nested(getattr(preconditioner, f.name)) for f in fields(preconditioner)
    }
    return Block(
        convert_nested(block.state),
        convert(block.step_size),
        replace(preconditioner, **arrays),
        convert(block.random_state),
    )
