"""Histogram gradient boosting as a member of a stack."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

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

# Rounds are added in so many parts, as long as there are less than twice as many as needed.
_N_PARTS = 4
# Probability of classes that a fold's training rows lack.
_MIN_PROBABILITY = 1e-9


@dataclass(frozen=True)
class Boosting(Member):
    """Histogram gradient boosting whose number of rounds is chosen by cross-validation.

    Parameters
    ----------
    max_rounds : int, default=75
        Largest number of rounds that cross-validation considers.
    max_bins : int, default=255
        Number of histogram bins per column.
    """

    relative_cost: ClassVar[float] = 3.0
    has_exclusive_fit: ClassVar[bool] = True

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
        max_rounds = defaults.max_rounds
        if size.n_classes > 2:
            affordable = defaults.max_classification_trees // size.n_classes
            max_rounds = min(max_rounds, max(defaults.min_classification_rounds, affordable))
        return {"max_rounds": max_rounds, "max_bins": max_bins}

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        n_classes = task.n_classes

        # Choose the number of rounds with the lowest held-out loss.
        held_out, best = self._predict_folds(task)
        if n_classes:
            held_out = np.log(held_out)
        leave_one_out = torch.as_tensor(held_out)

        model = self._fit_model(task, best + 1, slice(None))
        predictor = BoostingPredictor(model, task.rows.x.shape[1], n_classes)
        if n_classes:
            return MemberFit(predictor, leave_one_out, used_folds=True)
        unit = leave_one_out.new_ones(1, 1, 1)
        distribution = NormalMixture(leave_one_out.unsqueeze(0), 0.0 * unit, unit)
        return MemberFit(predictor, distribution, is_point_prediction=True, used_folds=True)

    def _predict_folds(self, task: StackTask) -> tuple[Array, int]:
        """Predict the held-out rows of all folds by the best number of rounds.

        All folds add rounds in turn, until their number is twice that with the lowest loss.

        Returns
        -------
        held_out : ndarray of shape (N, 1) or (N, K)
            Means, or class probabilities, of the rows that a fold leaves out.
        best : int
            Index of the round with the lowest loss.
        """
        models: list[Any] = [None] * len(task.folds)
        held_out = np.ones((0, len(task), max(task.n_classes, 1)))
        best = 0
        part = -(-self.max_rounds // _N_PARTS)
        n_fits = _N_PARTS * len(task.folds) + 1
        for i, n_rounds in enumerate(range(part, part + self.max_rounds, part)):
            n_rounds = min(n_rounds, self.max_rounds)
            added = np.ones((n_rounds - len(held_out), *held_out.shape[1:]))
            for k, (train, test) in enumerate(task.folds):
                report_progress(i * len(task.folds) + k, n_fits)
                models[k] = self._fit_model(task, n_rounds, train, models[k])
                added[:, test] = self._predict_rounds(task, models[k], test, len(held_out))
            held_out = np.concatenate([held_out, added])
            best = int(self._losses(task, held_out).argmin())
            if 2 * (best + 1) <= n_rounds:
                break
        return held_out[best], best

    def _losses(self, task: StackTask, held_out: Array) -> Array:
        """Sum of the held-out losses after each of R rounds, (R,).

        ``held_out`` (R, N, 1) or (R, N, K) has means or class probabilities. The loss is the
        squared error or the negative log probability.
        """
        _, y, weight = task.arrays
        scored_weight = np.zeros_like(weight)
        scored_weight[task.left_out_index] = weight[task.left_out_index]
        if task.n_classes:
            loss = -np.log(held_out[:, np.arange(len(y)), y])
        else:
            loss = (held_out[..., 0] - y) ** 2
        return loss @ scored_weight

    def _predict_rounds(self, task: StackTask, model: Any, index: Array, first: int) -> Array:
        """Predict rows after each round.

        Parameters
        ----------
        task : StackTask
            Training data.
        model : estimator
            Boosting with R rounds.
        index : ndarray of shape (n,)
            Indices of the rows.
        first : int
            First round after which the rows are predicted.

        Returns
        -------
        ndarray of shape (R - first, n, 1) or (R - first, n, K)
            Means, or class probabilities.
        """
        n_classes = task.n_classes
        x = task.arrays[0][index]
        if n_classes:
            predict_stages = model.staged_predict_proba
        else:
            predict_stages = model.staged_predict
        with filters_lock:
            stages = np.stack(list(islice(predict_stages(x), first, None)))
        if not n_classes:
            return stages[..., None]
        probabilities = np.full((len(stages), len(index), n_classes), _MIN_PROBABILITY)
        class_codes = model.classes_.astype(int)
        if len(class_codes) == 1:
            # scikit-learn returns a second column even then.
            probabilities[..., class_codes] = 1.0
        else:
            probabilities[..., class_codes] = stages.clip(_MIN_PROBABILITY)
        return probabilities

    def _fit_model(self, task: StackTask, n_rounds: int, index: Any, model: Any = None) -> Any:
        """Fit scikit-learn's histogram gradient boosting to a subset of the rows.

        Parameters
        ----------
        task : StackTask
            Training data.
        n_rounds : int
            Number of rounds.
        index : ndarray of shape (n,) or slice
            Rows.
        model : estimator, optional
            Boosting with fewer rounds of the same rows, which gets further rounds.

        Returns
        -------
        estimator
            Fitted boosting.
        """
        if model is None:
            model = self._make_model(task)
        model.set_params(max_iter=n_rounds)
        x, y, weight = self._select_rows(task, index)
        with filters_lock:
            return model.fit(x, y, weight)

    def _make_model(self, task: StackTask) -> Any:
        """Return unfitted boosting of the targets or the classes."""
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

        if task.n_classes:
            return HistGradientBoostingClassifier(**self._parameters(task))
        return HistGradientBoostingRegressor(**self._parameters(task))

    def _select_rows(self, task: StackTask, index: Any) -> tuple[Array, Array, Array | None]:
        """Return inputs, targets and weights of rows; None for weights of 1."""
        x, y, weight = (array[index] for array in task.arrays)
        if (weight == weight.round()).all() and weight.sum() <= 2 * len(weight):
            # Quantiles of weighted rows take longer than the trees. Repeat the rows instead.
            repeated = np.repeat(np.arange(len(weight)), weight.astype(int))
            return x[repeated], y[repeated], None
        return x, y, weight

    def _parameters(self, task: StackTask) -> dict[str, Any]:
        """Parameters of scikit-learn's histogram gradient boosting."""
        defaults = task.defaults
        learning_rate = defaults.learning_rate
        if task.n_classes:
            learning_rate = defaults.classification_learning_rate
        return {
            "warm_start": True,
            "learning_rate": learning_rate,
            "max_leaf_nodes": defaults.max_leaf_nodes,
            "min_samples_leaf": defaults.min_leaf_rows,
            "max_bins": self.max_bins,
            "early_stopping": False,
            "random_state": task.seed % 2**32,
        }
