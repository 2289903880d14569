"""Laplace approximations of several modes for regression, and the choice of the width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import joblib
import torch
from torch import Tensor

from skbayes_sym.base.model_factory import group_scales, require_mlp
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.base.requirements import (
    FULLY_CONNECTED,
    NORMAL_NOISE,
    NORMAL_OR_LEARNED_PRIOR,
    Requirements,
)
from skbayes_sym.base.training import Training
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, make_network, resolve_auto
from skbayes_sym.laplace.evidence_problem import (
    GaussianEvidence,
)
from skbayes_sym.laplace.initialization import (
    MODES_PER_FOLD,
    HeldOutPredictions,
    alternating_mask,
    assign_folds,
    cross_validate,
    is_better,
    is_sensitive_to_initial_noise,
    noise_variance_fraction,
    search_regression,
    unexplained_variance_fraction,
)
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    InitialModes,
    Search,
    SearchCallback,
    draw_initial_weights,
    merge_copies,
)
from skbayes_sym.laplace.modes_fit import ModesFit, require_memory_for_systems, subsample_problem
from skbayes_sym.models.model import Model
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import (
    ARD,
    LayerScales,
    UnboundPrior,
)
from skbayes_sym.numerics.random import generator_from, spawn_seeds
from skbayes_sym.numerics.runtime import run_parallel


class WidthSelection(NamedTuple):
    """Result of cross-validating the number of hidden units.

    Attributes
    ----------
    width : int
        Number of units that was chosen.
    prior : UnboundPrior
        Prior that was chosen.
    scores : dict of int to float
        Held-out log density by number of units, nats per unit of weight, under the better prior.
    stopped_fit : ModesFit, optional
        Fit at which the cross-validation was stopped.
    fold_modes : Modes, optional
        Modes of the chosen width, each fitted without a fold. None if it wasn't validated.
    has_low_noise : bool, default=False
        Whether the middle width leaves hardly any of the variance unexplained.
    """

    width: int
    prior: UnboundPrior
    scores: dict[int, float]
    stopped_fit: ModesFit | None = None
    fold_modes: ModesFit | None = None
    has_low_noise: bool = False


def select_width(
    validate: Callable[[int, UnboundPrior], tuple[ModesFit, HeldOutPredictions | None]],
    priors: Sequence[UnboundPrior],
    network: MLP,
    y: Tensor,
    weight: Tensor,
    defaults: GaussNewtonDefaults,
    widens: Callable[[], bool] = lambda: False,
) -> WidthSelection:
    """Select the number of units and the prior by cross-validation.

    Parameters
    ----------
    validate : callable
        Fits modes of so many units under a prior, each without a fold, and returns them with the
        held-out predictions, which are None if it was stopped.
    priors : sequence of UnboundPrior
        Priors that are compared with the middle width. The first one is the default.
    network : MLP
    y : Tensor of shape (N, T)
        Targets.
    weight : Tensor of shape (N,)
        Weights of the rows.
    defaults : GaussNewtonDefaults
    widens : callable, optional
        Whether the default width would be replaced by a wider one.

    Returns
    -------
    WidthSelection

    Notes
    -----
    The widths are validated in rising order, and a larger one is chosen if its held-out rows are
    more likely by half a standard error. The default width is chosen without validation where the
    middle width is better than the smallest and leaves little unexplained, or where a wider one
    would replace it. Where the middle width is no better, the smallest is chosen.
    """
    scores: dict[int, float] = {}
    (smallest, middle, largest) = defaults.widths
    prior = priors[0]
    chosen = smallest
    chosen_prior = prior
    best = None
    fold_modes = None
    has_small_residual = False
    fraction = 1.0
    for width in defaults.widths:
        middle_was_no_better = width > middle and chosen == smallest
        if has_small_residual or middle_was_no_better:
            break
        if not defaults.can_validate(make_network(network, width), y.numel()):
            break
        if width == largest and widens():
            has_small_residual = True
            break

        # The middle width decides between the priors.
        fits = {}
        candidates = [prior]
        if width == middle:
            candidates = list(priors)
        for candidate in candidates:
            fit, held_out = validate(width, candidate)
            if held_out is None:
                return WidthSelection(width, candidate, scores, stopped_fit=fit)
            fits[candidate] = fit, held_out
        for candidate, (_, held_out) in fits.items():
            if is_better(held_out.log_density, fits[prior][1].log_density, weight):
                prior = candidate
        fit, held_out = fits[prior]
        scores[width] = float(weight @ held_out.log_density / weight.sum())

        # The width is chosen if it is better than all smaller ones.
        if best is None or is_better(held_out.log_density, best.log_density, weight):
            fraction = unexplained_variance_fraction(held_out.mean, y, weight)
            has_small_residual = best is not None and fraction <= defaults.max_unexplained_fraction
            chosen = width
            chosen_prior = prior
            best = held_out
            fold_modes = fit
    if has_small_residual:
        has_low_noise = fraction <= defaults.negligible_noise_fraction
        return WidthSelection(defaults.default_width, prior, scores, has_low_noise=has_low_noise)
    return WidthSelection(chosen, chosen_prior, scores, fold_modes=fold_modes)


class _Plan(NamedTuple):
    """What a regression fit is going to do, as far as the data's size determines it.

    Attributes
    ----------
    initial_modes : InitialModes or None
        Modes of an earlier fit to continue from. Then nothing else is done.
    validates_width : bool
        Whether cross-validation chooses the width.
    priors : list of UnboundPrior
        Priors that cross-validation compares.
    wide_network : MLP or None
        Network for large data, with one scale per column, if the noise is low.
    n_searches : int
        Largest number of searches.
    """

    initial_modes: InitialModes | None
    validates_width: bool
    priors: list[UnboundPrior]
    wide_network: MLP | None
    n_searches: int


@dataclass(frozen=True, eq=False)
class GaussNewtonLaplaceRegression:
    """Modes from several starts, each with scales and noise set by its evidence (MacKay 1992).

    Attributes
    ----------
    n_restarts : int or "auto"
        Number of restarts. "auto" is what takes some seconds of one core, up to ``max_modes``.
    max_iter : int or "auto"
        Maximum number of Gauss-Newton steps. "auto" is less for large systems.
    tol : "auto", float or None
        Tolerance in nats per unit of sample weight.
    warns_unconverged : bool, default=False
        Whether to warn if the best mode still moved at the end.
    selects_width : bool, default=False
        Whether to choose the width, and the prior if it isn't given: wider networks with one scale
        per column for large data with little noise, and narrower networks for noisy data, by
        cross-validation.
    unbound_prior : UnboundPrior, optional
        Prior of networks of other widths. By default ``ARD()`` for large data, and otherwise
        ``LayerScales()`` or ``ARD()``, chosen by cross-validation.
    max_modes : int, optional
        Largest number of restarts for "auto".
    initial_modes : InitialModes, optional
        Modes of an earlier fit to continue from, if the numbers of columns and targets agree.
    defaults : GaussNewtonDefaults
        Constants behind "auto".
    """

    requirements: ClassVar[Requirements] = Requirements(
        NORMAL_NOISE, FULLY_CONNECTED, NORMAL_OR_LEARNED_PRIOR
    )

    n_restarts: int | str
    max_iter: int | str
    tol: float | str | None
    warns_unconverged: bool = False
    selects_width: bool = False
    unbound_prior: UnboundPrior | None = None
    max_modes: int | None = None
    initial_modes: InitialModes | None = None
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
        noise_precision = None
        if not model.likelihood.n_params:
            noise_precision = model.likelihood.noise_scale.double() ** -2
        prior = group_scales(model.prior)
        problem = GaussianEvidence(
            network, data.double_data, prior, noise_precision=noise_precision
        )

        # Fail before any work is done if memory doesn't suffice for the systems of all restarts.
        searcher = _RegressionSearcher(self, data, progress)
        searcher.n_restarts(network)

        # Callbacks see the progress relative to all searches that may become necessary.
        plan = self._plan(problem)
        max_iter = self.max_iter
        if isinstance(max_iter, str):
            max_iter = (1 + self.defaults.extra_steps_factor) * self.defaults.steps
        progress.begin(plan.n_searches * max_iter, searcher.current_fit)
        with torch.no_grad():
            fit = self._execute(plan, problem, searcher)
        progress.end(fit)

        # With "auto", the last steps only let the scales drift, which needs no warning.
        warns = self.warns_unconverged and not isinstance(self.max_iter, str)
        fit.report(data, self.tol, warns=warns)
        return fit

    def _plan(self, problem: GaussianEvidence) -> _Plan:
        """Plan the searches."""
        network = problem.network
        n_rows = len(problem.data.x)
        defaults = self.defaults

        # Modes of an earlier fit are of use if only the width differs.
        initial_modes = self.initial_modes
        if initial_modes is not None:
            widths = initial_modes.network.hidden_layer_sizes
            if make_network(network, *widths) != initial_modes.network:
                initial_modes = None

        # The width is only chosen where the noise is learned.
        learns_noise = problem.noise_precision is None
        selects_width = self.selects_width and learns_noise and initial_modes is None
        validates_width = selects_width and defaults.cross_validates_width(n_rows, network)
        wide_network = None
        if selects_width:
            wide_network = defaults.wider_network(n_rows, network)

        # One scale per layer or one per column: cross-validation compares them, unless there are so
        # many rows that scales per column are used anyway.
        priors: list[UnboundPrior] = [self.unbound_prior or LayerScales()]
        if self.unbound_prior is None and wide_network is None and network.n_inputs > 1:
            priors.append(ARD())

        n_searches = 1 + is_sensitive_to_initial_noise(problem) + (wide_network is not None)
        if validates_width:
            n_searches += len(defaults.widths) + len(priors) - 1
        return _Plan(initial_modes, validates_width, priors, wide_network, n_searches)

    def _execute(
        self, plan: _Plan, problem: GaussianEvidence, searcher: "_RegressionSearcher"
    ) -> ModesFit:
        """Run the searches of a plan."""
        if plan.initial_modes is not None:
            return searcher.resume(problem, plan.initial_modes)
        if not plan.validates_width:
            return self._search_default_width(plan, problem, searcher)
        (_, y, weight) = problem.data
        if joblib.effective_n_jobs(searcher.n_jobs) > 1:
            searcher.begin_in_parallel(problem, plan)
        selection = select_width(
            partial(searcher.validate, problem),
            plan.priors,
            problem.network,
            y,
            weight,
            self.defaults,
            partial(self._widens, plan, problem, searcher),
        )
        selected = _resize(problem, selection.width, selection.prior)
        if selection.stopped_fit is not None:
            fit = selection.stopped_fit
        elif selection.width < self.defaults.default_width:
            fit = searcher.search(selected, selection.fold_modes)
        else:
            if len(plan.priors) > 1:
                problem = selected
            fit = self._search_default_width(
                plan,
                problem,
                searcher,
                selection.fold_modes,
                has_low_noise=selection.has_low_noise,
            )
        unit = searcher.data.log_jacobian / searcher.data.total_weight
        scores = {width: score + unit for width, score in selection.scores.items()}
        return replace(fit, width_scores=scores)

    def _search_default_width(
        self,
        plan: _Plan,
        problem: GaussianEvidence,
        searcher: "_RegressionSearcher",
        fold_modes: ModesFit | None = None,
        *,
        has_low_noise: bool = False,
    ) -> ModesFit:
        """Search for modes of the default width, or of the wide network for low noise.

        Parameters
        ----------
        plan : _Plan
        problem : GaussianEvidence
            Problem of the default width.
        searcher : _RegressionSearcher
        fold_modes : ModesFit, optional
            Modes of the default width to continue from.
        has_low_noise : bool, default=False
            Whether the noise is negligible, so that all steps are made.

        Returns
        -------
        ModesFit
        """
        widens = self._widens(plan, problem, searcher)
        if searcher.pilot is not None and searcher.pilot.search.was_stopped:
            return searcher.pilot
        if widens and plan.wide_network is not None:
            prior = self.unbound_prior or ARD()
            problem = _resize(problem, plan.wide_network.hidden_layer_sizes[0], prior)
            fold_modes = None
        return searcher.search(problem, fold_modes, has_low_noise=has_low_noise)

    def _widens(
        self, plan: _Plan, problem: GaussianEvidence, searcher: "_RegressionSearcher"
    ) -> bool:
        """Whether there is little noise to overfit for the wide network, or there are many rows."""
        if plan.wide_network is None:
            return False
        if self.defaults.has_ample_rows(searcher.data.n_rows, plan.wide_network):
            return True
        pilot = searcher.search_pilot(problem)
        fraction = noise_variance_fraction(pilot.modes, searcher.data.double_data.y.cpu())
        return fraction <= self.defaults.max_noise_fraction


def _resize(problem: GaussianEvidence, width: int, prior: UnboundPrior) -> GaussianEvidence:
    """Return the problem of a network of another width, under a prior."""
    network = make_network(problem.network, width)
    return replace(problem, network=network, prior=group_scales(prior.bind(network.layout)))


# Modes that were fitted without a fold each, and the predictions of these folds.
_Validation = tuple[Search, HeldOutPredictions | None]


class _RegressionSearcher:
    """Searches of one fit, for networks of any width.

    Parameters
    ----------
    method : GaussNewtonLaplaceRegression
    data : Training
    progress : FitProgress
        Progress of the fit.
    """

    def __init__(
        self, method: GaussNewtonLaplaceRegression, data: Training, progress: FitProgress
    ) -> None:
        self.data = data
        self._method = method
        self._progress = progress
        self._start_seed, self._predict_seed, self._fold_seed = spawn_seeds(data.seed, 3)
        self._make_current_fit: Callable[[], ModesFit] | None = None
        self.n_jobs = progress.n_jobs
        self.pilot: ModesFit | None = None  # the result of `search_pilot`
        # Results of `begin_in_parallel` by width and prior.
        self._validations: dict[tuple[int, UnboundPrior], _Validation] = {}

    def current_fit(self) -> ModesFit:
        """Modes that the present search has found so far."""
        assert self._make_current_fit is not None, "no step has been made"
        return self._make_current_fit()

    def search(
        self,
        problem: GaussianEvidence,
        fold_modes: ModesFit | None = None,
        *,
        has_low_noise: bool = False,
    ) -> ModesFit:
        """Search for all modes.

        Parameters
        ----------
        problem : GaussianEvidence
        fold_modes : ModesFit, optional
            Modes fitted without a fold each, to continue from.
        has_low_noise : bool, default=False
            Whether the noise is negligible, so that all steps are made.

        Returns
        -------
        ModesFit
        """
        defaults = self._method.defaults
        n = self.n_restarts(problem.network)
        draw = partial(self._draw, problem)
        config = self._config(problem, has_low_noise=has_low_noise)
        on_step = self._on_step(problem)
        n_final = defaults.final_steps(self.data.n_rows, problem.network)
        if n_final and isinstance(self._method.max_iter, str):
            # Large data: a subsample finds the modes, and a few steps of all rows complete them.
            subsample = subsample_problem(problem, defaults.subsample_rows)
            rough = search_regression(config, subsample, draw, n, on_step)
            if rough.was_stopped:
                return self._fit(subsample, merge_copies(subsample, rough))
            steps = problem.schedule.first_best_step + n_final
            final = replace(config, max_iter=steps, max_extra_steps=0)
            search = final.resume(problem, rough.modes, on_step)
        else:
            modes = None
            if fold_modes is not None:
                modes = fold_modes.search.modes
            search = search_regression(config, problem, draw, n, on_step, modes)
        return self._fit(problem, merge_copies(problem, search))

    def search_pilot(self, problem: GaussianEvidence) -> ModesFit:
        """Search once for two modes of a subsample, one from each start, to estimate the noise."""
        if self.pilot is None:
            search = self._search_pilot(problem, self._on_step(problem))
            self.pilot = self._fit(problem, search)
        return self.pilot

    def _search_pilot(
        self, problem: GaussianEvidence, on_step: SearchCallback | None = None
    ) -> Search:
        """Return the search of `search_pilot`."""
        defaults = self._method.defaults
        subsample = subsample_problem(problem, defaults.pilot_rows)
        theta = self._draw(problem, 2)
        config = self._config(problem)
        steps = min(config.max_iter, defaults.pilot_steps)
        config = replace(config, max_iter=steps, max_extra_steps=config.max_iter - steps)
        return config.search(subsample, theta, alternating_mask(2, theta), on_step)

    def begin_in_parallel(self, problem: GaussianEvidence, plan: _Plan) -> None:
        """Validate all but the largest width, and search the pilot, each in a thread.

        `select_width` needs all of these validations, and the pilot in most fits. `validate` and
        `search_pilot` return these results.
        """
        *widths, middle = self._method.defaults.widths[:-1]
        keys = [(width, plan.priors[0]) for width in widths]
        keys += [(middle, prior) for prior in plan.priors]
        jobs: list[Callable[[], Any]] = [
            partial(self._cross_validate, problem, width, prior) for width, prior in keys
        ]
        if plan.wide_network is not None:
            jobs.append(partial(self._search_pilot, problem))
        results = list(run_parallel(jobs, self.n_jobs, prefer="threads"))
        self._validations = dict(zip(keys, results, strict=False))
        if plan.wide_network is not None:
            self.pilot = self._fit(problem, results[-1])

    def resume(self, problem: GaussianEvidence, initial_modes: InitialModes) -> ModesFit:
        """Continue from modes of an earlier fit, with its width and prior."""
        network = initial_modes.network
        prior = initial_modes.prior
        state = (t.to(self.data.device) for t in initial_modes[2:])
        initial_modes = InitialModes(network, prior, *state)
        problem = _resize(problem, network.hidden_layer_sizes[0], prior)
        search = self._config(problem).resume(problem, initial_modes, self._on_step(problem))
        return self._fit(problem, merge_copies(problem, search))

    def validate(
        self, problem: GaussianEvidence, width: int, prior: UnboundPrior
    ) -> tuple[ModesFit, HeldOutPredictions | None]:
        """Fit modes of a width without each fold, with fewer and conservative steps.

        Parameters
        ----------
        problem : GaussianEvidence
            Problem of any width.
        width : int
            Number of units.
        prior : UnboundPrior

        Returns
        -------
        ModesFit
            Modes, each fitted without a fold.
        HeldOutPredictions or None
            Predictions of the folds, None if the search was stopped.
        """
        resized = _resize(problem, width, prior)
        on_step = self._on_step(resized)
        if (width, prior) not in self._validations:
            search, held_out = self._cross_validate(problem, width, prior, on_step)
            return self._fit(resized, search), held_out
        # Report the steps that were made in a thread.
        search, held_out = self._validations[width, prior]
        n_steps = int(search.modes.n_iter.max())
        if any(on_step(step, lambda: search) for step in range(1, n_steps + 1)):
            return self._fit(resized, search.with_stop_reason("callback")), None
        return self._fit(resized, search), held_out

    def _cross_validate(
        self,
        problem: GaussianEvidence,
        width: int,
        prior: UnboundPrior,
        on_step: SearchCallback | None = None,
    ) -> _Validation:
        """Return the search of `validate`, and the held-out predictions.

        Parameters
        ----------
        problem : GaussianEvidence
            Problem of any width.
        width : int
            Number of units.
        prior : UnboundPrior
        on_step : callable, optional
            As in `EvidenceSearch.search`.

        Returns
        -------
        Search
        HeldOutPredictions or None
        """
        problem = _resize(problem, width, prior)
        defaults = self._method.defaults
        config = self._config(problem)
        tol = config.tol
        if tol is not None:
            tol = max(defaults.validation_tol, resolve_auto(tol, 0.0))
        steps = min(config.max_iter, defaults.validation_steps)
        max_extra_steps = config.max_iter + config.max_extra_steps - steps
        max_extra_steps = min(max_extra_steps, defaults.validation_extra_steps)
        config = EvidenceSearch(
            steps, tol, max_extra_steps, conservative=True, n_jobs=config.n_jobs
        )
        generator = generator_from(self._fold_seed)
        fold = assign_folds(self.data.n_rows, defaults.folds, generator=generator)
        fold = fold.to(self.data.device)
        start = self._draw(problem, MODES_PER_FOLD * defaults.folds)
        return cross_validate(config, problem, start, fold, on_step)

    def n_restarts(self, network: MLP) -> int:
        """Return the number of restarts, and require memory for their systems."""
        method = self._method
        n = method.defaults.choose_n_restarts(
            method.n_restarts, self.data.n_rows, network, method.max_modes
        )
        # Systems, their factors and inverses.
        require_memory_for_systems(self.data, network, n, 5 * (network.n_outputs + 1))
        return n

    def _config(self, problem: GaussianEvidence, *, has_low_noise: bool = False) -> EvidenceSearch:
        max_iter = self._method.max_iter
        max_extra_steps = 0
        defaults = self._method.defaults
        if isinstance(max_iter, str):
            max_iter = defaults.regression_steps(
                self.data.n_rows, problem.network, has_low_noise=has_low_noise
            )
            max_extra_steps = defaults.extra_steps_factor * max_iter
        return EvidenceSearch(max_iter, self._method.tol, max_extra_steps, n_jobs=self.n_jobs)

    def _fit(self, problem: GaussianEvidence, search: Search) -> ModesFit:
        return ModesFit(search, problem.network, problem.prior, self._predict_seed)

    def _draw(self, problem: GaussianEvidence, n: int) -> Tensor:
        generator = generator_from(self._start_seed)
        theta = draw_initial_weights(problem.network, n, generator=generator)
        return theta.to(self.data.device)

    def _on_step(self, problem: GaussianEvidence) -> SearchCallback:
        """Return a callback that ends a block after every step and keeps the modes so far."""

        def on_step(_: int, search: Callable[[], Search]) -> bool:
            self._make_current_fit = lambda: self._fit(problem, merge_copies(problem, search()))
            return self._progress.end_block()

        return on_step
