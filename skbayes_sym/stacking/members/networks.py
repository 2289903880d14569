"""Bayesian neural networks as a member of a stack."""

import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn import config_context

from skbayes_sym.base.messages import collect_warnings, format_digits
from skbayes_sym.base.model_factory import group_scales
from skbayes_sym.base.noise_shape import fit_noise_shape
from skbayes_sym.base.plan import PlannedStage, Results, Rule, TableSize, never
from skbayes_sym.base.progress import fit_deadline
from skbayes_sym.base.rows import Array
from skbayes_sym.base.stacking_weights import leave_one_out
from skbayes_sym.bayesian_mlp.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from skbayes_sym.bayesian_mlp.fit import ClassificationPool
from skbayes_sym.laplace.defaults import GaussNewtonDefaults, gauss_newton_cost
from skbayes_sym.laplace.evidence_problem import GaussianEvidence
from skbayes_sym.laplace.initialization import HeldOutPredictions, refit_folds
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    Search,
    SearchCallback,
    draw_initial_weights,
)
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.models.priors import ARD
from skbayes_sym.numerics.progress import part_of_progress
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member, require_classes
from skbayes_sym.stacking.predictors import EstimatorPredictor
from skbayes_sym.stacking.task import MemberFit, ScoredMember, StackTask


def choose_probe_width(size: TableSize, defaults: StackDefaults) -> int:
    """Number of units of a probe, or 0 if all would take longer than the other members."""
    mixture = GaussNewtonDefaults()
    n_outputs = size.n_classes if size.n_classes > 2 else 1
    for width in defaults.probe_widths:
        n_params = MLP(size.n_columns, (width,), n_outputs, TANH).layout.n_params
        has_rows = True
        if size.n_classes:
            steps = mixture.classification_steps(n_params)
            min_rows = defaults.min_probe_rows_per_weight * n_params
            has_rows = min_rows <= size.n_rows or width == defaults.probe_widths[-1]
        else:
            # Half of the steps with all rows are made only while the evidence rises.
            steps = 2 * defaults.probe_steps + defaults.n_folds * defaults.probe_fold_steps
        cost = gauss_newton_cost(1, steps, size.n_rows, n_params, n_outputs)
        if has_rows and cost <= defaults.max_probe_work:
            return width
    return 0


