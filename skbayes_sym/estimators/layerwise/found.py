"""What layerwise training found, and how well each of its starts did."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import scale_attributes
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.layerwise.base import Layerwise
from skbayes_sym.inference.layerwise.posterior import LayerwisePosterior
from skbayes_sym.inference.layerwise.scales import PriorOfLayers
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.model import Data, Model
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.optimise import OptimiseResult, Stopped
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error

_FIRST_NOISE = 0.1  # in units of the target's standard deviation: most fits end below
_EVALUATION_DRAWS = 128
_EVALUATION_NUMBERS = 1 << 22  # of the features of a block of draws


class Seeds(NamedTuple):
    """One seed a purpose."""

    start: int
    training: int
    predict: int
    bound: int


class Climb(NamedTuple):
    """Where one start led."""

    result: OptimiseResult
    reached: float  # of what it was trained on: the ELBO, or a heuristic, and the hyperprior
    elbo: Estimate  # scaled units


@dataclass(frozen=True, eq=False)
class LayerwiseFit:
    """What layerwise training has found (so far), in scaled units."""

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
    """What stays the same through a fit: forms of posterior and prior, rows in float64, seeds."""

    posterior: Layerwise
    prior: PriorOfLayers
    rows: Data
    seeds: Seeds

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
        """What a start has reached, by fresh draws."""
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
        """As arrays, in the middle of training (for callbacks) or at its end."""
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
