"""The symmetrisation gap of independent normal rows under O(k): exact, or the anchor bound."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import cholesky, matrix_blocks
from skbayes_sym.numerics.monte_carlo import Estimate, mean_and_error
from skbayes_sym.symmetry.gaps.anchors import (
    FREE_MIXING_UP_TO,
    anchor_features,
    learn_mixing,
    mean_variances,
    plain_anchors,
)
from skbayes_sym.symmetry.gaps.base import GapGradient, RowPosterior, Side
from skbayes_sym.symmetry.gaps.haar_integral import EXACT_UP_TO
from skbayes_sym.symmetry.gaps.langevin import (
    anchored_inner,
    isotropic_inner,
    langevin_gap,
    langevin_gradient,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal

# Numbers drawn a step for draws of all rows: many rows make few draws enough, since B sums them.
_NUMBERS_A_STEP = 1 << 16
_MOST_DRAWS = 6
_ESTIMATE_DRAWS = 256
_ESTIMATE_NUMBERS = 1 << 24  # most numbers drawn for an estimate
# Draws that anchors are learned from, as a part of those averaged; all, if the mixing is free.
_LEARNING_SHARE = 8


@dataclass(frozen=True, eq=False)
class IsotropicRotationGap:
    """O(k), rows of covariance ``c_i 1``: the gap itself, up to F beyond k = 3; a `Gap`.

    Parameters
    ----------
    group : Orthogonal
        Of all rows.
    """

    group: Orthogonal
    is_random: ClassVar[bool] = True

    @property
    def side(self) -> Side:
        """Exact where F is; beyond, a lower bound if the large-rank saddle lies above F."""
        return "exact" if self.group.n_components <= EXACT_UP_TO else "lower"

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over ``n_draws`` (256 by default), O(k^3) each."""
        draws = self._inner(posterior, n_draws or _ESTIMATE_DRAWS, generator)
        return mean_and_error(langevin_gap(draws))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """From six draws."""
        inner = self._inner(posterior, _MOST_DRAWS, generator)
        return langevin_gradient(plain_anchors(posterior), inner)

    def _inner(self, posterior: RowPosterior, n_draws: int, generator: torch.Generator) -> Tensor:
        noise = row_noise((n_draws, posterior.mean.shape[1]), posterior, generator)
        return isotropic_inner(posterior.mean, mean_variances(posterior), noise)


@dataclass(frozen=True, eq=False)
class AnchoredRotationGap:
    """O(k), any covariance: the anchor bound, below the gap; a `Gap`.

    Training uses the anchors ``m_i / c_i`` with the mean variance c_i of the row, which are optimal
    for isotropic rows and close otherwise. `estimate` learns anchors: combinations of these and
    of ``S_i^-1 m_i`` by a (2k, k) matrix, a concave problem, on draws of its own.

    Parameters
    ----------
    group : Orthogonal
        Of all rows.
    """

    group: Orthogonal
    side: ClassVar[Side] = "lower"  # for any anchors, where F is exact or bounded from above
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default, fewer of large matrices) that nothing learned from.

        O(n_rows k^2) a draw.
        """
        few = max(16, min(_ESTIMATE_DRAWS, _ESTIMATE_NUMBERS // posterior.mean.numel()))
        n_draws = n_draws or few
        k = posterior.mean.shape[1]
        n_learned = n_draws if k <= FREE_MIXING_UP_TO else max(2, n_draws // _LEARNING_SHARE)
        inner = posterior.mean.new_zeros(n_learned + n_draws, 2 * k, k)
        for part in _parts(posterior):
            root = row_root(part.cov)
            features = anchor_features(part, root)
            for total in inner:
                total += anchored_inner(features, _rows(part, root, 1, generator))[0]
        mixing = learn_mixing(inner[:n_learned])
        return mean_and_error(langevin_gap(mixing @ inner[n_learned:]))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """From six draws, fewer of many rows; with the plain anchors."""
        anchors = plain_anchors(posterior)
        n_draws = max(1, min(_MOST_DRAWS, _NUMBERS_A_STEP // anchors.numel()))
        k = anchors.shape[1]
        inner = anchors.new_zeros(n_draws, k, k)
        for part in _parts(posterior):
            rows = _rows(part, row_root(part.cov), n_draws, generator)
            inner += anchored_inner(plain_anchors(part), rows)
        return langevin_gradient(anchors, inner)


class _Part(NamedTuple):
    """Some rows of a posterior."""

    mean: Tensor  # (r, k)
    cov: Tensor  # (r, k, k)


def _parts(posterior: RowPosterior) -> Iterator[_Part]:
    for begin, end in matrix_blocks(*posterior.mean.shape):
        yield _Part(posterior.mean[begin:end], posterior.cov[begin:end])


def _rows(
    posterior: RowPosterior, root: Tensor, n_draws: int, generator: torch.Generator
) -> Tensor:
    """Draws of all rows, (n_draws, n_rows, k)."""
    noise = row_noise((len(posterior.mean), n_draws), posterior, generator)
    return posterior.mean + (noise @ root.mT).movedim(1, 0)


def row_root(cov: Tensor) -> Tensor:
    """Cholesky factors of the rows' covariances, (n, k, k)."""
    return cholesky(
        cov,
        what="The covariance of a row",
        remedy="Standardize the matrix, or use dtype='float64'.",
    )


def row_noise(
    shape: tuple[int, int], posterior: RowPosterior, generator: torch.Generator
) -> Tensor:
    """Standard normal noise (*shape, k) as the posterior's means are."""
    mean = posterior.mean
    full = (*shape, mean.shape[1])
    return torch.randn(full, generator=generator, device=mean.device, dtype=mean.dtype)
