"""Layerwise variational inference as a method: two starts, the higher bound."""

from dataclasses import dataclass, replace
from math import cos, pi
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.building import fully_connected, scale_attributes, scales_by_group
from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.run import Run, Schedule, Steps, logger, n_blocks
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_unless_converged
from skbayes_sym.inference.gaussian_vi.hidden_layers import (
    HiddenPosterior,
    InducingHidden,
    MeanFieldHidden,
)
from skbayes_sym.inference.gaussian_vi.layers import Layerwise, LayerwiseElbo
from skbayes_sym.inference.gaussian_vi.layerwise_posterior import LayerwisePosterior
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.priors import ScalesByGroup
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, Stopped
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error, spawn_seeds


class LayerwiseSeeds(NamedTuple):
    """Seeds, one for each purpose."""

    start: int
    training: int
    predict: int
    bound: int


class Climb(NamedTuple):
    """Result of one start."""

    result: OptimiseResult
    reached: float  # of what it was trained on: the ELBO, or a heuristic, and the hyperprior
    elbo: Estimate  # scaled units


@dataclass(frozen=True, eq=False)
class LayerwiseFit:
    """Result of layerwise training, final or so far, in scaled units."""

    posterior: LayerwisePosterior
    noise_std: Array  # (T,)
    prior: ScalesByGroup  # at the scales found
    predict_seed: int
    elbo: Estimate | None = None  # once training has ended
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        noise = self.noise_std * data.y_scaling.scale
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "noise_std_": float(noise[0]) if len(noise) == 1 else noise,
            "_predict_seed_": self.predict_seed,
        }
        if self.prior.is_learned:
            attributes |= scale_attributes(self.prior)
        if self.elbo is not None:
            attributes["elbo_"] = data.log_jacobian + self.elbo.value
            attributes["elbo_std_error_"] = self.elbo.standard_error
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


class Setting(NamedTuple):
    """Constants of a fit: forms of posterior and prior, rows in float64, seeds."""

    posterior: Layerwise
    prior: PriorOfLayers
    rows: Data
    seeds: LayerwiseSeeds

    def start(self, likelihood: Likelihood, *, at_prior: bool) -> Tensor:
        """Starting point: concentrated, or as wide as the prior."""
        posterior, rows = self.posterior, self.rows
        generator = generator_from(self.seeds.start)
        hidden = posterior.hidden.start(rows, at_prior=at_prior, generator=generator)
        log_noise = likelihood.noise_scale.log().to(rows.x)
        if likelihood.n_params:
            spread = rows.y.std(0) if len(rows.y) > 1 else torch.ones_like(log_noise)
            # Most fits end below a tenth.
            log_noise = torch.where(spread > 0.0, 0.1 * spread, 1.0).log()
        return torch.cat([hidden, log_noise, self.prior.start.to(rows.x)]).clone()

    def climb(self, result: OptimiseResult) -> Climb:
        """Bound that a start has reached, by 128 fresh draws."""
        generator = generator_from(self.seeds.bound, result.params.device)
        own, hyper = self.prior.split(result.params)
        posterior = self.posterior.under(self.prior.of_layers(hyper))
        widest = max(self.posterior.network.sizes)
        size = rows_within(1 << 22, len(self.rows.x) * widest)  # draws of a block, by features
        values: list[Tensor] = []
        for start in range(0, 128, size):
            n_draws = min(size, 128 - start)
            likelihood, kl = posterior.terms(own, self.rows, n_draws, generator=generator)
            values.append(likelihood - kl)
        elbo = mean_and_error(torch.cat(values))
        return Climb(result, elbo.value + float(self.prior.log_hyperprior(hyper)), elbo)

    def found(
        self, params: Tensor, best: Climb | None = None, stopped: Stopped = "max_iter"
    ) -> LayerwiseFit:
        """Result as arrays, in the middle of training (for callbacks) or at its end."""
        own, hyper = (t.cpu() for t in self.prior.split(params.detach()))
        scales = [scale.numpy() for scale in self.prior.of_layers(hyper)]
        arrays = [t.cpu().numpy().copy() for t in (own, *self.rows)]
        kept = LayerwisePosterior(self.posterior.under(scales), *arrays)
        noise_std = self.posterior.split(own)[1].exp().numpy()
        prior = self.prior.scales
        if prior.is_learned:
            prior = replace(prior, hyper=hyper.clone())
        found = LayerwiseFit(kept, noise_std, prior, self.seeds.predict)
        if best is None:
            return found
        result = best.result
        return replace(
            found, elbo=best.elbo, loss_curve=result.loss_curve, n_iter=result.n_iter,
            stop_reason=stopped,
        )  # fmt: skip


