"""Symmetrised variational inference as a method: objective, steps, then the bounds."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log import log_info
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
from skbayes_sym.base.rows import Array
from skbayes_sym.base.training import Training, default_batch_size, resolve_batch_size
from skbayes_sym.base.warnings import warn_unless_converged, warn_user
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
from skbayes_sym.variational.gaps import GivenGap, SymmetryGap
from skbayes_sym.variational.mean_field import (
    drawn_log_likelihood,
    expected_log_likelihood,
)

SATURATED = 0.999  # share of log |G| beyond which symmetrisation can't matter for training


def random_start(model: GaussianNetwork, data: Training, seed: int) -> Tensor:
    """Weights of their layers' usual size, standard deviations .02: narrow, then they widen."""
    loc = model.network.init(1, generator=generator_from(seed))[0]
    log_variance = torch.full_like(loc, 2.0 * log(0.02))
    if isinstance(model.network, MLP):
        # Inputs that are always 0 leave their weights at the prior: start them there.
        silent = (data.data.x == 0.0).all(dim=0).cpu()
        where = model.network.layout.positions("W1")[:, silent].flatten()
        loc[where] = 0.0
        log_variance[where] = 2.0 * model.prior.scale[where].log()
    return pack(loc, log_variance, model.likelihood)


def laplace_start(model: GaussianNetwork, data: Training, seed: int) -> Tensor:
    """A mode, with the variances that maximise Laplace's bound among independent normals.

    The noise is at least the targets' spread. At a mode of few rows it is that of an interpolation,
    which an ascent never leaves: on 50 rows of diabetes it ended 244 nats below one from random
    weights.
    """
    network = require_mlp(model.network)
    likelihood = model.likelihood
    rows = data.double_data
    p = network.layout.n_params
    systems = MemoryAllocation(
        f"Gauss-Newton systems of {p:,} weights",
        80 * (network.n_outputs + 1) * p**2,  # bytes: five copies of two searches'
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
    """A way to start."""

    requirements: Requirements
    position: Callable[[GaussianNetwork, Training, int], Tensor]  # see `pack`
    # Share of the steps over which the KL's weight rises to 1: means find the data before variances
    # widen to the prior, which is how a fit from narrow random weights loses its units.
    warm_up: float = 0.0


# By the name that ``init=`` takes.
_ANY = Requirements(LIKELIHOOD_WITH_EXPECTATION, ANY_NETWORK, NORMAL_OR_LEARNED_PRIOR)
INITS: dict[str, Init] = {
    "random": Init(_ANY, random_start),
    "annealed": Init(_ANY, random_start, warm_up=0.4),
    "laplace": Init(
        Requirements(NORMAL_OR_SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR), laplace_start
    ),
}


def initialization_names(init: str, model: GaussianNetwork) -> list[str]:
    """Names in `INITS` of the starts that ``init`` stands for.

    Each alone fails somewhere: on folds of a noisy sine the first loses all units in five of five,
    on bodyfat the second keeps too many. Of classes a mode gains nothing, and beyond 300 weights
    its search costs more than the ascent (at 600 to 750 three to five times as much).
    """
    if init != "auto":
        return [init]
    learns_noise = model.likelihood.kind == "normal" and model.likelihood.n_params > 0
    is_searched = learns_noise and model.network.layout.n_params <= 300
    is_searched = is_searched and isinstance(model.network, MLP)
    return ["random", "annealed", "laplace"] if is_searched else ["random", "annealed"]


def _is_wide(network: Network) -> bool:
    """Whether one long ascent does more for a network than several starts."""
    return isinstance(network, MLP) and max(network.hidden_layer_sizes, default=0) > 20


class Bounds(NamedTuple):
    """The bounds of a fit, nats, targets in scaled units."""

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
        """The gap as a share of ``log |G|``; NaN of the trivial group."""
        return self.gap.value / self.log_order if self.log_order > 0.0 else float("nan")


@dataclass(frozen=True, eq=False)
class MeanFieldFit:
    """Result of mean-field training, final or so far, in scaled units."""

    loc: Array  # (P,), as is the next, in the working precision
    log_variance: Array
    likelihood_params: Array  # (n_params of the likelihood,)
    predict_seed: int
    prior: GroupScalePrior | None = None  # at the scales found, where they are learned
    bounds: Bounds | None = None  # once training has ended
    loss_curve: list[float] | None = None
    n_iter: int = 0
    stop_reason: StopReason = "max_iter"

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
            bound, gap, above, _ = self.bounds
            mean_field = bound.value + data.log_jacobian
            attributes |= {
                "elbo_": mean_field + gap.value,
                "elbo_mean_field_": mean_field,
                "elbo_upper_": mean_field + max(gap.value, above.value),
                "elbo_std_error_": float(np.hypot(bound.standard_error, gap.standard_error)),
                "symmetry_gap_": gap.value,
                "saturation_": self.bounds.saturation,
            }
        if self.loss_curve is not None:
            attributes["elbo_curve_"] = data.log_jacobian - np.array(self.loss_curve)
        return attributes


def read_fit(params: Tensor, model: GaussianNetwork, predict_seed: int) -> MeanFieldFit:
    """Read a start's vector: means, log variances and what the likelihood learns."""
    n = model.network.layout.n_params
    final = params.detach().cpu()
    scales = learned_scales(model.prior, torch.device("cpu"))
    if scales is not None:  # those that this posterior asks for
        moments = final.double()
        scales = scales.update(moments[:n], moments[n : 2 * n].exp())
    loc, log_variance, likelihood_part = (t.numpy().copy() for t in final.tensor_split([n, 2 * n]))
    return MeanFieldFit(loc, log_variance, likelihood_part, predict_seed, scales)


def noise_excess(
    data: Training, model: GaussianNetwork, posterior: MeanFieldGaussian, log_noise: Tensor,
    seed: int,
) -> Tensor:  # fmt: skip
    """Learned noise over the residuals' root mean square, (T,); 1 where nothing is scatter.

    At the optimum the noise's variance is that of the residuals of the mean function plus the mean
    variance of the functions, ``E (y - f)^2``.
    """
    x, y, weight = data.double_data
    chosen = torch.linspace(0, len(x) - 1, min(len(x), 2000)).round().long()
    n_draws = 64
    draws = posterior.sample(n_draws, generator=generator_from(seed)).to(x)
    functions = model.network.forward(draws, x[chosen])
    # The mean of S draws scatters by a share 1 / S of the functions' variance, which isn't error.
    squares = (y[chosen] - functions.mean(0)).square() - functions.var(0) / n_draws
    rms = (weight[chosen] @ squares / weight[chosen].sum()).clamp_min(0.0).sqrt()
    return model.likelihood.at(log_noise).noise_scale.to(rms) / rms


class _Seeds(NamedTuple):
    """Seeds, one for each purpose: runs that differ in one share all other random numbers."""

    starts: int
    gap: int
    training: int
    predict: int
    likelihood_bound: int
    gap_bound: int


class _Ascent(NamedTuple):
    """Result of one start."""

    fit: MeanFieldFit
    bounds: Bounds
    model: GaussianNetwork  # with the prior's learned scales
    result: OptimiseResult  # its vector and curve alone


@dataclass(frozen=True, eq=False)
class MeanFieldVI:
    """Independent normals fitted by the symmetrised ELBO (Gelberg et al. 2024, eq. 5).

    All starts climb at once. Steps of some of the rows are all of one start; if starts share them,
    it has the steps of all (2,000 rows: .026 nats per row better, `compare_starts.py "1000 steps"
    --kinds minibatches`). So has the annealed start alone of more than twenty units (50 relu units,
    300 rows: .015 nats per row and a bound .008 better than two starts, at 1.25 times the CPU;
    ``--kinds wide``).
    ``start``: where to go on from instead, in the scaled units of this fit.
    """

    requirements: ClassVar[Requirements] = _ANY

    gap: GivenGap  # see `gaps.SymmetryGap`
    steps: StepConfig
    init: str = "auto"  # where to start, see `initialization_names`
    n_starts: int | str = "auto"
    start: MeanFieldGaussian | None = None
    shares_steps: bool = False

    def fit(self, data: Training, model: Model, progress: FitProgress) -> MeanFieldFit:
        prior = require_normal_or_learned_prior(model.prior)
        known = GaussianNetwork(model.network, model.likelihood, prior, model.group)
        seeds = _Seeds(*spawn_seeds(data.seed, len(_Seeds._fields)))
        with torch.no_grad():
            inits, ascents = self._climb(data, known, seeds, progress)
        best = self._best(ascents, data.total_weight)
        progress.end(best.fit)
        elbos = ", ".join(f"{data.log_jacobian + ascent.bounds.elbo:.6g}" for ascent in ascents)
        log_info("ELBO from %s: %s", ", ".join(inits), elbos)
        bound = data.log_jacobian + best.bounds.mean_field.value
        gap = best.bounds.gap.value
        words = "ELBO %.6g (mean-field %.6g, symmetry gap %.4g), stopped: %s after %d steps"
        stopped = best.fit.stop_reason, best.fit.n_iter
        log_info(words, bound + gap, bound, gap, *stopped)
        warn_unless_converged(best.result, self.steps.tol, data.total_weight)
        self._warn_collapse(data, best, seeds.likelihood_bound)
        _warn_small_scales(data, best)
        return best.fit

    def _starts(self, model: GaussianNetwork, *, is_long: bool) -> tuple[list[str], int]:
        """Names in `INITS` of the starts to try, and the steps of each."""
        max_iter = self.steps.max_iter
        n = self.n_starts
        if self.start is not None:
            return ["random"], max_iter
        kinds = initialization_names(self.init, model)
        if isinstance(n, str):
            if is_long and self.shares_steps:
                return kinds[:1], len(kinds) * max_iter
            if self.shares_steps and len(kinds) > 1 and _is_wide(model.network):
                return ["annealed"], (3 if model.likelihood.kind == "normal" else 2) * max_iter
            n = 1 if is_long or max_iter < 500 else len(kinds)
        return [kinds[i % len(kinds)] for i in range(n)], max_iter

    def _climb(
        self, data: Training, model: GaussianNetwork, seeds: _Seeds, progress: FitProgress
    ) -> tuple[list[str], list[_Ascent]]:
        """Train all starts, and close with their bounds; their names come with them."""
        auto = default_batch_size(data.n_rows)
        symmetry_gap = SymmetryGap(self.gap, model.group)
        batch_size = resolve_batch_size(self.steps.batch_size, data.n_rows, auto)
        is_long = batch_size < data.n_rows
        inits, max_iter = self._starts(model, is_long=is_long)
        for init in inits:
            INITS[init].requirements.check(Model(*model))
        # In small steps, where a second draw costs a tenth more, a longer fit gains less by it.
        is_large = isinstance(model.network, MLP) and (is_long or _is_wide(model.network))
        n_draws = self.steps.n_draws(1 if is_large else 2)
        gap = None
        if symmetry_gap.group.log_order > 0.0:
            gap = GatedGap(
                symmetry_gap.trained(n_draws), symmetry_gap.certificate,
                generator=generator_from(seeds.gap, data.device), hold=symmetry_gap.hold,
                takes_several=symmetry_gap.takes_several, block=steps_per_block(max_iter),
            )  # fmt: skip
        start_seeds = spawn_seeds(seeds.starts, len(inits))
        positions = [
            self._position(data, model, init, seed)
            for init, seed in zip(inits, start_seeds, strict=True)
        ]
        warm_ups = [0.0 if self.start else INITS[init].warm_up for init in inits]
        objective = SymmetrizedElbo(
            model,
            Batches(data.data, batch_size, generator_from(seeds.training, data.device)),
            pack_starts(positions, model.network.layout.n_params),
            n_draws=n_draws,
            gap=gap,
            warm_up=[max(1, round(share * max_iter)) for share in warm_ups],
        )
        progress.begin(
            n_blocks(max_iter), lambda: read_fit(objective.start(), model, seeds.predict)
        )
        whole = progress.minimise(
            objective,
            self._groups(data, model, len(inits), is_minibatch=is_long),
            Schedule(max_iter, self.steps.absolute_tol(data.total_weight), conservative=True),
            report=lambda loss: ("training ELBO", data.log_jacobian - loss),
        )
        results = [
            whole._replace(params=objective.start(r), loss_curves=[curve])
            for r, curve in enumerate(whole.loss_curves or [[] for _ in inits])
        ]
        return inits, [_ascent(data, model, symmetry_gap, seeds, result) for result in results]

    @staticmethod
    def _best(ascents: list[_Ascent], total_weight: float) -> _Ascent:
        """The highest bound; of those that tie with it, the one that learned the least noise.

        On 32 rows of a sine the bounds of a fit that follows them and of a flat one differ by .1
        nat, less than their Monte Carlo error.
        """
        margin = 0.02 * total_weight  # nats
        highest = max(ascent.bounds.elbo for ascent in ascents)
        level = [ascent for ascent in ascents if ascent.bounds.elbo >= highest - margin]

        def order(ascent: _Ascent) -> tuple[float, float]:
            learns_noise = ascent.model.likelihood.kind == "normal"
            noise = float(ascent.fit.likelihood_params.sum()) if learns_noise else 0.0
            return noise, -ascent.bounds.elbo

        return min(level, key=order)

    def _warn_collapse(self, data: Training, best: _Ascent, seed: int) -> None:
        """Say so at the end of a fit that has converged, where its noise is too large.

        Beyond the targets' spread a constant does better. Beyond 1.7 times the residuals two thirds
        of the noise's variance are scatter; 1.05 to 1.25 is usual, and 1.5 on thirty rows, which a
        good fit follows closely.
        """
        model = best.model
        result = best.result
        # A gain too noisy to call the fit unconverged doesn't call it converged: its noise may
        # still be on the way down.
        gain = compute_final_gain([-loss for loss in result.loss_curve])
        tol = self.steps.absolute_tol(data.total_weight)
        is_settled = tol is not None and (result.stopped == "tol" or gain.value < tol)
        learns_noise = model.likelihood.n_params and model.likelihood.kind == "normal"
        if not (is_settled and learns_noise):
            return
        params = result.params.double()
        posterior = _posterior(params, model)
        n = model.network.layout.n_params
        with torch.no_grad():
            excess = noise_excess(data, model, posterior, params[2 * n :], seed).cpu().numpy()
        share = model.likelihood.at(params[2 * n :]).noise_scale.cpu().numpy() / data.target_std
        if ((excess > 1.7) | (excess > 1.1) & (share > 1.0)).any():
            warn_user(
                f"the learned noise is {float(excess.max()):.2f} times the spread of the residuals "
                f"and {float(share.max()):.2f} times that of the targets: scatter of "
                "the independent weights is taken for noise, a collapse of the mean field. Use "
                "fewer hidden units or a smaller prior, or take LayerwiseVIRegressor, "
                "LaplaceRegressor or BayesianMLPRegressor.",
                UserWarning,
            )

    def _position(self, data: Training, model: GaussianNetwork, init: str, seed: int) -> Tensor:
        """Starting point: as ``init`` says, or the posterior to go on from."""
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

    def _groups(
        self, data: Training, model: GaussianNetwork, n_starts: int, *, is_minibatch: bool
    ) -> list[ParamGroup]:
        """Means and log variances of the weights, and what the likelihood learns, of all starts."""
        n = n_starts * model.network.layout.n_params
        rate = self.steps.rate(1e-2 if is_minibatch else 2e-2)
        return [
            ParamGroup(slice(0, n), rate),
            ParamGroup(slice(n, 2 * n), rate * self.steps.log_variance_rate, -30.0, 10.0),
            ParamGroup(slice(2 * n, None), rate, *data.param_range(model.likelihood)),
        ]


def _warn_small_scales(data: Training, best: _Ascent) -> None:
    """Say so where learned scales left a network that explains next to nothing.

    One scale serves all outgoing weights, and those of a flat function are all small: its KL falls
    with the scale, by some ten nats on thirty rows, while that of a fitted function stays.
    """
    likelihood = best.model.likelihood
    prior = best.fit.prior
    if prior is None or not (likelihood.n_params and likelihood.kind == "normal"):
        return
    learned = likelihood.at(torch.as_tensor(best.fit.likelihood_params).double())
    share = float((learned.noise_scale.cpu().numpy() / data.target_std).min())
    if share > 0.95:
        warn_user(
            f"the learned noise is {share:.2f} times the spread of the targets: learned scales of "
            "the prior make a flat function cheap. Compare with prior=1.0, or take "
            "LayerwiseVIRegressor.",
            UserWarning,
        )


def _ascent(
    data: Training, model: GaussianNetwork, gap: SymmetryGap, seeds: _Seeds, result: OptimiseResult
) -> _Ascent:
    """Close a start with its bounds, under the scales of the prior that it has learned."""
    trained = read_fit(result.params, model, seeds.predict)
    if trained.prior is not None:
        model = model._replace(prior=trained.prior)
    bounds = _bounds(data, model, gap, seeds, result.params)
    fit = replace(
        trained, bounds=bounds, loss_curve=result.loss_curve, n_iter=result.n_iter,
        stop_reason=result.stopped,
    )  # fmt: skip
    return _Ascent(fit, bounds, model, result)


def _bounds(
    data: Training, model: GaussianNetwork, symmetry_gap: SymmetryGap, seeds: _Seeds, params: Tensor
) -> Bounds:
    """The reported bounds, in float64 and with fresh draws."""
    n = model.network.layout.n_params
    final = params.double()
    posterior = _posterior(final, model)
    arguments = model.likelihood.at(final[2 * n :]), posterior, data.data
    generator = generator_from(seeds.likelihood_bound, data.device)
    if isinstance(model.network, MLP):
        # The noise of many rows is independent and averages out; that of 32 has to be drawn often
        # for an error below .005 nats a row.
        few = min(128, (1 << 20) // data.n_rows)
        n_draws = max(8, few, min(1024, (1 << 17) // data.n_rows))
        log_lik = expected_log_likelihood(
            model.network, *arguments, n_draws=n_draws, generator=generator
        )
    else:  # all rows share a draw
        log_lik = drawn_log_likelihood(model.network, *arguments, n_draws=128, generator=generator)
    value = log_lik.value - posterior.kl_from(model.prior.scale.numpy())
    if not np.isfinite(value):
        raise DivergenceError(
            f"the bound at the end of the fit is {value}: lower learning_rate, standardize the "
            "data or give X as float64."
        )
    gap, above = _gap_bounds(data, symmetry_gap, posterior, seeds.gap_bound)
    mean_field = Estimate(value, log_lik.standard_error)
    return Bounds(mean_field, gap, above, model.group.log_order)


def _posterior(params: Tensor, model: GaussianNetwork) -> MeanFieldGaussian:
    n = model.network.layout.n_params
    scale = (0.5 * params[n : 2 * n]).exp()
    return MeanFieldGaussian(params[:n].cpu().numpy(), scale.cpu().numpy())


def _gap_bounds(
    data: Training, symmetry_gap: SymmetryGap, posterior: MeanFieldGaussian, seed: int
) -> tuple[Estimate, Estimate]:
    """Lower and upper bound on the gap from the same draws; equal where the sum is exact."""
    log_order = symmetry_gap.group.log_order
    if log_order == 0.0:
        return Estimate(0.0, 0.0), Estimate(0.0, 0.0)
    below, above = symmetry_gap.reported
    n_draws = symmetry_gap.n_draws
    lower = below.estimate(posterior, n_draws, generator=generator_from(seed, data.device))
    if below.side == "exact" or log_order - lower.value < 1e-6:  # nothing is left above
        return lower, lower
    if above is None or lower.value > SATURATED * log_order:
        return lower, Estimate(log_order, 0.0)
    return lower, above.estimate(posterior, n_draws, generator=generator_from(seed, data.device))
