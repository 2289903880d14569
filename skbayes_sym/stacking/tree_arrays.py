"""Trees of scikit-learn's ensembles as a few small arrays, in which they are pickled and saved.

A forest of 200 trees that was fitted to 1,000 rows takes 18 MB in scikit-learn, and 1.2 MB here.
Files without pickles hold arrays only, so that ensembles are built again from these.

scikit-learn has public methods for predictions, but none that writes or reads a fitted ensemble.
The nodes of a forest are accessible by `sklearn.tree.BaseDecisionTree.tree_` and by the state in
which a tree is pickled. The nodes of histogram gradient boosting are only accessible by the private
attributes ``_predictors`` and ``_baseline_prediction``. This module is the only one that uses them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.runtime import filters_lock

# Columns of `TreeArrays.values` that precede the predictions: for forests the number of rows in a
# leaf, their weight and their impurity, and for boosting the number of rows.
_N_FOREST_STATISTICS = 3

# Deeper trees aren't read from files, since each level takes time. A tree that halves its rows even
# by the thousandth part has about 20,000 levels with a billion rows.
_MAX_LEVELS = 20_000


class TreeNodes(NamedTuple):
    """Nodes of one tree, the root first.

    Attributes
    ----------
    column : ndarray of shape (n_nodes,)
        Column that is compared with the threshold.
    threshold : ndarray of shape (n_nodes,)
        Rows whose column is at most the threshold go to the left child.
    left, right : ndarray of shape (n_nodes,)
        Children; 0 or negative for leaves.
    values : ndarray of shape (n_nodes, V)
        Statistics and predictions. Only those of leaves are used.
    depth : int
        Number of levels below the root, if it is known.
    """

    column: Array
    threshold: Array
    left: Array
    right: Array
    values: Array
    depth: int = 0

    @property
    def is_leaf(self) -> Array:
        """Whether nodes have no children."""
        return np.asarray(self.left) <= 0


@dataclass(frozen=True, eq=False)
class TreeArrays:
    """Nodes of several trees, level by level: the roots, then their children, and so on.

    The k-th of the nodes that split has the children ``n_trees + 2 * k`` and
    ``n_trees + 2 * k + 1``. Rows at or below the threshold go to the first one.

    Parameters
    ----------
    n_trees : int
        Number of trees.
    column : ndarray of shape (n_nodes,)
        Column that a node compares with its threshold; -1 for leaves.
    threshold : ndarray of shape (n_splits,)
        Thresholds of the nodes that split.
    leaf : ndarray of shape (n_leaves,)
        Row of ``values`` for each leaf.
    values : ndarray of shape (n_values, V)
        Distinct statistics and predictions of leaves.
    """

    n_trees: int
    column: npt.NDArray[np.signedinteger]
    threshold: npt.NDArray[np.floating]
    leaf: npt.NDArray[np.unsignedinteger]
    values: Array

    @classmethod
    def from_trees(cls, trees: Sequence[TreeNodes], threshold_dtype: type) -> "TreeArrays":
        """Join the nodes of several trees.

        Thresholds are rounded down to ``threshold_dtype``, which changes no comparison with values
        of this precision.
        """
        first_nodes = np.cumsum([0, *(len(tree.column) for tree in trees)])
        is_leaf = np.concatenate([tree.is_leaf for tree in trees])
        offset = np.repeat(first_nodes[:-1], np.diff(first_nodes))
        left = np.concatenate([tree.left for tree in trees]) + offset
        right = np.concatenate([tree.right for tree in trees]) + offset

        levels = []
        level = first_nodes[:-1]
        while len(level):
            levels.append(level)
            splits = level[~is_leaf[level]]
            level = np.column_stack([left[splits], right[splits]]).ravel()
        order = np.concatenate(levels)

        splits = order[~is_leaf[order]]
        leaves = order[is_leaf[order]]
        column = np.concatenate([tree.column for tree in trees]).astype(np.int64)
        column = np.where(is_leaf, -1, column)[order]
        threshold = np.concatenate([tree.threshold for tree in trees])[splits]
        values, leaf = _distinct_rows(np.concatenate([tree.values for tree in trees])[leaves])
        return cls(
            len(trees),
            column.astype(np.min_scalar_type(-1 - column.max(initial=0))),
            _round_down(threshold, threshold_dtype),
            leaf.astype(np.min_scalar_type(len(values))),
            values,
        )

    @property
    def is_split(self) -> Array:
        """Whether nodes have children, (n_nodes,)."""
        return self.column >= 0

    def check(self) -> None:
        """Raise a ValueError unless the arrays are those of trees."""
        splits = np.flatnonzero(self.is_split)
        n_nodes = len(self.column)
        if self.n_trees < 1 or n_nodes != self.n_trees + 2 * len(splits):
            raise ValueError("TreeArrays whose nodes don't form trees")
        if len(self.threshold) != len(splits) or len(self.leaf) != n_nodes - len(splits):
            raise ValueError("TreeArrays with a wrong number of thresholds or leaves")
        if self.column.min() < -1 or self.leaf.min() < 0 or self.leaf.max() >= len(self.values):
            raise ValueError("TreeArrays with an index out of range")
        if (splits >= self.n_trees + 2 * np.arange(len(splits))).any():
            raise ValueError("TreeArrays with a child before its parent")
        for n_levels, _ in enumerate(self._levels()):
            if n_levels > _MAX_LEVELS:
                raise ValueError("TreeArrays that are too deep")

    def _levels(self) -> Iterator[tuple[Array, int]]:
        """Iterate over levels: their nodes that split, and the first child of these."""
        start = 0
        stop = self.n_trees
        while start < stop:
            splits = start + np.flatnonzero(self.is_split[start:stop])
            yield splits, stop
            start = stop
            stop += 2 * len(splits)

    def sum_over_leaves(self, values: Array) -> Array:
        """Sum values of leaves (n_leaves, V) over the leaves below each node, (n_nodes, V)."""
        total = np.zeros((len(self.column), values.shape[1]))
        total[~self.is_split] = values
        for splits, first_child in reversed(list(self._levels())):
            children = total[first_child : first_child + 2 * len(splits)]
            total[splits] = children[::2] + children[1::2]
        return total

    def split_trees(self, values: Array) -> list[TreeNodes]:
        """Nodes of each tree, with a row of ``values`` (n_nodes, V) for each node."""
        n_nodes = len(self.column)
        splits = np.flatnonzero(self.is_split)
        left = np.zeros(n_nodes, dtype=np.int64)
        left[splits] = self.n_trees + 2 * np.arange(len(splits))
        threshold = np.zeros(n_nodes)
        threshold[splits] = self.threshold

        # Number the nodes of each tree depth first, as scikit-learn does. The left child then
        # follows its parent in memory, which makes predictions faster than the order of levels.
        n_leaves = self.sum_over_leaves(np.ones((len(self.leaf), 1)))[:, 0]
        size = 2 * n_leaves.astype(np.int64) - 1
        tree = np.arange(n_nodes)
        number = np.zeros(n_nodes, dtype=np.int64)
        depth = np.zeros(self.n_trees, dtype=np.int64)
        for level, (parents, first_child) in enumerate(self._levels()):
            children = slice(first_child, first_child + 2 * len(parents))
            tree[children] = np.repeat(tree[parents], 2)
            number[children] = np.repeat(number[parents] + 1, 2)
            number[children][1::2] += size[children][::2]
            depth[tree[parents]] = level + 1
        sizes = size[: self.n_trees]
        ends = np.cumsum(sizes)
        order = np.empty(n_nodes, dtype=np.int64)
        order[(ends - sizes)[tree] + number] = np.arange(n_nodes)

        left_number = np.where(self.is_split, number[left], -1)
        right_number = np.where(self.is_split, number[np.minimum(left + 1, n_nodes - 1)], -1)
        column = np.where(self.is_split, self.column, 0)
        nodes = (column, threshold, left_number, right_number, values)
        parts = zip(*(np.split(array[order], ends[:-1]) for array in nodes), strict=True)
        trees = [TreeNodes(*arrays) for arrays in parts]
        return [
            tree._replace(depth=n_levels)
            for tree, n_levels in zip(trees, depth.tolist(), strict=True)
        ]


def _distinct_rows(rows: Array) -> tuple[Array, Array]:
    """Distinct rows of a matrix, and the position of each row among them."""
    order = np.lexsort(rows.T)
    ordered = rows[order]
    is_new = np.ones(len(rows), dtype=bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    index = np.empty(len(rows), dtype=np.int64)
    index[order] = np.cumsum(is_new) - 1
    return ordered[is_new], index


def _round_down(values: Array, dtype: type) -> Array:
    """Round to the largest number of a precision that isn't above the value."""
    rounded: Array = values.astype(dtype)
    return np.where(rounded > values, np.nextafter(rounded, dtype(-np.inf)), rounded)


