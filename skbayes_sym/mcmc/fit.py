"""A fit by Markov chain Monte Carlo: run chains, weight their modes, and summarise the draws."""

from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar

import numpy as np
import torch

from skbayes_sym.base.messages import log_info, warn_user
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR, Requirements
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.mcmc.chain_count import n_chains_required
from skbayes_sym.mcmc.chains import Block, ChainDraws
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.diagnostics import collect_diagnostics
from skbayes_sym.mcmc.draws import (
    PosteriorDraws,
    align_to_reference,
    redraw_noise,
    run_initial_chains,
    weight_chains_equally,
)
from skbayes_sym.mcmc.initialization import INITS, choose_init, to_arrays
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_weights import Mode, list_modes, weight_by_evidence
from skbayes_sym.mcmc.samplers import Chains, ModeWeights
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import CollapsedGroupPrior
from skbayes_sym.numerics.memory import MemoryAllocation, prior_allocation, require_memory
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate


@dataclass(frozen=True, eq=False)
class Sampling:
    """Markov chain Monte Carlo modulo symmetry (Wiese et al. 2023).

    Parameters
    ----------
    sampler : Chains
        How the chains start, warm up and move.
    n_chains : int, "auto" or None
        Number of chains. None is the default of the way in which they start.
    n_draws : int or None
        Draws per chain. None is `SamplingDefaults.n_draws`.
    weights : ModeWeights or None
        How modes are weighted. None doesn't remove symmetries and weights chains equally.
    noise_prior_scale : float or None
        Scale of the half-normal prior of the noise's standard deviation, in scaled target units.
        None is the default, see `make_posterior`.
    n_jobs : int or None, default=None
        Number of processes.
    previous_blocks : list of Block or None, default=None
        Final states of the previous fit's chains for a warm start.
    defaults : SamplingDefaults
        Constants behind "auto".
    """

    requirements: ClassVar[Requirements] = Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    sampler: Chains
    n_chains: int | str | None
    n_draws: int | None
    weights: ModeWeights | None
    noise_prior_scale: float | None
    n_jobs: int | None = None
    previous_blocks: list[Block] | None = None
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> "SampledPosterior":
        """Sample the posterior.

        Parameters
        ----------
        data : Training
            Training data.
        model : Model
            Network, likelihood, prior and symmetry group.
        progress : FitProgress
            Progress reports of the fit.

        Returns
        -------
        SampledPosterior

        Raises
        ------
        ValueError
            If the model can't be started as ``init`` asks, or ``n_warmup`` is 0 but the chains
            anneal.
        MemoryError
            If the draws don't fit into memory.
        """
        config = self.make_config(data, model, progress)
        INITS[config.init].requirements.check(model)
        if config.annealing and not config.n_warmup and not config.previous_blocks:
            raise ValueError(
                f"init={config.init!r} needs n_warmup of at least 1, got 0: its chains anneal at "
                "the beginning of the warm-up. With warm_start=True a second fit may have 0."
            )
        _require_memory(config)
        progress.begin(self.defaults.progress_blocks)
        with torch.no_grad():
            # Run the chains. An interrupt from here on keeps their draws, with equal weights.
            chains = run_initial_chains(config)
            initial_draws = weight_chains_equally(chains)
            progress.set_current_fit(
                lambda: SampledPosterior.from_initial_draws(config, chains, initial_draws)
            )

            # Weight the modes by evidence and restart chains in them, if the draws suffice.
            draws = weight_by_evidence(config, chains, initial_draws)

            # Remove symmetries and compute diagnostics.
            sampled = SampledPosterior.from_draws(config, chains, initial_draws, draws)
        progress.end(sampled)
        log_info(
            "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
            *sampled.log_evidence,
            len(sampled.modes),
            np.nanmax(sampled.diagnostics["function_rhat"], initial=1.0),
        )
        for message in sampled.diagnostics["warnings"]:
            warn_user(message)
        return sampled

    def choose_init(self, model: Model, n_rows: int) -> str:
        """Choose how chains start.

        Parameters
        ----------
        model : Model
            Network, likelihood, prior and symmetry group.
        n_rows : int
            Number of training rows.

        Returns
        -------
        str
            Key of `INITS`.
        """
        if not isinstance(self.sampler.init, str):
            return "ensemble"
        if self.sampler.init != "auto":
            return self.sampler.init
        if isinstance(self.sampler.kernel, str) and self.sampler.kernel == "auto":
            return choose_init(model, n_rows, self.defaults)
        return "prior"

    def make_config(self, data: Training, model: Model, progress: FitProgress) -> SamplingConfig:
        """Resolve every "auto" and None.

        Parameters
        ----------
        data : Training
            Training data.
        model : Model
            Network, likelihood, prior and symmetry group.
        progress : FitProgress
            Progress reports of the fit.

        Returns
        -------
        SamplingConfig
        """
        sampler = self.sampler
        init = self.choose_init(model, data.n_rows)
        init_defaults = INITS[init]
        n_chains = init_defaults.n_chains if self.n_chains is None else self.n_chains
        if isinstance(n_chains, str):
            n_chains = n_chains_required(
                self.defaults.mode_probabilities, probability=self.defaults.coverage_probability
            )
        kernel = sampler.kernel
        if isinstance(kernel, str):
            if kernel == "auto":
                kernel = init_defaults.kernel
            else:
                kernel = HMC()
        annealing = init_defaults.annealing
        if not isinstance(sampler.init, str):
            annealing = sampler.init
        return SamplingConfig(
            data,
            model,
            progress,
            self.defaults,
            init=init,
            kernel=kernel,
            n_chains=n_chains,
            n_warmup=init_defaults.n_warmup if sampler.n_warmup is None else sampler.n_warmup,
            n_draws=self.defaults.n_draws if self.n_draws is None else int(self.n_draws),
            thinning=sampler.thinning,
            annealing=annealing,
            previous_blocks=self.previous_blocks,
            mode_weights=self.weights or ModeWeights("uniform"),
            remove_symmetries=self.weights is not None,
            noise_prior_scale=self.noise_prior_scale,
            n_jobs=self.n_jobs,
        )


