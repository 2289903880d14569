"""The recipe of the invariance-abiding linear models: parameters in, fitted attributes out."""

from collections.abc import Mapping
from math import log
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval, StrOptions
from torch import Tensor

from skbayes_sym.estimators._fit.context import RUN_CONSTRAINTS, FitContext, Fitted, logger
from skbayes_sym.estimators._fit.memory import require_linear
from skbayes_sym.estimators._fit.model import prior_scales
from skbayes_sym.estimators._fit.rows import Array, Scaling, column_scaling
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.linear.expectations import SiteLikelihood
from skbayes_sym.inference.linear.hyperparameters import Learning, Range, SitesFit, fit_sites
from skbayes_sym.inference.linear.posterior import LowRankGaussian
from skbayes_sym.inference.linear.sites import (
    LinearData,
    State,
    converge,
    first_sites,
    mean_field,
    solve,
)

# Learned noise, relative to the standard deviation of the targets.
_NOISE_RANGE = (1e-6, 1e2)
# Learned prior standard deviation of the outputs, relative to their scale (1 on a log or logit
# scale). Beyond the upper end the quadrature and the data say nothing any more.
_OUTPUT_RANGE = (1e-5, 1e5)
_LOGIT_RANGE = (1e-5, 30.0)
_AT_THE_END = 1e-3  # a log scale this close to an end has reached it
_MEAN_FIELD_UPDATES = 500

LINEAR_CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    "prior_scale": [
        StrOptions({"learn"}),
        Interval(Real, 0, None, closed="neither"),
        "array-like",
    ],
    "fit_intercept": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "standardize": ["boolean"],
}


class LinearModel(NamedTuple):
    """What the likelihood makes of the data."""

    likelihood: SiteLikelihood
    y: Array  # in scaled units, (n, 1) numbers or (n,) codes
    y_scaling: Scaling
    intercept: Array  # (C,), the best constant function, about
    output_scale: float  # typical size of outputs, scaled units
    is_location_scale: bool
    has_outputs_axis: bool  # whether coefficients are reported with one
    final_likelihoods: tuple[SiteLikelihood, ...] = ()  # of the reported bound, if not the same
    predict_seed: int = 0


class _Design(NamedTuple):
    """Inputs in the units in which the prior is N(0, v I)."""

    x_scaling: Scaling
    prior_unit: Array  # (K,), the given scales; 1 where one scale is learned
    inputs: Tensor  # (n, K)
    basis: Tensor | None  # (K, r), orthonormal, if K > n
    features: Tensor  # (n, r)


def fit_linear(estimator: Any, context: FitContext, model: LinearModel) -> Fitted:
    """The recipe: row space, sites and hyperparameters, the mean-field optimum, attributes."""
    require_linear(context, len(model.intercept))
    with torch.no_grad():
        design = _design(estimator, context)
        data = LinearData(
            design.features, torch.as_tensor(model.y, device=context.device),
            _double(context.rows.weight, context), len(model.intercept), design.inputs.shape[1],
            estimator.fit_intercept,
        )  # fmt: skip
        fit, learning = _fit(estimator, context, model, design, data)
        predicts = _prediction_attributes(context, model, design, fit.state)
        attributes = {
            **predicts,
            **_scale_attributes(estimator, predicts, model.has_outputs_axis),
            **_bounds(estimator, context, model, design, data, fit.state),
            **_site_attributes(context, model, fit.state),
        }
    offset = _log_jacobian(context, model)
    attributes["elbo_curve_"] = offset + np.array(fit.elbo_curve)
    attributes["n_iter_"] = fit.n_iter
    _report(estimator, fit, learning, attributes)
    return Fitted(attributes, fit.stopped)


def _double(values: Array, context: FitContext) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float64), device=context.device)


def _design(estimator: Any, context: FitContext) -> _Design:
    X, weight = context.rows.X, context.rows.weight
    full = column_scaling(X, weight, enabled=True)
    zeros, ones = np.zeros(X.shape[1]), np.ones(X.shape[1])
    x_scaling = Scaling(
        full.mean if estimator.fit_intercept else zeros,
        full.scale if estimator.standardize else ones,
    )
    unit = _prior_unit(estimator, X.shape[1])
    inputs = _double(x_scaling.apply(X.astype(np.float64)) * unit, context)
    if inputs.shape[1] <= inputs.shape[0]:
        return _Design(x_scaling, unit, inputs, None, inputs)
    # QR never divides by a singular value: repeated rows and constant columns are welcome.
    basis, triangle = torch.linalg.qr(inputs.T)
    return _Design(x_scaling, unit, inputs, basis, triangle.T.contiguous())