def forest_arrays(forest: Any) -> TreeArrays:
    """Convert the trees of a fitted forest.

    Parameters
    ----------
    forest : ExtraTreesRegressor or ExtraTreesClassifier
        Fitted forest with a single target.

    Returns
    -------
    TreeArrays
        Leaves hold the number of their rows, their weight, their impurity, and the mean or the
        class frequencies.
    """
    return TreeArrays.from_trees(forest_nodes(forest), np.float32)


def forest_nodes(forest: Any) -> list[TreeNodes]:
    """Return the nodes of each tree of a fitted forest, with the values of `forest_arrays`."""
    trees = []
    for estimator in forest.estimators_:
        tree = estimator.tree_
        statistics = (tree.n_node_samples, tree.weighted_n_node_samples, tree.impurity)
        values = np.column_stack([*statistics, tree.value[:, 0]])
        children = (tree.children_left, tree.children_right)
        trees.append(TreeNodes(tree.feature, tree.threshold, *children, values))
    return trees


def build_forest(trees: TreeArrays, n_columns: int, n_classes: int) -> Any:
    """Build a forest of scikit-learn.

    Parameters
    ----------
    trees : TreeArrays
        Trees from `forest_arrays`.
    n_columns : int
        Number of columns.
    n_classes : int
        Number of classes; 0 for regression. The classes are 0, 1 and so on.

    Returns
    -------
    ExtraTreesRegressor or ExtraTreesClassifier
        Forest with the same predictions. Statistics of inner nodes, from which importances of
        columns are computed, are equal up to rounding. Random states are lost.

    Raises
    ------
    ValueError
        If the trees don't have this number of columns or classes.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor

    _require_columns(trees, n_columns)
    n_outputs = max(1, n_classes)
    if trees.values.shape[1] != _N_FOREST_STATISTICS + n_outputs:
        raise ValueError("a forest with a wrong number of classes")

    # Combine the statistics of leaves to those of all nodes.
    leaf_values = trees.values[trees.leaf]
    n_rows, weight, impurity = leaf_values[:, :_N_FOREST_STATISTICS].T
    value = leaf_values[:, _N_FOREST_STATISTICS:]
    square = impurity + (value**2).sum(axis=1)
    weighted = weight[:, None] * np.column_stack([value, square])
    total = trees.sum_over_leaves(np.column_stack([n_rows, weight, weighted]))
    mean = total[:, 2:] / total[:, 1:2]
    is_split = trees.is_split
    node_value = mean[:, :-1]
    node_value[~is_split] = value
    if n_classes:
        node_impurity = 1.0 - (node_value**2).sum(axis=1)
    else:
        node_impurity = mean[:, -1] - node_value[:, 0] ** 2
    node_impurity[~is_split] = impurity
    values = np.column_stack([total[:, :2], node_impurity, node_value])

    # A fit to a row per class gives the classes of the trees and the form of their nodes.
    if n_classes:
        forest_class = ExtraTreesClassifier
    else:
        forest_class = ExtraTreesRegressor
    targets = np.resize(np.arange(n_outputs), max(2, n_outputs))
    with filters_lock:
        forest = forest_class(1, bootstrap=True, random_state=0)
        forest.fit(np.zeros((len(targets), 1)), targets)
    template = forest.estimators_[0]
    forest.set_params(n_estimators=trees.n_trees)
    forest.n_features_in_ = n_columns
    forest.estimators_ = [
        _build_tree(template, nodes, n_columns) for nodes in trees.split_trees(values)
    ]
    return forest


def _build_tree(template: Any, nodes: TreeNodes, n_columns: int) -> Any:
    """Build a decision tree with the attributes of another one, but other nodes and columns."""
    state = template.tree_.__getstate__()
    n_rows, weight, impurity = nodes.values[:, :_N_FOREST_STATISTICS].T
    array = np.zeros(len(nodes.column), dtype=state["nodes"].dtype)
    array["left_child"] = nodes.left
    array["right_child"] = nodes.right
    array["feature"] = np.where(nodes.is_leaf, -2, nodes.column)  # as scikit-learn marks leaves
    array["threshold"] = np.where(nodes.is_leaf, -2.0, nodes.threshold)
    array["impurity"] = impurity
    array["n_node_samples"] = n_rows
    array["weighted_n_node_samples"] = weight

    _, (_, *counts), _ = template.tree_.__reduce__()  # numbers of classes and of targets
    tree = type(template.tree_)(n_columns, *counts)
    values = nodes.values[:, None, _N_FOREST_STATISTICS:]
    tree.__setstate__({
        **state,
        "max_depth": nodes.depth,
        "node_count": len(array),
        "nodes": array,
        "values": np.ascontiguousarray(values),
    })  # fmt: skip
    estimator = type(template)()
    estimator.__setstate__({**template.__getstate__(), "tree_": tree, "n_features_in_": n_columns})
    return estimator


def boosting_arrays(model: Any) -> tuple[TreeArrays, Array]:
    """Convert the trees of a fitted histogram gradient boosting of numbers.

    Parameters
    ----------
    model : HistGradientBoostingRegressor or HistGradientBoostingClassifier
        Fitted model without categorical columns and missing values.

    Returns
    -------
    trees : TreeArrays
        Trees of all rounds. Leaves hold the number of their rows and their prediction.
    baseline : ndarray of shape (n_trees_per_round,)
        Prediction without trees.
    """
    trees, baseline = boosting_nodes(model)
    return TreeArrays.from_trees(trees, np.float64), baseline


def boosting_nodes(model: Any) -> tuple[list[TreeNodes], Array]:
    """Return the nodes of each tree of fitted boosting, and the baseline, as `boosting_arrays`."""
    trees = []
    for round_trees in model._predictors:  # noqa: SLF001  # no public name
        for tree in round_trees:
            node = tree.nodes
            values = np.column_stack([node["count"], node["value"]])
            left, right = (
                np.where(node["is_leaf"], 0, node[side]).astype(np.int64)
                for side in ("left", "right")
            )
            column = node["feature_idx"]
            trees.append(TreeNodes(column, node["num_threshold"], left, right, values))
    baseline = np.asarray(model._baseline_prediction, dtype=np.float64)  # noqa: SLF001  # no public name
    return trees, baseline.reshape(-1)


def build_boosting(trees: TreeArrays, baseline: Array, n_columns: int, n_classes: int) -> Any:
    """Build histogram gradient boosting of scikit-learn.

    Parameters
    ----------
    trees : TreeArrays
        Trees from `boosting_arrays`.
    baseline : ndarray of shape (n_trees_per_round,)
        Prediction without trees.
    n_columns : int
        Number of columns.
    n_classes : int
        Number of classes; 0 for regression. The classes are 0, 1 and so on.

    Returns
    -------
    HistGradientBoostingRegressor or HistGradientBoostingClassifier
        Model with the same predictions.

    Raises
    ------
    ValueError
        If the trees don't have this number of columns or classes.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    _require_columns(trees, n_columns)
    per_round = n_classes if n_classes > 2 else 1
    n_rounds, rest = divmod(trees.n_trees, per_round)
    if rest or len(baseline) != per_round or trees.values.shape[1] != 2:
        raise ValueError("boosting with a wrong number of classes")

    # A fit to a row per class gives everything except the trees.
    if n_classes:
        model_class = HistGradientBoostingClassifier
    else:
        model_class = HistGradientBoostingRegressor
    targets = np.resize(np.arange(max(1, n_classes)), max(2, n_classes))
    model = model_class(max_iter=1, early_stopping=False, random_state=0)
    with filters_lock:
        model.fit(np.zeros((len(targets), 1)), targets)
    model.n_features_in_ = n_columns
    model._n_features = n_columns  # noqa: SLF001  # no public name
    template = model._predictors[0][0]  # noqa: SLF001  # no public name
    value = trees.values[trees.leaf, 1]
    count = trees.sum_over_leaves(trees.values[trees.leaf, :1])
    node_value = np.zeros((len(trees.column), 1))
    node_value[~trees.is_split, 0] = value
    predictors = []
    for nodes in trees.split_trees(np.column_stack([count, node_value])):
        array = np.zeros(len(nodes.column), dtype=template.nodes.dtype)
        array["count"], array["value"] = nodes.values.T
        array["feature_idx"] = nodes.column
        array["num_threshold"] = nodes.threshold
        array["left"] = np.maximum(nodes.left, 0)
        array["right"] = np.maximum(nodes.right, 0)
        array["is_leaf"] = nodes.is_leaf
        bitsets = (template.binned_left_cat_bitsets, template.raw_left_cat_bitsets)
        predictors.append(type(template)(array, *bitsets))
    model._predictors = [  # noqa: SLF001  # no public name
        predictors[start : start + per_round] for start in range(0, len(predictors), per_round)
    ]
    like = np.asarray(model._baseline_prediction)  # noqa: SLF001  # no public name
    model._baseline_prediction = baseline.reshape(like.shape).astype(like.dtype)  # noqa: SLF001
    model.set_params(max_iter=n_rounds)
    return model


def _require_columns(trees: TreeArrays, n_columns: int) -> None:
    if not max(1, trees.column.max() + 1) <= n_columns <= np.iinfo(np.int32).max:
        raise ValueError(f"trees with {n_columns} columns, but splits by others")
