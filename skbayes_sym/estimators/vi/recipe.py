"""The recipe of symmetrised variational inference: parameters in, fitted attributes out."""

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
from skbayes_sym.estimators._fit.model import NETWORK_CONSTRAINTS
from skbayes_sym.estimators._fit.rows import Scaling
from skbayes_sym.estimators._fit.training import (
    automatic_batch,
    log_jacobian,
    rows_a_step,
    training_data,
)
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.inference.mean_field.bounds import (
    expected_log_likelihood,
    posterior_layers,
)
from skbayes_sym.inference.mean_field.elbo import SymmetrizedElbo, pack
from skbayes_sym.inference.mean_field.gated import GatedGap
from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.data import Data
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import GaussianPrior
from skbayes_sym.numerics.convergence import last_tenth_gain
from skbayes_sym.numerics.monte_carlo import Estimate
from skbayes_sym.numerics.optimise import OptimiseResult, ParamGroup, minimise
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    DoublyStochastic,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
)
from skbayes_sym.symmetry.gaps.units import UnitGap

FULL_BATCH_RATE, MINIBATCH_RATE = 1e-2, 3e-3  # learning_rate="auto"
SATURATED = 0.999  # share of log |G| beyond which symmetrisation can't matter for training

_INITIAL_SCALE = 0.02  # posterior standard deviation at the start: narrow, then it widens
INITIAL_NOISE = 0.5  # in units of the target's standard deviation
_LOG_VARIANCE_RANGE = (-30.0, 10.0)
NOISE_RANGE = (1e-3, 1e2)  # likewise
_EVALUATION_DRAWS = 128  # of the bounds reported after training, fewer where there are many rows:
_EVALUATION_ROWS = 1 << 20  # rows times draws; the rows' noise is independent and averages out
_EVALUATION_ENTRIES = 1 << 17  # of the units' matrices: draws of the gap times width squared
_EVALUATION_PERMUTATIONS = 64

CONSTRAINTS: dict[str, list[Any]] = {
    **RUN_CONSTRAINTS,
    **NETWORK_CONSTRAINTS,
    "symmetry": [StrOptions({"auto", "permutation", "signed_permutation"}), None],
    "gap_estimator": [
        StrOptions({"auto", "exact", "importance", "infonce", "infonce-iid", "soules"})
    ],
    "n_permutations": [Interval(Integral, 1, None, closed="left")],
    "exact_max_width": [Interval(Integral, 0, 20, closed="both")],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "batch_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "standardize": ["boolean"],
    "learning_rate": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
    "log_variance_rate": [Interval(Real, 0, None, closed="neither")],
    "n_weight_samples": [Interval(Integral, 1, None, closed="left")],
    "n_predict_samples": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "early_stopping": ["boolean"],
    "warm_start": ["boolean"],
    "random_state": ["random_state"],
}


class Model(NamedTuple):
    """The recipe's ingredients, fixed before the first step."""

    network: MLP
    group: Any
    prior: GaussianPrior
    likelihood: Likelihood  # at its starting parameters
    y_scaling: Scaling | None = None
    log_noise_range: tuple[float, float] = (-np.inf, np.inf)


def _gap_estimate(estimator: Any, network: MLP) -> PermanentEstimate:
    n, widest = estimator.n_permutations, max(network.hidden_layer_sizes, default=0)
    if estimator.gap_estimator == "exact" and widest > 20:
        raise ValueError(
            f"gap_estimator='exact' sums over 2^width subsets, too many for width {widest}: "
            "use at most 20 units a layer or gap_estimator='auto'."
        )
    estimates: dict[str, PermanentEstimate] = {
        "auto": ExactUpTo(estimator.exact_max_width, Importance(n)),
        "exact": Exact(),
        "importance": Importance(n),
        "infonce": InfoNCE(n),
        "infonce-iid": InfoNCE(n, replacement=True),
        "soules": Soules(),
    }
    return estimates[estimator.gap_estimator]


class _Seeds(NamedTuple):
    """One seed a purpose, so that runs that differ in one share all other random numbers."""

    start: int
    gap: int
    training: int
    predict: int
    likelihood_bound: int
    gap_bound: int


def _start(estimator: Any, model: Model, data: Data, seed: int) -> Tensor:
    """Starting point: random and narrow, or the previous fit if ``warm_start``."""
    if estimator.warm_start and hasattr(estimator, "posterior_"):
        previous = estimator.posterior_
        if len(previous.loc) != model.network.layout.n_params:
            raise ValueError(
                f"warm_start=True, but the previous fit has {len(previous.loc)} parameters and "
                f"this one {model.network.layout.n_params}: data or hidden_layer_sizes changed."
            )
        loc = torch.as_tensor(previous.loc, dtype=torch.float64)
        log_variance = 2.0 * torch.as_tensor(previous.scale, dtype=torch.float64).log()
    else:
        loc = model.network.init(1, generator=generator_from(seed))[0]
        log_variance = torch.full_like(loc, 2.0 * log(_INITIAL_SCALE))
        # Inputs that are always 0 leave their weights at the prior: start them there.
        silent = (data.x == 0.0).all(dim=0).cpu()
        where = model.network.layout.positions("W1")[:, silent].flatten()
        loc[where] = 0.0
        log_variance[where] = 2.0 * model.prior.scale[where].log()
    return pack(loc, log_variance, model.likelihood).to(data.x)


