"""Laplace approximations of several modes of one network, found by Gauss-Newton steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.building import fully_connected, scale_attributes, scales_by_group
from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.memory_parts import rows_part
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_of_moving_mode
from skbayes_sym.estimators.laplace.effort import ModesEffort, network_of
from skbayes_sym.inference.effective_noise import chosen_rows
from skbayes_sym.inference.laplace.labels_predictive import (
    RefinedModes,
    choose_variance_scale,
    refine,
)
from skbayes_sym.inference.laplace.laplace_posterior import LinearisedModes, ModeMixture
from skbayes_sym.inference.laplace.search.beginnings import (
    MODES_A_FOLD,
    HeldOutFold,
    alternating,
    begins_both_ways,
    cross_validated,
    folds,
    is_better,
    noise_share,
    search_labels,
    search_numbers,
    unexplained_share,
)
from skbayes_sym.inference.laplace.search.evidence_problem import EvidenceProblem, NumbersEvidence
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.mode_search import (
    EvidenceSearch,
    Modes,
    OnSearch,
    Search,
    distinct,
    mapped,
    starting_points,
)
from skbayes_sym.inference.pooling import left_out
from skbayes_sym.models.model import Data, Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import ARD, LayerScales, ScalesByGroup, UnboundPrior
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# The default priors of labels: on separated classes the evidence is higher under the first by tens
# of nats, where labels are noisy under the second.
STEEP, FLAT = LayerScales(8.0, 64.0), LayerScales(8.0, 4.0)

Problem = TypeVar("Problem", bound=EvidenceProblem)


@dataclass(frozen=True, eq=False)
class ModesFit:
    """Modes that a search has found (so far)."""

    search: Search
    network: MLP
    prior: ScalesByGroup
    predict_seed: int

    @property
    def modes(self) -> Modes:
        """The modes on the host."""
        return mapped(lambda t: t.cpu(), self.search.modes)

    @property
    def n_iter(self) -> int:
        return int(self.search.modes.n_iter.max())

    @property
    def stop_reason(self) -> Stopped:
        return self.search.stop_reason

    @property
    def _posterior(self) -> "Modes | RefinedModes":
        """Normal laws around the modes."""
        return self.modes

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        modes, laws = self.modes, self._posterior
        evidence = modes.log_evidence.numpy() + data.log_jacobian
        best = int(evidence.argmax())
        theta, factor = (t.cpu().contiguous().numpy() for t in (laws.theta, laws.factor))
        return {
            "network_": self.network,
            "posterior_": ModeMixture(theta, factor, modes.shares.numpy()),
            "n_modes_": len(theta),
            "multiplicity_modes_": modes.n_restarts.numpy(),
            "log_evidence_modes_": evidence,
            "log_evidence_": float(evidence[best]),
            "log_evidence_curve_": self.search.curves[best].numpy() + data.log_jacobian,
            "_predict_seed_": self.predict_seed,
            **self._scales,
        }

    @property
    def _scales(self) -> dict[str, Any]:
        """Standard deviations of the weights of R modes: of groups, and of input columns."""
        if not self.prior.is_learned:
            return {"prior_scale_": self.prior.scale.numpy()}
        modes, name = self.modes, "prior_scale_modes_"
        return scale_attributes(self.prior, modes.hyper, name, modes.shares.numpy())

    def report(self, data: Training, tol: object, *, warns: bool) -> None:
        """Log what was found, and warn of a best mode that still moved at the end."""
        values = self.search.modes.log_evidence + data.log_jacobian
        logger.info(
            "log evidence of %d distinct modes from %.6g to %.6g, stopped: %s after %d steps",
            len(values), values.min(), values.max(), self.stop_reason, self.n_iter,
        )  # fmt: skip
        if warns:
            best = int(values.argmax())
            curve, stopped = self.search.curves[best].tolist(), self.search.stopped[best]
            warn_of_moving_mode(curve, stopped, tol, data.total_weight)


@dataclass(frozen=True, eq=False)
class NumbersFit(ModesFit):
    """Modes of regression, each with its noise."""

    width_scores: Mapping[int, float] | None = None  # nats per row held out, by number of units

    def without_each(self, x: Tensor, y: Tensor) -> NormalMixture:
        """Distributions of targets (N, T) by all other rows, a draw a mode."""
        modes = self.search.modes
        parts = (t.to(x) for t in (modes.theta, modes.factor, modes.shares))
        networks = LinearisedModes(self.network, *parts)
        mean, covariance = networks.outputs(x)
        noise = modes.noise_precision.to(x).reciprocal().unsqueeze(1)
        variance, log_weights = covariance.diagonal(dim1=-2, dim2=-1), networks.weight.log()
        return left_out(NormalMixture(mean, variance, noise, log_weights), y)

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        unit = data.y_scaling.scale
        scaled = self.modes.noise_precision.rsqrt().numpy()
        shares = self.modes.shares.numpy()
        overall = np.sqrt(np.average(scaled**2, axis=0, weights=shares)) * unit
        attributes = super().attributes(data, model)
        attributes["noise_std_modes_"] = scaled * unit
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        return attributes


@dataclass(frozen=True, eq=False)
class LabelsFit(ModesFit):
    """Modes of classification, refined."""

    refined: RefinedModes | Modes  # the modes themselves if refining them was interrupted
    variance_scale: float  # factor on the logits' variance in predictions
    left_out: Tensor | None = None  # (N,), log probabilities of rows left out, if they chose it

    @property
    def _posterior(self) -> RefinedModes | Modes:
        return self.refined

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        return {**super().attributes(data, model), "variance_scale_": self.variance_scale}


def _starts(problem: EvidenceProblem, n: int, seed: int) -> Tensor:
    """Starting points (n, P) on the problem's device."""
    drawn = starting_points(problem.network, n, generator=generator_from(seed))
    return drawn.to(problem.data.x.device)


