"""Bayesian neural networks as a member of a stack."""

from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn import config_context

from skbayes_sym.base.progress import fit_deadline
from skbayes_sym.base.rows import Array
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.bayesian_mlp.estimators import BayesianMLPClassifier, BayesianMLPRegressor
from skbayes_sym.laplace.defaults import GaussNewtonDefaults
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import CountsPredictor, EstimatorPredictor
from skbayes_sym.stacking.task import MemberFit, StackTask

HeldOut = tuple[Array, Array]  # indices of held-out rows, and their log densities


@dataclass(eq=False)
class Networks(Member):
    """`BayesianMLPRegressor` or `BayesianMLPClassifier`, with approximate leave-one-out scores.

    Parameters
    ----------
    previous : BayesianMLPRegressor, optional
        Mixture that was fitted to nearly the same rows, from whose modes the fit continues.
    """

    previous: Any = None
    _refit: HeldOut | None = None  # result of `refit_before_fit`

    def fit(self, task: StackTask) -> MemberFit:
        model = self._fit_model(task, {}, self.previous)
        predictor = EstimatorPredictor(model)
        if not task.folds:
            return MemberFit(predictor, is_calibrated=True)

        # Without leave-one-out scores, and for counts, the held-out rows of one fold are scored.
        density = model.leave_one_out_log_density
        if density is None or task.is_count:
            density = np.full(len(task), np.nan)
            test, refit_density = self._refit or self._score_refit(
                task, self._refit_params(task, model)
            )
            density[test] = refit_density

        # Leave-one-out scores are too optimistic with many weights. The refit measures by how much.
        optimism = 0.0
        n_weights = model.network_.layout.n_params
        has_many_weights = n_weights > task.defaults.max_weights_per_row * len(task)
        if has_many_weights and np.isfinite(density).all():
            test, refit_density = self._refit or self._score_refit(
                task, self._refit_params(task, model)
            )
            optimism = max(0.0, float(np.average(density[test] - refit_density)))
        return MemberFit(predictor, torch.as_tensor(density), is_calibrated=True, optimism=optimism)

    def probe(self, task: StackTask, required_score: float) -> float:
        """Score networks of two modes by leave-one-out, first narrow ones, then the usual width.

        Parameters
        ----------
        task : StackTask
            Training data.
        required_score : float
            Score in nats per row that networks need. The usual width is tried only if narrow
            networks miss it, and not if there are few rows and narrow networks are far behind.

        Returns
        -------
        float
            Highest leave-one-out score in nats per row. Infinity if no row was left out.
        """
        mixture_defaults = GaussNewtonDefaults()
        defaults = task.defaults
        best_score = -np.inf
        usual_width = mixture_defaults.choose_regression_width(len(task), task.rows.x.shape[1], 1)
        for width in (mixture_defaults.widths[0], usual_width):
            score = self.score_width(task, width)
            best_score = max(best_score, score)
            is_far_behind = best_score < required_score - defaults.max_probe_gap
            has_few_rows = len(task) <= defaults.max_rows_narrow_probe
            if best_score >= required_score or (has_few_rows and is_far_behind):
                break
        return best_score

    def score_width(self, task: StackTask, width: int) -> float:
        """Leave-one-out score of two modes with ``width`` units, in nats per row."""
        n_modes = task.defaults.n_probe_modes
        params = {"hidden_layer_sizes": width, "n_modes": n_modes, "n_members": 0}
        density = self._fit_model(task, params).leave_one_out_log_density
        if density is None:
            return np.inf  # too many rows for leave-one-out
        return float(np.average(density, weights=task.weight.numpy()))

    def refit_before_fit(self, task: StackTask) -> HeldOut | None:
        """Refit classification networks without a fold if their fit will need it anyway.

        Parameters
        ----------
        task : StackTask
            Training data.

        Returns
        -------
        (ndarray of shape (n_test,), ndarray of shape (n_test,)) or None
            Indices and log densities of the held-out rows. None if no refit is needed.
        """
        x = task.rows.x
        mixture_defaults = GaussNewtonDefaults()
        n_modes = BayesianMLPClassifier().n_modes
        n_outputs = task.n_classes if task.n_classes > 2 else 1
        width = mixture_defaults.choose_classification_width(len(x), x.shape[1], n_outputs, n_modes)
        network = MLP(x.shape[1], (width,), n_outputs, TANH)
        n_affordable, _ = mixture_defaults.affordable_classification_modes(n_modes, len(x), network)
        has_many_weights = network.layout.n_params > task.defaults.max_weights_per_row * len(x)
        if n_affordable and has_many_weights:
            self._refit = self._score_refit(task, self._probe_params(task, network, n_affordable))
        return self._refit

    def _probe_params(self, task: StackTask, network: MLP, n_modes: int) -> dict[str, Any]:
        """Parameters of networks of the same width with at most two modes and no members."""
        return {
            "n_modes": min(task.defaults.n_probe_modes, n_modes),
            "n_members": 0,
            "hidden_layer_sizes": network.hidden_layer_sizes,
        }

    def _refit_params(self, task: StackTask, model: Any) -> dict[str, Any]:
        """Parameters of a refit of ``model``, with no more modes than it has."""
        n_restarts = model.multiplicity_modes_
        if n_restarts is None:
            return {}
        return self._probe_params(task, model.network_, int(n_restarts.sum()))

    def _score_refit(self, task: StackTask, params: dict[str, Any]) -> HeldOut:
        """Refit networks without the first fold and score its rows.

        Returns the indices of the held-out rows and their log densities.
        """
        train, test = task.folds[0]
        predictor = EstimatorPredictor(self._fit_model(task.take(train), params))
        x_test = task.rows.x[test]
        if task.is_count:
            counts = CountsPredictor(predictor, *task.target_scaling)
            return test, counts.distribution(x_test).log_prob(task.y[test]).numpy()
        y_test = task.targets[test] if task.n_classes else task.y[test].numpy()
        return test, predictor.log_density(x_test, y_test).numpy()

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
            model = BayesianMLPRegressor()
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