@dataclass(frozen=True, eq=False)
class SampledPosterior:
    """Result of a fit.

    Parameters
    ----------
    draws : PosteriorDraws
        Weighted draws in scaled units, as the sampler returned them.
    samples : ndarray of shape (C, S, P)
        Network weights of the draws, on one representative of their orbits.
    noise_std : ndarray of shape (C, S, T)
        Noise standard deviation of the draws in scaled target units; T = 0 without noise.
    blocks : list of Block
        Final states of the initial chains.
    n_iter : int
        Moves of the longest initial chain.
    modes : list of Mode
        Modes of the posterior, empty if they weren't weighted.
    log_evidence : Estimate
        Log evidence of the original targets in nats; nan if it can't be trusted.
    diagnostics : dict
        Convergence diagnostics and warnings.
    redrawn_noise : ndarray of shape (C, S, T) or None
        Noise levels that predictions use instead of the draws', see `redraw_noise`.
    """

    draws: PosteriorDraws
    samples: Array
    noise_std: Array
    blocks: list[Block]
    n_iter: int
    modes: list[Mode]
    log_evidence: Estimate
    diagnostics: dict[str, Any]
    redrawn_noise: Array | None = None

    @classmethod
    def from_initial_draws(
        cls, config: SamplingConfig, chains: ChainDraws, draws: PosteriorDraws
    ) -> "SampledPosterior":
        """Result of a fit that was interrupted after the initial chains.

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
        SampledPosterior
            Without symmetry removal, modes or diagnostics.
        """
        theta, noise_std = config.posterior.split(torch.as_tensor(draws.position))
        return cls(
            draws,
            samples=theta.numpy(),
            noise_std=noise_std.double().numpy(),
            blocks=chains.blocks,
            n_iter=_count_moves(chains),
            modes=[],
            log_evidence=Estimate(nan, nan),
            diagnostics={"warnings": []},
            redrawn_noise=redraw_noise(config, theta),
        )

    @classmethod
    def from_draws(
        cls,
        config: SamplingConfig,
        chains: ChainDraws,
        initial_draws: PosteriorDraws,
        draws: PosteriorDraws,
    ) -> "SampledPosterior":
        """Result of a complete fit.

        Parameters
        ----------
        config : SamplingConfig
            Settings of the fit.
        chains : ChainDraws
            Initial chains.
        initial_draws : PosteriorDraws
            Draws of the initial chains.
        draws : PosteriorDraws
            Draws that are kept.

        Returns
        -------
        SampledPosterior
        """
        theta, noise_std = config.posterior.split(torch.as_tensor(draws.position))
        samples = align_to_reference(config, theta, draws.log_density)

        # Convert log densities from scaled to original targets.
        offset = config.data.log_jacobian
        modes = list[Mode]()
        log_evidence = Estimate(nan, nan)
        if draws.evidence is not None:
            n_initial_chains = len(initial_draws.position)
            modes = list_modes(draws.evidence, n_initial_chains, draws.chain_modes, offset)
            if draws.has_reliable_evidence:
                summary = draws.evidence.summary
                standard_error = summary.log_evidence_standard_error
                log_evidence = Estimate(summary.log_evidence + offset, standard_error)
        return cls(
            draws,
            samples=samples,
            noise_std=noise_std.double().numpy(),
            blocks=chains.blocks,
            n_iter=_count_moves(chains),
            modes=modes,
            log_evidence=log_evidence,
            diagnostics=collect_diagnostics(config, chains, initial_draws, draws, samples, modes),
            redrawn_noise=redraw_noise(config, theta),
        )

    @property
    def stop_reason(self) -> StopReason:
        """Reason why sampling stopped."""
        return self.draws.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes of the estimator, in the units of the original data.

        Parameters
        ----------
        data : Training
            Training data.
        model : Model
            Network, likelihood, prior and symmetry group.

        Returns
        -------
        dict
            Values by attribute name.
        """
        position = self.draws.position
        weights = self.draws.chain_weights
        n_theta = position.shape[-1] - model.likelihood.n_params
        attributes = {
            "samples_": self.samples,
            "chain_weights_": weights,
            "log_posterior_samples_": self.draws.log_density.astype(np.float64) + data.log_jacobian,
            "modes_": self.modes,
            "log_evidence_": self.log_evidence.value,
            "log_evidence_std_error_": self.log_evidence.standard_error,
            "log_evidence_side_": "lower",  # modes may have been missed
            "diagnostics_": self.diagnostics,
            "_blocks_": [to_arrays(block) for block in self.blocks],
            "_training_data_": tuple(t.cpu().numpy() for t in data.data),
            "_likelihood_params_": position[..., n_theta:].astype(np.float64),
        }

        # Summarise learned prior scales by their posterior geometric means.
        prior = model.prior
        if isinstance(prior, CollapsedGroupPrior):
            theta = torch.as_tensor(self.samples).double()
            log_scale = prior.log_scale(theta).mean(dim=1).numpy()
            attributes["prior_scale_"] = np.exp(weights @ log_scale)
            attributes["prior_groups_"] = np.array(prior.scales.names)
            if prior.scales.columns:
                attributes["relevance_"] = np.exp(log_scale[:, prior.scales.columns])
        if data.y_scaling is not None and self.noise_std.shape[-1]:
            attributes["noise_std_samples_"] = self.noise_std * data.y_scaling.scale
            attributes["_redrawn_noise_"] = self.redrawn_noise
        return attributes


def _count_moves(chains: ChainDraws) -> int:
    """Moves of the longest chain."""
    return int((chains.warmup.n_moves + chains.sampling.n_moves).max())


def _require_memory(config: SamplingConfig) -> None:
    """Raise if the draws or the preconditioners won't fit into memory.

    The host holds the draws as the sampler returned them, concatenated, and relabelled. With three
    copies of C S P numbers a fit still ran out of memory, so two more are counted for what is
    computed from them. Chains that start at Laplace modes have a metric of P^2 numbers each.
    """
    data = config.data
    model = config.model
    n_chains = config.n_chains
    n_params = model.network.layout.n_params
    item_size = data.dtype.itemsize
    if config.remove_symmetries and model.group.factors:
        n_copies = 5
    else:
        n_copies = 4
    if config.init == "laplace":
        n_metrics = 2 * n_chains
    else:
        n_metrics = 0
    draws = MemoryAllocation(
        f"{n_chains} chains of {config.n_draws} draws of {n_params:,} weights",
        n_copies * n_chains * config.n_draws * n_params * item_size,
        "Lower n_chains, n_draws or hidden_layer_sizes, or give X as float32.",
        on_host=True,
    )
    metrics = MemoryAllocation(
        f"{n_metrics} metrics of {n_params:,} weights",
        n_metrics * n_params**2 * item_size,
        "Lower n_chains or hidden_layer_sizes, or use init='prior'.",
    )
    require_memory([data.rows_allocation, prior_allocation(n_params), draws, metrics], data.device)