def some_rows(problem: Problem, most: int) -> Problem:
    """The problem of at most ``most`` rows, spread evenly."""
    n_rows = len(problem.data.x)
    rows = torch.linspace(0, n_rows - 1, min(n_rows, most)).round().long()
    return replace(problem, data=Data(*(t[rows.to(t.device)] for t in problem.data)))


def _require_memory(data: Training, network: MLP, n: int, matrices: int) -> None:
    """Raise unless rows and ``n`` modes fit, of so many float64 matrices (P, P) each."""
    p = network.layout.n_params
    systems = Part(
        f"Gauss-Newton systems of {n} modes of {p:,} weights", matrices * n * p**2 * 8,
        "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
    )  # fmt: skip
    require_memory([rows_part(data), systems], data.device)


# Modes of a number of units under a prior, each without a fold, and what they say of it (None if
# stopped).
Validate = Callable[[int, UnboundPrior], tuple[NumbersFit, HeldOutFold | None]]


class Widths(NamedTuple):
    """Numbers of units by what rows held out say."""

    chosen: int
    prior: UnboundPrior
    scores: dict[int, float]  # nats per unit of weight, by number of units; the better prior's
    ended: NumbersFit | None = None  # what there was when it was stopped
    begun: NumbersFit | None = None  # modes of the chosen one, each without a fold


def choose_width(
    validate: Validate, priors: Sequence[UnboundPrior], network: MLP, y: Tensor, weight: Tensor,
    effort: ModesEffort,
) -> Widths:  # fmt: skip
    """Few units, some, or the usual number; some decide between the ``priors``.

    The usual number is taken unasked where some units are better than few and leave little of the
    targets (N, T) unexplained.
    """
    scores: dict[int, float] = {}
    (few, some, _), usual, prior = effort.widths, effort.usual_width, priors[0]
    chosen, best, begun, is_enough = few, None, None, False
    of_chosen = prior
    for width in effort.widths:
        if is_enough or not effort.validates(network_of(network, width), y.numel()):
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
            is_enough = best is not None and (
                unexplained_share(rows.mean, y, weight) <= effort.most_unexplained
            )
            chosen, of_chosen, best, begun = width, prior, rows, fit
    if is_enough:
        return Widths(usual, prior, scores)
    return Widths(chosen, of_chosen, scores, begun=begun)


