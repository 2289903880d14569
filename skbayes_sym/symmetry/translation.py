"""Translations of a linear model's weights in the null space of the inputs.

The likelihood of a row depends on ``x' w`` only, so that ``w`` may move orthogonally to ``x``
(Kurle et al. 2022, eq. 12 and appendix D). Data with inputs x_1, ..., x_N leave the K - rank(X)
directions with ``X v = 0`` free. The group isn't compact. The average of a posterior over it is
improper, and its gap is a difference of two optima instead of a KL divergence at one posterior.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import torch
from torch import Tensor

from skbayes_sym.numerics.arguments import check_tensor
from skbayes_sym.symmetry.group import SimpleGroup, WeightValidationMixin


@dataclass(frozen=True, eq=False, repr=False)
class Translation(WeightValidationMixin, SimpleGroup):
    """The group ``w -> w + v`` with ``X v = 0``.

    Parameters
    ----------
    inputs : Tensor of shape (N, K)
        Training inputs.

    Notes
    -----
    An element is a tensor ``v`` of shape (*B, K) in the null space of ``inputs``. `element`
    projects any vector onto it. Unlike the action of compact groups, a translation changes the norm
    of the weights. It preserves volume, so that densities need no Jacobian. A Gaussian prior isn't
    invariant.
    """

    inputs: Tensor

    def __post_init__(self) -> None:
        check_tensor("Translation", "inputs", self.inputs, 2)

    def __repr__(self) -> str:
        n, k = self._null_space.shape
        return f"Translation group: {n} weights, moved along {k} directions that no input has"

    @property
    def n_params(self) -> int:
        """Number of weights."""
        return int(self.inputs.shape[1])

    @property
    def _has_exact_length(self) -> bool:
        return True

    @property
    def log_order(self) -> float:
        """Log of the number of elements, in nats."""
        return inf if self._null_space.shape[1] else 0.0

    @property
    def is_compact(self) -> bool:
        """Whether a uniform (Haar) distribution exists."""
        return self._null_space.shape[1] == 0

    @cached_property
    def _null_space(self) -> Tensor:
        """Orthonormal basis, the columns of a matrix (K, K - rank)."""
        _, values, rows = torch.linalg.svd(self.inputs, full_matrices=True)
        eps = torch.finfo(self.inputs.dtype).eps * max(self.inputs.shape)
        if len(values):
            rank = int((values > eps * values.max()).sum())
        else:
            rank = 0
        return rows[rank:].T

    def element(self, v: Tensor) -> Tensor:
        """Return the element nearest to ``v``, its projection onto the null space, (*B, K)."""
        return (v @ self._null_space) @ self._null_space.T

    def sample(self, shape: Sequence[int], *, generator: torch.Generator) -> Tensor:
        """Raise ValueError, because there is no uniform distribution."""
        del shape, generator
        raise ValueError(
            "translations have no uniform distribution: the group isn't compact. "
            "Compare the optima with and without it instead (`invariance_gap`)."
        )

    def act(self, g: Tensor, theta: Tensor) -> Tensor:
        """Return ``g.theta``."""
        self.check_weights(theta)
        return theta + g

    def inverse(self, g: Tensor) -> Tensor:
        """Return the inverse of ``g``."""
        return -g

    def compose(self, g: Tensor, h: Tensor) -> Tensor:
        """Return the element that acts as ``h`` first, then as ``g``."""
        return g + h

    def align(self, theta: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
        """Return the orbit point nearest in Euclidean distance, and the element used.

        The component of ``theta`` in the null space becomes that of the reference.
        """
        self.check_weights(theta)
        self.check_weights(reference, "reference")
        g = self.element(reference - theta)
        return self.act(g, theta), g

    def identity(self) -> Tensor:
        """Return the identity element."""
        return self.inputs.new_zeros(self.inputs.shape[1])

    def generators(self) -> list[tuple[str, Tensor]]:
        """Return named elements that generate the group."""
        return [(f"unseen direction {i}", v) for i, v in enumerate(self._null_space.T)]

    def coordinate_orbits(self, n_params: int) -> Tensor:
        """Return an orbit for each entry, because translations exchange and mix no entries."""
        return torch.arange(n_params)
