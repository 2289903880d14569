"""Sampling as a method: explore, weigh what was found, and draw from it."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from skbayes_sym.estimators._fit.compatibility import ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR, Needs
from skbayes_sym.estimators._fit.convergence import warn_unconverged
from skbayes_sym.estimators._fit.memory import prior_part, rows_part
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.mcmc.allocate import allocate_chains
from skbayes_sym.estimators.mcmc.explore import explore
from skbayes_sym.estimators.mcmc.sampled import Findings, Sampled
from skbayes_sym.estimators.mcmc.setting import Chains, Search, Setting
from skbayes_sym.estimators.mcmc.starts import INITS, has_modes_to_find
from skbayes_sym.estimators.mcmc.wide import asks_for_it
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.memory import Part, require_memory


@dataclass(frozen=True, eq=False)
class Sampling:
    """Chains and particles, modes and their mass, draws that count (Wiese et al. 2023, corrected).

    Parameters
    ----------
    search : Search
    chains : Chains
    remove_symmetries : bool
    noise_prior_scale : float
        Scale of the half-normal prior of the noise's standard deviation, scaled target units.
    """

    needs: ClassVar[Needs] = Needs(ANY_LIKELIHOOD, ANY_NETWORK, ANY_PRIOR)

    search: Search
    chains: Chains
    remove_symmetries: bool
    noise_prior_scale: float

    def fit(self, data: Training, model: Model, run: Run) -> Sampled:
        INITS[self.chains.init].needs.check(model)
        self._require_warmup()
        self._require_memory(data, model)
        setting = Setting(
            self.search, self.chains, self.remove_symmetries, self.noise_prior_scale,
            data, model, run,
        )  # fmt: skip
        run.begin()
        with torch.no_grad():
            explored = explore(setting)
            run.keep(lambda: Sampled.unreduced(setting, explored))
            allocation = allocate_chains(setting, explored)
            found = Sampled.gather(setting, explored, allocation)
        run.end(found)
        _report(found.findings)
        return found

    def _require_warmup(self) -> None:
        chains = self.chains
        if chains.approach and not chains.n_warmup and not chains.start:
            raise ValueError(
                f"init={chains.init!r} needs n_warmup of at least 1, got 0: its chains anneal at "
                "the beginning of the warm-up. With warm_start=True a second fit may have 0."
            )

    def _require_memory(self, data: Training, model: Model) -> None:
        """Draws on the host, as made, as one and as labelled: 8 P + 3 C S P b; what finds them."""
        n_params, size = model.network.layout.n_params, data.dtype.itemsize
        search, plan, particles = self.search, self.chains, self.search.particles
        copies = 3 if self.remove_symmetries and model.group.factors else 2
        n_chains = 0 if search.kernel is None and not search.by_evidence else plan.n_chains
        n_metrics = 2 * plan.n_chains if plan.init == "laplace" else 0
        n_particles = 0 if particles is None else particles.n_replicates * particles.n_particles
        require_memory(
            [
                rows_part(data),
                prior_part(n_params),
                Part(
                    f"{n_chains} chains of {plan.n_draws} draws of {n_params:,} weights",
                    copies * n_chains * plan.n_draws * n_params * size,
                    "Lower n_chains, n_draws or hidden_layer_sizes, or give X as float32.",
                    on_host=True,
                ),
                Part(
                    f"{n_metrics} metrics of {n_params:,} weights",
                    n_metrics * n_params**2 * size,
                    "Lower n_chains or hidden_layer_sizes, or use init='prior'.",
                ),
                Part(
                    f"{n_particles} particles of {n_params:,} weights",
                    n_particles * n_params * size,
                    "Lower n_particles or n_replicates.",
                ),
            ],
            data.device,
        )


@dataclass(frozen=True, eq=False)
class BySize:
    """One of three samplings, as the model and its size say.

    Parameters
    ----------
    modes : Sampling
        Where Gauss-Newton steps find modes in seconds (`starts.has_modes_to_find`).
    few, many : Sampling
        Of other models: of tens of weights, and of hundreds and more (`wide.asks_for_it`).
    """

    needs: ClassVar[Needs] = Sampling.needs

    modes: Sampling
    few: Sampling
    many: Sampling

    def fit(self, data: Training, model: Model, run: Run) -> Sampled:
        if has_modes_to_find(model, data.n_rows):
            return self.modes.fit(data, model, run)
        return (self.many if asks_for_it(model) else self.few).fit(data, model, run)


def _report(findings: Findings) -> None:
    """Log what was found, and warn of what can't be trusted."""
    modes, log_evidence, diagnostics = findings
    logger.info(
        "log evidence %.6g +- %.2g from %d modes; largest function-space R-hat %.3f",
        log_evidence.value, log_evidence.standard_error, len(modes),
        np.nanmax(diagnostics["function_rhat"], initial=1.0),
    )  # fmt: skip
    for message in diagnostics["warnings"]:
        warn_unconverged(message)
