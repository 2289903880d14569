"""What mean-field training found: a posterior, the likelihood's parameters and bounds."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.model import scale_attributes
from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.inference.mean_field.elbo import GaussianMLP, learned_scales
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.learned_scales import ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import WeightMoments
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate


class Bounds(NamedTuple):
    """The bounds of a fit, nats, targets in scaled units."""

    mean_field: Estimate
    gap: Estimate
    gap_above: Estimate
    log_order: float

    def attributes(self, log_jacobian: float) -> dict[str, float]:
        """Of targets as given."""
        mean_field, gap = self.mean_field.value + log_jacobian, self.gap.value
        errors = self.mean_field.standard_error, self.gap.standard_error
        return {
            "elbo_": mean_field + gap,
            "elbo_mean_field_": mean_field,
            "elbo_upper_": mean_field + max(gap, self.gap_above.value),
            "elbo_std_error_": float(np.hypot(*errors)),
            "symmetry_gap_": gap,
            "saturation_": self.saturation,
        }

    @property
    def saturation(self) -> float:
        """The gap as a share of ``log |G|``; NaN of the trivial group."""
        return self.gap.value / self.log_order if self.log_order > 0.0 else float("nan")


@dataclass(frozen=True, eq=False)
class MeanFieldFit:
    """What mean-field training has found (so far), in scaled units."""

    loc: Array  # (P,), as is the next, in the working precision
    log_variance: Array
    likelihood_params: Array  # (n_params of the likelihood,)
    predict_seed: int
    prior: ScalesByGroup | None = None  # at the scales found, where they are learned
    bounds: Bounds | None = None  # once training has ended
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "posterior_": MeanFieldGaussian(self.loc, np.exp(0.5 * self.log_variance)),
            "_predict_seed_": self.predict_seed,
            "_likelihood_params_": self.likelihood_params,
        }
        if data.y_scaling is not None:
            likelihood = model.likelihood.at(torch.as_tensor(self.likelihood_params))
            noise = likelihood.noise_scale.double().numpy()
            if len(noise):  # counts have none
                noise = noise * data.y_scaling.scale
                attributes["noise_std_"] = float(noise[0]) if len(noise) == 1 else noise
        if self.prior is not None:
            attributes |= scale_attributes(self.prior)
        if self.bounds is not None:
            attributes.update(self.bounds.attributes(data.log_jacobian))
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


def found_so_far(params: Tensor, model: GaussianMLP, predict_seed: int) -> MeanFieldFit:
    """Read the optimiser's vector: means, log variances and what the likelihood learns."""
    n = model.network.layout.n_params
    loc, log_variance, own = (
        t.detach().cpu().numpy().copy() for t in (params[:n], params[n : 2 * n], params[2 * n :])
    )
    return MeanFieldFit(loc, log_variance, own, predict_seed, _scales_at(params, model))


def _scales_at(params: Tensor, model: GaussianMLP) -> ScalesByGroup | None:
    """The prior at the scales that this posterior asks for, where they are learned."""
    scales = learned_scales(model.prior, torch.device("cpu"))
    if scales is None:
        return None
    n = model.network.layout.n_params
    final = params.detach().double().cpu()
    return scales.update(WeightMoments(final[:n], final[n : 2 * n].exp()))
