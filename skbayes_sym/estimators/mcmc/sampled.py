"""What a sampled fit found: draws on the reference set, modes, evidence, figures on mixing."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.mcmc import wide
from skbayes_sym.estimators.mcmc.allocate import Allocation
from skbayes_sym.estimators.mcmc.diagnostics import diagnose
from skbayes_sym.estimators.mcmc.draws import Draws, Explored, on_reference_set
from skbayes_sym.estimators.mcmc.modes import Mode, list_modes
from skbayes_sym.estimators.mcmc.setting import Setting
from skbayes_sym.estimators.mcmc.trust import (
    disagreement,
    doubtful_chains,
    no_evidence,
    stuck_chains,
)
from skbayes_sym.estimators.mcmc.warm_start import as_arrays
from skbayes_sym.inference.sampling.blocks import Block
from skbayes_sym.models.learned_scales import CollapsedScales
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate

_UNKNOWN = Estimate(float("nan"), float("nan"))


class Findings(NamedTuple):
    """What is known of the whole posterior, of targets as given."""

    modes: list[Mode]
    log_evidence: Estimate  # nats; nan where it can't be trusted
    diagnostics: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Sampled:
    """Draws that count, and what was learnt on the way.

    Parameters
    ----------
    draws : Draws
        Positions in scaled units, as they were made.
    samples : ndarray of shape (C, S, P)
        Their weights on one representative of their orbits.
    noise_std : ndarray of shape (C, S, T)
        Of the same draws, scaled target units; nothing (T = 0) without noise.
    findings : Findings
    blocks : list of Block
        Where the exploring chains stopped.
    n_iter : int
    """

    draws: Draws
    samples: Array
    noise_std: Array
    findings: Findings
    blocks: list[Block]
    n_iter: int

    @classmethod
    def gather(cls, setting: Setting, explored: Explored, allocation: Allocation) -> "Sampled":
        """Everything that a fit keeps."""
        draws = allocation.draws
        theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
        samples = on_reference_set(setting, theta, draws.value)
        return cls(
            draws,
            samples,
            noise_std.double().numpy(),
            _findings(setting, explored, allocation, samples),
            [] if explored.chains is None else explored.chains.blocks,
            explored.n_iter,
        )

    @classmethod
    def unreduced(cls, setting: Setting, explored: Explored) -> "Sampled":
        """The draws as they were made: neither weighed nor on the reference set."""
        draws = explored.draws
        theta, noise_std = setting.posterior.split(torch.as_tensor(draws.position))
        return cls(
            draws,
            theta.numpy(),
            noise_std.double().numpy(),
            Findings([], _UNKNOWN, {"warnings": []}),
            [] if explored.chains is None else explored.chains.blocks,
            explored.n_iter,
        )

    @property
    def stop_reason(self) -> Stopped:
        return self.draws.stopped

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes, in the units of the data as given."""
        modes, log_evidence, diagnostics = self.findings
        attributes = {
            "samples_": self.samples,
            "chain_weights_": self.draws.chain_weights,
            "log_posterior_samples_": self.draws.value.astype(np.float64) + data.log_jacobian,
            "modes_": modes,
            "log_evidence_": log_evidence.value,
            "log_evidence_std_error_": log_evidence.standard_error,
            "diagnostics_": diagnostics,
            "_blocks_": [as_arrays(block) for block in self.blocks],
            "_training_data_": tuple(t.cpu().numpy() for t in data.data),
        }
        n_params = model.likelihood.n_params
        own = self.draws.position[..., self.draws.position.shape[-1] - n_params :]
        attributes["_likelihood_params_"] = own.astype(np.float64)
        if isinstance(model.prior, CollapsedScales):
            attributes |= self._learned_scales(model.prior)
        if data.y_scaling is not None and self.noise_std.shape[-1]:
            attributes["noise_std_samples_"] = self.noise_std * data.y_scaling.scale
        return attributes

    def _learned_scales(self, prior: CollapsedScales) -> dict[str, Array]:
        """Posterior geometric means of the prior's scales, of all draws and of every chain."""
        log_scale = prior.log_scale(torch.as_tensor(self.samples).double()).mean(dim=1).numpy()
        found = {
            "prior_scale_": np.exp(self.draws.chain_weights @ log_scale),
            "prior_groups_": np.array(prior.scales.names),
        }
        if prior.scales.columns:
            found["relevance_"] = np.exp(log_scale[:, prior.scales.columns])
        return found


def _findings(
    setting: Setting, explored: Explored, allocation: Allocation, samples: Array
) -> Findings:
    draws, weighing, problems, decided = allocation
    trusted, offset = allocation.trusted, setting.data.log_jacobian
    modes: list[Mode] = []
    log_evidence = _UNKNOWN
    if weighing is not None:
        n_explorers = explored.n_starts if explored.chains else 0
        modes = list_modes(weighing, n_explorers, draws.home, offset)
        if trusted:
            total = weighing.weights
            log_evidence = Estimate(total.log_evidence + offset, total.log_evidence_standard_error)
    found = diagnose(setting.posterior, explored, draws, samples)
    shared = draws.home is not None
    warnings = no_evidence(problems, decided=decided, shared=shared) if weighing or problems else []
    if draws.home is None:
        warnings += stuck_chains(found["stuck"])
        if setting.chains.approach is not None:
            warnings += doubtful_chains(found["acceptance"], found["function_rhat_within"])
    else:  # allocated chains started anew
        warnings = disagreement(setting.posterior, draws.position, modes) + warnings
    told = {"no_evidence": _why_none(setting, allocation), "warnings": warnings}
    return Findings(modes, log_evidence, {**found, **told})


def _why_none(setting: Setting, allocation: Allocation) -> str:
    """The reason for an evidence that is nan; empty where there is one."""
    if allocation.trusted:
        return ""
    if allocation.problems:
        return "; ".join(allocation.problems)
    return wide.NO_EVIDENCE if setting.chains.approach else "modes weren't weighed"