def _prior_unit(estimator: Any, n_features: int) -> Array:
    if isinstance(estimator.prior_scale, str):
        return np.ones(n_features)
    return np.broadcast_to(prior_scales(estimator, features=n_features), (n_features,)).copy()


def _fit(
    estimator: Any, context: FitContext, model: LinearModel, design: _Design, data: LinearData
) -> tuple[SitesFit, Learning]:
    # Prior variance at which the outputs have the scale expected of them.
    share = data.weight / data.weight.sum()
    typical = float(share @ (data.features**2).sum(1))
    start = 2.0 * log(model.output_scale) - (log(typical) if typical > 0.0 else 0.0)
    learns_prior = isinstance(estimator.prior_scale, str)
    ends = _OUTPUT_RANGE if model.is_location_scale else _LOGIT_RANGE
    prior_range = Range(*(start + 2.0 * log(end) for end in ends))
    noise_range = Range(*(log(model.output_scale) + log(end) for end in _NOISE_RANGE))
    learns_prior = learns_prior and typical > 0.0  # without a feature that varies: nothing to learn
    learning = Learning(prior_range if learns_prior else None, noise_range)
    intercept = _double(model.intercept * estimator.fit_intercept, context)
    task = context.begin(estimator.max_iter)

    def reconstruct(state: State) -> Mapping[str, Any]:
        return _prediction_attributes(context, model, design, state)

    last: list[State] = []

    def on_step(state: State) -> bool:
        last[:] = [state]
        return task.end_block(lambda: reconstruct(state))

    fit = fit_sites(
        data, model.likelihood, first_sites(data, model.likelihood, intercept),
        start if isinstance(estimator.prior_scale, str) else 0.0, learning,
        tol=estimator.tol, max_iter=estimator.max_iter, on_step=on_step,
    )  # fmt: skip
    task.end(lambda: reconstruct(last[0] if last else fit.state))
    return fit, learning


def _log_jacobian(context: FitContext, model: LinearModel) -> float:
    """Turns the log density of scaled targets into that of the targets as given, nats."""
    return -float(context.rows.weight.sum() * np.log(model.y_scaling.scale).sum())


