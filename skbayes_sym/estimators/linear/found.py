"""What site inference found, in the units of the data as given."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.estimators._fit.rows import Array, Scaling
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.linear.design import Design
from skbayes_sym.inference.linear.posterior import LowRankGaussian
from skbayes_sym.inference.linear.sites import State
from skbayes_sym.models.model import Model
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import Estimate, spawn_seeds


def coefficients(
    data: Training, posterior: LowRankGaussian, offset: Array, noise: Array,
    prior_scale: Array | None,
) -> dict[str, Any]:  # fmt: skip
    """All that predicting needs, and the scales that were learned.

    ``offset`` (C,) and ``noise`` (1,) or () are of scaled targets; no ``prior_scale`` was learned.
    """
    targets = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
    x_mean, x_scale = data.x_scaling
    to_given = targets.scale / x_scale
    coef, std = posterior.loc * to_given, np.sqrt(posterior.variance()) * to_given
    intercept = offset * targets.scale + targets.mean - coef @ x_mean
    # Labels have as many rows of coefficients as outputs, numbers one without an axis.
    is_single, noise = data.y_scaling is not None, noise * targets.scale
    learned = posterior.prior_variance**0.5
    return {
        "posterior_": posterior,
        "coef_": coef[0] if is_single else coef,
        "coef_std_": std[0] if is_single else std,
        "intercept_": float(intercept[0]) if is_single else intercept,
        "prior_scale_": learned if prior_scale is None else prior_scale[()],
        "_offset_": offset,
        **({} if is_single else {"_predict_seed_": spawn_seeds(data.seed, 1)[0]}),
        **({"noise_std_": float(noise[0])} if len(noise) else {}),
    }


class Bounds(NamedTuple):
    """At the optimum, of scaled targets, nats; equal rules make them comparable."""

    full: Estimate
    mean_field: Estimate
    gap: Estimate


@dataclass(frozen=True, eq=False)
class SiteFit:
    """What `SiteInference` has found (so far).

    Parameters
    ----------
    design : Design
    state : State
    prior_scale : ndarray of shape () or (K,), or None
        As given; None if it is learned.
    bounds : Bounds, optional
        Once the updates have ended.
    elbo_curve : list of float, optional
        Of scaled targets.
    n_iter : int
    stop_reason : Stopped
    """

    design: Design
    state: State
    prior_scale: Array | None
    bounds: Bounds | None = None
    elbo_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: Stopped = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        targets = data.y_scaling or Scaling(np.zeros(1), np.ones(1))
        state = self.state
        loc, covariance = (t.cpu().numpy() for t in (state.loc, state.covariance))
        attributes = coefficients(
            data, self.design.posterior(loc, covariance, float(state.prior_variance)),
            state.intercept.cpu().numpy(), state.likelihood.noise_scale.cpu().numpy(),
            self.prior_scale,
        )  # fmt: skip
        if self.bounds is None or self.elbo_curve is None:
            return attributes
        offset = data.log_jacobian
        attributes.update(
            elbo_=offset + self.bounds.full.value,
            elbo_mean_field_=offset + self.bounds.mean_field.value,
            symmetry_gap_=self.bounds.gap.value,
            elbo_std_error_=self.bounds.full.standard_error,
            elbo_curve_=offset + np.array(self.elbo_curve),
            _gap_std_error_=self.bounds.gap.standard_error,
            **self._sites(data, targets),
        )
        if model.likelihood.kind == "normal":
            attributes["log_evidence_"] = attributes["elbo_"]
        return attributes

    def _sites(self, data: Training, targets: Scaling) -> dict[str, Any]:
        """Location and variance of the site of every row as given, in units of ``y``."""
        location, variance = _moments_of_sites(self.state)
        location = location * targets.scale + targets.mean
        variance = variance * targets.scale**2
        if location.shape[1] == 1:
            location, variance = location[:, 0], variance[:, 0, 0]
        n_given, present = len(data.origin), data.origin >= 0
        locations = np.full((n_given, *location.shape[1:]), np.nan)
        variances = np.full((n_given, *variance.shape[1:]), np.inf)
        locations[present] = location[data.origin[present]]
        variances[present] = variance[data.origin[present]]
        return {"site_location_": locations, "site_variance_": variances}


def _moments_of_sites(state: State) -> tuple[Array, Array]:
    """Locations (n, C) and variances (n, C, C), scaled units."""
    precision, shift = (t.cpu().numpy() for t in (state.sites.precision, state.sites.shift))
    n_outputs = precision.shape[-1]
    if n_outputs == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            variance, location = 1.0 / precision, shift / precision[..., 0]
        # An empty site has an infinite variance; then any location will do.
        location = np.where(np.isfinite(variance[..., 0]), location, state.mean.cpu().numpy())
        return location, variance
    # A softmax says nothing of a shift of all outputs, exactly.
    centre = np.eye(n_outputs) - 1.0 / n_outputs
    variance = centre @ np.linalg.pinv(precision, rcond=1e-10, hermitian=True) @ centre
    return np.einsum("ncd,nd->nc", variance, shift), variance