def fit_vi(estimator: Any, context: FitContext, model: Model) -> Fitted:
    """The recipe: objective, steps, then the bounds at the end."""
    seeds = _Seeds(*spawn_seeds(context.seed, len(_Seeds._fields)))
    estimate = _gap_estimate(estimator, model.network)
    rows, n_rows = context.rows, len(context.rows.X)
    batch_size = rows_a_step(estimator, n_rows, automatic_batch(n_rows))
    data = training_data(context, model.y_scaling)
    gap = None
    if model.group.log_order > 0.0:
        generator = generator_from(seeds.gap, context.device)
        gap = GatedGap(
            UnitGap(model.group, estimate, n_draws=estimator.n_weight_samples),
            certificate=UnitGap(model.group, Soules()),
            generator=generator,
        )
    with torch.no_grad():
        objective = SymmetrizedElbo(
            model.network, model.likelihood, model.prior, data,
            _start(estimator, model, data, seeds.start),
            batch_size=batch_size,
            n_draws=estimator.n_weight_samples,
            generator=generator_from(seeds.training, context.device),
            gap=gap,
        )  # fmt: skip
        offset = log_jacobian(rows.weight, model.y_scaling)
        rate = estimator.learning_rate
        if rate == "auto":
            rate = FULL_BATCH_RATE if batch_size == len(rows.X) else MINIBATCH_RATE
        result = _optimise(estimator, context, model, objective, rate, seeds.predict, offset)
        attributes = {
            **_prediction_attributes(context, model, result.params, seeds.predict),
            **_bounds(estimator, model, data, result.params, seeds, offset),
            "elbo_curve_": offset - np.array(result.loss_curve),
            "n_iter_": result.n_iter,
        }
    _report(estimator, attributes, result, gap, float(rows.weight.sum()))
    return Fitted(attributes, result.stopped)


