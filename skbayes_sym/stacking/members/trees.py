"""Extremely randomised trees as a member of a stack."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.plan import TableSize
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.stacking.defaults import StackDefaults
from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.predictors import Trees, TreesPredictor, join_trees
from skbayes_sym.stacking.task import MemberFit, StackTask

# Smallest variance of the noise before its level is fitted, in scaled units.
_MIN_VARIANCE = 1e-12

_ROWS_PER_BLOCK = 1000


@dataclass(frozen=True)
class ExtraTrees(Member):
    """Extremely randomised trees (Geurts et al. 2006) with out-of-bag predictions.

    With groups, held-out predictions are those of fewer trees for each fold.

    Parameters
    ----------
    n_trees : int, default=200
        Number of trees.
    """

    n_trees: int = StackDefaults.n_trees

    def choose_settings(self, _size: TableSize, defaults: StackDefaults) -> dict[str, Any]:
        """Choose values of the fields by the size of the table."""
        return {"n_trees": defaults.n_trees}

    def fit(self, task: StackTask) -> MemberFit:
        """Fit the model to all rows of the task."""
        _, y, weight = task.arrays
        forest = self._fit_forest(task, self.n_trees)
        trees = convert_forest(forest, task.n_classes)

        leaves_out_groups = task.groups is not None
        if leaves_out_groups:
            held_out = self._predict_folds(task)
        else:
            held_out = self._predict_out_of_bag(task, forest, trees)

        if task.n_classes:
            counts = np.bincount(y, weight, task.n_classes) + 0.5
            smoothing = 0.5 / self.n_trees
            predictor = TreesPredictor(trees, 0.0, counts / counts.sum(), smoothing)
            return MemberFit(predictor, predictor.combine(held_out), used_folds=leaves_out_groups)

        # The spread of the targets within a leaf understates the noise.
        squared_error = (task.y - held_out[:, 0, :1]).square()[:, 0]
        mean_squared_error = float(task.weight @ squared_error / task.weight.sum())
        variance = max(task.defaults.leaf_variance_fraction * mean_squared_error, _MIN_VARIANCE)
        predictor = TreesPredictor(trees, variance, np.zeros(1), 0.0)
        distribution = predictor.combine_distributions(held_out)
        return MemberFit(predictor, distribution, used_folds=leaves_out_groups)

    def _predict_out_of_bag(self, task: StackTask, forest: Any, trees: Trees) -> Tensor:
        """Average leaves over the trees whose bootstrap sample lacks a row, (N, 1, V)."""
        n_rows = len(task)
        n_draws = [np.bincount(sample, minlength=n_rows) for sample in forest.estimators_samples_]
        is_out_of_bag = torch.as_tensor(np.stack(n_draws, 1) == 0)
        averages = []
        for block in torch.arange(n_rows).split(_ROWS_PER_BLOCK):
            values = trees.values(task.rows.x[block])
            averages.append(average_out_of_bag(values, is_out_of_bag[block]))
        return torch.cat(averages).unsqueeze(1)

    def _predict_folds(self, task: StackTask) -> Tensor:
        """Average leaves over trees that were fitted without the fold of a row, (N, 1, V).

        A bootstrap sample of rows has seen the groups of the rows that it lacks. The trees are
        divided among the folds, so that they take no more time than those of all rows.
        """
        n_trees = -(-self.n_trees // len(task.folds))
        held_out = torch.zeros(len(task), 1, task.n_classes or 2, dtype=torch.float64)
        for train, test in task.folds:
            forest = self._fit_forest(task.take(train), n_trees)
            trees = convert_forest(forest, task.n_classes)
            for block in torch.as_tensor(test).split(_ROWS_PER_BLOCK):
                held_out[block] = trees.values(task.rows.x[block]).mean(1, keepdim=True)
        return held_out

    def _fit_forest(self, task: StackTask, n_trees: int) -> Any:
        from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

        x, y, weight = task.arrays
        forest_class = ExtraTreesClassifier if task.n_classes else ExtraTreesRegressor
        seed = task.seed % 2**32
        forest = forest_class(n_trees, bootstrap=True, random_state=seed)
        with filters_lock:
            return forest.fit(x, y, weight)


def convert_forest(forest: Any, n_classes: int) -> Trees:
    """Convert a fitted forest of scikit-learn to arrays.

    Parameters
    ----------
    forest : ExtraTreesRegressor or ExtraTreesClassifier
        Fitted forest.
    n_classes : int
        Number of classes; 0 for regression.

    Returns
    -------
    Trees
        Nodes with class frequencies, or with the mean and the mean square of their targets.
    """
    nodes = []
    values = []
    for estimator in forest.estimators_:
        tree = estimator.tree_
        value = tree.value[:, 0]
        nodes.append((tree.feature, tree.threshold, tree.children_left, tree.children_right))
        if n_classes:
            # A bootstrap sample can lack classes.
            frequencies = np.zeros((len(value), n_classes))
            class_codes = estimator.classes_.astype(int)
            frequencies[:, class_codes] = value / value.sum(axis=1, keepdims=True)
            values.append(frequencies)
        else:
            values.append(np.column_stack([value[:, 0], tree.impurity + value[:, 0] ** 2]))
    depth = max(estimator.tree_.max_depth for estimator in forest.estimators_)
    return join_trees(nodes, values, depth, rounds_to_float32=True)


def average_out_of_bag(values: Tensor, is_out_of_bag: Tensor) -> Tensor:
    """Average over the trees that haven't seen a row, or over all trees if all have seen it.

    ``values`` (N, n_trees, V) and ``is_out_of_bag`` (N, n_trees) give averages (N, V).
    """
    has_any = is_out_of_bag.any(1, keepdim=True)
    weight = torch.where(has_any, is_out_of_bag, True).to(values)
    return torch.einsum("nt,ntv->nv", weight / weight.sum(1, keepdim=True), values)
