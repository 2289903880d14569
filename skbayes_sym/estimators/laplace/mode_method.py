"""Modes from several starts, their scales and noise set by the evidence, as a method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED,
    Needs,
)
from skbayes_sym.estimators._fit.convergence import warn_of_moving_mode
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.run import Run, logger
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
from skbayes_sym.estimators.laplace.modes import ModesFit, ModeTask
from skbayes_sym.estimators.laplace.widths import Widths, are_asked, choose_width
from skbayes_sym.inference.laplace.search.beginnings import noise_share
from skbayes_sym.inference.laplace.search.held_out import MODES_A_FOLD, HeldOut
from skbayes_sym.inference.laplace.search.numbers import EvidenceModes
from skbayes_sym.models.learned_scales import ARD, LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import UnboundPrior

SoFar = list[Callable[[], ModesFit]]


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

    def fit(self, data: Training, model: Model, run: Run) -> ModesFit:
        task, wide = self._task(data, model, run), self._wide(data, model)
        asks = self._may_change(model) and are_asked(task.problem.network, data.n_rows)
        so_far: SoFar = []
        with torch.no_grad():
            n_parts = 1 + task.begins_both_ways + (wide is not None) + len(WIDTHS) * asks
            most = (1 + MORE) * STEPS if isinstance(self.max_iter, str) else self.max_iter
            run.begin(n_parts * most, lambda: so_far[-1]())
            widths = self._widths(data, model, run, so_far) if asks else None
            if widths is not None and widths.ended is not None:
                found = widths.ended
            elif widths is not None and widths.chosen < NARROW:
                found = self._task(data, self._of_width(model, widths.chosen), run).search(so_far)
            else:
                found = self._search(task, wide, so_far)
            if widths is not None:
                unit = data.log_jacobian / data.total_weight
                scores = {width: score + unit for width, score in widths.scores.items()}
                found = replace(found, width_scores=scores)
            run.end(found)
        self._report(data, found)
        return found

    def _search(self, task: ModeTask, wide: Model | None, so_far: SoFar) -> ModesFit:
        """All modes, of ``wide`` where two say that there isn't much noise."""
        if wide is not None:
            pilot = task.pilot(so_far)
            if pilot.stop_reason in ("callback", "interrupted"):
                return pilot
            if noise_share(pilot.modes, task.data.double_data.y) <= MOST_NOISE:
                task = self._task(task.data, wide, task.run)
        return task.search(so_far)

    def _widths(self, data: Training, model: Model, run: Run, so_far: SoFar) -> Widths:
        """What rows held out say of how many units there should be."""

        def validate(width: int) -> tuple[ModesFit, HeldOut | None]:
            task = self._task(data, self._of_width(model, width), run, FOLDS * MODES_A_FOLD)
            return task.validate(FOLDS, so_far)

        _, y, weight = data.double_data
        return choose_width(validate, fully_connected(model.network), y, weight)

    def _of_width(self, model: Model, width: int) -> Model:
        network = network_of(fully_connected(model.network), width)
        prior = (self.wide_prior or LayerScales()).bind(network.layout)
        return model._replace(network=network, prior=prior)

    def _may_change(self, model: Model) -> bool:
        return self.widens and model.likelihood.n_params > 0

    def _task(
        self, data: Training, model: Model, run: Run, n_restarts: int | None = None
    ) -> ModeTask:
        prior, network = scales_by_group(model.prior), fully_connected(model.network)
        most, more = self.max_iter, 0
        if isinstance(most, str):
            most = steps(data.n_rows, network)
            more = MORE * most
        learns_noise = model.likelihood.n_params > 0
        how = EvidenceModes(most, self.tol, learns_noise, prior.is_learned, more)
        if n_restarts is None:
            n_restarts = restarts(self.n_restarts, data.n_rows, network, self.most)
        return ModeTask.of(model, how, n_restarts, data, run)

    def _wide(self, data: Training, model: Model) -> Model | None:
        """What so many rows may be worth."""
        if not self._may_change(model):
            return None
        network = richer(data.n_rows, fully_connected(model.network))
        if network is None:
            return None
        prior = (self.wide_prior or ARD()).bind(network.layout)
        return model._replace(network=network, prior=prior)

    def _report(self, data: Training, found: ModesFit) -> None:
        assert found.search is not None
        values = found.modes.log_evidence + data.log_jacobian
        logger.info(
            "log evidence of %d modes from %.6g to %.6g, stopped by %s after %d steps",
            len(values), values.min(), values.max(), found.stop_reason, found.n_iter,
        )  # fmt: skip
        if self.says_unconverged:
            best = int(values.argmax())
            curve = found.search.curve(best).tolist()
            warn_of_moving_mode(curve, found.stop_reason, self.tol, data.total_weight)
