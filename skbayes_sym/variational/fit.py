"""Fit mean-field posteriors: starting points, ascent of the symmetrised ELBO, reported bounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.messages import log_info, warn_unless_converged, warn_user
from skbayes_sym.base.model_factory import (
    group_scales,
    require_mlp,
    require_normal_or_learned_prior,
    scale_attributes,
)
from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.base.progress import FitProgress, Schedule, StepConfig, n_blocks, steps_per_block
from skbayes_sym.base.requirements import (
    ANY_NETWORK,
    FULLY_CONNECTED,
    LIKELIHOOD_WITH_EXPECTATION,
    NORMAL_OR_LEARNED_PRIOR,
    NORMAL_OR_SOFTMAX,
    SOFTMAX,
    Requirements,
)
from skbayes_sym.base.rows import Array, unwrap_single
from skbayes_sym.base.training import (
    Training,
    default_batch_size,
    evenly_spaced_rows,
    resolve_batch_size,
)
from skbayes_sym.laplace.starting_points import find_classification_modes, find_regression_modes
from skbayes_sym.models.model import Batches, Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import GroupScalePrior
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import (
    DivergenceError,
    OptimiseResult,
    ParamGroup,
    StopReason,
    compute_final_gain,
)
from skbayes_sym.numerics.random import Estimate, generator_from, spawn_seeds
from skbayes_sym.variational.elbo import (
    GatedGap,
    GaussianNetwork,
    SymmetrizedElbo,
    learned_scales,
    pack,
    pack_starts,
)
from skbayes_sym.variational.gaps import GapLike, SymmetryGap
from skbayes_sym.variational.mean_field import (
    expected_log_likelihood,
    sampled_log_likelihood,
)
from skbayes_sym.variational.noise import noise_level_factor

SATURATED = 0.999  # fraction of log |G| above which symmetrisation can't matter for training


def random_start(model: GaussianNetwork, data: Training, seed: int) -> Tensor:
    """Start from random weights with narrow standard deviations (0.02), which widen in training.

    Parameters
    ----------
    model : GaussianNetwork
        Network, likelihood and prior.
    data : Training
        Training data.
    seed : int
        Seed of the weights.
    """
    loc = model.network.init(1, generator=generator_from(seed))[0]
    log_variance = torch.full_like(loc, 2.0 * log(0.02))
    if isinstance(model.network, MLP):
        # Weights of inputs that are always 0 stay at the prior, so they start there.
        is_zero = (data.data.x == 0.0).all(dim=0).cpu()
        index = model.network.layout.positions("W1")[:, is_zero].flatten()
        loc[index] = 0.0
        log_variance[index] = 2.0 * model.prior.scale[index].log()
    return pack(loc, log_variance, model.likelihood)


def laplace_start(model: GaussianNetwork, data: Training, seed: int) -> Tensor:
    """Start from a mode, with the variances that maximise Laplace's bound.

    The bound is maximised among independent normals. The noise starts at the targets' spread or
    above. At a mode of few rows the noise is that of an interpolation, which an ascent never
    leaves: on 50 rows of diabetes it ended 244 nats below an ascent from random weights.

    Parameters
    ----------
    model : GaussianNetwork
        Network, likelihood and prior.
    data : Training
        Training data.
    seed : int
        Seed of the search.
    """
    network = require_mlp(model.network)
    likelihood = model.likelihood
    rows = data.double_data
    p = network.layout.n_params
    systems = MemoryAllocation(
        f"Gauss-Newton systems of {p:,} weights",
        80 * (network.n_outputs + 1) * p**2,  # bytes: five copies for each of two searches
        "Lower hidden_layer_sizes, or use init='random'.",
    )
    require_memory([systems], data.device)
    prior = group_scales(model.prior)
    if SOFTMAX.is_met(likelihood):
        starts = find_classification_modes(network, rows, prior, n=1, seed=seed)
    else:
        starts = find_regression_modes(network, likelihood, rows, prior, n=1, seed=seed)
    position = starts.position[0].cpu()
    log_variance = 2.0 * starts.spread[0].log().cpu()
    noise = position[p:]
    if likelihood.n_params:
        noise = torch.maximum(noise, torch.as_tensor(data.target_std).log())
    return torch.cat([position[:p], log_variance[:p], noise])


class Init(NamedTuple):
    """Kind of starting point, as named by ``init``.

    Attributes
    ----------
    requirements : Requirements
        Models for which it works.
    position : callable
        ``position(model, data, seed)`` returns the starting vector, see `pack`.
    warm_up : float
        Fraction of the steps over which the weight of the KL rises to 1. In this time the means
        fit the data before the variances widen to the prior, which is how a fit from narrow random
        weights loses its units.
    """

    requirements: Requirements
    position: Callable[[GaussianNetwork, Training, int], Tensor]
    warm_up: float = 0.0


_MEAN_FIELD_MODELS = Requirements(LIKELIHOOD_WITH_EXPECTATION, ANY_NETWORK, NORMAL_OR_LEARNED_PRIOR)
_LAPLACE_MODELS = Requirements(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR)
INITS: dict[str, Init] = {
    "random": Init(_MEAN_FIELD_MODELS, random_start),
    "annealed": Init(_MEAN_FIELD_MODELS, random_start, warm_up=0.4),
    "laplace": Init(_LAPLACE_MODELS, laplace_start),
}


def list_inits(init: str, model: GaussianNetwork) -> list[str]:
    """Names in `INITS` of the kinds of start that ``init`` stands for.

    No single kind works everywhere. On folds of a noisy sine "random" loses all units in five of
    five fits; on bodyfat "annealed" keeps too many. For classification "laplace" gains nothing.
    With more than 300 weights its mode search costs more than the ascent (three to five times as
    much at 600 to 750 weights).
    """
    if init != "auto":
        return [init]
    learns_noise = model.likelihood.kind == "normal" and model.likelihood.n_params > 0
    is_small = model.network.layout.n_params <= 300
    if learns_noise and is_small and isinstance(model.network, MLP):
        return ["random", "annealed", "laplace"]
    return ["random", "annealed"]


def _is_wide(network: Network) -> bool:
    """Whether one long ascent gains more for a network than several starts."""
    return isinstance(network, MLP) and max(network.hidden_layer_sizes, default=0) > 20


class Bounds(NamedTuple):
    """Bounds of a fit in nats, with targets in scaled units.

    Attributes
    ----------
    mean_field : Estimate
        ELBO of the mean-field posterior.
    gap : Estimate
        Lower bound on the symmetry gap.
    gap_above : Estimate
        Upper bound on the symmetry gap.
    log_order : float
        Logarithm of the number of elements of the group.
    """

    mean_field: Estimate
    gap: Estimate
    gap_above: Estimate
    log_order: float

    @property
    def elbo(self) -> float:
        """The symmetrised bound."""
        return self.mean_field.value + self.gap.value

    @property
    def saturation(self) -> float:
        """The gap divided by ``log |G|``; NaN for the trivial group."""
        if self.log_order > 0.0:
            return self.gap.value / self.log_order
        return float("nan")


@dataclass(frozen=True, eq=False)
class MeanFieldFit:
    """Result of mean-field training, final or in the middle of training, in scaled units.

    Attributes
    ----------
    loc, log_variance : ndarray of shape (P,)
        Means and log variances of the weights, in the working precision.
    likelihood_params : ndarray of shape (n_params,)
        Parameters of the likelihood.
    predict_seed : int
        Seed of the draws that predictions average.
    prior : GroupScalePrior, optional
        Prior at the learned scales, if scales are learned.
    bounds : Bounds, optional
        Bounds of the fit. None before training has ended.
    loss_curve : list of float, optional
        Mean loss per block of steps. None before training has ended.
    n_iter : int
        Number of steps.
    stop_reason : str
        Reason why training stopped.
    """

    loc: Array
    log_variance: Array
    likelihood_params: Array
    predict_seed: int
    prior: GroupScalePrior | None = None
    bounds: Bounds | None = None
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        """Fitted attributes of the estimator by name."""
        attributes: dict[str, Any] = {
            "posterior_": MeanFieldGaussian(self.loc, np.exp(0.5 * self.log_variance)),
            "_predict_seed_": self.predict_seed,
            "_likelihood_params_": self.likelihood_params,
        }
        if data.y_scaling is not None:
            likelihood = model.likelihood.at(torch.as_tensor(self.likelihood_params))
            noise = likelihood.noise_scale.double().numpy()
            if len(noise):  # likelihoods of counts have none
                noise = noise * data.y_scaling.scale
                attributes["noise_std_"] = unwrap_single(noise)
        if self.prior is not None:
            attributes |= scale_attributes(self.prior)
        if self.bounds is not None:
            bound, gap, gap_above, _ = self.bounds
            mean_field = bound.value + data.log_jacobian
            attributes |= {
                "elbo_": mean_field + gap.value,
                "elbo_mean_field_": mean_field,
                "elbo_upper_": mean_field + max(gap.value, gap_above.value),
                "elbo_std_error_": float(np.hypot(bound.standard_error, gap.standard_error)),
                "symmetry_gap_": gap.value,
                "saturation_": self.bounds.saturation,
            }
        if self.bounds is not None:
            posterior = MeanFieldGaussian(self.loc, np.exp(0.5 * self.log_variance))
            attributes["_noise_levels_"] = noise_level_factor(
                data, model, posterior.sample, self.predict_seed
            )
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


def read_fit(params: Tensor, model: GaussianNetwork, predict_seed: int) -> MeanFieldFit:
    """Read the vector of one start (see `pack`) into a fit without bounds.

    Parameters
    ----------
    params : Tensor
        Parameters of one start.
    model : GaussianNetwork
        Network, likelihood and prior.
    predict_seed : int
        Seed of draws in predictions.
    """
    n = model.network.layout.n_params
    params = params.detach().cpu()
    prior = learned_scales(model.prior, torch.device("cpu"))
    if prior is not None:  # the optimal scales for this posterior
        double_params = params.double()
        prior = prior.update(double_params[:n], double_params[n : 2 * n].exp())
    parts = params.tensor_split([n, 2 * n])
    loc, log_variance, likelihood_params = (part.numpy().copy() for part in parts)
    return MeanFieldFit(loc, log_variance, likelihood_params, predict_seed, prior)


def compute_noise_ratio(
    data: Training,
    model: GaussianNetwork,
    posterior: MeanFieldGaussian,
    log_noise: Tensor,
    seed: int,
) -> Tensor:
    """Learned noise divided by the root mean square of the residuals.

    Parameters
    ----------
    data : Training
        Training data.
    model : GaussianNetwork
        Network, likelihood and prior.
    posterior : MeanFieldGaussian
        Posterior of the weights.
    log_noise : Tensor of shape (n_params,)
        Parameters of the likelihood.
    seed : int
        Seed of the draws of functions.

    Returns
    -------
    Tensor of shape (T,)
        Ratio for every target. It is 1 if the posterior has no variance of its own.

    Notes
    -----
    At the optimum the noise variance is ``E (y - f)^2``: the mean squared residual of the mean
    function plus the mean variance of the functions.
    """
    x, y, weight = data.double_data
    subsample = evenly_spaced_rows(len(x), 2000)
    n_draws = 64
    draws = posterior.sample(n_draws, generator=generator_from(seed)).to(x)
    functions = model.network.forward(draws, x[subsample])
    # The variance of a mean of S draws, 1 / S of that of the functions, is no residual.
    squares = (y[subsample] - functions.mean(0)).square() - functions.var(0) / n_draws
    rms = (weight[subsample] @ squares / weight[subsample].sum()).clamp_min(0.0).sqrt()
    return model.likelihood.at(log_noise).noise_scale.to(rms) / rms


class _Seeds(NamedTuple):
    """One seed for each purpose, so that runs that differ in one share all other random numbers."""

    starts: int
    gap: int
    training: int
    predict: int
    likelihood_bound: int
    gap_bound: int


class _Ascent(NamedTuple):
    """Result of one start.

    Attributes
    ----------
    fit : MeanFieldFit
        Fit with its bounds.
    bounds : Bounds
        The same bounds.
    model : GaussianNetwork
        Model with the prior's learned scales.
    result : OptimiseResult
        Vector and loss curve of this start.
    """

    fit: MeanFieldFit
    bounds: Bounds
    model: GaussianNetwork
    result: OptimiseResult


@dataclass(frozen=True, eq=False)
class MeanFieldVI:
    """Independent normals fitted by the symmetrised ELBO (Gelberg et al. 2024, eq. 5).

    Parameters
    ----------
    gap : str, PermanentEstimate or Gap
        Estimate of the symmetry gap, see `gaps.SymmetryGap`.
    steps : StepConfig
        Number of steps, step sizes, batch size, draws and tolerance.
    init : str, default="auto"
        Kind of starting point, see `list_inits`.
    n_starts : int or "auto", default="auto"
        Number of starts.
    start : MeanFieldGaussian, optional
        Posterior to continue from, in the scaled units of this fit.
    shares_steps : bool, default=False
        Whether a single start takes the steps of all starts if that is better, see Notes.

    Notes
    -----
    All starts are optimised at once. Minibatch training has only one start. If the starts share
    their steps, it takes the steps of all (2,000 rows: 0.026 nats per row better,
    ``compare_starts.py "1000 steps" --kinds minibatches``). The same holds for the annealed start
    of networks with more than twenty units (50 relu units, 300 rows: 0.015 nats per row and a bound
    0.008 better than two starts, at 1.25 times the CPU time; ``--kinds wide``).
    """

    requirements: ClassVar[Requirements] = _MEAN_FIELD_MODELS

    gap: GapLike
    steps: StepConfig
    init: str = "auto"
    n_starts: int | str = "auto"
    start: MeanFieldGaussian | None = None
    shares_steps: bool = False

    def fit(self, data: Training, model: Model, progress: FitProgress) -> MeanFieldFit:
        """Train all starts and return the one with the best bound."""
        prior = require_normal_or_learned_prior(model.prior)
        gaussian_model = GaussianNetwork(model.network, model.likelihood, prior, model.group)
        seeds = _Seeds(*spawn_seeds(data.seed, len(_Seeds._fields)))
        with torch.no_grad():
            inits, ascents = self._ascend(data, gaussian_model, seeds, progress)
        best = self._select_best(ascents, data.total_weight)
        progress.end(best.fit)

        elbos = ", ".join(f"{data.log_jacobian + ascent.bounds.elbo:.6g}" for ascent in ascents)
        log_info("ELBO from %s: %s", ", ".join(inits), elbos)
        bound = data.log_jacobian + best.bounds.mean_field.value
        gap = best.bounds.gap.value
        log_info(
            "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped: %s after %d steps",
            bound + gap,
            bound,
            gap,
            best.fit.stop_reason,
            best.fit.n_iter,
        )
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        self._warn_collapse(data, best, seeds.likelihood_bound)
        _warn_small_scales(data, best)
        return best.fit

    def _plan_starts(self, model: GaussianNetwork, *, is_minibatch: bool) -> tuple[list[str], int]:
        """Names in `INITS` of the starts to try, and the number of steps of each."""
        max_iter = self.steps.max_iter
        n_starts = self.n_starts
        if self.start is not None:
            return ["random"], max_iter
        inits = list_inits(self.init, model)
        if not isinstance(n_starts, str):
            return [inits[i % len(inits)] for i in range(n_starts)], max_iter
        if is_minibatch and self.shares_steps:
            return inits[:1], len(inits) * max_iter
        if self.shares_steps and len(inits) > 1 and _is_wide(model.network):
            n_shared = 3 if model.likelihood.kind == "normal" else 2
            return ["annealed"], n_shared * max_iter
        if is_minibatch or max_iter < 500:
            return inits[:1], max_iter
        return inits, max_iter

    def _ascend(
        self, data: Training, model: GaussianNetwork, seeds: _Seeds, progress: FitProgress
    ) -> tuple[list[str], list[_Ascent]]:
        """Train all starts and evaluate their bounds.

        Parameters
        ----------
        data : Training
            Training data.
        model : GaussianNetwork
            Network, likelihood, prior and symmetry group.
        seeds : _Seeds
            Seeds by purpose.
        progress : FitProgress
            Receiver of progress reports.

        Returns
        -------
        inits : list of str
            Names of the kinds of start.
        ascents : list of _Ascent
            Results in the same order.
        """
        auto = default_batch_size(data.n_rows)
        symmetry_gap = SymmetryGap(self.gap, model.group)
        batch_size = resolve_batch_size(self.steps.batch_size, data.n_rows, auto)
        is_minibatch = batch_size < data.n_rows
        inits, max_iter = self._plan_starts(model, is_minibatch=is_minibatch)
        for init in inits:
            INITS[init].requirements.check(Model(*model))

        # In small steps a second draw costs a tenth more, and a longer fit would gain less.
        is_large = isinstance(model.network, MLP) and (is_minibatch or _is_wide(model.network))
        n_draws = self.steps.n_draws(1 if is_large else 2)
        gap = None
        if symmetry_gap.group.log_order > 0.0:
            gap = GatedGap(
                symmetry_gap.trained(n_draws),
                symmetry_gap.certificate,
                generator=generator_from(seeds.gap, data.device),
                hold=symmetry_gap.hold,
                is_batched=symmetry_gap.is_batched,
                block=steps_per_block(max_iter),
            )

        # All starts take their steps together, with the same random numbers.
        start_seeds = spawn_seeds(seeds.starts, len(inits))
        index_tensor = [
            self._starting_position(data, model, init, seed)
            for init, seed in zip(inits, start_seeds, strict=True)
        ]
        warm_ups = [0.0 if self.start else INITS[init].warm_up for init in inits]
        objective = SymmetrizedElbo(
            model,
            Batches(data.data, batch_size, generator_from(seeds.training, data.device)),
            pack_starts(index_tensor, model.network.layout.n_params),
            n_draws=n_draws,
            gap=gap,
            warm_up=[max(1, round(fraction * max_iter)) for fraction in warm_ups],
        )
        progress.begin(
            n_blocks(max_iter),
            lambda: read_fit(objective.start_params(), model, seeds.predict),
        )
        joint_result = progress.minimise(
            objective,
            self._param_groups(data, model, len(inits), is_minibatch=is_minibatch),
            Schedule(max_iter, self.steps.absolute_tol(data.total_weight), conservative=True),
            report=lambda loss: ("training ELBO", data.log_jacobian - loss),
        )

        # The reported bounds are those of each start, by fresh draws.
        curves = joint_result.loss_curves or [[] for _ in inits]
        ascents = []
        for r, curve in enumerate(curves):
            params = objective.start_params(r)
            result = joint_result._replace(params=params, loss_curves=[curve])
            ascents.append(_evaluate_ascent(data, model, symmetry_gap, seeds, result))
        return inits, ascents

    @staticmethod
    def _select_best(ascents: list[_Ascent], total_weight: float) -> _Ascent:
        """Select the start with the highest bound; among ties, that with the smallest noise.

        Bounds tie within 0.02 nats per unit of sample weight. On 32 rows of a sine the bounds of a
        fit that follows the sine and of a flat fit differ by 0.1 nats, less than their Monte Carlo
        error.
        """
        margin = 0.02 * total_weight  # nats
        highest = max(ascent.bounds.elbo for ascent in ascents)
        tied = [ascent for ascent in ascents if ascent.bounds.elbo >= highest - margin]

        def sort_key(ascent: _Ascent) -> tuple[float, float]:
            learns_noise = ascent.model.likelihood.kind == "normal"
            if learns_noise:
                noise = float(ascent.fit.likelihood_params.sum())
            else:
                noise = 0.0
            return noise, -ascent.bounds.elbo

        return min(tied, key=sort_key)

    def _warn_collapse(self, data: Training, best: _Ascent, seed: int) -> None:
        """Warn if the learned noise of a converged fit is too large.

        With noise above the targets' spread a constant function is better. With noise of 1.7 times
        the residuals two thirds of its variance are that of the functions. Usual ratios are 1.05 to
        1.25, and 1.5 on thirty rows, which a good fit follows closely.
        """
        model = best.model
        result = best.result
        # A gain that is too noisy to show that the fit hasn't converged doesn't show that it has:
        # its noise can still be falling.
        gain = compute_final_gain([-loss for loss in result.loss_curve])
        tol = self.steps.absolute_tol(data.total_weight)
        has_converged = tol is not None and (result.stopped == "tol" or gain.value < tol)
        learns_noise = model.likelihood.n_params and model.likelihood.kind == "normal"
        if not (has_converged and learns_noise):
            return

        n = model.network.layout.n_params
        params = result.params.double()
        log_noise = params[2 * n :]
        posterior = _read_posterior(params, model)
        with torch.no_grad():
            ratio = compute_noise_ratio(data, model, posterior, log_noise, seed).cpu().numpy()
        noise_scale = model.likelihood.at(log_noise).noise_scale.cpu().numpy()
        target_ratio = noise_scale / data.target_std
        if ((ratio > 1.7) | (ratio > 1.1) & (target_ratio > 1.0)).any():
            warn_user(
                f"the learned noise is {float(ratio.max()):.2f} times the spread of the residuals "
                f"and {float(target_ratio.max()):.2f} times that of the targets. The mean-field "
                "posterior has collapsed: variance of the independent weights is taken for noise. "
                "Use fewer hidden units or a smaller prior, or use LayerwiseVIRegressor, "
                "LaplaceRegressor or BayesianMLPRegressor.",
                UserWarning,
            )

    def _starting_position(
        self, data: Training, model: GaussianNetwork, init: str, seed: int
    ) -> Tensor:
        """Starting vector of a kind, or the posterior to continue from.

        Parameters
        ----------
        data : Training
            Training data.
        model : GaussianNetwork
            Network, likelihood and prior.
        init : str
            Name in `INITS`.
        seed : int
            Seed of the random start.

        Returns
        -------
        Tensor
            Vector, see `pack`, on the device of the data.

        Raises
        ------
        ValueError
            If the previous fit had another number of parameters.
        """
        if self.start is None:
            return INITS[init].position(model, data, seed).to(data.data.x)
        n_params = model.network.layout.n_params
        if len(self.start.loc) != n_params:
            raise ValueError(
                f"warm_start=True, but the previous fit has {len(self.start.loc)} parameters "
                f"and this one {n_params}: data or hidden_layer_sizes changed."
            )
        loc = torch.as_tensor(self.start.loc, dtype=torch.float64)
        log_variance = 2.0 * torch.as_tensor(self.start.scale, dtype=torch.float64).log()
        return pack(loc, log_variance, model.likelihood).to(data.data.x)

    def _param_groups(
        self, data: Training, model: GaussianNetwork, n_starts: int, *, is_minibatch: bool
    ) -> list[ParamGroup]:
        """Step sizes and ranges of the means, log variances and likelihood parameters.

        Parameters
        ----------
        data : Training
            Training data.
        model : GaussianNetwork
            Network, likelihood and prior.
        n_starts : int
            Number of starts in the vector.
        is_minibatch : bool
            Whether steps take a part of the rows.

        Returns
        -------
        list of ParamGroup
            Groups, each with all starts.
        """
        n = n_starts * model.network.layout.n_params
        rate = self.steps.rate(1e-2 if is_minibatch else 2e-2)
        return [
            ParamGroup(slice(0, n), rate),
            ParamGroup(slice(n, 2 * n), rate * self.steps.log_variance_rate, -30.0, 10.0),
            ParamGroup(slice(2 * n, None), rate, *data.param_range(model.likelihood)),
        ]


def _warn_small_scales(data: Training, best: _Ascent) -> None:
    """Warn if learned prior scales left a network that explains almost nothing.

    One scale serves all outgoing weights. The weights of a flat function are all small, so that its
    KL falls with the scale, by some ten nats on thirty rows. The KL of a fitted function doesn't.
    """
    likelihood = best.model.likelihood
    prior = best.fit.prior
    if prior is None or not (likelihood.n_params and likelihood.kind == "normal"):
        return
    learned = likelihood.at(torch.as_tensor(best.fit.likelihood_params).double())
    ratio = float((learned.noise_scale.cpu().numpy() / data.target_std).min())
    if ratio > 0.95:
        warn_user(
            f"the learned noise is {ratio:.2f} times the spread of the targets: learned scales of "
            "the prior make a flat function cheap. Compare with prior=1.0, or use "
            "LayerwiseVIRegressor.",
            UserWarning,
        )


def _evaluate_ascent(
    data: Training, model: GaussianNetwork, gap: SymmetryGap, seeds: _Seeds, result: OptimiseResult
) -> _Ascent:
    """Evaluate the bounds of a start under the prior scales that it has learned.

    Parameters
    ----------
    data : Training
        Training data.
    model : GaussianNetwork
        Model before training.
    gap : SymmetryGap
        Estimates of the symmetry gap.
    seeds : _Seeds
        Seeds by purpose.
    result : OptimiseResult
        Result of the optimiser for this start.

    Returns
    -------
    _Ascent
        Fit with its bounds.
    """
    trained = read_fit(result.params, model, seeds.predict)
    if trained.prior is not None:
        model = model._replace(prior=trained.prior)
    bounds = _evaluate_bounds(data, model, gap, seeds, result.params)
    fit = replace(
        trained,
        bounds=bounds,
        loss_curve=result.loss_curve,
        n_iter=result.n_iter,
        stop_reason=result.stopped,
    )
    return _Ascent(fit, bounds, model, result)


def _evaluate_bounds(
    data: Training, model: GaussianNetwork, symmetry_gap: SymmetryGap, seeds: _Seeds, params: Tensor
) -> Bounds:
    """Evaluate the reported bounds in float64 with fresh draws.

    Parameters
    ----------
    data : Training
        Training data.
    model : GaussianNetwork
        Model with the learned scales of the prior.
    symmetry_gap : SymmetryGap
        Estimates of the symmetry gap.
    seeds : _Seeds
        Seeds by purpose.
    params : Tensor
        Vector of the start, see `pack`.

    Returns
    -------
    Bounds
        Bounds in nats.

    Raises
    ------
    DivergenceError
        If the bound isn't finite.
    """
    n = model.network.layout.n_params
    params = params.double()
    posterior = _read_posterior(params, model)
    likelihood = model.likelihood.at(params[2 * n :])
    generator = generator_from(seeds.likelihood_bound, data.device)
    if isinstance(model.network, MLP):
        # The noise of many rows is independent and averages out. That of 32 rows needs many draws
        # for a standard error below 0.005 nats per row.
        n_small = min(128, (1 << 20) // data.n_rows)
        n_draws = max(8, n_small, min(1024, (1 << 17) // data.n_rows))
        log_lik = expected_log_likelihood(
            model.network, likelihood, posterior, data.data, n_draws=n_draws, generator=generator
        )
    else:  # all rows share a draw
        log_lik = sampled_log_likelihood(
            model.network, likelihood, posterior, data.data, n_draws=128, generator=generator
        )
    value = log_lik.value - posterior.kl_from(model.prior.scale.numpy())
    if not np.isfinite(value):
        raise DivergenceError(
            f"the bound at the end of the fit is {value}: lower learning_rate, standardize the "
            "data or give X as float64."
        )
    gap, gap_above = _bound_gap(data, symmetry_gap, posterior, seeds.gap_bound)
    mean_field = Estimate(value, log_lik.standard_error)
    return Bounds(mean_field, gap, gap_above, model.group.log_order)


def _read_posterior(params: Tensor, model: GaussianNetwork) -> MeanFieldGaussian:
    """Posterior of the weights from the vector of a start, see `pack`."""
    n = model.network.layout.n_params
    scale = (0.5 * params[n : 2 * n]).exp()
    return MeanFieldGaussian(params[:n].cpu().numpy(), scale.cpu().numpy())


def _bound_gap(
    data: Training, symmetry_gap: SymmetryGap, posterior: MeanFieldGaussian, seed: int
) -> tuple[Estimate, Estimate]:
    """Bound the gap from below and from above with the same draws.

    Parameters
    ----------
    data : Training
        Training data, which determine the device.
    symmetry_gap : SymmetryGap
        Estimates of the symmetry gap.
    posterior : MeanFieldGaussian
        Posterior of the weights.
    seed : int
        Seed of the draws.

    Returns
    -------
    lower, upper : Estimate
        Bounds in nats. They are equal if the gap is computed exactly.
    """
    log_order = symmetry_gap.group.log_order
    if log_order == 0.0:
        return Estimate(0.0, 0.0), Estimate(0.0, 0.0)
    below, above = symmetry_gap.reported
    n_draws = symmetry_gap.n_draws
    lower = below.estimate(posterior, n_draws, generator=generator_from(seed, data.device))
    if below.side == "exact" or log_order - lower.value < 1e-6:  # the upper bound can't be tighter
        return lower, lower
    if above is None or lower.value > SATURATED * log_order:
        return lower, Estimate(log_order, 0.0)
    return lower, above.estimate(posterior, n_draws, generator=generator_from(seed, data.device))
