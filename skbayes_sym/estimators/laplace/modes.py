"""Laplace approximations of several modes of one network, found by Gauss-Newton steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_of_moving_mode
from skbayes_sym.estimators._fit.memory import rows_part
from skbayes_sym.estimators._fit.model import (
    fully_connected,
    scale_attributes_of_several,
    scales_by_group,
)
from skbayes_sym.estimators._fit.run import Run, logger
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import ModesEffort, network_of
from skbayes_sym.inference.laplace.labels_predictive import choose_variance_scale
from skbayes_sym.inference.laplace.mode_mixture import ModeMixture
from skbayes_sym.inference.laplace.search.beginnings import (
    alternating,
    begins_both_ways,
    noise_share,
    search_labels,
    search_numbers,
)
from skbayes_sym.inference.laplace.search.held_out import (
    MODES_A_FOLD,
    HeldOut,
    cross_validated,
    folds,
    is_better,
    unexplained_share,
)
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.modes import (
    EvidenceSearch,
    Modes,
    Search,
    mapped,
    starting_points,
)
from skbayes_sym.inference.laplace.search.numbers import NumbersEvidence
from skbayes_sym.inference.laplace.search.problem import EvidenceProblem
from skbayes_sym.inference.laplace.search.refine import RefinedModes, refine
from skbayes_sym.models.learned_scales import ARD, LayerScales, ScalesByGroup
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import UnboundPrior
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.optimise import Stopped
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# The default priors of labels: on separated classes the evidence is higher under the first by tens
# of nats, where labels are noisy under the second.
STEEP, FLAT = LayerScales(8.0, 64.0), LayerScales(8.0, 4.0)


@dataclass(frozen=True, eq=False)
class ModesFit:
    """What a search has found (so far).

    Parameters
    ----------
    search : Search
    network : MLP
    prior : ScalesByGroup
    predict_seed : int
    """

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
            "posterior_": ModeMixture(theta, factor),
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
        return scale_attributes_of_several(self.prior, self.modes.hyper, "prior_scale_modes_")

    def report(self, data: Training, tol: object, *, warns: bool) -> None:
        """Log what was found, and warn of a best mode that still moved at the end."""
        values = self.search.modes.log_evidence + data.log_jacobian
        logger.info(
            "log evidence of %d modes from %.6g to %.6g, stopped by %s after %d steps",
            len(values), values.min(), values.max(), self.stop_reason, self.n_iter,
        )  # fmt: skip
        if warns:
            best = int(values.argmax())
            curve, stopped = self.search.curves[best].tolist(), self.search.stopped[best]
            warn_of_moving_mode(curve, stopped, tol, data.total_weight)


@dataclass(frozen=True, eq=False)
class NumbersFit(ModesFit):
    """Modes of regression, each with its noise.

    Parameters
    ----------
    width_scores : mapping, optional
        Nats per row held out, by number of units.
    """

    width_scores: Mapping[int, float] | None = None

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        assert data.y_scaling is not None
        unit = data.y_scaling.scale
        scaled = self.modes.noise_precision.rsqrt().numpy()
        overall = np.sqrt((scaled**2).mean(axis=0)) * unit
        attributes = super().attributes(data, model)
        attributes["noise_std_modes_"] = scaled * unit
        attributes["noise_std_"] = float(overall[0]) if len(overall) == 1 else overall
        if self.width_scores is not None:
            attributes["widths_"] = np.array(list(self.width_scores))
            attributes["width_scores_"] = np.array(list(self.width_scores.values()))
        return attributes


@dataclass(frozen=True, eq=False)
class LabelsFit(ModesFit):
    """Modes of classification, refined.

    Parameters
    ----------
    refined : RefinedModes or Modes
        The posterior; the modes themselves if refining them was interrupted.
    variance_scale : float
        Of the logits' variance in predictions.
    left_out : Tensor of shape (N,), optional
        Log probability of every row left out, nats; where they chose the variance scale.
    """

    refined: RefinedModes | Modes
    variance_scale: float
    left_out: Tensor | None = None

    @property
    def _posterior(self) -> RefinedModes | Modes:
        return self.refined

    def attributes(self, data: Training, model: Model) -> dict[str, Any]:
        return {**super().attributes(data, model), "variance_scale_": self.variance_scale}


def _starts(problem: EvidenceProblem, n: int, seed: int) -> Tensor:
    """Starting points (n, P) on the problem's device."""
    drawn = starting_points(problem.network, n, generator=generator_from(seed))
    return drawn.to(problem.data.x.device)


def _require_memory(data: Training, network: MLP, n: int, matrices: int) -> None:
    """Raise unless rows and ``n`` modes fit, of so many float64 matrices (P, P) each."""
    p = network.layout.n_params
    systems = Part(
        f"Gauss-Newton systems of {n} modes of {p:,} weights", matrices * n * p**2 * 8,
        "Lower n_restarts or hidden_layer_sizes, or use optimizer='adam'.",
    )  # fmt: skip
    require_memory([rows_part(data), systems], data.device)


