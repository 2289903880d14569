"""Draws of a fit: the initial chains, and their draws collected, extended and aligned."""

from dataclasses import replace
from math import isinf
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log_density import LogDensity, NetworkPosterior, SurrogateGradients
from skbayes_sym.base.noise_levels import assign_levels
from skbayes_sym.base.rows import Array
from skbayes_sym.mcmc.annealing import Annealing, BurnIn, SurrogateAnnealing
from skbayes_sym.mcmc.chains import ChainDraws, Sampler, retune_chains, sample_chains
from skbayes_sym.mcmc.config import SamplingConfig
from skbayes_sym.mcmc.initialization import INITS, default_prior_scale, restore_blocks
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_evidence import ModeEvidence
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import GaussianPrior, Prior
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.progress import reporting_to
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.relabelling import relabel
from skbayes_sym.symmetry.units import split_units


class PosteriorDraws(NamedTuple):
    """Weighted draws to predict with.

    Parameters
    ----------
    position : ndarray of shape (C, S, D)
        Network weights and likelihood parameters, as the sampler returned them.
    log_density : ndarray of shape (C, S)
        Log density of each draw in nats.
    chain_weights : ndarray of shape (C,)
        Weight of each chain; they sum to 1.
    stopped : StopReason
        Reason why sampling stopped.
    chain_modes : ndarray of shape (C,) or None
        Index of the mode in which each chain was restarted, or None for the initial chains.
    evidence : ModeEvidence or None
        Modes and their evidence, or None if it wasn't estimated.
    evidence_problems : tuple of str
        Reasons why the evidence can't be trusted.
    has_robust_weights : bool
        Whether the weights of the modes hold despite the uncertainty of their evidence.
    """

    position: Array
    log_density: Array
    chain_weights: Array
    stopped: StopReason
    chain_modes: Array | None = None
    evidence: ModeEvidence | None = None
    evidence_problems: tuple[str, ...] = ()
    has_robust_weights: bool = False

    @property
    def has_reliable_evidence(self) -> bool:
        """Whether the evidence was estimated and can be trusted."""
        return self.evidence is not None and not self.evidence_problems


