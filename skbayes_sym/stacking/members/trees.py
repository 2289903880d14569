"""Extremely randomised trees as a member of a stack."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.plan import TableSize
from skbayes_sym.numerics.progress import report_progress
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import ForestPredictor
from skbayes_sym.stacking.task import MemberFit, StackTask

# Smallest variance of the noise before its level is fitted, in scaled units.
_MIN_VARIANCE = 1e-12


@dataclass(frozen=True)
class ExtraTrees(Member):
    """Extremely randomised trees (Geurts et al. 2006) with out-of-bag predictions.

    With groups, held-out predictions are those of fewer trees for each fold.

    Parameters
    ----------
    n_trees : int, default=100
        Number of trees.
    """

    relative_cost: ClassVar[float] = 2.5
    has_exclusive_fit: ClassVar[bool] = True

    n_trees: int = StackDefaults.n_trees

    def choose_settings(self, _size: TableSize, defaults: StackDefaults) -> dict[str, Any]:
        """Choose values of the fields by the size of the table."""
        return {"n_trees": defaults.n_trees}

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        x, y, weight = task.arrays
        forest = self._fit_forest(task, self.n_trees)
        predictor = ForestPredictor(forest, x.shape[1], task.n_classes)
        leaves_out_groups = task.groups is not None
        if leaves_out_groups:
            average, mean_square = self._predict_folds(task)
        else:
            average, mean_square = self._predict_out_of_bag(task, predictor)

        if task.n_classes:
            counts = np.bincount(y, weight, task.n_classes) + 0.5
            smoothing = 0.5 / self.n_trees
            frequency = counts / counts.sum()
            predictor = replace(predictor, smoothing=smoothing, frequency=frequency)
            scores = predictor.scores(average)
            return MemberFit(predictor, scores, used_folds=leaves_out_groups)

        # The spread of the targets within a leaf understates the noise.
        squared_error = (task.y - average).square()[:, 0]
        mean_squared_error = float(task.weight @ squared_error / task.weight.sum())
        variance = max(task.defaults.leaf_variance_fraction * mean_squared_error, _MIN_VARIANCE)
        predictor = replace(predictor, variance=variance)
        distribution = predictor.add_noise(average, mean_square)
        return MemberFit(predictor, distribution, used_folds=leaves_out_groups)

    def _predict_out_of_bag(
        self, task: StackTask, predictor: ForestPredictor
    ) -> tuple[Tensor, Tensor]:
        """Average leaves over the trees whose bootstrap sample lacks a row.

        Rows that are in all samples, as rows of large weight are where scikit-learn draws rows in
        proportion to their weights, are predicted by folds. Returns averages (N, V) and mean
        squares (N,).
        """
        n_rows = len(task)
        samples = predictor.estimator.estimators_samples_
        n_draws = [np.bincount(sample, minlength=n_rows) for sample in samples]
        is_out_of_bag = np.stack(n_draws, 1) == 0
        is_in_all = ~is_out_of_bag.any(axis=1)
        is_out_of_bag |= is_in_all[:, None]
        tree_weight = is_out_of_bag / is_out_of_bag.sum(axis=1, keepdims=True)
        average, mean_square = predictor.average_leaves(task.rows.x, tree_weight)
        has_folds = bool(task.folds) and all(len(train) for train, _ in task.folds)
        if is_in_all.any() and has_folds:
            is_in_all &= np.isin(np.arange(n_rows), task.left_out_index)
            index = torch.as_tensor(np.flatnonzero(is_in_all))
            fold_average, fold_mean_square = self._predict_folds(task)
            average[index] = fold_average[index]
            mean_square[index] = fold_mean_square[index]
        return average, mean_square

    def _predict_folds(self, task: StackTask) -> tuple[Tensor, Tensor]:
        """Average leaves over trees that were fitted without the fold of a row.

        A bootstrap sample of rows has seen the groups of the rows that it lacks. The trees are
        divided among the folds, so that they take no more time than those of all rows. Returns
        averages (N, V) and mean squares (N,).
        """
        n_trees = -(-self.n_trees // len(task.folds))
        n_columns = task.rows.x.shape[1]
        average = torch.zeros(len(task), max(1, task.n_classes), dtype=torch.float64)
        mean_square = torch.zeros(len(task), dtype=torch.float64)
        for k, (train, test) in enumerate(task.folds):
            report_progress(k, len(task.folds))
            forest = self._fit_forest(task.take(train), n_trees)
            predictor = ForestPredictor(forest, n_columns, task.n_classes)
            index = torch.as_tensor(test)
            average[index], mean_square[index] = predictor.average_leaves(task.rows.x[index])
        return average, mean_square

    def _fit_forest(self, task: StackTask, n_trees: int) -> Any:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        x, y, weight = task.arrays
        if task.n_classes:
            forest_class = ExtraTreesClassifier
        else:
            forest_class = ExtraTreesRegressor
        seed = task.seed % 2**32
        forest = forest_class(n_trees, bootstrap=True, random_state=seed)
        with filters_lock:
            return forest.fit(x, y, weight)