@dataclass(frozen=True, eq=False)
class EvidenceLaplace:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    If it widens, many rows without much noise are given more units and a scale a column, and noisy
    tables fewer units, as rows held out say, which choose the kind of scales too.
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str  # "auto": what some seconds of one core are enough for, at most ``most``
    max_iter: int | str  # Gauss-Newton steps, at most; "auto" is fewer of large systems
    tol: float | str | None  # nats per unit of sample weight
    says_unconverged: bool = False  # warns of a best mode that still moved at the end
    widens: bool = False
    # Of other widths; by default ``ARD()`` of many rows, else that or ``LayerScales()``, as rows
    # held out say.
    wide_prior: UnboundPrior | None = None
    most: int | None = None
    effort: ModesEffort = field(default=ModesEffort(), kw_only=True)

    def fit(self, data: Training, model: Model, run: Run) -> NumbersFit:
        effort, network = self.effort, fully_connected(model.network)
        searches = _Searches(self, data, run, [])
        searches.require_memory(model)
        may_change = self.widens and model.likelihood.n_params > 0
        wide = effort.richer(data.n_rows, network) if may_change else None
        asks = may_change and effort.asks_width(data.n_rows, network)
        n_parts = 1 + begins_both_ways(searches.problem(model)) + (wide is not None)
        most = self.max_iter
        if isinstance(most, str):
            most = (1 + effort.more) * effort.steps
        widths = fit = begun = None
        # A scale a layer, or a scale a column: rows held out say which, if many rows don't.
        priors: list[UnboundPrior] = [self.wide_prior or LayerScales()]
        if self.wide_prior is None and wide is None and network.n_inputs > 1:
            priors.append(ARD())
        n_parts += (len(effort.widths) + len(priors) - 1) * asks
        run.begin(n_parts * most, lambda: searches.so_far[-1]())
        with torch.no_grad():
            if asks:

                def validate(
                    width: int, prior: UnboundPrior
                ) -> tuple[NumbersFit, HeldOutFold | None]:
                    return searches.validate(_resized(model, width, prior))

                _, y, weight = data.double_data
                widths = choose_width(validate, priors, network, y, weight, effort)
                fit, begun = widths.ended, widths.begun
                chosen = _resized(model, widths.chosen, widths.prior)
                if fit is None and widths.chosen < effort.usual_width:
                    fit = searches.search(chosen, begun)
                if len(priors) > 1:
                    model = chosen
            if fit is None and wide is not None:
                pilot = searches.pilot(model)
                if pilot.search.has_ended:
                    fit = pilot
                elif noise_share(pilot.modes, data.double_data.y.cpu()) <= effort.most_noise:
                    prior = self.wide_prior or ARD()
                    model, begun = _resized(model, wide.hidden_layer_sizes[0], prior), None
            fit = fit or searches.search(model, begun)
            if widths is not None:
                unit = data.log_jacobian / data.total_weight
                scores = {width: score + unit for width, score in widths.scores.items()}
                fit = replace(fit, width_scores=scores)
            run.end(fit)
        # The steps of "auto" end where scales only drift.
        is_due = self.says_unconverged and not isinstance(self.max_iter, str)
        fit.report(data, self.tol, warns=is_due)
        return fit


def _resized(model: Model, width: int, prior: UnboundPrior) -> Model:
    network = network_of(fully_connected(model.network), width)
    return model._replace(network=network, prior=prior.bind(network.layout))


