"""Sampling as a method: explore, weigh what was found, and draw from it."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.compatibility import ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR, Needs
from skbayes_sym.estimators._fit.memory_parts import prior_part, rows_part
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.mcmc.allocate import Allocation, Mode, allocate_chains, list_modes
from skbayes_sym.estimators.mcmc.chain_starts import INITS, NO_EVIDENCE, init_by_size
from skbayes_sym.estimators.mcmc.explore import (
    Draws,
    Explored,
    as_arrays,
    explore,
    on_reference_set,
)
from skbayes_sym.estimators.mcmc.sampling_effort import SamplingEffort
from skbayes_sym.estimators.mcmc.setting import SamplingSetting
from skbayes_sym.estimators.mcmc.trust import diagnose, disagreement, doubtful_chains, no_evidence
from skbayes_sym.estimators.samplers import Chains, ModeWeights
from skbayes_sym.inference.sampling.chain_count import n_chains_required
from skbayes_sym.inference.sampling.chains import Block
from skbayes_sym.inference.sampling.kernels import HMC, Kernel
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import CollapsedScales
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate

_KERNELS: dict[str, Kernel] = {"hmc": HMC()}
_UNKNOWN = Estimate(float("nan"), float("nan"))


class Findings(NamedTuple):
    """Knowledge of the whole posterior, of targets as given."""

    modes: list[Mode]
    log_evidence: Estimate  # nats; nan where it can't be trusted
    diagnostics: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sampling:
    """Chains, modes and their mass, draws that count (Wiese et al. 2023)."""

    needs: ClassVar[Needs] = Needs(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    sampler: Chains
    n_chains: int | str | None
    n_draws: int | None
    weights: ModeWeights | None  # how modes count; None leaves draws where they were made
    # Scale of the half-normal prior of the noise's standard deviation, scaled target units.
    noise_prior_scale: float
    n_jobs: int | None = None
    start: list[Block] | None = None  # where chains of the previous fit stopped, to go on with
    effort: SamplingEffort = field(default_factory=SamplingEffort)

    def fit(self, data: Training, model: Model, run: Run) -> "Sampled":
        setting = self.setting(data, model, run)
        plan = setting.plan
        INITS[plan.init].needs.check(model)
        if plan.approach and not plan.n_warmup and not plan.start:
            raise ValueError(
                f"init={plan.init!r} needs n_warmup of at least 1, got 0: its chains anneal at "
                "the beginning of the warm-up. With warm_start=True a second fit may have 0."
            )
        _require_memory(setting)
        run.begin()
        with torch.no_grad():
            explored = explore(setting)
            run.keep(lambda: Sampled.gather(setting, explored))
            sampled = Sampled.gather(setting, explored, allocate_chains(setting, explored))
        run.end(sampled)
        _report(sampled.findings)
        return sampled

    def init_for(self, model: Model, n_rows: int) -> str:
        """Name in `INITS` of where chains start."""
        if not isinstance(self.sampler.init, str):
            return "ensemble"
        if self.sampler.init != "auto":
            return self.sampler.init
        by_size = isinstance(self.sampler.kernel, str) and self.sampler.kernel == "auto"
        return init_by_size(model, n_rows, self.effort) if by_size else "prior"

    def setting(self, data: Training, model: Model, run: Run) -> SamplingSetting:
        """Decide what is open, by the model and its size."""
        sampler, weights, effort = self.sampler, self.weights, self.effort
        init = self.init_for(model, data.n_rows)
        usual, approach = INITS[init].usual, INITS[init].approach
        n_chains = usual.n_chains if self.n_chains is None else self.n_chains
        if isinstance(n_chains, str):
            n_chains = n_chains_required(effort.auto_modes, probability=effort.auto_probability)
        plan = usual._replace(n_chains=n_chains, init=init, n_jobs=self.n_jobs)
        if self.n_draws is not None:
            plan = plan._replace(n_draws=self.n_draws)
        evidence = weights or ModeWeights("uniform")
        approach = approach if isinstance(sampler.init, str) else sampler.init
        kernel = sampler.kernel
        if isinstance(kernel, str):
            kernel = INITS[init].kernel if kernel == "auto" else _KERNELS[kernel]
        insists = evidence.method == "evidence"
        plan = plan._replace(
            n_warmup=usual.n_warmup if sampler.n_warmup is None else sampler.n_warmup,
            thinning=sampler.thinning, approach=approach, start=self.start, kernel=kernel,
            by_evidence=insists or (evidence.method == "auto" and not approach), insists=insists,
            cost=float(evidence.effort),
        )  # fmt: skip
        return SamplingSetting(
            plan, weights is not None, self.noise_prior_scale, data, model, run, effort
        )


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws that count, and what was learnt on the way."""

    draws: Draws  # positions in scaled units, as they were made
    samples: Array  # (C, S, P): their weights on one representative of their orbits
    # (C, S, T): of the same draws, scaled target units; nothing (T = 0) without noise.
    noise_std: Array
    findings: Findings
    blocks: list[Block]  # where the exploring chains stopped
    n_iter: int

    @classmethod
    def gather(
        cls, setting: SamplingSetting, explored: Explored, allocation: Allocation | None = None
    ) -> "Sampled":
        """Everything that a fit keeps; before an allocation the draws as they were made."""
        draws = explored.draws if allocation is None else allocation.draws
        theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
        samples, findings = theta.numpy(), Findings([], _UNKNOWN, {"warnings": []})
        if allocation is not None:
            samples = on_reference_set(setting, theta, draws.value)
            findings = _findings(setting, explored, allocation, samples)
        noise, blocks = noise_std.double().numpy(), explored.chains.blocks
        return cls(draws, samples, noise, findings, blocks, explored.n_iter)

    @property
    def stop_reason(self) -> Stopped:
        return self.draws.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes, in the units of the data as given."""
        position, weights = self.draws.position, self.draws.chain_weights
        n_theta = position.shape[-1] - model.likelihood.n_params
        attributes = {
            "samples_": self.samples,
            "chain_weights_": weights,
            "log_posterior_samples_": self.draws.value.astype(np.float64) + data.log_jacobian,
            "modes_": self.findings.modes,
            "log_evidence_": self.findings.log_evidence.value,
            "log_evidence_std_error_": self.findings.log_evidence.standard_error,
            "diagnostics_": self.findings.diagnostics,
            "_blocks_": [as_arrays(block) for block in self.blocks],
            "_training_data_": tuple(t.cpu().numpy() for t in data.data),
            "_likelihood_params_": position[..., n_theta:].astype(np.float64),
        }
        prior = model.prior
        if isinstance(prior, CollapsedScales):  # posterior geometric means of its scales
            draws = torch.as_tensor(self.samples).double()
            log_scale = prior.log_scale(draws).mean(dim=1).numpy()
            attributes["prior_scale_"] = np.exp(weights @ log_scale)
            attributes["prior_groups_"] = np.array(prior.scales.names)
            if prior.scales.columns:
                attributes["relevance_"] = np.exp(log_scale[:, prior.scales.columns])
        if data.y_scaling is not None and self.noise_std.shape[-1]:
            attributes["noise_std_samples_"] = self.noise_std * data.y_scaling.scale
        return attributes


def _findings(
    setting: SamplingSetting, explored: Explored, allocation: Allocation, samples: Array
) -> Findings:
    draws, weighing, problems, decided = allocation
    offset, effort, approach = setting.data.log_jacobian, setting.effort, setting.plan.approach
    modes, log_evidence = list[Mode](), _UNKNOWN
    if weighing is not None:
        modes = list_modes(weighing, explored.n_starts, draws.home, offset)
        if allocation.trusted:
            total = weighing.weights
            log_evidence = Estimate(total.log_evidence + offset, total.log_evidence_standard_error)
    figures = diagnose(setting.posterior, explored, draws, samples, effort)
    warnings = list[str]()
    if weighing or problems:
        warnings = no_evidence(problems, decided=decided, shared=draws.home is not None)
    if draws.home is not None:  # allocated chains started anew
        members = [mode.members for mode in modes]
        warnings = disagreement(setting.posterior, draws.position, members, effort) + warnings
    else:
        if n_stuck := int(figures["stuck"].sum()):
            warnings.append(
                f"{n_stuck} of {len(figures['stuck'])} chains never moved while drawing: raise "
                "n_warmup, or give X as float64."
            )
        if approach is not None:
            acceptance, within = figures["acceptance"], figures["function_rhat_within"]
            warnings += doubtful_chains(acceptance, within, effort)
    reason = "; ".join(problems)
    if not allocation.trusted and not reason:
        reason = NO_EVIDENCE if approach else "modes weren't weighed"
    return Findings(modes, log_evidence, {**figures, "no_evidence": reason, "warnings": warnings})


def _report(findings: Findings) -> None:
    """Log what was found, and warn of what can't be trusted."""
    modes, log_evidence, diagnostics = findings
    logger.info(
        "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
        log_evidence.value, log_evidence.standard_error, len(modes),
        np.nanmax(diagnostics["function_rhat"], initial=1.0),
    )  # fmt: skip
    for message in diagnostics["warnings"]:
        warn_user(message)


def _require_memory(setting: SamplingSetting) -> None:
    """Draws on the host, as made, as one and as labelled: 8 P + 3 C S P b; what finds them."""
    data, model, plan = setting.data, setting.model, setting.plan
    n_params, size = model.network.layout.n_params, data.dtype.itemsize
    copies = 3 if setting.remove_symmetries and model.group.factors else 2
    n_metrics = 2 * plan.n_chains if plan.init == "laplace" else 0
    require_memory(
        [
            rows_part(data),
            prior_part(n_params),
            Part(
                f"{plan.n_chains} chains of {plan.n_draws} draws of {n_params:,} weights",
                copies * plan.n_chains * plan.n_draws * n_params * size,
                "Lower n_chains, n_draws or hidden_layer_sizes, or give X as float32.",
                on_host=True,
            ),
            Part(
                f"{n_metrics} metrics of {n_params:,} weights",
                n_metrics * n_params**2 * size,
                "Lower n_chains or hidden_layer_sizes, or use init='prior'.",
            ),
        ],
        data.device,
    )
