"""Laplace approximations of several modes for classification, refined by variational steps."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import joblib
import torch
from torch import Tensor

from skbayes_sym.base.model_factory import group_scales, require_mlp
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    FULLY_CONNECTED,
    NORMAL_OR_LEARNED_PRIOR,
    SOFTMAX,
    Requirements,
)
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.class_predictive import choose_variance_scale, refine
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, resolve_auto
from skbayes_sym.laplace.evidence_problem import CategoricalEvidence
from skbayes_sym.laplace.initialization import search_classification, search_single
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    Search,
    SearchCallback,
    draw_initial_weights,
    merge_copies,
)
from skbayes_sym.laplace.modes_fit import ModesFit, require_memory_for_systems, subsample_problem
from skbayes_sym.models.model import Model
from skbayes_sym.models.priors import CLASSIFICATION_SCALES, LayerScales, UnboundPrior
from skbayes_sym.numerics.random import generator_from, spawn_seeds

# Default priors of classification. On separated classes the evidence under the first is higher by
# tens of nats, and on noisy labels the evidence under the second is.
STRONG_HYPERPRIOR = CLASSIFICATION_SCALES
WEAK_HYPERPRIOR = LayerScales(8.0, 4.0)


@dataclass(frozen=True, eq=False)
class GaussNewtonLaplaceClassification:
    """Modes from several starts with scales set by the evidence, then Gaussian variational steps.

    Attributes
    ----------
    n_restarts : int or "auto"
        Number of restarts. "auto" is what takes some seconds of one core, at most four.
    max_iter : int or "auto"
        Maximum number of Gauss-Newton steps of a restart.
    tol : "auto", float or None
        Tolerance in nats per unit of sample weight. "auto" is 0.1 nats in total.
    variance_scale : "loo" or float
        Factor on the variance of the logits in predictions. "loo" chooses it by approximate
        leave-one-out.
    warns_unconverged : bool, default=False
        Whether to warn if the best mode still moved at the end.
    alternative_prior : UnboundPrior, optional
        Prior that is tried if labels are noisy. If its evidence is higher from the first starting
        point, all modes are under it.
    allow_label_noise : bool, default=True
        Whether to find out if labels are noisy. If they are, every starting point is searched with
        low noise and with high noise.
    defaults : GaussNewtonDefaults
        Constants behind "auto".
    """

    requirements: ClassVar[Requirements] = Requirements(
        SOFTMAX, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    n_restarts: int | str
    max_iter: int | str
    tol: float | str | None
    variance_scale: str | float
    warns_unconverged: bool = False
    alternative_prior: UnboundPrior | None = None
    allow_label_noise: bool = True
    defaults: GaussNewtonDefaults = field(default=GaussNewtonDefaults(), kw_only=True)

    def fit(self, data: Training, model: Model, progress: FitProgress) -> ModesFit:
        """Fit the modes.

        Parameters
        ----------
        data : Training
        model : Model
        progress : FitProgress
            Progress of the fit.

        Returns
        -------
        ModesFit
        """
        network = require_mlp(model.network)
        n_restarts = self.n_restarts
        if isinstance(n_restarts, str):
            n_restarts = self.defaults.classification_restarts(data.n_rows, network)
        # Factors of the modes and of their refined posteriors, and covariances.
        require_memory_for_systems(data, network, n_restarts, 3)
        problem = CategoricalEvidence(network, data.double_data, group_scales(model.prior))
        start_seed, predict_seed = spawn_seeds(data.seed, 2)
        variance_scale = resolve_auto(self.variance_scale, 1.0)

        def make_fit(problem: CategoricalEvidence, search: Search) -> ModesFit:
            """Fit before the variational steps, which is what an interrupt returns."""
            search = merge_copies(problem, search)
            return ModesFit(
                search, network, problem.prior, predict_seed, variance_scale=variance_scale
            )

        progress.begin()
        with torch.no_grad():
            # Search for the modes, and for the better prior.
            generator = generator_from(start_seed)
            start = draw_initial_weights(network, n_restarts, generator=generator)
            search = _ClassificationSearcher(self, progress, make_fit)
            problem, result = search(problem, start.to(data.device))
            fit = make_fit(problem, result)
            progress.set_current_fit(lambda: fit)

            # Where classes are separated, the curvature at the mode is too small.
            modes = fit.search.modes
            refined = refine(problem, modes, n_jobs=progress.n_jobs)
            final = replace(fit, refined=refined)

            # Leave-one-out predictions choose the variance of the logits.
            if isinstance(self.variance_scale, str):
                choice = choose_variance_scale(problem, refined, modes.weights)
                final = replace(
                    final, variance_scale=choice.factor, leave_one_out=-choice.row_losses
                )
        progress.end(final)
        final.report(data, self.tol, warns=self.warns_unconverged)
        return final


class _ClassificationSearcher:
    """Search for modes of classification, which reports its progress.

    Parameters
    ----------
    method : GaussNewtonLaplaceClassification
    progress : FitProgress
        Progress of the fit. If it is interrupted, the best mode of all searches is what remains.
    make_fit : callable
        Returns the fit of a search's modes.
    """

    def __init__(
        self,
        method: GaussNewtonLaplaceClassification,
        progress: FitProgress,
        make_fit: Callable[[CategoricalEvidence, Search], ModesFit],
    ) -> None:
        self._method = method
        self._progress = progress
        self._make_fit = make_fit
        self._best: tuple[CategoricalEvidence, Search] | None = None
        # Other processes report their results, and not their steps.
        self._is_serial = joblib.effective_n_jobs(progress.n_jobs) == 1

    def __call__(
        self, problem: CategoricalEvidence, start: Tensor
    ) -> tuple[CategoricalEvidence, Search]:
        """Search for a mode from every starting point (R, P).

        For large data, a subsample finds the modes and chooses the prior, and the search continues
        from there with all rows.

        Returns
        -------
        CategoricalEvidence
            The problem under the prior that was chosen.
        Search
        """
        method = self._method
        defaults = method.defaults
        network = problem.network
        n_params = network.layout.n_params
        max_rows = max(defaults.min_subsample_rows, defaults.subsample_rows_per_weight * n_params)
        subsample = subsample_problem(problem, max_rows)
        max_iter = method.max_iter
        if isinstance(max_iter, str):
            max_iter = defaults.classification_steps(n_params)
        config = EvidenceSearch(max_iter, method.tol)

        # A linear model has one mode, and without learned scales there is no evidence to compare.
        learns_scales = problem.prior.is_learned
        allow_label_noise = method.allow_label_noise and network.n_layers > 1 and learns_scales
        alternative_prior = None
        if allow_label_noise and method.alternative_prior is not None:
            alternative_prior = group_scales(method.alternative_prior.bind(network.layout))
        n_searches = len(start)
        if allow_label_noise:
            n_searches = 2 * len(start) + 2
        fraction = 1.0 / n_searches  # of the progress

        def search_serially(
            problem: CategoricalEvidence, theta: Tensor, high_noise: bool
        ) -> Search:
            on_step = self._on_step(fraction, max_iter, partial(self._better, problem))
            return search_single(config, problem, theta, high_noise, on_step)

        def on_mode(problem: CategoricalEvidence, search: Search) -> bool:
            best = self._better(problem, search)
            self._best = best
            self._progress.set_current_fit(lambda: self._make_fit(*best))
            return not self._is_serial and self._progress.stage_callback(fraction, 1)(
                1, {"modes": 1.0}
            )

        subsample, rough = search_classification(
            search_serially if self._is_serial else partial(search_single, config),
            subsample,
            start,
            alternative_prior,
            allow_label_noise=allow_label_noise,
            n_jobs=self._progress.n_jobs,
            on_mode=on_mode,
        )
        problem = replace(problem, prior=subsample.prior)
        if rough.was_stopped or len(subsample.data.x) == len(problem.data.x):
            return problem, rough

        config = replace(config, max_iter=min(max_iter, defaults.classification_final_steps))
        on_step = self._on_step(fraction, max_iter, lambda search: (problem, search))
        return problem, config.resume(problem, rough.modes, on_step)

    def _on_step(
        self,
        fraction: float,
        max_iter: int,
        select: Callable[[Search], tuple[CategoricalEvidence, Search]],
    ) -> SearchCallback:
        """Return a callback that reports progress, and keeps the modes found so far."""
        report = self._progress.stage_callback(fraction, max_iter)

        def on_step(step: int, current: Callable[[], Search]) -> bool:
            self._progress.set_current_fit(lambda: self._make_fit(*select(current())))
            return report(step, {"steps": step})

        return on_step

    def _better(
        self, problem: CategoricalEvidence, search: Search
    ) -> tuple[CategoricalEvidence, Search]:
        """Return the better of a search and the best one so far."""
        candidates = [(problem, search)]
        if self._best is not None:
            candidates.insert(0, self._best)
        return max(candidates, key=lambda candidate: float(candidate[1].modes.score.max()))
