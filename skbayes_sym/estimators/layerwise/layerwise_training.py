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
from skbayes_sym.estimators._fit.training import Training, rows_per_step
from skbayes_sym.estimators._fit.warnings import warn_unless_converged
from skbayes_sym.inference.gaussian_vi.hidden_layers import (
    HiddenPosterior,
    InducingHidden,
    MeanFieldHidden,
)
from skbayes_sym.inference.gaussian_vi.layers import (
    CollapsedLast,
    InducingLast,
    LastLayer,
    Layerwise,
    LayerwiseElbo,
)
from skbayes_sym.inference.gaussian_vi.layerwise_posterior import LayerwisePosterior
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Batches, Data, Model
from skbayes_sym.models.priors import ScalesByGroup
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, Stopped
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error, spawn_seeds

LAST_LAYERS = {"collapsed", "variational"}
HIDDEN_POSTERIORS = {"mean_field", "global_inducing"}
_N_INDUCING = 100  # hidden_posterior="global_inducing"


@dataclass(frozen=True)
class LayerwiseParts:
    """Posteriors of the layers, in the words of the constructor."""

    last_layer: str
    hidden_posterior: str | int  # a number: of inducing points

    def __post_init__(self) -> None:
        if self.hidden_posterior != "mean_field":
            return
        if self.last_layer == "variational":
            raise ValueError(
                "last_layer='variational' is made of sites at inducing points: use it with "
                "hidden_posterior='global_inducing'. Independent weights in all layers are "
                "SymmetrizedVIRegressor's."
            )

    def posterior(self, prior: PriorOfLayers, n_rows: int) -> Layerwise:
        """The posterior of a network's layers, with at most one inducing point per row.

        Under the scales at which a prior that learns them starts.
        """
        network = prior.network
        given = self.hidden_posterior
        asked = _N_INDUCING if isinstance(given, str) else given
        m = min(asked, n_rows)
        *hidden_scales, last_scale = prior.of_layers(prior.start)
        hidden: HiddenPosterior = MeanFieldHidden(network, tuple(hidden_scales))
        if self.hidden_posterior != "mean_field":
            hidden = InducingHidden(network, tuple(hidden_scales), m)
        last: LastLayer = CollapsedLast(last_scale)
        if self.last_layer == "variational":
            last = InducingLast(last_scale, m, network.n_outputs)
        return Layerwise(network, hidden, last)


_FIRST_NOISE = 0.1  # in units of the target's standard deviation: most fits end below
_EVALUATION_DRAWS = 128
_EVALUATION_NUMBERS = 1 << 22  # of the features of a block of draws


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
        # Equal seeds: the last layer's values are the targets of the hidden layers' inducing rows.
        first, second = (generator_from(self.seeds.start) for _ in range(2))
        hidden = posterior.hidden.start(rows, at_prior=at_prior, generator=first)
        last = posterior.last.start(rows, generator=second)
        log_noise = likelihood.noise_scale.log().to(rows.x)
        if likelihood.n_params:
            spread = rows.y.std(0) if len(rows.y) > 1 else torch.ones_like(log_noise)
            log_noise = torch.where(spread > 0.0, _FIRST_NOISE * spread, 1.0).log()
        return torch.cat([hidden, last, log_noise, self.prior.start.to(rows.x)]).clone()

    def climb(self, result: OptimiseResult) -> Climb:
        """Bound that a start has reached, by fresh draws."""
        elbo = self._bound(result.params)
        log_hyperprior = self.prior.log_hyperprior(self.prior.split(result.params)[1])
        return Climb(result, elbo.value + float(log_hyperprior), elbo)

    def _bound(self, params: Tensor) -> Estimate:
        """Training ELBO by fresh draws."""
        generator = generator_from(self.seeds.bound, params.device)
        own, hyper = self.prior.split(params)
        posterior = self.posterior.under(self.prior.of_layers(hyper))
        widest = max(self.posterior.network.sizes)
        size = rows_within(_EVALUATION_NUMBERS, len(self.rows.x) * widest)
        values: list[Tensor] = []
        left = _EVALUATION_DRAWS
        while left > 0:
            n_draws = min(size, left)
            likelihood, kl = posterior.terms(own, self.rows, n_draws, generator=generator)
            values.append(likelihood - kl)
            left -= len(kl)
        return mean_and_error(torch.cat(values))

    def found(
        self, params: Tensor, best: Climb | None = None, stopped: Stopped = "max_iter"
    ) -> LayerwiseFit:
        """Result as arrays, in the middle of training (for callbacks) or at its end."""
        own, hyper = (t.cpu() for t in self.prior.split(params.detach()))
        scales = [scale.numpy() for scale in self.prior.of_layers(hyper)]
        arrays = [t.cpu().numpy().copy() for t in (own, *self.rows)]
        kept = LayerwisePosterior(self.posterior.under(scales), *arrays)
        noise_std = self.posterior.split(own)[2].exp().numpy()
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


_RATE = 3e-2  # learning_rate="auto"; a tenth of it loses some 100 nats on small data
_WARM_UP = 0.2  # share of the steps over which the KL's weight rises to 1
_PARAM_RANGE = (-40.0, 40.0)
_ENDS_THE_FIT = {"callback", "interrupted"}  # the other start isn't tried then


@dataclass(frozen=True, eq=False)
class LayerwiseVI:
    """Layers conditional on the ones sampled before (see `skbayes_sym.inference.gaussian_vi`).

    Training starts once concentrated and once at the prior, ``max_iter`` steps each, and keeps
    the higher bound.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    parts: LayerwiseParts
    steps: Steps

    def fit(self, data: Training, model: Model, run: Run) -> LayerwiseFit:
        batch_size = self._batch_size(data.n_rows)
        prior = PriorOfLayers(fully_connected(model.network), scales_by_group(model.prior))
        posterior = self.parts.posterior(prior, data.n_rows)
        seeds = LayerwiseSeeds(*spawn_seeds(data.seed, len(LayerwiseSeeds._fields)))
        setting = Setting(posterior, prior, data.double_data, seeds)
        climbs: list[Climb] = []
        tol = self.steps.absolute_tol(data.total_weight)
        with torch.no_grad():
            starts = [setting.start(model.likelihood, at_prior=wide) for wide in (False, True)]
            params = starts[0]  # optimised in place
            run.begin(2 * n_blocks(self.steps.max_iter), lambda: setting.found(params))
            for params in starts:
                objective = self._objective(setting, data, params, batch_size)
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

    def _batch_size(self, n_rows: int) -> int:
        asked = self.steps.batch_size
        if self.parts.last_layer != "collapsed":  # which is integrated out given every row
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
        """Groups, one a named parameter: variances have further to travel than the others."""
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


def _falling(progress: float) -> float:
    """Factor on the learning rate: half a cosine."""
    return 0.5 * (1.0 + cos(pi * progress))
