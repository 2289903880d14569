"""Bayesian neural networks as a member of a stack."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn import config_context

from skbayes_sym.base.noise_shape import fit_noise_shape
from skbayes_sym.base.plan import PlannedStage, Results, Rule, TableSize
from skbayes_sym.base.progress import fit_deadline
from skbayes_sym.base.rows import Array
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.bayesian_mlp.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import CountsPredictor, EstimatorPredictor, merge_components
from skbayes_sym.stacking.task import MemberFit, ScoredMember, StackTask


@dataclass(frozen=True, eq=False)
class HeldOutScore:
    """Log densities of networks that were fitted without these rows.

    Parameters
    ----------
    index : ndarray of shape (n_test,)
        Indices of the held-out rows.
    log_density : ndarray of shape (n_test,)
        Log densities in nats.
    """

    index: Array
    log_density: Array


@dataclass(frozen=True)
class ProbeResult:
    """Comparison of networks with the best other member.

    Parameters
    ----------
    gap : float
        Nats per row by which the networks score below the best other member.
    gap_error : float, default=0.0
        Standard error of the gap; 0 for leave-one-out scores of all rows.
    held_out : HeldOutScore, optional
        Scores of the held-out fold, if networks were refitted.
    """

    gap: float
    gap_error: float = 0.0
    held_out: HeldOutScore | None = None

    def __str__(self) -> str:
        if self.gap == -np.inf:
            return "no score"
        direction = "below" if self.gap >= 0.0 else "above"
        return f"{abs(self.gap):.2g} nats per row {direction} the best other member"


def probe_is_behind(stage: str, max_gap: float) -> Rule:
    """Rule of a wider probe: the narrower one in ``stage`` is more than ``max_gap`` behind."""
    return Rule(
        lambda results: stage not in results or results[stage].gap > max_gap,
        f"narrower networks score at most {max_gap:g} nats per row below the best other member",
    )


def probe_is_near(stage: str, max_gap: float) -> Rule:
    """Rule of a wider probe on few rows: the narrower one is at most ``max_gap`` behind."""
    return Rule(
        lambda results: stage not in results or results[stage].gap <= max_gap,
        f"narrower networks score more than {max_gap:g} nats per row below the best other member",
    )


def networks_are_competitive(stages: Sequence[str], max_gap: float) -> Rule:
    """Rule of the networks: one of the probes is at most ``max_gap`` behind, or its error."""

    def holds(results: Results) -> bool:
        probes = [results[stage] for stage in stages if stage in results]
        return not probes or any(p.gap <= max(max_gap, p.gap_error) for p in probes)

    reason = f"the probes score more than {max_gap:g} nats per row below the best other member"
    return Rule(holds, reason)


def has_other_member() -> Rule:
    """Rule of a probe: there is a member with which it can be compared."""
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
    held_out : HeldOutScore, optional
        Scores of a refit without the first fold. By default the networks are refitted if these
        scores are needed.
    max_weights_per_row : float, default=0.5
        Leave-one-out scores of networks with more weights per row are corrected by the scores of
        the refit.
    """

    is_expensive: ClassVar[bool] = True

    previous: Any = None
    held_out: HeldOutScore | None = None
    max_weights_per_row: float = StackDefaults.max_weights_per_row

    def plan(self, name: str, size: TableSize, defaults: StackDefaults) -> list[PlannedStage]:
        """Plan cheap probes, which have to be competitive with the other members, and the fit."""
        settings: dict[str, Any] = {"max_weights_per_row": defaults.max_weights_per_row}
        if self.previous is not None:
            return [PlannedStage(name, "fit_networks", {"member": name, **settings})]
        if size.n_classes:
            probes = self._plan_refit(name, size, defaults)
            if probes:
                settings["held_out"] = probes[0].name
        else:
            probes = self._plan_probes(name, size, defaults)
        stages = [probe.name for probe in probes]
        rules = [networks_are_competitive(stages, defaults.max_probe_gap)] if probes else []
        fit = PlannedStage(name, "fit_networks", {"member": name, **settings}, rules)
        return [*probes, fit]

    def _plan_probes(
        self, name: str, size: TableSize, defaults: StackDefaults
    ) -> list[PlannedStage]:
        """Plan leave-one-out scores of two modes: first few units, then the usual width."""
        mixture = GaussNewtonDefaults()
        narrow = mixture.widths[0]
        wide = mixture.choose_regression_width(size.n_rows, size.n_columns, 1)
        narrow_name = f"probe of {name}, {narrow} units"
        rules = [has_other_member(), probe_is_behind(narrow_name, defaults.max_probe_gap)]
        if size.n_rows <= defaults.max_rows_narrow_probe:
            rules.append(probe_is_near(narrow_name, 2.0 * defaults.max_probe_gap))
        settings = {"member": name, "n_modes": defaults.n_probe_modes}
        return [
            PlannedStage(
                narrow_name, "probe_networks", {**settings, "width": narrow}, [has_other_member()]
            ),
            PlannedStage(
                f"probe of {name}, {wide} units",
                "probe_networks",
                {**settings, "width": wide},
                rules,
            ),
        ]

    def _plan_refit(
        self, name: str, size: TableSize, defaults: StackDefaults
    ) -> list[PlannedStage]:
        """Plan a refit of classification networks without a fold, if their fit needs it anyway.

        On six tables with class probabilities that settle, another probe took a third of the time
        again and stopped nothing.
        """
        mixture = GaussNewtonDefaults()
        max_modes = BayesianMLPClassifier().n_modes
        n_outputs = size.n_classes if size.n_classes > 2 else 1
        width = mixture.choose_classification_width(
            size.n_rows, size.n_columns, n_outputs, max_modes
        )
        network = MLP(size.n_columns, (width,), n_outputs, TANH)
        n_modes, _ = mixture.affordable_classification_modes(max_modes, size.n_rows, network)
        if not n_modes:
            return []
        if network.layout.n_params <= defaults.max_weights_per_row * size.n_rows:
            return []
        settings = {
            "member": name,
            "n_modes": min(defaults.n_probe_modes, n_modes),
            "width": width,
        }
        title = f"refit of {name} without a fold"
        return [PlannedStage(title, "refit_networks", settings, [has_other_member()])]

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        model = self._fit_model(task, {}, self.previous)
        predictor = EstimatorPredictor(model)
        if not task.folds:
            return MemberFit(predictor, is_calibrated=True)
        if task.groups is not None:
            # The units have seen all groups. The stack refits the networks without each fold, and
            # fits their noise to the left-out groups.
            is_calibrated = bool(task.n_classes or task.is_count)
            return MemberFit(predictor, is_calibrated=is_calibrated)

        # Without leave-one-out scores, and for counts, the rows of one fold are scored.
        density = model.leave_one_out_log_density
        if density is None or task.is_count:
            density = np.full(len(task), np.nan)
            held_out = self.held_out or self.score_refit(task, self._refit_params(task, model))
            density[held_out.index] = held_out.log_density

        # Leave-one-out scores are too optimistic with many weights. The refit measures by how much.
        optimism = 0.0
        n_weights = model.network_.layout.n_params
        has_many_weights = n_weights > self.max_weights_per_row * len(task)
        if has_many_weights and np.isfinite(density).all():
            held_out = self.held_out or self.score_refit(task, self._refit_params(task, model))
            excess = density[held_out.index] - held_out.log_density
            optimism = max(0.0, float(np.average(excess)))
        return MemberFit(predictor, torch.as_tensor(density), is_calibrated=True, optimism=optimism)

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
            params = self._refit_params(task, model)
            if params:
                params["n_modes"] = 1
            if model.linear_weight_ == 1.0:
                # The mixture is a linear model.
                params["hidden_layer_sizes"] = ()
        return EstimatorPredictor(self._fit_model(task, params))

    def score_probe(self, task: StackTask, width: int, n_modes: int) -> float:
        """Leave-one-out score of modes with ``width`` units, in nats per row.

        It is infinite if there are too many rows for leave-one-out.
        """
        params = {"hidden_layer_sizes": width, "n_modes": n_modes, "n_members": 0}
        density = self._fit_model(task, params).leave_one_out_log_density
        if density is None:
            return np.inf
        return float(np.average(density, weights=task.weight.numpy()))

    def _refit_params(self, task: StackTask, model: Any) -> dict[str, Any]:
        """Parameters of a refit of ``model`` without members and with at most two of its modes."""
        n_restarts = model.multiplicity_modes_
        if n_restarts is None:
            return {}
        return {
            "n_modes": min(task.defaults.n_probe_modes, int(n_restarts.sum())),
            "n_members": 0,
            "hidden_layer_sizes": model.network_.hidden_layer_sizes,
        }

    def score_refit(self, task: StackTask, params: dict[str, Any]) -> HeldOutScore:
        """Refit networks without the first fold and score its rows."""
        train, test = task.folds[0]
        predictor = EstimatorPredictor(self._fit_model(task.take(train), params))
        x_test = task.rows.x[test]
        if task.groups is not None and not task.n_classes and not task.is_count:
            # Noise within groups is too narrow for new groups.
            held_out = merge_components(predictor.distribution(x_test))
            weight = task.weight[test]
            _, log_density = fit_noise_shape(held_out, task.y[test], weight, is_free=True)
            return HeldOutScore(test, log_density.numpy())
        if task.is_count:
            counts = CountsPredictor(predictor, *task.target_scaling)
            log_probability = counts.distribution(x_test).log_prob(task.y[test])
            return HeldOutScore(test, log_probability.numpy())
        y_test = task.targets[test] if task.n_classes else task.y[test].numpy()
        return HeldOutScore(test, predictor.log_density(x_test, y_test).numpy())

    def _fit_model(self, task: StackTask, params: dict[str, Any], previous: Any = None) -> Any:
        """Fit a mixture of networks to the encoded rows.

        Parameters
        ----------
        task : StackTask
            Training data.
        params : dict
            Parameters of the estimator that differ from its defaults.
        previous : BayesianMLPRegressor, optional
            Fitted mixture from which the fit continues.

        Returns
        -------
        BayesianMLPRegressor or BayesianMLPClassifier
            Fitted estimator, which predicts on the CPU.
        """
        model: Any
        if previous is not None:
            model = copy(previous)
        elif task.n_classes:
            model = BayesianMLPClassifier()
        else:
            # The stack has left out gross errors already.
            model = BayesianMLPRegressor(outliers="keep")
        model.set_params(**params, random_state=task.seed % 2**32, device=task.device)
        model.warm_start = previous is not None
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
