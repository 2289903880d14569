"""Sums and averages of decision trees, as arrays."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Trees:
    """Nodes of all trees, one after the other; the children of a leaf are the leaf itself.

    ``column``, ``threshold``, ``below``, ``above`` (n_nodes,): a row goes to ``below`` where its
    column is at most the threshold; ``value`` (n_nodes, V): what leaves say; ``roots`` (n_trees,);
    ``depth``: of the deepest tree; ``rounds``: whether rows are compared in float32.
    """

    column: npt.NDArray[np.int64]
    threshold: Array
    below: npt.NDArray[np.int64]
    above: npt.NDArray[np.int64]
    value: Array
    roots: npt.NDArray[np.int64]
    depth: int
    rounds: bool

    def leaves(self, x: Tensor) -> Tensor:
        """Leaf of every row in every tree, (N, n_trees)."""
        column, threshold, below, above, roots = (
            torch.as_tensor(a).to(x.device)
            for a in (self.column, self.threshold, self.below, self.above, self.roots)
        )
        x = (x.float() if self.rounds else x).double()
        node = roots.expand(len(x), -1)
        for _ in range(self.depth):
            is_below = x.gather(1, column[node]) <= threshold[node]
            node = torch.where(is_below, below[node], above[node])
        return node

    def values(self, x: Tensor) -> Tensor:
        """Values of the leaves of every row, (N, n_trees, V), float64."""
        return torch.as_tensor(self.value).to(x.device)[self.leaves(x)]
