"""Histogram gradient boosting as a member of a stack."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skbayes_sym.base.plan import TableSize
from skbayes_sym.base.rows import Array
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import BoostingPredictor
from skbayes_sym.stacking.task import MemberFit, StackTask

# Probability of classes that a fold's training rows lack.
_MIN_PROBABILITY = 1e-9


@dataclass(frozen=True)
class Boosting(Member):
    """Histogram gradient boosting whose number of rounds is chosen by cross-validation.

    Parameters
    ----------
    max_rounds : int, default=150
        Largest number of rounds that cross-validation considers.
    max_bins : int, default=255
        Number of histogram bins per column.
    """

    max_rounds: int = StackDefaults.max_rounds
    max_bins: int = 255

    def choose_settings(self, size: TableSize, defaults: StackDefaults) -> dict[str, Any]:
        """Choose values of the fields by the size of the table."""
        n_bins = min(255, defaults.max_total_bins // size.n_columns)
        max_bins = max(defaults.min_bins, n_bins)

        # Without two leaves of the smallest size every tree is constant. scikit-learn counts the
        # rows of a leaf, not their weight.
        total_weight = size.total_weight or 0.0
        if max(size.n_rows, total_weight) < 2 * defaults.min_leaf_rows:
            return {"max_rounds": 1, "max_bins": max_bins}
        if not size.n_classes:
            return {"max_rounds": defaults.max_rounds, "max_bins": max_bins}
        if size.n_classes > 2:
            trees_per_round = size.n_classes
        else:
            trees_per_round = 1
        affordable = defaults.max_classification_trees // trees_per_round
        max_rounds = min(defaults.max_classification_rounds, affordable)
        max_rounds = max(defaults.min_classification_rounds, max_rounds)
        return {"max_rounds": max_rounds, "max_bins": max_bins}

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        _, y, weight = task.arrays
        n_classes = task.n_classes

        # Choose the number of rounds with the lowest held-out loss.
        held_out = self._predict_folds(task)
        scored_weight = np.zeros_like(weight)
        scored_weight[task.left_out_index] = weight[task.left_out_index]
        if n_classes:
            loss = -np.log(held_out[:, np.arange(len(y)), y]) @ scored_weight
            held_out = np.log(held_out)
        else:
            loss = (held_out[..., 0] - y) ** 2 @ scored_weight
        best = int(loss.argmin())
        leave_one_out = torch.as_tensor(held_out[best])

        model = self._fit_model(task, best + 1, slice(None))
        predictor = BoostingPredictor(model, task.rows.x.shape[1], n_classes)
        if n_classes:
            return MemberFit(predictor, leave_one_out, used_folds=True)
        unit = leave_one_out.new_ones(1, 1, 1)
        distribution = NormalMixture(leave_one_out.unsqueeze(0), 0.0 * unit, unit)
        return MemberFit(predictor, distribution, is_point_prediction=True, used_folds=True)

    def _predict_folds(self, task: StackTask) -> Array:
        """Predict the held-out rows of all folds after each round.

        Returns means (max_rounds, N, 1), or class probabilities (max_rounds, N, K).
        """
        x, y, _ = task.arrays
        n_classes = task.n_classes
        held_out = np.ones((self.max_rounds, len(y), max(n_classes, 1)))
        for k, (train, test) in enumerate(task.folds):
            report_progress(k, len(task.folds) + 1)
            model = self._fit_model(task, self.max_rounds, train)
            if n_classes:
                predict_stages = model.staged_predict_proba
            else:
                predict_stages = model.staged_predict
            with filters_lock:
                stages = list(predict_stages(x[test]))
            for n_round, stage in enumerate(stages):
                if not n_classes:
                    held_out[n_round, test] = stage[:, None]
                    continue
                probabilities = np.full((len(stage), n_classes), _MIN_PROBABILITY)
                class_codes = model.classes_.astype(int)
                if len(class_codes) == 1:
                    # scikit-learn returns a second column even then.
                    probabilities[:, class_codes] = 1.0
                else:
                    probabilities[:, class_codes] = stage.clip(_MIN_PROBABILITY)
                held_out[n_round, test] = probabilities
        return held_out

    def _fit_model(self, task: StackTask, n_rounds: int, index: Any) -> Any:
        """Fit scikit-learn's histogram gradient boosting to a subset of the rows."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        if task.n_classes:
            model_class = HistGradientBoostingClassifier
        else:
            model_class = HistGradientBoostingRegressor
        model = model_class(**self._parameters(task, n_rounds))
        x, y, weight = (array[index] for array in task.arrays)
        if (weight == weight.round()).all() and weight.sum() <= 2 * len(weight):
            # Quantiles of weighted rows take longer than the trees. Repeat the rows instead.
            repeated = np.repeat(np.arange(len(weight)), weight.astype(int))
            x = x[repeated]
            y = y[repeated]
            weight = None
        with filters_lock:
            return model.fit(x, y, weight)

    def _parameters(self, task: StackTask, n_rounds: int) -> dict[str, Any]:
        """Parameters of scikit-learn's histogram gradient boosting."""
        defaults = task.defaults
        return {
            "max_iter": n_rounds,
            "learning_rate": defaults.learning_rate,
            "max_leaf_nodes": defaults.max_leaf_nodes,
            "min_samples_leaf": defaults.min_leaf_rows,
            "max_bins": self.max_bins,
            "early_stopping": False,
            "random_state": task.seed % 2**32,
        }
