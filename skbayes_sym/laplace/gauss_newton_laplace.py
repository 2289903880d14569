"""Laplace approximations of several modes of one network, found by Gauss-Newton steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import joblib
import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.log import log_info
from skbayes_sym.base.model_factory import group_scales, require_mlp, scale_attributes
from skbayes_sym.base.noise_levels import MAX_FREEDOMS
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED_PRIOR,
    SOFTMAX,
    Requirements,
)
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.base.training import Training
from skbayes_sym.base.warnings import warn_moving_mode
from skbayes_sym.laplace.class_predictive import (
    RefinedModes,
    choose_variance_scale,
    refine,
)
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, make_network
from skbayes_sym.laplace.evidence_problem import (
    CategoricalEvidence,
    EvidenceProblem,
    GaussianEvidence,
)
from skbayes_sym.laplace.initialization import (
    MODES_A_FOLD,
    HeldOutFold,
    alternating,
    cross_validated,
    folds,
    is_better,
    needs_high_noise_start,
    noise_variance_fraction,
    search_classification,
    search_one,
    search_regression,
    unexplained_variance_fraction,
)
from skbayes_sym.laplace.map import evenly_spaced_rows
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    InitialModes,
    Modes,
    OnSearch,
    Search,
    distinct,
    draw_initial_weights,
    mapped,
)
from skbayes_sym.laplace.posterior import LinearisedModes, ModeMixture
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import ARD, GroupScalePrior, LayerScales, UnboundPrior
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError
from skbayes_sym.numerics.memory import MemoryAllocation, require_memory
from skbayes_sym.numerics.optimise import StopReason
from skbayes_sym.numerics.random import Estimate, generator_from, spawn_seeds
from skbayes_sym.symmetry.gaps.gap import Side
from skbayes_sym.symmetry.gaps.monte_carlo_gap import MonteCarloGap, evidence_over_copies
from skbayes_sym.symmetry.group import invariant_subgroup

# The default priors of labels: on separated classes the evidence is higher under the first by tens
# of nats, where labels are noisy under the second.
STRONG_HYPERPRIOR = LayerScales(8.0, 64.0)
WEAK_HYPERPRIOR = LayerScales(8.0, 4.0)

Problem = TypeVar("Problem", bound=EvidenceProblem)


@dataclass(frozen=True, eq=False)
class ModesFit:
    """Modes that a search has found (so far); those of labels are refined unless interrupted."""

    search: Search
    network: MLP
    prior: GroupScalePrior
    predict_seed: int
    width_scores: Mapping[int, float] | None = None  # nats per row held out, by number of units
    refined: RefinedModes | None = None
    variance_scale: float | None = None  # factor on the logits' variance in predictions
    # (N,), log probabilities of rows left out, if they chose it
    leave_one_out: Tensor | None = None

    @property
    def modes(self) -> Modes:
        """The modes on the host."""
        return mapped(lambda t: t.cpu(), self.search.modes)

    @property
    def n_iter(self) -> int:
        return int(self.search.modes.n_iter.max())

    @property
    def stop_reason(self) -> StopReason:
        return self.search.stop_reason

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        modes = self.modes
        prior = self.prior
        distributions = modes if self.refined is None else self.refined
        evidence = modes.log_evidence.numpy() + data.log_jacobian
        shares = modes.shares.numpy()
        total, side = self.with_copies(evidence)
        best = int(evidence.argmax())
        theta, factor = (
            t.cpu().contiguous().numpy() for t in (distributions.theta, distributions.factor)
        )
        attributes: dict[str, Any] = {
            "network_": self.network,
            "posterior_": ModeMixture(theta, factor, shares),
            "n_modes_": len(theta),
            "multiplicity_modes_": modes.n_restarts.numpy(),
            "log_evidence_modes_": evidence,
            "log_evidence_": total.value,
            "log_evidence_std_error_": total.standard_error,
            "log_evidence_side_": side,
            "log_evidence_curve_": self.search.curves[best].numpy() + data.log_jacobian,
            "_predict_seed_": self.predict_seed,
        }
        if not prior.is_learned:
            attributes["prior_scale_"] = prior.scale.numpy()
        else:
            attributes |= scale_attributes(prior, modes.hyper, "prior_scale_modes_", shares)
        if self.variance_scale is not None:
            attributes["variance_scale_"] = self.variance_scale
        if data.y_scaling is not None:
            unit = data.y_scaling.scale
            scaled = modes.noise_precision.rsqrt().numpy()
            overall = np.sqrt(np.average(scaled**2, axis=0, weights=shares)) * unit
            attributes["noise_std_modes_"] = scaled * unit
            attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
            attributes["_noise_levels_modes_"] = None
            if model.likelihood.n_params:
                attributes["_noise_levels_modes_"] = self._noise_levels(data)
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        return attributes

    def with_copies(self, evidence: np.ndarray) -> tuple[Estimate, Side]:
        r"""Sum the evidence of all modes and of their copies under the network's symmetry.

        Returns :math:`\log \sum_r \exp(\log Z_r + \mathrm{gap}_r)` for modes of log evidence (R,),
        nats, with its standard error, and its side: "exact" if all copies are summed, else "lower".
        Copies count as far as they don't overlap.
        """
        network = self.network
        modes = self.modes
        group = invariant_subgroup(network.symmetry(), self.prior.log_prob, network.layout)
        gap = MonteCarloGap(group, network.layout.n_params)
        normals = [
            ModeMixture(theta.numpy()[None], factor.numpy()[None])
            for theta, factor in zip(modes.theta, modes.factor, strict=True)
        ]
        generator = generator_from(self.predict_seed)
        return evidence_over_copies(gap, evidence, normals, generator=generator), gap.side

    def _noise_levels(self, data: Training) -> np.ndarray | None:
        """Return the noise levels of every mode, (R, K, T), in the units of ``y``."""
        most_taken = self.network.layout.n_params
        if data.total_weight - most_taken > MAX_FREEDOMS and not data.is_constant.any():
            return None
        x, y, weight = data.double_data
        distribution = self._at_modes(x)
        squares = torch.einsum("n,rnt->rt", weight, (y - distribution.loc).square())
        taken = torch.einsum(
            "n,rnt->rt", weight, distribution.variance / distribution.noise_variance
        )
        return data.noise_levels(squares, data.total_weight - taken)

    def leave_one_out_predictive(self, data: Data) -> NormalMixture:
        """Predict the targets of every row from all others, one component per mode."""
        x, y, weight = data
        return leave_one_out(self._at_modes(x), y, weight)

    def _at_modes(self, x: Tensor) -> NormalMixture:
        """Predict rows by the linearised networks, one component per mode."""
        modes = self.search.modes
        parts = (t.to(x) for t in (modes.theta, modes.factor, modes.shares))
        networks = LinearisedModes(self.network, *parts)
        mean, covariance = networks.outputs(x)
        noise = modes.noise_precision.to(x).reciprocal().unsqueeze(1)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        log_weights = networks.weight.log()
        return NormalMixture(mean, variance, noise, log_weights)

    def report(self, data: Training, tol: object, *, warns: bool) -> None:
        """Log what was found, and warn of a best mode that still moved at the end."""
        values = self.search.modes.log_evidence + data.log_jacobian
        if not len(values):
            raise NotPositiveDefiniteError(
                "no restart ended in a mode whose precision is positive definite in this "
                "arithmetic: give noise_std a larger number, or learn it."
            )
        log_info(
            "log evidence of %d distinct modes from %.6g to %.6g, stopped: %s after %d steps",
            len(values), values.min(), values.max(), self.stop_reason, self.n_iter,
        )  # fmt: skip
        if warns:
            best = int(values.argmax())
            curve = self.search.curves[best].tolist()
            stopped = self.search.stopped[best]
            warn_moving_mode(curve, stopped, tol, data.total_weight)


def subsample_rows(problem: Problem, most: int) -> Problem:
    """The problem of at most ``most`` rows, spread evenly."""
    rows = evenly_spaced_rows(len(problem.data.x), most)
    return replace(problem, data=Data(*(t[rows.to(t.device)] for t in problem.data)))


def _require_memory(data: Training, network: MLP, n: int, matrices: int) -> None:
    """Raise unless rows and ``n`` modes fit, of so many float64 matrices (P, P) each."""
    p = network.layout.n_params
    systems = MemoryAllocation(
        f"Gauss-Newton systems of {n} modes of {p:,} weights", matrices * n * p**2 * 8,
        "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
    )  # fmt: skip
    require_memory([data.rows_allocation, systems], data.device)


class Widths(NamedTuple):
    """Numbers of units by what rows held out say."""

    chosen: int
    prior: UnboundPrior
    scores: dict[int, float]  # nats per unit of weight, by number of units; the better prior's
    ended: ModesFit | None = None  # what there was when it was stopped
    begun: ModesFit | None = None  # modes of the chosen one, each without a fold
    is_clear: bool = False  # whether some units leave hardly anything unexplained


def choose_width(
    validate: Callable[[int, UnboundPrior], tuple[ModesFit, HeldOutFold | None]],
    priors: Sequence[UnboundPrior],
    network: MLP,
    y: Tensor,
    weight: Tensor,
    effort: GaussNewtonDefaults,
) -> Widths:
    """Few units, some, or the usual number; some decide between the ``priors``.

    ``validate``: modes of so many units under a prior, each without a fold, and what they say of it
    (None if stopped).

    The usual number is taken unasked where some units are better than few and leave little of the
    targets (N, T) unexplained; where they are no better, it is asked only if that is quick.
    """
    scores: dict[int, float] = {}
    (few, some, _) = effort.widths
    usual = effort.default_width
    prior = priors[0]
    chosen = few
    of_chosen = prior
    best = None
    begun = None
    is_enough = False
    share = 1.0
    for width in effort.widths:
        doubtful = width == usual and chosen == few
        this = make_network(network, width)
        if is_enough or not effort.validates(this, y.numel(), doubtful=doubtful):
            break
        rivals = {}
        for rival in priors if width == some else (prior,):
            fit, rows = validate(width, rival)
            if rows is None:
                return Widths(width, rival, scores, fit)
            rivals[rival] = fit, rows
        for rival, (_, rows) in rivals.items():
            if is_better(rows.log_density, rivals[prior][1].log_density, weight):
                prior = rival
        fit, rows = rivals[prior]
        scores[width] = float(weight @ rows.log_density / weight.sum())
        if best is None or is_better(rows.log_density, best.log_density, weight):
            share = unexplained_variance_fraction(rows.mean, y, weight)
            is_enough = best is not None and share <= effort.most_unexplained
            chosen = width
            of_chosen = prior
            best = rows
            begun = fit
    if is_enough:
        return Widths(usual, prior, scores, is_clear=share <= effort.negligible_noise_fraction)
    return Widths(chosen, of_chosen, scores, begun=begun)


@dataclass(frozen=True, eq=False)
class GaussNewtonLaplaceRegression:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    If it widens, many rows without much noise are given more units and a scale a column, and noisy
    tables fewer units, as rows held out say, which choose the kind of scales too.
    """

    requirements: ClassVar[Requirements] = Requirements(
        NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    n_restarts: int | str  # "auto": what some seconds of one core are enough for, at most ``most``
    max_iter: int | str  # Gauss-Newton steps, at most; "auto" is fewer of large systems
    tol: float | str | None  # nats per unit of sample weight
    warns_unconverged: bool = False  # warns of a best mode that still moved at the end
    selects_width: bool = False
    # Of other widths; by default ``ARD()`` of many rows, else that or ``LayerScales()``, as rows
    # held out say.
    unbound_prior: UnboundPrior | None = None
    max_modes: int | None = None
    initial_modes: InitialModes | None = (
        None  # to go on from, where columns and targets are as many
    )
    defaults: GaussNewtonDefaults = field(default=GaussNewtonDefaults(), kw_only=True)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> ModesFit:
        effort = self.defaults
        network = require_mlp(model.network)
        searches = _Searches(self, data, progress, spawn_seeds(data.seed, 3), [])
        searches.n_restarts(network)  # for which there is memory
        learns_noise = model.likelihood.n_params > 0
        problem = GaussianEvidence(
            network, data.double_data, group_scales(model.prior),
            noise_precision=None if learns_noise else model.likelihood.noise_scale.double() ** -2,
        )  # fmt: skip
        start = self.initial_modes
        if start and make_network(network, *start.network.hidden_layer_sizes) != start.network:
            start = None
        may_change = self.selects_width and learns_noise and start is None
        wide = effort.wider_network(data.n_rows, network) if may_change else None
        asks = may_change and effort.cross_validates_width(data.n_rows, network)
        n_parts = 1 + needs_high_noise_start(problem) + (wide is not None)
        most = self.max_iter
        if isinstance(most, str):
            most = (1 + effort.more) * effort.steps
        widths = fit = begun = None
        # A scale a layer, or a scale a column: rows held out say which, if many rows don't.
        priors: list[UnboundPrior] = [self.unbound_prior or LayerScales()]
        if self.unbound_prior is None and wide is None and network.n_inputs > 1:
            priors.append(ARD())
        n_parts += (len(effort.widths) + len(priors) - 1) * asks
        progress.begin(n_parts * most, lambda: searches.so_far[-1]())
        with torch.no_grad():
            if start:
                fit = searches.again(problem, start)
            elif asks:
                _, y, weight = data.double_data
                widths = choose_width(
                    lambda *how: searches.validate(_resized(problem, *how)),
                    priors, network, y, weight, effort,
                )  # fmt: skip
                fit = widths.ended
                begun = widths.begun
                chosen = _resized(problem, widths.chosen, widths.prior)
                if fit is None and widths.chosen < effort.default_width:
                    fit = searches.search(chosen, begun)
                if len(priors) > 1:
                    problem = chosen
            if fit is None and wide is not None:
                is_due = effort.has_many_rows(data.n_rows, wide)
                if not is_due:
                    pilot = searches.pilot(problem)
                    if pilot.search.has_ended:
                        fit = pilot
                    share = noise_variance_fraction(pilot.modes, data.double_data.y.cpu())
                    is_due = share <= effort.max_noise_fraction
                if fit is None and is_due:
                    prior = self.unbound_prior or ARD()
                    problem = _resized(problem, wide.hidden_layer_sizes[0], prior)
                    begun = None
            is_clear = widths is not None and widths.is_clear
            fit = fit or searches.search(problem, begun, is_clear=is_clear)
            if widths is not None:
                unit = data.log_jacobian / data.total_weight
                scores = {width: score + unit for width, score in widths.scores.items()}
                fit = replace(fit, width_scores=scores)
            progress.end(fit)
        # The steps of "auto" end where scales only drift.
        warns = self.warns_unconverged and not isinstance(self.max_iter, str)
        fit.report(data, self.tol, warns=warns)
        return fit


def _resized(problem: GaussianEvidence, width: int, prior: UnboundPrior) -> GaussianEvidence:
    network = make_network(problem.network, width)
    return replace(problem, network=network, prior=group_scales(prior.bind(network.layout)))


class _Searches(NamedTuple):
    """Searches of one fit, of one network or another."""

    method: GaussNewtonLaplaceRegression
    data: Training
    progress: FitProgress
    seeds: list[int]  # of starts, of predictions and of folds
    so_far: list[Callable[[], ModesFit]]

    def pilot(self, problem: GaussianEvidence) -> ModesFit:
        """Two modes of some of the rows, one begun in each way, by which the noise is judged."""
        some = subsample_rows(problem, self.method.defaults.pilot_rows)
        theta = self._draw(problem, 2)
        how = replace(self._how(problem), max_more=0)
        on_step = self._on_step(problem)
        return self._fit(problem, how.search(some, theta, alternating(2, theta), on_step))

    def search(
        self, problem: GaussianEvidence, begun: ModesFit | None = None, *, is_clear: bool = False
    ) -> ModesFit:
        """All modes; ``begun``: those that leave out a fold each, to go on from."""
        n = self.n_restarts(problem.network)
        draw = partial(self._draw, problem)
        effort = self.method.defaults
        how = self._how(problem, is_clear=is_clear)
        on_step = self._on_step(problem)
        modes = None if begun is None else begun.search.modes
        last = effort.final_steps(self.data.n_rows, problem.network)
        if last and isinstance(self.method.max_iter, str):
            some = subsample_rows(problem, effort.searched_rows)
            rough = search_regression(how, some, draw, n, on_step)
            if rough.has_ended:
                return self._fit(some, distinct(some, rough))
            steps = problem.schedule.best_start + last
            search = replace(how, max_iter=steps, max_more=0).resumed(problem, rough.modes, on_step)
        else:
            search = search_regression(how, problem, draw, n, on_step, modes)
        fit = self._fit(problem, distinct(problem, search))
        modes = fit.search.modes
        if search.has_ended or len(modes.theta) == 1:
            return fit
        rows = evenly_spaced_rows(self.data.n_rows).to(self.data.device)
        subsample = Data(*(t[rows] for t in self.data.double_data))
        density = (
            fit.leave_one_out_predictive(subsample).log_prob_per_draw(subsample.y)
            @ subsample.weight
        )
        density = density / subsample.weight.sum()
        evidence = modes.score / self.data.total_weight
        near = torch.stack([s > s.max() - effort.most_behind for s in (density, evidence)]).any(0)
        return replace(fit, search=fit.search.of(near.nonzero().flatten()))

    def again(self, problem: GaussianEvidence, start: InitialModes) -> ModesFit:
        """Modes from those of an earlier fit, of its width and kind of scales."""
        start = InitialModes(
            start.network, start.prior, *(t.to(self.data.device) for t in start[2:])
        )
        problem = _resized(problem, start.network.hidden_layer_sizes[0], start.prior)
        search = self._how(problem).resumed(problem, start, self._on_step(problem))
        return self._fit(problem, distinct(problem, search))

    def validate(self, problem: GaussianEvidence) -> tuple[ModesFit, HeldOutFold | None]:
        """Modes that leave out a fold each, and what they say of it (None if they were stopped)."""
        effort = self.method.defaults
        how = self._how(problem)
        tol = how.tol
        if tol is not None:
            tol = max(effort.rough_tol, 0.0 if isinstance(tol, str) else tol)
        steps = min(how.max_iter, effort.rough_steps)
        more = min(how.max_iter + how.max_more - steps, effort.rough_more)
        how = EvidenceSearch(steps, tol, more, is_wary=True, n_jobs=how.n_jobs)
        generator = generator_from(self.seeds[2])
        fold = folds(self.data.n_rows, effort.folds, generator=generator).to(self.data.device)
        start = self._draw(problem, MODES_A_FOLD * effort.folds)
        on_step = self._on_step(problem)
        search, rows = cross_validated(how, problem, start, fold, on_step)
        return self._fit(problem, search), rows

    def n_restarts(self, network: MLP) -> int:
        """Number of restarts, for whose systems, their factors and inverses there is memory."""
        method = self.method
        n = method.defaults.choose_n_restarts(
            method.n_restarts, self.data.n_rows, network, method.max_modes
        )
        _require_memory(self.data, network, n, 5 * (network.n_outputs + 1))
        return n

    def _how(self, problem: GaussianEvidence, *, is_clear: bool = False) -> EvidenceSearch:
        max_iter = self.method.max_iter
        more = 0
        effort = self.method.defaults
        if isinstance(max_iter, str):
            max_iter = effort.regression_steps(self.data.n_rows, problem.network, is_clear=is_clear)
            more = effort.more * max_iter
        return EvidenceSearch(max_iter, self.method.tol, more, n_jobs=self.progress.n_jobs)

    def _fit(self, problem: GaussianEvidence, search: Search) -> ModesFit:
        return ModesFit(search, problem.network, problem.prior, self.seeds[1])

    def _draw(self, problem: GaussianEvidence, n: int) -> Tensor:
        drawn = draw_initial_weights(problem.network, n, generator=generator_from(self.seeds[0]))
        return drawn.to(self.data.device)

    def _on_step(self, problem: GaussianEvidence) -> OnSearch:
        """Ends a block after every step, and keeps what has been found by then."""

        def on_step(_: int, search: Callable[[], Search]) -> bool:
            self.so_far[:] = [lambda: self._fit(problem, distinct(problem, search()))]
            return self.progress.end_block()

        return on_step


@dataclass(frozen=True, eq=False)
class GaussNewtonLaplaceClassification:
    """Modes from several starts, their scales set by the evidence, then Gaussian variational steps.

    If it tries, noisy labels are looked for; every start is then searched from in two ways, and
    where the first start's evidence is higher under the alternative prior, all modes are of it.
    """

    requirements: ClassVar[Requirements] = Requirements(
        SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    n_restarts: int | str  # "auto": what some seconds of one core are enough for, at most four
    max_iter: int | str  # Gauss-Newton steps of a restart, at most
    tol: float | str | None  # nats per unit of sample weight; "auto" is a tenth of a nat in all
    variance_scale: str | float  # of the logits in predictions; "loo" by approximate leave-one-out
    warns_unconverged: bool = False  # warns of a best mode that still moved at the end
    alternative_prior: UnboundPrior | None = None
    allow_label_noise: bool = True
    defaults: GaussNewtonDefaults = field(default=GaussNewtonDefaults(), kw_only=True)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> ModesFit:
        network = require_mlp(model.network)
        n_restarts = self.n_restarts
        if isinstance(n_restarts, str):
            n_restarts = self.defaults.classification_restarts(data.n_rows, network)
        # Factors of modes, found and refined, and covariances.
        _require_memory(data, network, n_restarts, 3)
        problem = CategoricalEvidence(network, data.double_data, group_scales(model.prior))
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        fixed = 1.0 if isinstance(self.variance_scale, str) else self.variance_scale

        def unrefined(problem: CategoricalEvidence, search: Search) -> ModesFit:
            search = distinct(problem, search)
            return ModesFit(search, network, problem.prior, predict_seed, variance_scale=fixed)

        progress.begin()
        with torch.no_grad():
            start = draw_initial_weights(network, n_restarts, generator=generator_from(start_seed))
            problem, search = self._search(problem, start.to(data.device), progress, unrefined)
            fit = unrefined(problem, search)
            progress.set_current_fit(lambda: fit)
            modes = fit.search.modes
            refined = refine(problem, modes, n_jobs=progress.n_jobs)
            final = replace(fit, refined=refined)
            if isinstance(self.variance_scale, str):
                choice = choose_variance_scale(problem, refined, modes.shares)
                final = replace(
                    final, variance_scale=choice.factor, leave_one_out=-choice.row_losses
                )
        progress.end(final)
        final.report(data, self.tol, warns=self.warns_unconverged)
        return final

    def _search(
        self,
        problem: CategoricalEvidence,
        start: Tensor,
        progress: FitProgress,
        unrefined: Callable[[CategoricalEvidence, Search], ModesFit],
    ) -> tuple[CategoricalEvidence, Search]:
        """The problem under the prior that was taken, and its modes.

        Of many rows some say where a search leads and which prior to take; from the modes of these
        it goes on with all. Whichever search it comes from, the best mode is what an interrupt
        leaves.
        """
        max_iter = self.max_iter
        effort = self.defaults
        n_params = problem.network.layout.n_params
        few = max(effort.fewest_labels_rows, effort.labels_rows_a_weight * n_params)
        some = subsample_rows(problem, few)
        if isinstance(max_iter, str):
            max_iter = effort.classification_steps(n_params)
        tries = self.allow_label_noise and problem.network.n_layers > 1 and problem.prior.is_learned
        share = 1.0 / (2 * len(start) + 2 if tries else len(start))
        how = EvidenceSearch(max_iter, self.tol)
        best: list[tuple[CategoricalEvidence, Search]] = []

        def keeping(choose: Callable[[Search], tuple[CategoricalEvidence, Search]]) -> OnSearch:
            phase = progress.stage_callback(share, max_iter)

            def on_step(step: int, so_far: Callable[[], Search]) -> bool:
                progress.set_current_fit(lambda: unrefined(*choose(so_far())))
                return phase(step, {"steps": step})

            return on_step

        def better(
            problem: CategoricalEvidence, search: Search
        ) -> tuple[CategoricalEvidence, Search]:
            either = [*best, (problem, search)]
            return max(either, key=lambda one: float(one[1].modes.score.max()))

        def search(problem: CategoricalEvidence, theta: Tensor, doubted: bool) -> Search:
            return search_one(how, problem, theta, doubted, keeping(partial(better, problem)))

        def on_found(problem: CategoricalEvidence, search: Search) -> bool:
            best[:] = [better(problem, search)]
            progress.set_current_fit(lambda: unrefined(*best[0]))
            return not is_here and progress.stage_callback(share, 1)(1, {"modes": 1.0})

        alternative = None
        if tries and self.alternative_prior is not None:
            alternative = group_scales(self.alternative_prior.bind(problem.network.layout))
        # Other processes tell of their ends, not of their steps.
        is_here = joblib.effective_n_jobs(progress.n_jobs) == 1
        some, rough = search_classification(
            search if is_here else partial(search_one, how), some, start, alternative,
            tries=tries, n_jobs=progress.n_jobs, on_found=on_found,
        )  # fmt: skip
        problem = replace(problem, prior=some.prior)
        if rough.has_ended or len(some.data.x) == len(problem.data.x):
            return problem, rough
        how = replace(how, max_iter=min(max_iter, self.defaults.labels_last_steps))
        return problem, how.resumed(problem, rough.modes, keeping(lambda fine: (problem, fine)))