_ENDS_THE_FIT = {"callback", "interrupted"}  # the other start isn't tried then


@dataclass(frozen=True, eq=False)
class LayerwiseVI:
    """Layers conditional on the ones sampled before (see `skbayes_sym.inference.gaussian_vi`).

    Training starts once concentrated and once at the prior, ``max_iter`` steps each, and keeps
    the higher bound.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    hidden_posterior: str | int  # "mean_field", "global_inducing", or how many inducing points
    steps: Steps

    def fit(self, data: Training, model: Model, run: Run) -> LayerwiseFit:
        asked = self.steps.batch_size
        if not isinstance(asked, str) and asked < data.n_rows:
            raise ValueError(
                f"batch_size={asked}, but the last layer is integrated out given all "
                f"{data.n_rows} distinct rows at every step. Use batch_size='auto'."
            )
        prior = PriorOfLayers(fully_connected(model.network), scales_by_group(model.prior))
        posterior = self._posterior(prior, data.n_rows)
        seeds = LayerwiseSeeds(*spawn_seeds(data.seed, len(LayerwiseSeeds._fields)))
        setting = Setting(posterior, prior, data.double_data, seeds)
        climbs: list[Climb] = []
        tol = self.steps.absolute_tol(data.total_weight)
        with torch.no_grad():
            starts = [setting.start(model.likelihood, at_prior=wide) for wide in (False, True)]
            params = starts[0]  # optimised in place
            run.begin(2 * n_blocks(self.steps.max_iter), lambda: setting.found(params))
            for params in starts:
                objective = LayerwiseElbo(
                    posterior, prior, setting.rows, params, n_draws=self.steps.n_weight_samples,
                    warm_up=int(0.2 * self.steps.max_iter),
                    generator=generator_from(seeds.training, data.device),
                )  # fmt: skip
                groups = self._groups(setting, model, data)
                result = run.minimise(
                    objective, groups, Schedule(self.steps.max_iter, tol, _falling),
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
        logger.info("ELBO by start: %s; stopped: %s", by_start, found.stop_reason)
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        return found

    def _posterior(self, prior: PriorOfLayers, n_rows: int) -> Layerwise:
        """The posterior of a network's layers, with at most one inducing point per row.

        Under the scales at which a prior that learns them starts.
        """
        network, given = prior.network, self.hidden_posterior
        *scales, last_scale = prior.of_layers(prior.start)
        hidden: HiddenPosterior = MeanFieldHidden(network, tuple(scales))
        if given != "mean_field":
            m = min(100 if isinstance(given, str) else given, n_rows)
            hidden = InducingHidden(network, tuple(scales), m)
        return Layerwise(network, hidden, last_scale)

    def _groups(self, setting: Setting, model: Model, data: Training) -> list[ParamGroup]:
        """Groups, one a named parameter: variances have further to travel than the others."""
        # A tenth of the rate loses some 100 nats on small data.
        rate, posterior, wide = self.steps.rate(3e-2), setting.posterior, (-40.0, 40.0)
        groups = []
        for name, where in posterior.hidden.layout.slices.items():
            is_variance = name.startswith("log_variance")
            factor = self.steps.log_variance_rate if is_variance else 1.0
            groups.append(ParamGroup(where, rate * factor, *wide))
        start = posterior.hidden.layout.n_params
        after = start + posterior.network.n_outputs
        if model.likelihood.n_params:
            groups.append(ParamGroup(slice(start, after), rate, *data.log_noise_range))
        if len(setting.prior.start):
            groups.append(ParamGroup(slice(after, None), rate, *wide))
        return groups


def _falling(progress: float) -> float:
    """Factor on the learning rate: half a cosine."""
    return 0.5 * (1.0 + cos(pi * progress))