def run_initial_chains(config: SamplingConfig) -> ChainDraws:
    """Start, warm up and sample the chains of a fit, or continue those of the previous fit.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.

    Returns
    -------
    ChainDraws
        All ``n_draws`` draws, or the first ones if modes are weighted by evidence: only bridge
        sampling uses them then.
    """
    defaults = config.defaults
    annealing = config.annealing
    n_warmup = config.n_warmup
    sampler = _make_sampler(config)
    sampling_progress = defaults.sampling_progress
    blocks = restore_blocks(config, sampler.log_density)
    if blocks is None:
        init = INITS[config.init]
        sampling_progress -= init.progress
        with reporting_to(config.progress.stage_receiver(init.progress)):
            blocks = init.make_blocks(config)
    n_draws = config.n_draws
    if config.uses_evidence:
        n_draws = min(n_draws, defaults.max_evidence_draws)

    # Anneal, warm up and draw. A warm start continues without annealing.
    if annealing and not config.previous_blocks:
        sampler = replace(sampler, burn_in=make_burn_in(config, annealing))
    if sampler.burn_in:
        n_burn_in = sampler.burn_in.n_steps
    else:
        n_burn_in = 0
    n_moves = n_burn_in + n_warmup + n_draws * config.thinning
    chains = sample_chains(
        sampler,
        blocks,
        n_warmup=n_warmup,
        n_draws=n_draws,
        thin=config.thinning,
        n_jobs=config.n_jobs,
        on_step=config.progress.stage_callback(sampling_progress, len(blocks) * n_moves),
    )

    # Annealed chains may have reached regions that are too narrow for their step sizes.
    if annealing and n_warmup:
        n_moves = n_warmup // 2 + n_draws * config.thinning
        chains = retune_chains(
            replace(sampler, burn_in=None),
            chains,
            min_acceptance=defaults.min_acceptance,
            n_warmup=max(1, n_warmup // 2),
            thin=config.thinning,
            n_jobs=config.n_jobs,
            on_step=config.progress.stage_callback(
                defaults.retuning_progress, len(blocks) * n_moves
            ),
        )
    return chains


def extend_chains(
    config: SamplingConfig, chains: ChainDraws, draws: PosteriorDraws
) -> PosteriorDraws:
    """Continue the initial chains until each has ``n_draws`` draws."""
    n_missing = config.n_draws - draws.position.shape[1]
    if n_missing <= 0:
        return draws
    n_moves = len(chains.blocks) * n_missing
    more = sample_chains(
        _make_sampler(config),
        chains.blocks,
        n_warmup=0,
        n_draws=n_missing,
        thin=config.thinning,
        n_jobs=config.n_jobs,
        on_step=config.progress.stage_callback(config.defaults.reallocation_progress, n_moves),
    )
    if not more.complete:
        return draws._replace(stopped=more.stopped)
    position = np.concatenate([draws.position, more.draws], axis=1)
    log_density = np.concatenate([draws.log_density, more.log_density], axis=1)
    return draws._replace(position=position, log_density=log_density)


def _make_sampler(config: SamplingConfig) -> Sampler:
    """Sampler of the initial chains."""
    init = INITS[config.init]
    return Sampler(
        config.kernel,
        make_sampling_density(config),
        init.make_adaptation(config),
        target_acceptance=config.defaults.annealed_acceptance if init.annealing else 0.8,
    )


def make_sampling_density(config: SamplingConfig) -> LogDensity:
    """Posterior that the chains sample, with float32 gradients for annealed HMC chains.

    These gradients take half the time. Values stay in the working precision, and the trajectories
    are too short for the difference to matter.
    """
    posterior = config.posterior
    is_annealed_hmc = config.annealing is not None and isinstance(config.kernel, HMC)
    if not is_annealed_hmc or posterior.data.x.dtype == torch.float32:
        return posterior
    return SurrogateGradients(
        posterior, _make_float32_posterior(config, config.model.prior), torch.float32
    )


def make_burn_in(config: SamplingConfig, annealing: Annealing) -> BurnIn:
    """Annealing under the posterior in float32, with fixed prior scales if scales are learned."""
    prior: Prior = config.model.prior
    if prior.learned_scales is not None:
        prior = GaussianPrior(default_prior_scale(config.model.network))
    elif config.data.data.x.dtype == torch.float32:
        return annealing
    return SurrogateAnnealing(annealing, _make_float32_posterior(config, prior))


def _make_float32_posterior(config: SamplingConfig, prior: Prior) -> NetworkPosterior:
    """Posterior under ``prior`` with the data in float32."""
    exact = config.posterior
    data = Data(*(t.float() if t.is_floating_point() else t for t in exact.data))
    return replace(exact, prior=prior, data=data)


def weight_chains_equally(chains: ChainDraws) -> PosteriorDraws:
    """Draws of chains with equal weights."""
    position, log_density = collect_draws(chains)
    n_chains = len(position)
    return PosteriorDraws(
        position, log_density, np.full(n_chains, 1.0 / n_chains), stopped=chains.stopped
    )


def collect_draws(chains: ChainDraws) -> tuple[Array, Array]:
    """Rectangular array of the draws that were made before sampling stopped.

    Parameters
    ----------
    chains : ChainDraws
        Draws of chains, which may have stopped early.

    Returns
    -------
    position : ndarray of shape (C, S, D)
        Chains without a draw are dropped. The others are cut to the shortest. If no chain made a
        draw, this is the current position of every chain.
    log_density : ndarray of shape (C, S)
        Log density of each draw in nats.
    """
    if not chains.n_draws.any():
        states = [block.state for block in chains.blocks]
        position = torch.cat([state.position for state in states]).cpu().numpy()
        log_density = torch.cat([state.value for state in states]).cpu().numpy()
        return position[:, None], log_density[:, None]
    has_draws = chains.n_draws > 0
    n_draws = int(chains.n_draws[has_draws].min())
    return chains.draws[has_draws, :n_draws], chains.log_density[has_draws, :n_draws]


def redraw_noise(config: SamplingConfig, theta: Tensor) -> Array | None:
    """Redraw the noise levels of few rows given the weights.

    Their posterior has heavy tails, which chains explore slowly. Given the weights it is known,
    and independent draws of it represent the tails with fewer draws.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit.
    theta : Tensor of shape (C, S, P)
        Network weights of the draws.

    Returns
    -------
    ndarray of shape (C, S, T) or None
        Standard deviations in the units of ``y``. None unless the noise has the half-t prior of
        few rows, see `make_posterior`.
    """
    data = config.data
    if isinf(config.posterior.noise_prior_degrees):
        return None
    x, y, weight = (values.cpu() for values in data.double_data)
    residual = y - config.model.network.forward(theta.flatten(0, 1).double().cpu(), x)
    squares = torch.einsum("n,snt->st", weight, residual.square())
    levels = data.noise_levels(squares, torch.full_like(squares, data.total_weight))
    if levels is None:
        return None
    generator = generator_from(config.seeds.noise)
    noise = assign_levels(torch.as_tensor(levels), generator=generator)
    return noise.unflatten(0, theta.shape[:2]).numpy()


def align_to_reference(config: SamplingConfig, theta: Tensor, log_density: Array) -> Array:
    """Move draws to one representative of their orbit under the symmetry group.

    Exchangeable units are relabelled consistently. Other factors of the group move each draw
    towards the draw of the highest density.

    Parameters
    ----------
    config : SamplingConfig
        Settings of the fit, with the symmetry group.
    theta : Tensor of shape (C, S, P)
        Network weights of the draws.
    log_density : ndarray of shape (C, S)
        Log density of each draw in nats.

    Returns
    -------
    ndarray of shape (C, S, P)
        The draws themselves if symmetries aren't removed or there are none.
    """
    units, other_factors = split_units(config.model.group)
    aligned = theta.flatten(0, 1)
    if not config.remove_symmetries or len(aligned) < 2 or not config.model.group.factors:
        return np.asarray(theta.numpy())
    aligned = aligned.double()
    if units.factors:
        generator = generator_from(config.seeds.alignment)
        receiver = config.progress.stage_receiver(config.defaults.alignment_progress)
        with reporting_to(receiver):
            relabelled = relabel(aligned, units, n_starts=4, max_sweeps=100, generator=generator)
        aligned = relabelled.theta
    reference = aligned[int(log_density.argmax())]
    for factor in other_factors:
        aligned, _ = factor.align(aligned, reference)
    return np.asarray(aligned.to(theta.dtype).reshape(theta.shape).numpy())
