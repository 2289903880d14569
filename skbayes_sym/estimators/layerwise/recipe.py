"""The recipe of wide networks: layers conditional on the ones before, the last one exact."""

from collections.abc import Mapping
from math import cos, pi
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.context import FitContext, Fitted, logger
from skbayes_sym.estimators._fit.training import automatic_batch, log_jacobian
from skbayes_sym.estimators.vi.recipe import Model, warn_unless_converged
from skbayes_sym.inference.layerwise.base import (
    HiddenPosterior,
    LastLayer,
    Layerwise,
    LayerwiseElbo,
)
from skbayes_sym.inference.layerwise.collapsed import CollapsedLast, MeanFieldHidden
from skbayes_sym.inference.layerwise.global_inducing import InducingHidden, InducingLast
from skbayes_sym.inference.layerwise.posterior import ConditionedDraws, LayerwisePosterior
from skbayes_sym.inference.reference.averaged_kl import AveragedKlLast
from skbayes_sym.models.data import Batches, Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, minimise
from skbayes_sym.numerics.random import generator_from, spawn_seeds

_RATE = 3e-2  # learning_rate="auto"; a tenth of it loses some 100 nats on small data
_WARM_UP = 0.2  # share of the steps over which the KL's weight rises to 1
_DRAWS = 2  # of the hidden layers a step, at least
_FIRST_NOISE = 0.1  # in units of the target's standard deviation: most fits end below
_EVALUATION_DRAWS = 128
_EVALUATION_NUMBERS = 1 << 22  # of the features of a block of draws
_PARAM_RANGE = (-40.0, 40.0)


class _Seeds(NamedTuple):
    start: int
    training: int
    predict: int
    bound: int


class _Run(NamedTuple):
    """One start and where it led."""

    result: OptimiseResult
    reached: float  # what it was trained on: the ELBO, unless that was a heuristic
    elbo: Tensor  # of each draw, scaled units


def is_layerwise(estimator: Any) -> bool:
    """Whether the parameters ask for this recipe."""
    return estimator.last_layer != "variational" or estimator.hidden_posterior != "mean_field"


