r"""The symmetrisation gap: one interface for all posteriors and groups.

For a posterior q and a compact group G of its model's symmetries,

.. math:: \operatorname{gap}(q) = E_q[\log q(\theta) - \log q_G(\theta)]
    = KL[q \,\|\, q_G] = I(g; \theta) \in [0, \log |G|], \qquad
    q_G(\theta) = E_g\, q(g^{-1} \theta),

is what symmetrising q adds to its ELBO (Gelberg et al. 2024, Theorem 4.1; Moore 2016, eq. 4).
Translations have no uniform distribution. Their gap is a difference of two optima
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
    def loc(self) -> Vector:
        """Means (P,)."""

    @property
    def scale(self) -> Vector:
        """Standard deviations (P,)."""


class RowPosterior(Protocol):
    """Independent normal rows of length k: means (n_rows, k), covariances (n_rows, k, k)."""

    @property
    def mean(self) -> Tensor:
        """Means (n_rows, k)."""

    @property
    def cov(self) -> Tensor:
        """Covariances (n_rows, k, k)."""


class GapGradient(NamedTuple):
    """Value of a gap and its derivatives, for steps in the mean and the precision of q.

    Attributes
    ----------
    value : Tensor of shape ()
        The gap, nats.
    d_mean : Tensor of shape (P,) or (n_rows, k)
        Derivatives with respect to the mean.
    added_precision : Tensor of shape (P,), (n_rows, k, k) or (P, P)
        ``-2 d gap / d covariance``, which the gap adds to the precision of a stationary q. It has
        one entry for each independent parameter, or a matrix for each independent row, or a single
        matrix if all parameters are dependent.
    """

    value: Tensor
    d_mean: Tensor
    added_precision: Tensor


@runtime_checkable
class Gap(Protocol[Q_contra]):
    """The symmetrisation gap of one type of posterior under a group."""

    @property
    def group(self) -> SymmetryGroup:
        """The group."""

    @property
    def side(self) -> Side:
        """Side of the gap on which `estimate` lies in expectation."""

    @property
    def is_random(self) -> bool:
        """Whether random numbers are drawn, so that two calls give different results."""

    def estimate(
        self, posterior: Q_contra, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Estimate the gap in nats.

        Parameters
        ----------
        posterior : object
            Posterior q.
        n_draws : int or None, default=None
            Number of posterior draws that are averaged; None: a default for its size.
        generator : torch.Generator
            Random number generator.
        """

    def value_and_gradients(
        self, posterior: Q_contra, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate the gap and its derivatives for a training step, from a few fresh draws."""