class _Searches(NamedTuple):
    """Searches of one fit, of one network or another."""

    method: EvidenceLaplace
    data: Training
    run: Run
    so_far: list[Callable[[], NumbersFit]]

    def problem(self, model: Model) -> NumbersEvidence:
        learned = model.likelihood.n_params > 0
        return NumbersEvidence(
            fully_connected(model.network), self.data.double_data, scales_by_group(model.prior),
            noise_precision=None if learned else model.likelihood.noise_scale.double() ** -2,
        )  # fmt: skip

    def pilot(self, model: Model) -> NumbersFit:
        """Two modes of some of the rows, one begun in each way, by which the noise is judged."""
        problem, theta = self.problem(model), self._draw(model, 2)
        problem = some_rows(problem, self.method.effort.pilot_rows)
        how = replace(self._how(model), max_more=0)
        doubted = alternating(2, theta)
        return self._fit(model, how.search(problem, theta, doubted, self._on_step(model)))

    def search(self, model: Model, begun: NumbersFit | None = None) -> NumbersFit:
        """All modes; ``begun``: those that leave out a fold each, to go on from."""
        n, draw, effort = self.require_memory(model), partial(self._draw, model), self.method.effort
        how, on_step = self._how(model), self._on_step(model)
        modes = None if begun is None else begun.search.modes
        search = search_numbers(how, self.problem(model), draw, n, on_step, modes)
        fit = self._fit(model, distinct(self.problem(model), search))
        modes = fit.search.modes
        if search.has_ended or len(modes.theta) == 1:
            return fit
        rows = chosen_rows(self.data.n_rows).to(self.data.device)
        x, y, weight = (t[rows] for t in self.data.double_data)
        density = fit.without_each(x, y).log_prob_of_draws(y) @ weight / weight.sum()
        evidence = modes.score / self.data.total_weight
        near = torch.stack([s > s.max() - effort.most_behind for s in (density, evidence)]).any(0)
        return replace(fit, search=fit.search.of(near.nonzero().flatten()))

    def validate(self, model: Model) -> tuple[NumbersFit, HeldOutFold | None]:
        """Modes that leave out a fold each, and what they say of it (None if they were stopped)."""
        effort, how = self.method.effort, self._how(model)
        tol = how.tol
        if tol is not None:
            tol = max(effort.rough_tol, 0.0 if isinstance(tol, str) else tol)
        how = EvidenceSearch(min(how.max_iter, effort.rough_steps), tol)
        generator = generator_from(self._seeds[2])
        fold = folds(self.data.n_rows, effort.folds, generator=generator).to(self.data.device)
        start = self._draw(model, MODES_A_FOLD * effort.folds)
        on_step = self._on_step(model)
        search, rows = cross_validated(how, self.problem(model), start, fold, on_step)
        return self._fit(model, search), rows

    def require_memory(self, model: Model) -> int:
        """Number of restarts, for whose systems, their factors and inverses there is memory."""
        network, method = fully_connected(model.network), self.method
        n = method.effort.restarts(method.n_restarts, self.data.n_rows, network, method.most)
        _require_memory(self.data, network, n, 5 * (network.n_outputs + 1))
        return n

    def _how(self, model: Model) -> EvidenceSearch:
        max_iter, more, effort = self.method.max_iter, 0, self.method.effort
        if isinstance(max_iter, str):
            max_iter = effort.steps_of_mode(self.data.n_rows, fully_connected(model.network))
            more = effort.more * max_iter
        return EvidenceSearch(max_iter, self.method.tol, more)

    @property
    def _seeds(self) -> list[int]:
        """Seeds of starts, of predictions and of folds."""
        return spawn_seeds(self.data.seed, 3)

    def _fit(self, model: Model, search: Search) -> NumbersFit:
        network, prior = fully_connected(model.network), scales_by_group(model.prior)
        return NumbersFit(search, network, prior, self._seeds[1])

    def _draw(self, model: Model, n: int) -> Tensor:
        return _starts(self.problem(model), n, self._seeds[0])

    def _on_step(self, model: Model) -> OnSearch:
        """Ends a block after every step, and keeps what has been found by then."""

        def on_step(_: int, search: Callable[[], Search]) -> bool:
            self.so_far[:] = [lambda: self._fit(model, distinct(self.problem(model), search()))]
            return self.run.end_block()

        return on_step


