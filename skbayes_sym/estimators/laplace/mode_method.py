"""Modes from several starts, their scales and noise set by the evidence, as a method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import (
    FOLDS,
    MORE,
    MOST_MODES,
    MOST_NOISE,
    NARROW,
    STEPS,
    WIDTHS,
    network_of,
    restarts,
    richer,
    steps,
)
from skbayes_sym.estimators.laplace.modes import NumbersFit, require_memory_of_modes, starts
from skbayes_sym.estimators.laplace.widths import Widths, are_asked, choose_width
from skbayes_sym.inference.laplace.search.beginnings import (
    alternating,
    begins_both_ways,
    noise_share,
    search_numbers,
)
from skbayes_sym.inference.laplace.search.held_out import (
    MODES_A_FOLD,
    HeldOut,
    cross_validated,
    folds,
)
from skbayes_sym.inference.laplace.search.modes import EvidenceSearch, Search
from skbayes_sym.inference.laplace.search.numbers import NumbersEvidence
from skbayes_sym.models.learned_scales import ARD, LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import UnboundPrior
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# Enough to compare widths, at half the cost: steps, and nats per unit of weight.
_ROUGH_STEPS, _ROUGH_TOL = 60, 1e-3


@dataclass(frozen=True, eq=False)
class EvidenceLaplace:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most ``most``.
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
    most : int
    """

    needs: ClassVar[Needs] = Needs(NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int | str
    tol: float | None
    says_unconverged: bool = False
    widens: bool = False
    wide_prior: UnboundPrior | None = None
    most: int = MOST_MODES

    def fit(self, data: Training, model: Model, run: Run) -> NumbersFit:
        so_far: list[Callable[[], NumbersFit]] = []
        task, wide = self._task(data, model, run, so_far), self._wide(data, model)
        asks = self._may_change(model) and are_asked(task.problem.network, data.n_rows)
        with torch.no_grad():
            n_parts = 1 + begins_both_ways(task.problem) + (wide is not None) + len(WIDTHS) * asks
            most = (1 + MORE) * STEPS if isinstance(self.max_iter, str) else self.max_iter
            run.begin(n_parts * most, lambda: so_far[-1]())
            widths = self._widths(task) if asks else None
            if widths is not None and widths.ended is not None:
                fit = widths.ended
            elif widths is not None and widths.chosen < NARROW:
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
            if noise_share(pilot.modes, task.data.double_data.y.cpu()) <= MOST_NOISE:
                task = self._retold(task, wide)
        return task.search()

    def _widths(self, task: "_Task") -> Widths:
        """Numbers of hidden units by what rows held out say."""
        model = task.model

        def validate(width: int) -> tuple[NumbersFit, HeldOut | None]:
            return self._retold(task, self._of_width(model, width), FOLDS * MODES_A_FOLD).validate()

        _, y, weight = task.data.double_data
        return choose_width(validate, fully_connected(model.network), y, weight)

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
            max_iter = steps(data.n_rows, network)
            more = MORE * max_iter
        learned = model.likelihood.n_params > 0
        noise = None if learned else model.likelihood.noise_scale.double() ** -2
        problem = NumbersEvidence(network, data.double_data, prior, noise_precision=noise)
        if n_restarts is None:
            n_restarts = restarts(self.n_restarts, data.n_rows, network, self.most)
        # Systems, their factors and inverses.
        require_memory_of_modes(data, network, n_restarts, 5 * (network.n_outputs + 1))
        how = EvidenceSearch(max_iter, self.tol, more)
        return _Task(model, problem, how, n_restarts, data, run, so_far)

    def _wide(self, data: Training, model: Model) -> Model | None:
        """A larger network, or another prior, that many rows may be worth."""
        if not self._may_change(model):
            return None
        network = richer(data.n_rows, fully_connected(model.network))
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

    def validate(self) -> tuple[NumbersFit, HeldOut | None]:
        """Modes that leave out a fold each, and what they say of it (None if they were stopped)."""
        generator = generator_from(self._seeds[2])
        fold = folds(self.data.n_rows, FOLDS, generator=generator).to(self.data.device)
        tol = self.how.tol
        if tol is not None:
            tol = _ROUGH_TOL if isinstance(tol, str) else max(tol, _ROUGH_TOL)
        how = EvidenceSearch(min(self.how.max_iter, _ROUGH_STEPS), tol)
        start = self._draw(MODES_A_FOLD * FOLDS)
        search, rows = cross_validated(how, self.problem, start, fold, self._on_step)
        return self._fit(search), rows

    def _fit(self, search: Search) -> NumbersFit:
        return NumbersFit(search, self.problem.network, self.problem.prior, self._seeds[1])

    def _draw(self, n: int) -> torch.Tensor:
        return starts(self.problem, n, self._seeds[0])

    def _on_step(self, _: int, search: Callable[[], Search]) -> bool:
        """Ends a block after every step, and keeps what has been found by then."""
        self.so_far[:] = [lambda: self._fit(search())]
        return self.run.end_block()