# Modes of a number of units, each without a fold, and what they say of it (None if stopped).
Validate = Callable[[int], tuple[NumbersFit, HeldOut | None]]


class Widths(NamedTuple):
    """Numbers of units by what rows held out say."""

    chosen: int
    scores: dict[int, float]  # nats per unit of weight, by number of units
    ended: NumbersFit | None = None  # what there was when it was stopped


def choose_width(
    validate: Validate, network: MLP, y: Tensor, weight: Tensor, effort: ModesEffort
) -> Widths:
    """Few units, some, or the usual number.

    The usual number is taken unasked where some units are better than few and leave little of the
    targets (N, T) unexplained.
    """
    scores: dict[int, float] = {}
    chosen, best = effort.widths[0], None
    for width in effort.widths:
        if not effort.validates(network_of(network, width), y.numel()):
            break
        fit, rows = validate(width)
        if rows is None:
            return Widths(width, scores, fit)
        scores[width] = float(weight @ rows.log_density / weight.sum())
        if best is None:
            best = rows
        elif is_better(rows.log_density, best.log_density, weight):
            chosen, best = width, rows
            if unexplained_share(rows.mean, y, weight) <= effort.most_unexplained:
                return Widths(effort.usual_width, scores)
    return Widths(chosen, scores)


@dataclass(frozen=True, eq=False)
class EvidenceLaplace:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most ``most``, by default ten.
    max_iter : int or "auto"
        Largest number of Gauss-Newton steps; "auto" is fewer of large systems.
    tol : float or None
        Nats per unit of sample weight by which a log evidence still moves when it has settled.
    says_unconverged : bool, default=False
        Whether a best mode that still moved at the end is warned of.
    widens : bool, default=False
        Whether many rows without much noise are given more units and another prior, and noisy
        tables fewer units, as rows held out say.
    wide_prior : unbound prior, optional
        The prior of these networks; by default ``ARD()`` of more units, ``LayerScales()`` of fewer.
    most : int, optional
    effort : ModesEffort
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int | str
    tol: float | None
    says_unconverged: bool = False
    widens: bool = False
    wide_prior: UnboundPrior | None = None
    most: int | None = None
    effort: ModesEffort = field(default=ModesEffort(), kw_only=True)

    def fit(self, data: Training, model: Model, run: Run) -> NumbersFit:
        effort, so_far = self.effort, list[Callable[[], NumbersFit]]()
        task, wide = self._task(data, model, run, so_far), self._wide(data, model)
        asks = self._may_change(model) and effort.asks_width(data.n_rows, task.problem.network)
        with torch.no_grad():
            n_parts = (
                1 + begins_both_ways(task.problem) + (wide is not None) + len(effort.widths) * asks
            )
            most = (
                (1 + effort.more) * effort.steps
                if isinstance(self.max_iter, str)
                else self.max_iter
            )
            run.begin(n_parts * most, lambda: so_far[-1]())
            widths = self._widths(task) if asks else None
            if widths is not None and widths.ended is not None:
                fit = widths.ended
            elif widths is not None and widths.chosen < effort.usual_width:
                fit = self._retold(task, self._of_width(model, widths.chosen)).search()
            else:
                fit = self._search(task, wide)
            if widths is not None:
                unit = data.log_jacobian / data.total_weight
                scores = {width: score + unit for width, score in widths.scores.items()}
                fit = replace(fit, width_scores=scores)
            run.end(fit)
        fit.report(data, self.tol, warns=self.says_unconverged)
        return fit

    def _search(self, task: "_Task", wide: Model | None) -> NumbersFit:
        """All modes, of ``wide`` where two say that there isn't much noise."""
        if wide is not None:
            pilot = task.pilot()
            if pilot.search.has_ended:
                return pilot
            if noise_share(pilot.modes, task.data.double_data.y.cpu()) <= self.effort.most_noise:
                task = self._retold(task, wide)
        return task.search()

    def _widths(self, task: "_Task") -> Widths:
        """Numbers of hidden units by what rows held out say."""
        model = task.model

        def validate(width: int) -> tuple[NumbersFit, HeldOut | None]:
            n_restarts = self.effort.folds * MODES_A_FOLD
            retold = self._retold(task, self._of_width(model, width), n_restarts)
            return retold.validate(self.effort)

        _, y, weight = task.data.double_data
        return choose_width(validate, fully_connected(model.network), y, weight, self.effort)

    def _of_width(self, model: Model, width: int) -> Model:
        network = network_of(fully_connected(model.network), width)
        prior = (self.wide_prior or LayerScales()).bind(network.layout)
        return model._replace(network=network, prior=prior)

    def _may_change(self, model: Model) -> bool:
        return self.widens and model.likelihood.n_params > 0

    def _retold(self, task: "_Task", model: Model, n_restarts: int | None = None) -> "_Task":
        """The same of another network."""
        return self._task(task.data, model, task.run, task.so_far, n_restarts)

    def _task(
        self, data: Training, model: Model, run: Run, so_far: list[Callable[[], NumbersFit]],
        n_restarts: int | None = None,
    ) -> "_Task":  # fmt: skip
        network, prior = fully_connected(model.network), scales_by_group(model.prior)
        max_iter, more = self.max_iter, 0
        if isinstance(max_iter, str):
            max_iter = self.effort.steps_of_mode(data.n_rows, network)
            more = self.effort.more * max_iter
        learned = model.likelihood.n_params > 0
        noise = None if learned else model.likelihood.noise_scale.double() ** -2
        problem = NumbersEvidence(network, data.double_data, prior, noise_precision=noise)
        if n_restarts is None:
            n_restarts = self.effort.restarts(self.n_restarts, data.n_rows, network, self.most)
        # Systems, their factors and inverses.
        _require_memory(data, network, n_restarts, 5 * (network.n_outputs + 1))
        how = EvidenceSearch(max_iter, self.tol, more)
        return _Task(model, problem, how, n_restarts, data, run, so_far)

    def _wide(self, data: Training, model: Model) -> Model | None:
        """A larger network, or another prior, that many rows may be worth."""
        if not self._may_change(model):
            return None
        network = self.effort.richer(data.n_rows, fully_connected(model.network))
        if network is None:
            return None
        prior = (self.wide_prior or ARD()).bind(network.layout)
        return model._replace(network=network, prior=prior)


