r"""The symmetrisation gap: one interface, whatever the posterior and the group.

For a posterior q and a compact group G of its model's symmetries,

.. math:: \operatorname{gap}(q) = E_q[\log q(\theta) - \log q_G(\theta)]
    = KL[q \,\|\, q_G] = I(g; \theta) \in [0, \log |G|], \qquad
    q_G(\theta) = E_g\, q(g^{-1} \theta),

is what symmetrising q adds to its ELBO (Gelberg et al. 2024, Theorem 4.1; Moore 2016, eq. 4).
Translations have no uniform law; theirs is a difference of two optima
(`skbayes_sym.symmetry.gaps.translations`).
"""

from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.random import Estimate
from skbayes_sym.symmetry.group import SymmetryGroup

Side = Literal["lower", "exact", "upper"]
Vector = Tensor | npt.NDArray[np.floating]

Q_contra = TypeVar("Q_contra", contravariant=True)


class MeanField(Protocol):
    """Independent normals over the flat vector, means and standard deviations of shape (P,)."""

    @property
    def loc(self) -> Vector: ...

    @property
    def scale(self) -> Vector: ...


class RowPosterior(Protocol):
    """Independent normal rows of length k: means (n_rows, k), covariances (n_rows, k, k)."""

    @property
    def mean(self) -> Tensor: ...

    @property
    def cov(self) -> Tensor: ...


class GapGradient(NamedTuple):
    """Value of a gap and its derivatives, for steps in the mean and the precision of q.

    ``added_precision`` is ``-2 d gap / d covariance``, what the gap adds to the precision of q
    where it is stationary: one number a parameter where these are independent, a matrix a row
    where rows are, one matrix where nothing is.
    """

    value: Tensor  # 0-d, nats
    d_mean: Tensor  # (P,) or (n_rows, k)
    added_precision: Tensor  # (P,), (n_rows, k, k) or (P, P)


@runtime_checkable
class Gap(Protocol[Q_contra]):
    """The symmetrisation gap of a kind of posterior under a group.

    ``side`` says on which side of the gap `estimate` lies in expectation.
    """

    @property
    def group(self) -> SymmetryGroup: ...

    @property
    def side(self) -> Side: ...

    @property
    def is_random(self) -> bool:
        """Whether anything is drawn: two calls then give two answers."""

    def estimate(
        self, posterior: Q_contra, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """The gap in nats, averaged over draws of the posterior; None: as many as are due."""

    def value_and_gradients(
        self, posterior: Q_contra, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate for a step of training, from a few fresh draws."""
