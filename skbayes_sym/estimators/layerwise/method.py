"""Layerwise variational inference as a method: two starts, the higher bound."""

from dataclasses import dataclass
from math import cos, pi
from typing import ClassVar

import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_unless_converged
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.run import Run, Schedule, logger, n_blocks
from skbayes_sym.estimators._fit.steps import Steps
from skbayes_sym.estimators._fit.training import Training, rows_per_step
from skbayes_sym.estimators.layerwise.found import Climb, LayerwiseFit, Seeds, Setting
from skbayes_sym.estimators.layerwise.parts import Parts
from skbayes_sym.inference.layerwise.base import LayerwiseElbo
from skbayes_sym.inference.layerwise.scales import PriorOfLayers
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.numerics.optimise import ParamGroup
from skbayes_sym.numerics.random import generator_from, spawn_seeds

_RATE = 3e-2  # learning_rate="auto"; a tenth of it loses some 100 nats on small data
_WARM_UP = 0.2  # share of the steps over which the KL's weight rises to 1
_PARAM_RANGE = (-40.0, 40.0)
_ENDS_THE_FIT = {"callback", "interrupted"}  # the other start isn't tried then


@dataclass(frozen=True, eq=False)
class LayerwiseVI:
    """Layers conditional on the ones sampled before (see `skbayes_sym.inference.layerwise`).

    Training starts once concentrated and once at the prior, ``max_iter`` steps each, and keeps
    the higher bound.

    Parameters
    ----------
    parts : Parts
    steps : Steps
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    parts: Parts
    steps: Steps

    def fit(self, data: Training, model: Model, run: Run) -> LayerwiseFit:
        batch_size = self._batch_size(data.n_rows)
        prior = PriorOfLayers(fully_connected(model.network), scales_by_group(model.prior))
        posterior = self.parts.posterior(prior, data.n_rows)
        seeds = Seeds(*spawn_seeds(data.seed, len(Seeds._fields)))
        setting = Setting(posterior, prior, data.double_data, seeds)
        climbs: list[Climb] = []
        with torch.no_grad():
            starts = [setting.start(model.likelihood, at_prior=wide) for wide in (False, True)]
            params = starts[0]  # optimised in place
            run.begin(2 * n_blocks(self.steps.max_iter), lambda: setting.found(params))
            for params in starts:
                objective = self._objective(setting, data, params, batch_size)
                groups = self._groups(setting, model, data)
                result = run.minimise(
                    objective, groups, self._schedule(data.total_weight),
                    report=lambda loss: ("training ELBO", data.log_jacobian - loss),
                )  # fmt: skip
                climbs.append(setting.climb(result))
                if climbs[-1].result.stopped in _ENDS_THE_FIT:
                    break
            best = max(climbs, key=lambda climb: climb.reached)
            last = climbs[-1].result.stopped
            stopped = last if last in _ENDS_THE_FIT else best.result.stopped
            found = setting.found(best.result.params, best, stopped)
        run.end(found)
        elbos = (data.log_jacobian + climb.elbo.value for climb in climbs)
        by_start = ", ".join(f"{elbo:.6g}" for elbo in elbos)
        logger.info("ELBO by start: %s; stopped by %s", by_start, found.stop_reason)
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        return found

    def _batch_size(self, n_rows: int) -> int:
        asked = self.steps.batch_size
        if not self.parts.needs_all_rows:
            return rows_per_step(asked, n_rows)
        if not isinstance(asked, str) and asked < n_rows:
            raise ValueError(
                f"batch_size={asked}, but last_layer='collapsed' needs all {n_rows} distinct rows "
                "at every step. Use batch_size='auto', or last_layer='variational' with "
                "hidden_posterior='global_inducing'."
            )
        return n_rows

    def _objective(
        self, setting: Setting, data: Training, params: Tensor, batch_size: int
    ) -> LayerwiseElbo:
        generator = generator_from(setting.seeds.training, data.device)
        return LayerwiseElbo(
            setting.posterior,
            setting.prior,
            Batches(setting.rows, batch_size, generator),
            params,
            n_draws=self.steps.n_weight_samples,
            warm_up=int(_WARM_UP * self.steps.max_iter),
        )

    def _groups(self, setting: Setting, model: Model, data: Training) -> list[ParamGroup]:
        """One group a named parameter: variances have further to travel than the others."""
        rate, posterior = self.steps.rate(_RATE), setting.posterior
        groups, start = [], 0
        for layout in (posterior.hidden.layout, posterior.last.layout):
            for name, where in layout.slices.items():
                is_variance = name.startswith("log_variance")
                factor = self.steps.log_variance_rate if is_variance else 1.0
                shifted = slice(start + where.start, start + where.stop)
                groups.append(ParamGroup(shifted, rate * factor, *_PARAM_RANGE))
            start += layout.n_params
        after = start + posterior.network.n_outputs
        if model.likelihood.n_params:
            groups.append(ParamGroup(slice(start, after), rate, *data.log_noise_range))
        if len(setting.prior.start):
            groups.append(ParamGroup(slice(after, None), rate, *_PARAM_RANGE))
        return groups

    def _schedule(self, total_weight: float) -> Schedule:
        tol = self.steps.absolute_tol(total_weight)
        return Schedule(self.steps.max_iter, tol, lambda progress: 0.5 * (1.0 + cos(pi * progress)))
