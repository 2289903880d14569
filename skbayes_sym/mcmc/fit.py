"""Sampling as a method: explore, weigh what was found, and draw from it."""

from dataclasses import dataclass, field
from math import nan
from typing import Any, ClassVar

import numpy as np
import torch

from skbayes_sym.base.log import log_info
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR, Requirements
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.mcmc.chain_count import n_chains_required
from skbayes_sym.mcmc.chains import Block
from skbayes_sym.mcmc.config import SamplingConfig, SamplingDefaults
from skbayes_sym.mcmc.initialization import (
    INITS,
    NO_EVIDENCE,
    Draws,
    Explored,
    as_arrays,
    explore,
    init_by_size,
    on_reference_set,
)
from skbayes_sym.mcmc.kernels import HMC
from skbayes_sym.mcmc.mode_weights import (
    Allocation,
    Mode,
    allocate_chains,
    chain_warnings,
    diagnose,
    disagreement,
    list_modes,
    no_evidence,
)
from skbayes_sym.mcmc.samplers import Chains, ModeWeights
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import CollapsedGroupPrior
from skbayes_sym.numerics.memory import MemoryAllocation, prior_allocation, require_memory
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate


@dataclass(frozen=True, eq=False)
class Sampling:
    """Chains, modes and their mass, draws that count (Wiese et al. 2023)."""

    requirements: ClassVar[Requirements] = Requirements(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    sampler: Chains
    n_chains: int | str | None
    n_draws: int | None
    weights: ModeWeights | None  # how modes count; None leaves draws where they were made
    # Scale of the half-normal prior of the noise's standard deviation, scaled target units.
    noise_prior_scale: float
    n_jobs: int | None = None
    start: list[Block] | None = None  # where chains of the previous fit stopped, to go on with
    effort: SamplingDefaults = field(default_factory=SamplingDefaults)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> "Sampled":
        setting = self.setting(data, model, progress)
        INITS[setting.init].requirements.check(model)
        if setting.annealing and not setting.n_warmup and not setting.start:
            raise ValueError(
                f"init={setting.init!r} needs n_warmup of at least 1, got 0: its chains anneal at "
                "the beginning of the warm-up. With warm_start=True a second fit may have 0."
            )
        _require_memory(setting)
        progress.begin()
        with torch.no_grad():
            explored = explore(setting)
            progress.set_current_fit(lambda: Sampled.gather(setting, explored))
            sampled = Sampled.gather(setting, explored, allocate_chains(setting, explored))
        progress.end(sampled)
        log_info(
            "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
            *sampled.log_evidence, len(sampled.modes),
            np.nanmax(sampled.diagnostics["function_rhat"], initial=1.0),
        )  # fmt: skip
        for message in sampled.diagnostics["warnings"]:
            warn_user(message)
        return sampled

    def init_for(self, model: Model, n_rows: int) -> str:
        """Name in `INITS` of where chains start."""
        if not isinstance(self.sampler.init, str):
            return "ensemble"
        if self.sampler.init != "auto":
            return self.sampler.init
        by_size = isinstance(self.sampler.kernel, str) and self.sampler.kernel == "auto"
        return init_by_size(model, n_rows, self.effort) if by_size else "prior"

    def setting(self, data: Training, model: Model, progress: FitProgress) -> SamplingConfig:
        """Decide what is open, by the model and its size."""
        sampler = self.sampler
        effort = self.effort
        init = self.init_for(model, data.n_rows)
        usual = INITS[init]
        n_chains = usual.n_chains if self.n_chains is None else self.n_chains
        if isinstance(n_chains, str):
            n_chains = n_chains_required(effort.auto_modes, probability=effort.auto_probability)
        kernel = sampler.kernel
        if isinstance(kernel, str):
            kernel = usual.kernel if kernel == "auto" else HMC()
        return SamplingConfig(
            data, model, progress, effort, init, kernel, n_chains,
            usual.n_warmup if sampler.n_warmup is None else sampler.n_warmup,
            effort.n_draws if self.n_draws is None else int(self.n_draws),
            thinning=sampler.thinning, start=self.start, n_jobs=self.n_jobs,
            annealing=usual.annealing if isinstance(sampler.init, str) else sampler.init,
            evidence=self.weights or ModeWeights("uniform"),
            remove_symmetries=self.weights is not None, noise_prior_scale=self.noise_prior_scale,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws that count, and what was learnt on the way."""

    draws: Draws  # positions in scaled units, as they were made
    samples: Array  # (C, S, P): their weights on one representative of their orbits
    # (C, S, T): of the same draws, scaled target units; nothing (T = 0) without noise.
    noise_std: Array
    blocks: list[Block]  # where the exploring chains stopped
    n_iter: int  # moves of the chain that made most
    modes: list[Mode]
    log_evidence: Estimate  # nats, of targets as given; nan where it can't be trusted
    diagnostics: dict[str, Any]

    @classmethod
    def gather(
        cls, setting: SamplingConfig, explored: Explored, allocation: Allocation | None = None
    ) -> "Sampled":
        """Everything that a fit keeps; before an allocation the draws as they were made."""
        draws = explored.draws if allocation is None else allocation.draws
        theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
        samples = theta.numpy()
        modes = list[Mode]()
        log_evidence = Estimate(nan, nan)
        diagnostics: dict[str, Any] = {"warnings": []}
        if allocation is not None:
            samples = on_reference_set(setting, theta, draws.value)
            offset = setting.data.log_jacobian
            weighing = allocation.weighing
            if weighing is not None:
                modes = list_modes(weighing, len(explored.draws.position), draws.home, offset)
                if allocation.is_trusted:
                    total = weighing.weights
                    error = total.log_evidence_standard_error
                    log_evidence = Estimate(total.log_evidence + offset, error)
            diagnostics = _diagnostics(setting, explored, allocation, samples, modes)
        chains = explored.chains
        n_iter = int((chains.warmup.n_moves + chains.sampling.n_moves).max())
        return cls(
            draws, samples, noise_std.double().numpy(), chains.blocks, n_iter, modes, log_evidence,
            diagnostics,
        )  # fmt: skip

    @property
    def stop_reason(self) -> StopReason:
        return self.draws.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes, in the units of the data as given."""
        position = self.draws.position
        weights = self.draws.chain_weights
        n_theta = position.shape[-1] - model.likelihood.n_params
        attributes = {
            "samples_": self.samples,
            "chain_weights_": weights,
            "log_posterior_samples_": self.draws.value.astype(np.float64) + data.log_jacobian,
            "modes_": self.modes,
            "log_evidence_": self.log_evidence.value,
            "log_evidence_std_error_": self.log_evidence.standard_error,
            "log_evidence_side_": "lower",  # modes may have been missed
            "diagnostics_": self.diagnostics,
            "_blocks_": [as_arrays(block) for block in self.blocks],
            "_training_data_": tuple(t.cpu().numpy() for t in data.data),
            "_likelihood_params_": position[..., n_theta:].astype(np.float64),
        }
        prior = model.prior
        if isinstance(prior, CollapsedGroupPrior):  # posterior geometric means of its scales
            draws = torch.as_tensor(self.samples).double()
            log_scale = prior.log_scale(draws).mean(dim=1).numpy()
            attributes["prior_scale_"] = np.exp(weights @ log_scale)
            attributes["prior_groups_"] = np.array(prior.scales.names)
            if prior.scales.columns:
                attributes["relevance_"] = np.exp(log_scale[:, prior.scales.columns])
        if data.y_scaling is not None and self.noise_std.shape[-1]:
            attributes["noise_std_samples_"] = self.noise_std * data.y_scaling.scale
        return attributes


def _diagnostics(
    setting: SamplingConfig, explored: Explored, allocation: Allocation, samples: Array,
    modes: list[Mode],
) -> dict[str, Any]:  # fmt: skip
    """Figures on mixing, and every reason to doubt them."""
    draws, weighing, problems, decided = allocation
    effort = setting.effort
    is_annealed = setting.annealing is not None
    figures = diagnose(setting, explored, draws, samples)
    warnings = list[str]()
    if weighing or problems:
        warnings = no_evidence(problems, decided=decided, shared=draws.home is not None)
    if draws.home is not None:  # allocated chains started anew
        members = [mode.members for mode in modes]
        warnings = disagreement(setting, draws.position, members) + warnings
    else:
        if n_stuck := int(figures["stuck"].sum()):
            warnings.append(
                f"{n_stuck} of {len(figures['stuck'])} chains never moved while drawing: raise "
                "n_warmup, or give X as float64."
            )
        if is_annealed:
            acceptance = figures["acceptance"]
            within = figures["function_rhat_within"]
            warnings += chain_warnings(acceptance, within, effort)
    reason = "; ".join(problems)
    if not allocation.is_trusted and not reason:
        reason = NO_EVIDENCE if is_annealed else "modes weren't weighed"
    return {**figures, "no_evidence": reason, "warnings": warnings}


def _require_memory(setting: SamplingConfig) -> None:
    """Draws on the host, as made, as one and as labelled: 8 P + 3 C S P b; what finds them."""
    data = setting.data
    model = setting.model
    n_chains = setting.n_chains
    n_params = model.network.layout.n_params
    size = data.dtype.itemsize
    copies = 3 if setting.remove_symmetries and model.group.factors else 2
    n_metrics = 2 * n_chains if setting.init == "laplace" else 0
    require_memory(
        [
            data.rows_allocation,
            prior_allocation(n_params),
            MemoryAllocation(
                f"{n_chains} chains of {setting.n_draws} draws of {n_params:,} weights",
                copies * n_chains * setting.n_draws * n_params * size,
                "Lower n_chains, n_draws or hidden_layer_sizes, or give X as float32.",
                on_host=True,
            ),
            MemoryAllocation(
                f"{n_metrics} metrics of {n_params:,} weights",
                n_metrics * n_params**2 * size,
                "Lower n_chains or hidden_layer_sizes, or use init='prior'.",
            ),
        ],
        data.device,
    )
