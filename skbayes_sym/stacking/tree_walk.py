"""Leaves of few rows in many trees at once, without a call for each tree."""

from collections.abc import Sequence

import numpy as np

from skbayes_sym.base.rows import Array
from skbayes_sym.stacking.tree_arrays import TreeNodes

# At most this many rows are predicted by a walk. More are faster in scikit-learn's compiled code.
MAX_WALKED_ROWS = 4
# Larger ensembles are predicted tree by tree, since the walk needs a copy of their nodes.
MAX_WALKED_NODES = 1 << 18


class TreeWalk:
    """Walk from the roots of all trees to their leaves, one level at a time.

    Leaves are their own children, so that all walks have the same number of steps.

    Parameters
    ----------
    trees : sequence of TreeNodes
        Nodes of each tree.
    values : sequence of ndarray of shape (n_nodes, V)
        Values of the nodes of each tree.
    """

    def __init__(self, trees: Sequence[TreeNodes], values: Sequence[Array]) -> None:
        sizes = [len(tree.column) for tree in trees]
        self._roots = np.cumsum([0, *sizes[:-1]])
        offset = np.repeat(self._roots, sizes)
        node = np.arange(len(offset))
        is_leaf = np.concatenate([tree.is_leaf for tree in trees])
        left = np.where(is_leaf, node, np.concatenate([tree.left for tree in trees]) + offset)
        right = np.where(is_leaf, node, np.concatenate([tree.right for tree in trees]) + offset)
        self._children = np.column_stack([left, right])
        self._column = np.where(is_leaf, 0, np.concatenate([tree.column for tree in trees]))
        self._threshold = np.concatenate([tree.threshold for tree in trees]).astype(np.float64)
        self._values = np.concatenate(values)

        self._depth = 0
        level = self._roots
        while not is_leaf[level].all():
            level = self._children[level[~is_leaf[level]]].ravel()
            self._depth += 1

    def leaf_values(self, x: Array) -> Array:
        """Return the values of the leaves of rows (N, D), (N, n_trees, V)."""
        rows = np.arange(len(x))[:, None]
        node = np.broadcast_to(self._roots, (len(x), len(self._roots)))
        for _ in range(self._depth):
            is_right = x[rows, self._column[node]] > self._threshold[node]
            node = self._children[node, is_right.astype(np.intp)]
        return self._values[node]


def sum_in_order(values: Array) -> Array:
    """Sum values (N, n_trees, V) over the trees one after another, as scikit-learn does."""
    total: Array = np.add.accumulate(values, axis=1)[:, -1]
    return total
