"""Laplace approximations of several modes of a classification network, refined, as a method."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from skbayes_sym.estimators._fit.compatibility import (
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED,
    SOFTMAX,
    Needs,
)
from skbayes_sym.estimators._fit.model import fully_connected, scales_by_group
from skbayes_sym.estimators._fit.run import Run
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators.laplace.effort import MOST_CLASS_MODES, work
from skbayes_sym.estimators.laplace.modes import LabelsFit, require_memory_of_modes, starts
from skbayes_sym.inference.laplace.labels_predictive import choose_variance_scale
from skbayes_sym.inference.laplace.search.beginnings import search_labels
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.modes import EvidenceSearch, Search
from skbayes_sym.inference.laplace.search.refine import refine
from skbayes_sym.models.learned_scales import LayerScales
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import UnboundPrior
from skbayes_sym.numerics.random import spawn_seeds

# The default priors: on separated classes the evidence is higher under the first by tens of nats,
# where labels are noisy under the second.
STEEP, FLAT = LayerScales(8.0, 64.0), LayerScales(8.0, 4.0)
# Multiplications for all modes, and for one where no more are found: some 25 seconds of one core.
_MOST_WORK = 4e11
TRIES = 2.5  # times the work, where labels are noisy


def most_steps(n_params: int) -> int:
    """What ``max_iter="auto"`` is: beyond 1,000 weights fewer do, and each costs much more."""
    return 60 if n_params <= 1000 else 30


def affordable(most: int, n_rows: int, network: MLP) -> tuple[int, bool]:
    """How many modes some seconds of one core are enough for, and whether for tries too.

    Of more rows than weights tries come first: a mode found in the better of two ways predicts
    noisy labels better than four found in one (3,000 rows x 20 columns: by .001 to .027 nats).
    """
    n_params = network.layout.n_params
    each = work(1, most_steps(n_params), n_rows, n_params, network.n_outputs)
    n_modes, n_tried = (min(most, int(_MOST_WORK / (w * each))) for w in (1.0, TRIES))
    if n_tried and n_rows >= n_params:
        return n_tried, True
    return n_modes, n_tried == n_modes


def automatic_restarts(n_rows: int, network: MLP) -> int:
    """What ``n_restarts="auto"`` is: of more rows than weights what tries have time for, or one."""
    n_modes, tries = affordable(MOST_CLASS_MODES, n_rows, network)
    has_time = tries or n_rows < network.layout.n_params
    return max(1, n_modes) if has_time else 1


@dataclass(frozen=True, eq=False)
class EvidenceLaplaceLabels:
    """Modes from several starts, their scales set by the evidence, then Gaussian variational steps.

    Parameters
    ----------
    n_restarts : int or "auto"
        "auto" is what some seconds of one core are enough for, at most `MOST_CLASS_MODES`.
    max_iter : int or "auto"
        Largest number of Gauss-Newton steps of a restart; "auto" is `most_steps`.
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
    """

    needs: ClassVar[Needs] = Needs(SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED)

    n_restarts: int | str
    max_iter: int | str
    tol: float | str | None
    variance_scale: str | float
    says_unconverged: bool = False
    alternative: UnboundPrior | None = None
    tries: bool = True

    def fit(self, data: Training, model: Model, run: Run) -> LabelsFit:
        network = fully_connected(model.network)
        n_restarts = self.n_restarts
        if isinstance(n_restarts, str):
            n_restarts = automatic_restarts(data.n_rows, network)
        # Factors of modes, found and refined, and covariances.
        require_memory_of_modes(data, network, n_restarts, 3)
        problem = LabelsEvidence(network, data.double_data, scales_by_group(model.prior))
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        fixed = 1.0 if isinstance(self.variance_scale, str) else self.variance_scale

        def unrefined(problem: LabelsEvidence, search: Search) -> LabelsFit:
            return LabelsFit(search, network, problem.prior, predict_seed, search.modes, fixed)

        run.begin()
        with torch.no_grad():
            start = starts(problem, n_restarts, start_seed)
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
        start: torch.Tensor,
        run: Run,
        unrefined: Callable[[LabelsEvidence, Search], LabelsFit],
    ) -> tuple[LabelsEvidence, Search]:
        """The problem under the prior that was taken, and its modes.

        Whichever search it comes from, the best mode so far is what an interrupt leaves.
        """
        max_iter = self.max_iter
        if isinstance(max_iter, str):
            max_iter = most_steps(problem.network.layout.n_params)
        tries = self.tries and problem.network.n_layers > 1 and problem.prior.is_learned
        share = 1.0 / (2 * len(start) + 2 if tries else len(start))
        how = EvidenceSearch(max_iter, self.tol)
        best: list[tuple[LabelsEvidence, Search]] = []

        def search(problem: LabelsEvidence, theta: torch.Tensor, doubted: bool) -> Search:
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