@dataclass(frozen=True, eq=False)
class EvidenceLaplaceLabels:
    """Modes from several starts, their scales set by the evidence, then Gaussian variational steps.

    If it tries, noisy labels are looked for; every start is then searched from in two ways, and
    where the first start's evidence is higher under the alternative prior, all modes are of it.
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str  # "auto": what some seconds of one core are enough for, at most four
    max_iter: int | str  # Gauss-Newton steps of a restart, at most
    tol: float | str | None  # nats per unit of sample weight; "auto" is a tenth of a nat in all
    variance_scale: str | float  # of the logits in predictions; "loo" by approximate leave-one-out
    says_unconverged: bool = False  # warns of a best mode that still moved at the end
    alternative: UnboundPrior | None = None
    tries: bool = True
    effort: ModesEffort = field(default=ModesEffort(), kw_only=True)

    def fit(self, data: Training, model: Model, run: Run) -> LabelsFit:
        network = fully_connected(model.network)
        n_restarts = self.n_restarts
        if isinstance(n_restarts, str):
            n_restarts = self.effort.restarts_of_labels(data.n_rows, network)
        # Factors of modes, found and refined, and covariances.
        _require_memory(data, network, n_restarts, 3)
        problem = LabelsEvidence(network, data.double_data, scales_by_group(model.prior))
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        fixed = 1.0 if isinstance(self.variance_scale, str) else self.variance_scale

        def unrefined(problem: LabelsEvidence, search: Search) -> LabelsFit:
            search = distinct(problem, search)
            return LabelsFit(search, network, problem.prior, predict_seed, search.modes, fixed)

        run.begin()
        with torch.no_grad():
            start = _starts(problem, n_restarts, start_seed)
            problem, search = self._search(problem, start, run, unrefined)
            fit = unrefined(problem, search)
            run.keep(lambda: fit)
            modes, scale, left_out = fit.search.modes, fixed, None
            refined = refine(problem, modes)
            if isinstance(self.variance_scale, str):
                choice = choose_variance_scale(problem, refined, modes.shares)
                scale, left_out = choice.chosen, -choice.of_rows
            fit = replace(fit, refined=refined, variance_scale=scale, left_out=left_out)
        run.end(fit)
        fit.report(data, self.tol, warns=self.says_unconverged)
        return fit

    def _search(
        self,
        problem: LabelsEvidence,
        start: Tensor,
        run: Run,
        unrefined: Callable[[LabelsEvidence, Search], LabelsFit],
    ) -> tuple[LabelsEvidence, Search]:
        """The problem under the prior that was taken, and its modes.

        Of many rows some say where a search leads and which prior to take; from the modes of these
        it goes on with all. Whichever search it comes from, the best mode is what an interrupt
        leaves.
        """
        some = some_rows(problem, self.effort.labels_rows(problem.network.layout.n_params))
        max_iter = self.max_iter
        if isinstance(max_iter, str):
            max_iter = self.effort.steps_of_labels(problem.network.layout.n_params)
        tries = self.tries and problem.network.n_layers > 1 and problem.prior.is_learned
        share = 1.0 / (2 * len(start) + 2 if tries else len(start))
        how = EvidenceSearch(max_iter, self.tol)
        best: list[tuple[LabelsEvidence, Search]] = []

        def search(problem: LabelsEvidence, theta: Tensor, doubted: bool) -> Search:
            def better(search: Search) -> tuple[LabelsEvidence, Search]:
                either = [*best, (problem, search)]
                return max(either, key=lambda one: float(one[1].modes.score.max()))

            def on_step(step: int, so_far: Callable[[], Search]) -> bool:
                run.keep(lambda: unrefined(*better(so_far())))
                return phase(step, {"steps": step})

            phase = run.phase(share, max_iter)
            is_doubted = torch.tensor([doubted], device=theta.device)
            search = how.search(problem, theta.unsqueeze(0), is_doubted, on_step)
            best[:] = [better(search)]
            run.keep(lambda: unrefined(*best[0]))
            return search

        alternative = None
        if tries and self.alternative is not None:
            alternative = scales_by_group(self.alternative.bind(problem.network.layout))
        some, rough = search_labels(search, some, start, alternative, tries=tries)
        problem = replace(problem, prior=some.prior)
        if rough.has_ended or len(some.data.x) == len(problem.data.x):
            return problem, rough
        phase = run.phase(share, max_iter)

        def on_step(step: int, so_far: Callable[[], Search]) -> bool:
            run.keep(lambda: unrefined(problem, so_far()))
            return phase(step, {"steps": step})

        how = replace(how, max_iter=min(max_iter, self.effort.labels_last_steps))
        return problem, how.resumed(problem, rough.modes, on_step)