def fit_layerwise(estimator: Any, context: FitContext, model: Model) -> Fitted:
    """The recipe: both starts, the higher bound, attributes."""
    _check(estimator, len(context.rows.X))
    seeds = _Seeds(*spawn_seeds(context.seed, len(_Seeds._fields)))
    data = _data(context, model)
    posterior = _posterior(estimator, model, len(data.x))
    offset = log_jacobian(context.rows.weight, model.y_scaling)
    block = max(1, estimator.max_iter // 100)
    n_blocks = -(-estimator.max_iter // block)
    task = context.begin(2 * n_blocks)
    runs: list[_Run] = []
    with torch.no_grad():
        for at_prior in (False, True):
            result = _optimise(
                estimator, context, model, posterior, data, seeds, task,
                at_prior=at_prior, block=block, offset=offset,
            )  # fmt: skip
            reached = _values(posterior, result.params, data, seeds.bound, training=True)
            elbo = reached
            if not posterior.last.trains_on_elbo:
                elbo = _values(posterior, result.params, data, seeds.bound, training=False)
            runs.append(_Run(result, float(reached.mean()), elbo))
            if result.stopped in ("callback", "interrupted"):
                break
        best = max(runs, key=lambda run: run.reached)
        attributes = _attributes(context, model, posterior, data, best.result.params, seeds)
    task.end(lambda: attributes)
    logger.info(
        "ELBO by start: %s; stopped by %s",
        ", ".join(f"{offset + float(run.elbo.mean()):.6g}" for run in runs),
        runs[-1].result.stopped,
    )
    warn_unless_converged(estimator, best.result, float(context.rows.weight.sum()))
    attributes = {**attributes, **_bounds(best, offset)}
    return Fitted(attributes, runs[-1].result.stopped)


def _check(estimator: Any, n_rows: int) -> None:
    names = "last_layer='collapsed' or hidden_posterior='global_inducing'"
    if estimator.symmetry not in ("auto", None):
        raise ValueError(
            f"symmetry={estimator.symmetry!r} averages a mean-field posterior over permutations; "
            f"with {names} there is none. Use symmetry='auto' or None."
        )
    if estimator.warm_start:
        raise ValueError(f"warm_start=True doesn't go with {names}.")
    too_small = estimator.batch_size != "auto" and estimator.batch_size < n_rows
    if too_small and estimator.last_layer == "collapsed":
        raise ValueError(
            f"batch_size={estimator.batch_size}, but last_layer='collapsed' needs all {n_rows} "
            "distinct rows at every step. Use batch_size='auto', or last_layer='variational' with "
            "hidden_posterior='global_inducing'."
        )


def _data(context: FitContext, model: Model) -> Data:
    """In float64 whatever the precision of predictions: the linear algebra needs it."""
    rows = context.rows
    y = rows.y if model.y_scaling is None else model.y_scaling.apply(rows.y)
    values = context.x_scaling.apply(rows.X.astype(np.float64)), y, rows.weight
    return Data(*(torch.as_tensor(np.ascontiguousarray(v), device=context.device) for v in values))


def _posterior(estimator: Any, model: Model, n_rows: int) -> Layerwise:
    network, m = model.network, min(estimator.n_inducing, n_rows)
    *hidden_scales, last_scale = _layer_scales(model)
    scales = tuple(hidden_scales)
    hidden: HiddenPosterior = MeanFieldHidden(network, scales)
    if estimator.hidden_posterior == "global_inducing":
        hidden = InducingHidden(network, scales, m)
    lasts: dict[str, LastLayer] = {
        "collapsed": CollapsedLast(last_scale),
        "variational": InducingLast(last_scale, m, network.n_outputs),
        "averaged_kl_heuristic": AveragedKlLast(
            last_scale, network.sizes[-2] + 1, network.n_outputs
        ),
    }
    return Layerwise(network, hidden, lasts[estimator.last_layer])


def _layer_scales(model: Model) -> list[float]:
    """One prior scale a layer."""
    network: MLP = model.network
    scales = []
    for weight, bias in network.layers(model.prior.scale):
        values = torch.cat([weight.flatten(), bias])
        if not bool((values == values[0]).all()):
            raise ValueError(
                "prior_scale must be the same for all weights and biases of a layer with "
                "last_layer='collapsed' or hidden_posterior='global_inducing': give a number, or "
                "one a layer."
            )
        scales.append(float(values[0]))
    return scales


def _optimise(
    estimator: Any,
    context: FitContext,
    model: Model,
    posterior: Layerwise,
    data: Data,
    seeds: _Seeds,
    task: FitTask,
    *,
    at_prior: bool,
    block: int,
    offset: float,
) -> OptimiseResult:
    params = _start(estimator, posterior, model, data, seeds.start, at_prior=at_prior)
    generator = generator_from(seeds.training, context.device)
    objective = LayerwiseElbo(
        posterior,
        Batches(data, _batch_size(estimator, len(data.x)), generator),
        params,
        n_draws=max(_DRAWS, estimator.n_weight_samples),
        warm_up=int(_WARM_UP * estimator.max_iter),
        generator=generator,
    )
    rate = _RATE if estimator.learning_rate == "auto" else estimator.learning_rate
    groups = _groups(posterior, params, rate, estimator.log_variance_rate)
    if model.likelihood.n_params:
        n_others = len(params) - len(posterior.split(params)[2])
        groups.append(ParamGroup(slice(n_others, None), rate, *model.log_noise_range))

    def reconstruct() -> Mapping[str, Any]:
        return _attributes(context, model, posterior, data, objective.params, seeds)

    def on_step(step: int, info: Mapping[str, float]) -> bool:
        logger.debug("step %d: training ELBO %.6g", step, offset - info["loss"])
        return task.end_block(reconstruct)

    tol = estimator.tol * float(context.rows.weight.sum()) if estimator.early_stopping else None
    return minimise(
        objective, groups=groups, max_iter=estimator.max_iter, block_size=block,
        on_step=on_step, tol=tol, schedule=lambda progress: 0.5 * (1.0 + cos(pi * progress)),
    )  # fmt: skip


def _groups(
    posterior: Layerwise,
    params: Tensor,
    rate: float,
    log_variance_rate: float,
) -> list[ParamGroup]:
    """One group a named parameter: variances have further to travel than the others."""
    groups, start = [], 0
    for layout in (posterior.hidden.layout, posterior.last.layout):
        for name, where in layout.slices.items():
            factor = log_variance_rate if name.startswith("log_variance") else 1.0
            shifted = slice(start + where.start, start + where.stop)
            groups.append(ParamGroup(shifted, rate * factor, *_PARAM_RANGE))
        start += layout.n_params
    return groups


def _start(
    estimator: Any, posterior: Layerwise, model: Model, data: Data, seed: int, *, at_prior: bool
) -> Tensor:
    # Equal seeds: the last layer's values are the targets of the hidden layers' inducing rows.
    hidden = posterior.hidden.start(data, at_prior=at_prior, generator=generator_from(seed))
    last = posterior.last.start(data, generator=generator_from(seed))
    log_noise = model.likelihood.noise_scale.log().to(data.x)
    if model.likelihood.n_params:
        spread = data.y.std(0) if len(data.y) > 1 else torch.ones_like(log_noise)
        log_noise = torch.where(spread > 0.0, _FIRST_NOISE * spread, 1.0).log()
    return torch.cat([hidden, last, log_noise]).clone()


def _batch_size(estimator: Any, n_rows: int) -> int:
    if estimator.batch_size != "auto":
        return min(int(estimator.batch_size), n_rows)
    if estimator.last_layer == "collapsed":
        return n_rows
    return automatic_batch(n_rows)


def _values(
    posterior: Layerwise, params: Tensor, data: Data, seed: int, *, training: bool
) -> Tensor:
    """The bound, or what training maximises, of fresh draws, one number each."""
    generator = generator_from(seed, data.x.device)
    size = rows_within(_EVALUATION_NUMBERS, len(data.x) * max(posterior.network.sizes))
    values: list[Tensor] = []
    left = _EVALUATION_DRAWS
    while left > 0:
        likelihood, kl = posterior.terms(
            params, data, min(size, left), generator=generator, training=training
        )
        values.append(likelihood - kl)
        left -= len(kl)
    return torch.cat(values)


def _attributes(
    context: FitContext,
    model: Model,
    posterior: Layerwise,
    data: Data,
    params: Tensor,
    seeds: _Seeds,
) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays; also mid-fit, for callbacks."""
    arrays = [t.detach().cpu().numpy().copy() for t in (params, *data)]
    assert model.y_scaling is not None
    noise = posterior.split(params)[2].exp().cpu().numpy() * model.y_scaling.scale
    return {
        "posterior_": LayerwisePosterior(posterior, *arrays),
        "network_": model.network,
        "noise_std_": float(noise[0]) if len(noise) == 1 else noise,
        "x_mean_": context.x_scaling.mean,
        "x_scale_": context.x_scaling.scale,
        "y_mean_": model.y_scaling.mean,
        "y_scale_": model.y_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_predict_seed_": seeds.predict,
        "_cache": {},
    }


def conditioned_draws(estimator: Any, device: torch.device) -> ConditionedDraws:
    """Predictive draws of the hidden layers with the last layer given them, made once a device."""

    def make() -> ConditionedDraws:
        # Drawn on the CPU whatever the device, so that predictions agree across them.
        generator = generator_from(estimator._predict_seed_)
        n = estimator.n_predict_samples
        return estimator.posterior_.conditioned(n, generator=generator, device=device)

    return estimator._cached(f"{estimator.n_predict_samples} draws on {device}", make)


def _bounds(run: _Run, offset: float) -> dict[str, Any]:
    """One bound: nothing is averaged over permutations."""
    elbo = offset + float(run.elbo.mean())
    return {
        "elbo_": elbo,
        "elbo_mean_field_": elbo,
        "elbo_upper_": elbo,
        "elbo_std_error_": float(run.elbo.std() / len(run.elbo) ** 0.5),
        "symmetry_gap_": 0.0,
        "saturation_": float("nan"),
        "elbo_curve_": offset - np.array(run.result.loss_curve),
        "n_iter_": run.result.n_iter,
    }
