"""Result of a Laplace fit, final or so far, and the fitted attributes made of it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.families import LearnedInvariances
from skbayes_sym.inference.laplace.laplace_posterior import LaplacePosterior
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped


@dataclass(frozen=True, eq=False)
class Convergence:
    """How training went."""

    log_evidence: float  # scaled targets, nats
    curve: Array  # the same at every update
    n_iter: int
    stop_reason: Stopped


@dataclass(frozen=True, eq=False)
class LaplaceFit:
    """A posterior and the hyperparameters it belongs to."""

    posterior: LaplacePosterior
    prior_scale: Array  # (L,); of the covered layers
    noise_scale: Array  # (n_targets,) or (0,); scaled targets
    likelihood_params: Array  # (n_params,); what was learned of the likelihood, scaled units
    predict_seed: int  # of the noise in predictions
    invariances: LearnedInvariances | None = None
    convergence: Convergence | None = None  # once training has ended

    @property
    def n_iter(self) -> int:
        return 0 if self.convergence is None else self.convergence.n_iter

    @property
    def stop_reason(self) -> Stopped:
        return "max_iter" if self.convergence is None else self.convergence.stop_reason

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        attributes: dict[str, Any] = {
            "posterior_": self.posterior,
            "prior_scale_": self.prior_scale,
            "_predict_seed_": self.predict_seed,
            "_likelihood_params_": self.likelihood_params,
        }
        if self.noise_scale.size and data.y_scaling is not None:
            noise = self.noise_scale * data.y_scaling.scale
            attributes["noise_std_"] = float(noise[0]) if len(noise) == 1 else noise
        if self.invariances is not None:
            attributes.update(self.invariances.attributes())
        if self.convergence is not None:
            offset = data.log_jacobian
            attributes["log_evidence_"] = self.convergence.log_evidence + offset
            attributes["log_evidence_curve_"] = self.convergence.curve + offset
        return attributes


def as_array(tensor: Any) -> Array:
    """A copy on the host."""
    return np.array(tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else tensor)
