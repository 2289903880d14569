"""The recipe of deep ensembles: parameters in, fitted attributes out."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval
from torch import Tensor

from skbayes_sym.estimators._fit.context import RUN_CONSTRAINTS, FitContext, Fitted, logger
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS
from skbayes_sym.estimators._fit.rows import Scaling
from skbayes_sym.estimators._fit.training import log_jacobian, training_data
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.map import MapObjective
from skbayes_sym.inference.mlp_posterior import MLPPosterior
from skbayes_sym.models.likelihoods.base import BatchedLikelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.convergence import last_tenth_gain
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, minimise
from skbayes_sym.numerics.random import generator_from

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "n_members": [Interval(Integral, 1, None, closed="left")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "learning_rate": [Interval(Real, 0, None, closed="neither")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "early_stopping": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
}


class Model(NamedTuple):
    """The recipe's ingredients, fixed before the first step."""

    network: MLP
    prior: GaussianPrior
    likelihood: BatchedLikelihood  # at its starting parameters
    noise_prior_scale: float = 1.0
    y_scaling: Scaling | None = None
    log_noise_range: tuple[float, float] = (-np.inf, np.inf)


def fit_ensemble(estimator: Any, context: FitContext, model: Model) -> Fitted:
    """The recipe: one posterior, many starting points, one loop."""
    rows = context.rows
    data = training_data(context, model.y_scaling)
    posterior = MLPPosterior(
        model.network, model.likelihood, model.prior, data, model.noise_prior_scale
    )
    total_weight = float(rows.weight.sum())
    offset = log_jacobian(rows.weight, model.y_scaling)
    with torch.no_grad():
        start = _start(estimator, model, context.seed).to(data.x)
        objective = MapObjective(posterior, model.network.layout.n_params, start)
        result = _optimise(estimator, context, model, objective, offset, total_weight)
        log_posterior = objective.log_posterior(objective.position) + offset
    attributes = {
        **_prediction_attributes(context, model, objective.position),
        "log_posterior_samples_": log_posterior.double().cpu().numpy(),
        "log_posterior_curve_": offset - np.array(result.loss_curve),
        "n_iter_": result.n_iter,
    }
    _report(estimator, attributes, result, total_weight)
    return Fitted(attributes, result.stopped)


def _start(estimator: Any, model: Model, seed: int) -> Tensor:
    """Random starting points (M, D), or the previous fit if ``warm_start``."""
    n, network, scaling = estimator.n_members, model.network, model.y_scaling
    if not (estimator.warm_start and hasattr(estimator, "samples_")):
        theta = network.init(n, generator=generator_from(seed))
        return torch.cat([theta, model.likelihood.params.expand(n, -1)], 1)
    shape = (n, network.layout.n_params)
    if estimator.samples_.shape != shape:
        raise ValueError(
            f"warm_start=True, but the previous fit has {estimator.samples_.shape} members and "
            f"parameters and this one {shape}: data, hidden_layer_sizes or n_members changed."
        )
    theta = torch.as_tensor(estimator.samples_, dtype=torch.float64)
    if scaling is None:
        return theta
    log_noise = np.log(estimator.noise_std_samples_ / scaling.scale)
    return torch.cat([theta, torch.as_tensor(log_noise)], 1)


def _optimise(
    estimator: Any,
    context: FitContext,
    model: Model,
    objective: MapObjective,
    offset: float,
    total_weight: float,
) -> OptimiseResult:
    rate, n = estimator.learning_rate, objective.n_theta
    block = max(1, estimator.max_iter // 100)
    task = context.begin(-(-estimator.max_iter // block))

    def reconstruct() -> Mapping[str, Any]:
        return _prediction_attributes(context, model, objective.position)

    def on_step(step: int, info: Mapping[str, float]) -> bool:
        logger.debug("step %d: mean log posterior %.6g", step, offset - info["loss"])
        return task.end_block(reconstruct)

    result = minimise(
        objective,
        groups=[
            ParamGroup(slice(0, n), rate),
            ParamGroup(slice(n, None), rate, *model.log_noise_range),
        ],
        max_iter=estimator.max_iter,
        block_size=block,
        on_step=on_step,
        tol=estimator.tol * total_weight if estimator.early_stopping else None,
    )
    task.end(reconstruct)
    return result


def _prediction_attributes(context: FitContext, model: Model, position: Tensor) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays; also mid-fit, for callbacks."""
    n = model.network.layout.n_params
    theta, log_noise = (t.cpu().numpy().copy() for t in (position[:, :n], position[:, n:]))
    attributes = {
        "samples_": theta,
        "network_": model.network,
        "x_mean_": context.x_scaling.mean,
        "x_scale_": context.x_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_cache": {},
    }
    if model.y_scaling is not None:
        noise_std = np.exp(log_noise.astype(np.float64)) * model.y_scaling.scale
        attributes["noise_std_samples_"] = noise_std
        attributes["y_mean_"], attributes["y_scale_"] = model.y_scaling
    return attributes


def _report(
    estimator: Any, attributes: Mapping[str, Any], result: OptimiseResult, total_weight: float
) -> None:
    """The members in the log, missing convergence as a warning."""
    values = attributes["log_posterior_samples_"]
    logger.info(
        "log posterior of the members from %.6g to %.6g, stopped by %s after %d steps",
        values.min(), values.max(), result.stopped, result.n_iter,
    )  # fmt: skip
    gain = last_tenth_gain([-loss for loss in result.loss_curve])
    if result.stopped == "max_iter" and gain.exceeds(estimator.tol * total_weight):
        warn_user(
            f"not converged: the last tenth of the {result.n_iter} steps still raised the members' "
            f"mean log posterior by {gain.value / total_weight:.2g} nats a datum "
            f"(tol={estimator.tol:g}). Raise max_iter or learning_rate.",
            ConvergenceWarning,
        )