def correct_optimism(leave_one_out: Array, held_out: Array, weight: Array) -> Array:
    """Replace approximate leave-one-out densities, which have seen the rows, by held-out ones.

    Parameters
    ----------
    leave_one_out : ndarray of shape (N,)
        Leave-one-out log densities in nats.
    held_out : ndarray of shape (N,)
        Log densities by the probe; nan for rows that weren't held out.
    weight : ndarray of shape (N,)
        Sample weights.

    Returns
    -------
    ndarray of shape (N,)
        Held-out log densities where they are known, and otherwise leave-one-out log densities less
        their mean excess at the held-out rows, if that is positive.
    """
    excess = leave_one_out - held_out
    is_known = np.isfinite(excess)
    optimism = 0.0
    if is_known.any():
        optimism = max(0.0, float(np.average(excess[is_known], weights=weight[is_known])))
    return np.where(np.isfinite(held_out), held_out, leave_one_out - optimism)


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Gain of the stack from networks that were fitted without the rows that score them.

    Parameters
    ----------
    log_density : ndarray of shape (N,), optional
        Held-out log densities of the networks in nats; nan for rows that weren't held out. None if
        the networks couldn't be fitted.
    gain : float, default=0.0
        Held-out log density of the stack with the networks less that of the stack without them, in
        nats per row.
    error : float, default=0.0
        Standard error of the gain.
    approximate : NormalMixture, optional
        Leave-one-out predictions (1, N, 1) of a probe that has seen the rows.
    """

    log_density: Array | None = None
    gain: float = 0.0
    error: float = 0.0
    approximate: NormalMixture | None = None

    def excess(self, task: StackTask) -> float:
        """Nats per row by which the leave-one-out densities exceed the held-out ones."""
        if self.log_density is None or self.approximate is None:
            return 0.0
        index = task.left_out_index
        weight = task.weight[index]
        leave_one_out = self.approximate.take(index)
        _, density = fit_noise_shape(leave_one_out, task.y[index], weight, is_free=True)
        excess = density - torch.as_tensor(self.log_density[index])
        return float(weight @ excess / weight.sum())

    def __str__(self) -> str:
        if self.log_density is None:
            return "failed"
        gain = f"{format_digits(self.gain, 2)} +- {format_digits(self.error, 1)}"
        return f"the stack gains {gain} nats per held-out row"


def stack_gains(stage: str, min_errors: float) -> Rule:
    """Rule of the networks: the probe in ``stage`` raised the score of the stack, or failed.

    The fit of the networks then raises the error of the probe again, and reports it.
    """

    def holds(results: Results) -> bool:
        if stage not in results or results[stage].log_density is None:
            return True
        return bool(results[stage].gain > min_errors * results[stage].error)

    return Rule(holds, f"the stack gains less than {min_errors:g} standard errors from the probe")


def has_other_member() -> Rule:
    """Rule of a probe: there is a member next to which it can be scored."""
    return Rule(
        lambda results: any(isinstance(result, ScoredMember) for result in results.values()),
        "no other member was fitted",
    )


@dataclass(frozen=True, eq=False)
class Networks(Member):
    """`BayesianMLPRegressor` or `BayesianMLPClassifier`, with approximate leave-one-out scores.

    Parameters
    ----------
    previous : BayesianMLPRegressor, optional
        Mixture that was fitted to nearly the same rows, from whose modes the fit continues.
    probe : ProbeResult, optional
        Scores of a probe. In classification its held-out densities correct the leave-one-out
        scores, see `correct_optimism`. In regression the networks predict better than their probe,
        and their scores are only lowered by the excess of its leave-one-out densities.
    """

    is_expensive: ClassVar[bool] = True

    previous: Any = None
    probe: ProbeResult | None = None

    def plan(self, name: str, size: TableSize, defaults: StackDefaults) -> list[PlannedStage]:
        """Plan a cheap probe, from which the stack has to gain, and the fit."""
        settings: dict[str, Any] = {"member": name}
        if self.previous is not None:
            return [PlannedStage(name, "fit_networks", settings)]
        width = choose_probe_width(size, defaults)
        if not width:
            reason = f"a probe of {defaults.probe_widths[-1]} units would take too long"
            return [PlannedStage(name, "fit_networks", settings, [never(reason)])]
        probe = PlannedStage(
            f"probe of {name}",
            "probe_networks",
            {"member": name, "width": width},
            [has_other_member()],
        )
        fit = PlannedStage(
            name,
            "fit_networks",
            {"member": name, "probe": probe.name},
            [stack_gains(probe.name, defaults.min_gain_errors)],
        )
        return [probe, fit]

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        model = self._fit_model(task)
        predictor = EstimatorPredictor(model)
        if task.groups is not None:
            # The units have seen all groups. The stack refits the networks without each fold, and
            # fits their noise to the left-out groups.
            is_calibrated = bool(task.n_classes or task.is_count)
            return MemberFit(predictor, is_calibrated=is_calibrated)
        density = model.leave_one_out_log_density
        if density is None or task.is_count:
            density = np.full(len(task), np.nan)
        optimism = 0.0
        if self.probe is not None and self.probe.log_density is not None:
            if task.n_classes or not np.isfinite(density).any():
                density = correct_optimism(density, self.probe.log_density, task.weight.numpy())
            else:
                optimism = max(0.0, self.probe.excess(task))
        if not np.isfinite(density).any():
            return MemberFit(predictor, is_calibrated=True)  # the stack refits it for each fold
        density = torch.as_tensor(density)
        return MemberFit(predictor, density, is_calibrated=True, optimism=optimism)

    def choose_folds(self, task: StackTask) -> list[tuple[Array, Array]]:
        """Join pairs of folds, since refits of networks take most of the time with groups."""
        if len(task.folds) <= 3:
            return list(task.folds)
        tests = [test for _, test in task.folds]
        all_rows = np.arange(len(task))
        folds = []
        for k in range(0, len(tests), 2):
            test = np.sort(np.concatenate(tests[k : k + 2]))
            folds.append((np.setdiff1d(all_rows, test), test))
        return folds

    def fit_fold(self, task: StackTask, fit: MemberFit) -> EstimatorPredictor:
        """Fit the training rows of a fold; with groups, by a single mode and without members."""
        params = {}
        if fit.leave_one_out is None:
            model = fit.predictor.estimator
            if model.multiplicity_modes_ is not None:
                widths = model.network_.hidden_layer_sizes
                params = {"n_modes": 1, "n_members": 0, "hidden_layer_sizes": widths}
            if model.linear_weight_ == 1.0:
                # The mixture is a linear model.
                params["hidden_layer_sizes"] = ()
        return EstimatorPredictor(self._fit_model(task, params))

    def _fit_model(self, task: StackTask, params: Mapping[str, Any] | None = None) -> Any:
        """Fit a mixture of networks, some of whose parameters differ from their defaults."""
        if self.previous is not None:
            model = copy(self.previous)
        elif task.n_classes:
            require_classes(task)
            model = BayesianMLPClassifier()
        else:
            # The stack has left out gross errors already. Ensemble members would double the time,
            # and the stack doesn't gain from them.
            model = BayesianMLPRegressor(n_members=0, outliers="keep")
            if len(task) > task.defaults.large_table_rows:
                model.set_params(n_modes=task.defaults.large_table_modes)
        model.warm_start = self.previous is not None
        model.set_params(**(params or {}))
        return fit_estimator(model, task)


class ProbeClassifier(BayesianMLPClassifier):
    """Mixture of networks without a linear model, which is a member of its own in stacks."""

    def _make_method(self) -> ClassificationPool:
        return replace(super()._make_method(), fits_linear=False)


@dataclass(frozen=True)
class NetworkProbe(Member):
    """Small networks that are fitted without a fold each, and never used for predictions.

    Parameters
    ----------
    width : int
        Number of hidden units.
    """

    relative_cost: ClassVar[float] = 4.0

    width: int

    def fit(self, task: StackTask) -> MemberFit:
        """Predict held-out rows.

        In regression a mode of all rows is refitted without each fold by a few steps. In
        classification one mode is fitted without the first fold, and the densities of other rows
        are nan.
        """
        if task.n_classes:
            density = torch.as_tensor(self._score_classes(task))
            return MemberFit(None, density, is_calibrated=True, used_folds=True)

        # Find a mode of all rows.
        network = MLP(task.rows.x.shape[1], (self.width,), 1, TANH)
        prior = group_scales(ARD().bind(network.layout))
        problem = GaussianEvidence(network, task.data, prior)
        theta = draw_initial_weights(network, 1, generator=generator_from(task.seed))
        defaults = task.defaults
        config = EvidenceSearch(defaults.probe_steps, defaults.probe_tol, defaults.probe_steps)

        def is_late(_step: int, _search: Callable[[], Search]) -> bool:
            return time.monotonic() > task.deadline

        with torch.no_grad():
            with part_of_progress(0.0, 0.7):
                search = config.search(problem, theta, on_step=is_late)
            held_out = None
            if not search.was_stopped:
                with part_of_progress(0.7, 1.0):
                    held_out = self._refit_folds(task, problem, search, is_late)
        if held_out is None:
            raise TimeoutError("max_seconds left no time for it.")

        # Its own leave-one-out predictions show how optimistic they are.
        mode = search.modes
        networks = LinearisedModes(network, mode.theta, mode.factor, mode.weights)
        outputs, covariance = networks.outputs(task.rows.x)
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        noise_variance = mode.noise_precision.reciprocal().unsqueeze(1).expand_as(outputs)
        distribution = NormalMixture(outputs, variance, noise_variance)
        approximate = leave_one_out(distribution, task.y, task.weight)
        return MemberFit(None, held_out.distribution, approximate=approximate, used_folds=True)

    def _refit_folds(
        self, task: StackTask, problem: GaussianEvidence, search: Search, is_late: SearchCallback
    ) -> HeldOutPredictions | None:
        """Refit a mode without each fold.

        Parameters
        ----------
        task : StackTask
            Training data.
        problem : GaussianEvidence
            Problem of all rows.
        search : Search
            Its mode.
        is_late : callable
            Whether time is up.

        Returns
        -------
        HeldOutPredictions or None
            None if time is up.
        """
        fold = torch.full((len(task),), -1)
        is_training = torch.zeros(len(task.folds), len(task), dtype=torch.bool)
        for k, (train, test) in enumerate(task.folds):
            fold[torch.as_tensor(test)] = k
            is_training[k, torch.as_tensor(train)] = True
        steps = problem.schedule.first_best_step + task.defaults.probe_fold_steps
        config = EvidenceSearch(steps, task.defaults.probe_tol)
        return refit_folds(config, problem, search.modes, fold, is_training, is_late)

    def _score_classes(self, task: StackTask) -> Array:
        """Log probabilities of the labels of the first fold, nan for other rows."""
        train, test = task.folds[0]
        model = ProbeClassifier(self.width, n_modes=1, n_members=0)
        predictor = EstimatorPredictor(fit_estimator(model, task.take(train)))
        density = np.full(len(task), np.nan)
        density[test] = predictor.log_density(task.rows.x[test], task.targets[test]).numpy()
        return density


def fit_estimator(model: Any, task: StackTask) -> Any:
    """Fit an estimator of networks to the encoded rows. It predicts on the CPU."""
    model.set_params(random_state=task.seed % 2**32, device=task.device)
    model.set_params(compute_evidence=False)  # predictions don't need it
    # The deadline doesn't reach worker processes.
    has_deadline = task.deadline < float("inf")
    model.set_params(n_jobs=None if has_deadline else task.n_jobs)
    x, y, weight = task.arrays
    # Users have no access to the networks' parameters, so that warnings are of no use to them.
    with (
        collect_warnings(), fit_deadline(task.deadline),
        config_context(skip_parameter_validation=True),
    ):  # fmt: skip
        model.fit(x, task.targets if task.n_classes else y, weight)
    model.device_ = "cpu"  # where the other members predict
    return model