def _prediction_attributes(
    context: FitContext, model: LinearModel, design: _Design, state: State
) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays; also mid-fit, for callbacks."""
    loc = state.loc if design.basis is None else state.loc @ design.basis.T
    posterior = LowRankGaussian(
        loc.cpu().numpy() * design.prior_unit,
        design.prior_unit,
        None if design.basis is None else design.basis.cpu().numpy(),
        state.covariance.cpu().numpy(),
        float(state.prior_variance),
    )
    x_mean, x_scale = design.x_scaling
    to_given = model.y_scaling.scale / x_scale  # coefficients of the inputs and targets as given
    coef = posterior.loc * to_given
    offset = state.intercept.cpu().numpy()
    intercept = offset * model.y_scaling.scale + model.y_scaling.mean - coef @ x_mean
    noise = state.likelihood.noise_scale.cpu().numpy() * model.y_scaling.scale
    own = {"noise_std_": float(noise[0])} if len(noise) else {}
    return {
        "posterior_": posterior,
        "coef_": coef if model.has_outputs_axis else coef[0],
        "intercept_": intercept if model.has_outputs_axis else float(intercept[0]),
        "x_mean_": x_mean,
        "x_scale_": x_scale,
        "y_mean_": model.y_scaling.mean,
        "y_scale_": model.y_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_offset_": offset,
        "_predict_seed_": model.predict_seed,
        "_cache": {},
        **own,
    }


def _scale_attributes(
    estimator: Any, attributes: Mapping[str, Any], has_outputs_axis: bool
) -> dict[str, Any]:
    """Standard deviations: of the prior, learned or given, and of the coefficients as given."""
    posterior, given = attributes["posterior_"], estimator.prior_scale
    to_given = attributes["y_scale_"] / attributes["x_scale_"]
    std = np.sqrt(posterior.variance()) * to_given
    learned = posterior.prior_variance**0.5
    return {
        "prior_scale_": learned if isinstance(given, str) else np.asarray(given, float)[()],
        "coef_std_": std if has_outputs_axis else std[0],
    }


def _bounds(
    estimator: Any,
    context: FitContext,
    model: LinearModel,
    design: _Design,
    data: LinearData,
    state: State,
) -> dict[str, Any]:
    """The bound at the optimum, that of the best mean-field posterior, and their difference."""
    family = mean_field(design.inputs)
    start = solve(data, state.sites, state.prior_variance, state.likelihood, family)
    if start is None:
        raise ArithmeticError("the posterior precision lost its positive definiteness.")
    best = converge(data, start, family, tol=estimator.tol, max_iter=_MEAN_FIELD_UPDATES).state
    offset = _log_jacobian(context, model)
    likelihoods = model.final_likelihoods or (state.likelihood,)
    values = [
        [float(s.elbo + (each.value(s.mean, s.output_covariance, data.y) - s.terms.value)
               @ data.weight) for s in (state, best)]
        for each in likelihoods
    ]  # fmt: skip
    full, independent = offset + np.array(values).T
    n = len(likelihoods)
    error = [float(v.std(ddof=1) / n**0.5) if n > 1 else 0.0 for v in (full, full - independent)]
    return {
        "elbo_": float(full.mean()),
        "elbo_mean_field_": float(independent.mean()),
        "symmetry_gap_": float((full - independent).mean()),
        "elbo_std_error_": error[0],
        "_gap_std_error_": error[1],
    }


def _site_attributes(context: FitContext, model: LinearModel, state: State) -> dict[str, Any]:
    """Location and variance of the site of every row given, in units of the outputs as given."""
    precision, shift = (t.cpu().numpy() for t in (state.sites.precision, state.sites.shift))
    n_outputs = precision.shape[-1]
    if n_outputs == 1:
        with np.errstate(divide="ignore", invalid="ignore"):
            variance, location = 1.0 / precision, shift / precision[..., 0]
        # An empty site has an infinite variance; then any location will do.
        location = np.where(np.isfinite(variance[..., 0]), location, state.mean.cpu().numpy())
    else:
        # A softmax says nothing of a shift of all outputs, exactly.
        centre = np.eye(n_outputs) - 1.0 / n_outputs
        variance = centre @ np.linalg.pinv(precision, rcond=1e-10, hermitian=True) @ centre
        location = np.einsum("ncd,nd->nc", variance, shift)
    scale = model.y_scaling.scale
    location, variance = location * scale + model.y_scaling.mean, variance * scale**2
    if location.shape[1] == 1:
        location, variance = location[:, 0], variance[:, 0, 0]
    n_given, present = len(context.origin), context.origin >= 0
    locations = np.full((n_given, *location.shape[1:]), np.nan)
    variances = np.full((n_given, *variance.shape[1:]), np.inf)
    locations[present] = location[context.origin[present]]
    variances[present] = variance[context.origin[present]]
    return {"site_location_": locations, "site_variance_": variances}


def _report(
    estimator: Any, fit: SitesFit, learning: Learning, attributes: Mapping[str, Any]
) -> None:
    """Log a summary; warn of what didn't converge or has no optimum inside its range."""
    logger.info(
        "ELBO %.6g (mean-field %.6g, gap %.4g), stopped by %s after %d updates",
        attributes["elbo_"], attributes["elbo_mean_field_"], attributes["symmetry_gap_"],
        fit.stopped, fit.n_iter,
    )  # fmt: skip
    if fit.stopped == "max_iter":
        _warn(
            f"not converged: the last of {fit.n_iter} updates moved an output by {fit.change:.2g} "
            f"posterior standard deviations (tol={estimator.tol:g}). Raise max_iter."
        )
    state = fit.state
    if learning.prior is not None:
        at = float(state.prior_variance.log())
        if at > learning.prior.high - _AT_THE_END:
            _warn(
                "prior_scale_ reached the upper end of its range: the evidence rises with it "
                "without end, as with classes that the features separate perfectly. Give "
                "prior_scale a value."
            )
    for log_noise in state.likelihood.params.tolist():
        if log_noise < learning.noise.low + _AT_THE_END:
            _warn(
                "noise_std_ reached the lower end of its range: the features fit the targets "
                "without error, or the targets are all the same. Give noise_std a value."
            )


def _warn(message: str) -> None:
    warn_user(message, ConvergenceWarning)