def _optimise(
    estimator: Any,
    context: FitContext,
    model: Model,
    objective: SymmetrizedElbo,
    rate: float,
    predict_seed: int,
    offset: float,
) -> OptimiseResult:
    n = model.network.layout.n_params
    groups = [
        ParamGroup(slice(0, n), rate),
        ParamGroup(slice(n, 2 * n), rate * estimator.log_variance_rate, *_LOG_VARIANCE_RANGE),
        ParamGroup(slice(2 * n, None), rate, *model.log_noise_range),
    ]
    block = max(1, estimator.max_iter // 100)
    task = context.begin(-(-estimator.max_iter // block))

    def reconstruct() -> Mapping[str, Any]:
        return _prediction_attributes(context, model, objective.params, predict_seed)

    def on_step(step: int, info: Mapping[str, float]) -> bool:
        logger.debug("step %d: training ELBO %.6g", step, offset - info["loss"])
        return task.end_block(reconstruct)

    tol = estimator.tol * float(context.rows.weight.sum()) if estimator.early_stopping else None
    result = minimise(
        objective, groups=groups, max_iter=estimator.max_iter, block_size=block,
        on_step=on_step, tol=tol,
    )  # fmt: skip
    task.end(reconstruct)
    return result


def _prediction_attributes(
    context: FitContext, model: Model, params: Tensor, predict_seed: int
) -> dict[str, Any]:
    """Everything that predicting needs, as NumPy arrays; also mid-fit, for callbacks."""
    n = model.network.layout.n_params
    loc, log_variance, own = (
        t.detach().cpu().numpy().copy() for t in (params[:n], params[n : 2 * n], params[2 * n :])
    )
    attributes = {
        "posterior_": MeanFieldGaussian(loc, np.exp(0.5 * log_variance)),
        "network_": model.network,
        "x_mean_": context.x_scaling.mean,
        "x_scale_": context.x_scaling.scale,
        "device_": str(context.device),
        "dtype_": str(context.dtype).removeprefix("torch."),
        "_predict_seed_": predict_seed,
        "_cache": {},
    }
    if model.y_scaling is not None:
        likelihood = model.likelihood.at(torch.as_tensor(own))
        noise = likelihood.noise_scale.double().numpy() * model.y_scaling.scale
        attributes["y_mean_"], attributes["y_scale_"] = model.y_scaling
        attributes["noise_std_"] = float(noise[0]) if len(noise) == 1 else noise
    return attributes


def _bounds(
    estimator: Any, model: Model, data: Data, params: Tensor, seeds: _Seeds, offset: float
) -> dict[str, Any]:
    """The reported bounds, in float64 and with fresh draws."""
    n, device = model.network.layout.n_params, data.x.device
    final = params.double()
    posterior = MeanFieldGaussian(
        final[:n].cpu().numpy(), (0.5 * final[n : 2 * n]).exp().cpu().numpy()
    )
    log_lik = expected_log_likelihood(
        model.network,
        model.likelihood.at(final[2 * n :]),
        posterior,
        data,
        n_draws=max(8, min(_EVALUATION_DRAWS, _EVALUATION_ROWS // len(data.x))),
        generator=generator_from(seeds.likelihood_bound, device),
    )
    mean_field = log_lik.value - posterior.kl_from(model.prior.scale.numpy()) + offset
    gap, gap_above = _gap_bounds(estimator, model, posterior, seeds.gap_bound, device)
    order = model.group.log_order
    return {
        "elbo_": mean_field + gap.value,
        "elbo_mean_field_": mean_field,
        "elbo_upper_": mean_field + max(gap.value, gap_above.value),
        "elbo_std_error_": float(np.hypot(log_lik.standard_error, gap.standard_error)),
        "symmetry_gap_": gap.value,
        "saturation_": gap.value / order if order > 0.0 else float("nan"),
    }


def _gap_bounds(
    estimator: Any, model: Model, posterior: MeanFieldGaussian, seed: int, device: torch.device
) -> tuple[Estimate, Estimate]:
    """Lower and upper bound on the gap from the same draws; equal where the sum is exact."""
    if not model.group.factors:
        return Estimate(0.0, 0.0), Estimate(0.0, 0.0)
    width = 20 if estimator.gap_estimator == "exact" else estimator.exact_max_width
    proposals = max(estimator.n_permutations, _EVALUATION_PERMUTATIONS)
    below = UnitGap(model.group, ExactUpTo(width, Importance(proposals)))
    above = UnitGap(model.group, ExactUpTo(width, DoublyStochastic()), bound="upper")
    entries = max(model.network.hidden_layer_sizes) ** 2
    n_draws = max(16, min(_EVALUATION_DRAWS, _EVALUATION_ENTRIES // entries))

    def estimate(gap: UnitGap) -> Estimate:
        return gap.estimate(posterior, n_draws, generator=generator_from(seed, device))

    lower = estimate(below)
    saturated = model.group.log_order - lower.value < 1e-6  # nothing is left above
    return lower, lower if saturated else estimate(above)


def _report(
    estimator: Any,
    attributes: Mapping[str, Any],
    result: OptimiseResult,
    gap: GatedGap | None,
    total_weight: float,
) -> None:
    """Say what a user should know: saturation in the log, missing convergence as a warning."""
    logger.info(
        "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped by %s after %d steps, in %d of "
        "them the gap was certified saturated",
        attributes["elbo_"], attributes["elbo_mean_field_"], attributes["symmetry_gap_"],
        result.stopped, result.n_iter, gap.n_skipped if gap else 0,
    )  # fmt: skip
    if estimator.symmetry is not None and attributes["saturation_"] > SATURATED:
        logger.info(
            "saturation %.4f > %g: the symmetric modes don't overlap, so symmetrisation adds the "
            "constant log |G| to the bound and is a no-op for training.",
            attributes["saturation_"], SATURATED,
        )  # fmt: skip
    warn_unless_converged(estimator, result, total_weight)


def warn_unless_converged(estimator: Any, result: OptimiseResult, total_weight: float) -> None:
    """A warning with the figure if the last tenth of all steps still raised the ELBO."""
    gain = last_tenth_gain([-loss for loss in result.loss_curve])
    if result.stopped == "max_iter" and gain.exceeds(estimator.tol * total_weight):
        warn_user(
            f"not converged: the last tenth of the {result.n_iter} steps still raised the ELBO by "
            f"{gain.value / total_weight:.2g} nats a datum (tol={estimator.tol:g}). Raise "
            "max_iter or learning_rate.",
            ConvergenceWarning,
        )


def draws(estimator: Any, like: Tensor) -> tuple[Any, ...]:
    """Posterior layers and the noise of the predictive draws, made once a device."""
    n, network = estimator.n_predict_samples, estimator.network_

    def make() -> tuple[Any, ...]:
        generator = generator_from(estimator._predict_seed_)
        # Drawn on the CPU in float32 whatever the device, so that predictions agree across them.
        noise = [torch.randn(n, 1, width, generator=generator) for width in network.sizes[1:]]
        layers = posterior_layers(network, estimator.posterior_, like)
        return (*layers, [e.to(like) for e in noise])

    return estimator._cached(f"{n} draws on {like.device}", make)