class _Task(NamedTuple):
    """The modes of one model: what is searched, from where, and who is told."""

    model: Model
    problem: NumbersEvidence
    how: EvidenceSearch
    n_restarts: int
    data: Training
    run: Run
    so_far: list[Callable[[], NumbersFit]]

    @property
    def _seeds(self) -> list[int]:
        """Seeds of starts, of predictions and of folds."""
        return spawn_seeds(self.data.seed, 3)

    def pilot(self) -> NumbersFit:
        """Two modes, one begun in each way, by which the noise is judged."""
        theta, how = self._draw(2), replace(self.how, max_more=0)
        return self._fit(how.search(self.problem, theta, alternating(2, theta), self._on_step))

    def search(self) -> NumbersFit:
        """All modes."""
        return self._fit(
            search_numbers(self.how, self.problem, self._draw, self.n_restarts, self._on_step)
        )

    def validate(self, effort: ModesEffort) -> tuple[NumbersFit, HeldOut | None]:
        """Modes that leave out a fold each, and what they say of it (None if they were stopped)."""
        generator = generator_from(self._seeds[2])
        fold = folds(self.data.n_rows, effort.folds, generator=generator).to(self.data.device)
        tol = self.how.tol
        if tol is not None:
            tol = max(effort.rough_tol, 0.0 if isinstance(tol, str) else tol)
        how = EvidenceSearch(min(self.how.max_iter, effort.rough_steps), tol)
        start = self._draw(MODES_A_FOLD * effort.folds)
        search, rows = cross_validated(how, self.problem, start, fold, self._on_step)
        return self._fit(search), rows

    def _fit(self, search: Search) -> NumbersFit:
        return NumbersFit(search, self.problem.network, self.problem.prior, self._seeds[1])

    def _draw(self, n: int) -> Tensor:
        return _starts(self.problem, n, self._seeds[0])

    def _on_step(self, _: int, search: Callable[[], Search]) -> bool:
        """Ends a block after every step, and keeps what has been found by then."""
        self.so_far[:] = [lambda: self._fit(search())]
        return self.run.end_block()


@dataclass(frozen=True, eq=False)
class EvidenceLaplaceLabels:
    """Modes from several starts, their scales set by the evidence, then Gaussian variational steps.

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most four.
    max_iter : int or "auto"
        Largest number of Gauss-Newton steps of a restart; "auto" is 60, or 30 of many weights.
    tol : "auto", float or None
        Nats per unit of sample weight; "auto" is a tenth of a nat, None never stops.
    variance_scale : "loo" or float
        Of the logits' variance in predictions; "loo" chooses it by approximate leave-one-out.
    says_unconverged : bool, default=False
        Whether a best mode that still moved at the end is warned of.
    alternative : unbound prior, optional
        Tried from the first start where labels are noisy; all modes are then of the prior with the
        higher evidence.
    tries : bool, default=True
        Whether noisy labels are looked for, and every start then searched from in two ways.
    effort : ModesEffort
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int | str
    tol: float | str | None
    variance_scale: str | float
    says_unconverged: bool = False
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
            return LabelsFit(search, network, problem.prior, predict_seed, search.modes, fixed)

        run.begin()
        with torch.no_grad():
            start = _starts(problem, n_restarts, start_seed)
            problem, search = self._search(problem, start, run, unrefined)
            run.keep(lambda: unrefined(problem, search))
            refined, scale, left_out = refine(problem, search.modes), fixed, None
            if isinstance(self.variance_scale, str):
                choice = choose_variance_scale(problem, refined)
                scale, left_out = choice.chosen, -choice.of_rows
            fit = replace(
                unrefined(problem, search), refined=refined, variance_scale=scale, left_out=left_out
            )
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

        Whichever search it comes from, the best mode so far is what an interrupt leaves.
        """
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
                return max(either, key=lambda one: float(one[1].modes.log_evidence.max()))

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
        return search_labels(search, problem, start, alternative, tries=tries)
