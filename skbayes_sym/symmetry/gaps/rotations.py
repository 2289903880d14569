r"""The symmetrisation gap of independent normal rows under O(k): exact, or the anchor bound.

Rows ``x_i ~ N(m_i, S_i)`` of a factorisation are rotated and reflected together by a Haar random
T. With anchors ``a_i`` and ``B = sum_i a_i x_i'``,

.. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)],

F the log of the integral of ``exp tr(B T')`` (`log_haar_integral`): the bound of Barber & Agakov
(2003) with a matrix Langevin decoder, for any anchors and any q. With ``S_i = c_i 1`` and
``a_i = m_i / c_i`` it is the gap itself. (Moore 2016, appendix A, replaces B by its symmetric part
and F by an approximation above it: what is printed there is no bound.)

For such rows the gap depends on :math:`Q = \sum_i m_i m_i^\top / c_i` alone, and not on Q's basis.
So in the axes of Q its slope is diagonal, whatever its draws say: turning two axes round turns Q
into itself, and every entry off the diagonal into its negative. With ``B = Q + Q^{1/2} Z`` and R
the mean rotation given B,

.. math:: \frac{\partial \operatorname{gap}}{\partial m_i} = \frac{1}{c_i} G m_i, \qquad
    G = E[1 - R] \text{ in the axes of } Q, \qquad
    -2 \frac{\partial \operatorname{gap}}{\partial c_i} = \frac{1}{c_i^2} m_i^\top G m_i,

k numbers are to be estimated instead of k (k + 1) / 2: a posterior fitted to n pairs of draws ends
about .5 / n nats below its optimum at k = 20, instead of 30 / n.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.numerics.linalg import cholesky, matrix_blocks
from skbayes_sym.numerics.optimise import lbfgs, with_gradient
from skbayes_sym.numerics.random import Estimate, mean_and_error, normal_like
from skbayes_sym.symmetry.gaps.gap import GapGradient, RowPosterior, Side
from skbayes_sym.symmetry.gaps.haar_integral import (
    EXACT_UP_TO,
    haar_expansion,
    log_haar_integral,
    pair_curvature,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal


def langevin_gap(inner: Tensor) -> Tensor:
    """``tr B - F(B)`` for each matrix, (*B, k, k) -> (*B,), nats; differentiable.

    A draw's value may be negative; its mean over draws of B is a gap or a bound below it. Cost of
    one set of singular values, O(k^3).
    """
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace - log_haar_integral(torch.linalg.svdvals(inner))


def anchored_inner(anchors: Tensor, rows: Tensor) -> Tensor:
    """``B = sum_i a_i x_i'`` of draws: (n_rows, p) and (*B, n_rows, k) -> (*B, p, k)."""
    return anchors.mT @ rows


# The added precision costs O(k^3) a row and draw, more than all else, and its error counts twice.
PRECISION_DRAWS = 1


def langevin_gradient(anchors: Tensor, inner: Tensor) -> GapGradient:
    """Value and derivatives from draws of B (D, k, k), the anchors (n_rows, k) held fixed.

    Optimal anchors are stationary, so holding them costs nothing. The added precision is an average
    over the first draw alone.
    """
    expansion = expand_langevin(inner)
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS))
    return GapGradient(expansion.value.mean(), anchors @ expansion.rest.mean(0), added)


class LangevinExpansion(NamedTuple):
    """``tr B - F(B)`` at draws of B, to second order."""

    value: Tensor  # (D,)
    rest: Tensor  # (D, k, k), the gradient: identity minus the mean rotation
    left: Tensor  # (D, k, k), U of B = U diag(s) V'
    right: Tensor  # (D, k, k), V
    even: Tensor  # (D, k, k), see `pair_curvature`, halved
    mixed: Tensor  # (D, k, k), Hessian in the singular values, plus half the odd part

    def first(self, n_draws: int) -> "LangevinExpansion":
        """At the first draws."""
        return LangevinExpansion(*(part[:n_draws] for part in self))


def expand_langevin(inner: Tensor) -> LangevinExpansion:
    """Value, gradient and curvature at draws (D, k, k)."""
    left_vectors, s, right_t = torch.linalg.svd(inner)
    expansion = haar_expansion(s)
    even, odd = pair_curvature(s, expansion)
    rotation = (left_vectors * expansion.gradient.to(s).unsqueeze(-2)) @ right_t
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return LangevinExpansion(
        trace - expansion.value.to(s),
        identity - rotation,
        left_vectors,
        right_t.mT,
        0.5 * even.to(s),
        (expansion.hessian + 0.5 * odd).to(s),
    )


def added_precision(
    anchors: Tensor, expansion: LangevinExpansion, axes: Tensor | None = None
) -> Tensor:
    """``E[d^2 F / dx_i^2] = -2 d gap / d S_i`` (Price's theorem), (n_rows, k, k).

    Positive semi-definite, since F is convex. O(n_rows k^3) a draw. With ``axes`` anchors and B are
    coordinates along them, the answer is not.
    """
    right = expansion.right if axes is None else axes @ expansion.right
    n, k = anchors.shape
    added = anchors.new_zeros(n, k, k)
    share = 1.0 / len(right)
    for begin, end in matrix_blocks(n, k):
        pairs = zip(expansion.left, right, expansion.even, expansion.mixed, strict=True)
        for u, v, even, mixed in pairs:
            turned = anchors[begin:end] @ u
            local = turned.unsqueeze(-1) * (turned.unsqueeze(-2) * (share * mixed))
            local.diagonal(dim1=-2, dim2=-1).add_(turned.square() @ even, alpha=share)
            added[begin:end] += v @ (local @ v.mT)
    return added


FREE_MIXING_UP_TO = 3  # components


def mean_variances(posterior: RowPosterior) -> Tensor:
    """Average variance of the entries of each row, (n_rows,)."""
    return posterior.cov.diagonal(dim1=-2, dim2=-1).mean(-1)


def plain_anchors(posterior: RowPosterior) -> Tensor:
    """``m_i / c_i``, (n_rows, k)."""
    return posterior.mean / mean_variances(posterior).unsqueeze(-1)


def anchor_features(posterior: RowPosterior, root: Tensor) -> Tensor:
    """``m_i / c_i`` and ``S_i^-1 m_i`` side by side, (n_rows, 2k); ``root`` is Cholesky's of S."""
    natural_mean = torch.cholesky_solve(posterior.mean.unsqueeze(-1), root).squeeze(-1)
    return torch.cat([plain_anchors(posterior), natural_mean], dim=1)


def learn_mixing(inner: Tensor, gap_of: Callable[[Tensor], Tensor] = langevin_gap) -> Tensor:
    """The matrix W that maximises the mean of ``tr B - F(B)``, ``B = W C``, over draws of C.

    A concave problem where F is convex. W is free for few components; for more it weighs the two
    sets of anchors by one number each, since a free matrix would learn the draws by heart.

    ``inner`` (D, 2k, k): ``C = sum_i features_i x_i'`` of each draw. ``gap_of``: ``tr B - F(B)``;
    of all rotations by default. Returns (k, 2k).
    """
    k = inner.shape[-1]
    one = torch.eye(k).to(inner)
    none = torch.zeros(k, k).to(inner)
    identity = torch.cat([one, none], 1)
    basis = torch.stack([identity, torch.cat([none, one], 1)])  # matrices that W is combined from
    if k <= FREE_MIXING_UP_TO:
        basis = torch.eye(2 * k * k).view(-1, k, 2 * k).to(inner)

    def loss(weights: Tensor) -> Tensor:
        return -gap_of(torch.tensordot(weights, basis, 1) @ inner).mean()

    start = torch.tensordot(basis, identity, 2) / basis.square().sum((-2, -1))
    weights = lbfgs(with_gradient(loss), start, max_iter=20)
    return torch.tensordot(weights, basis, 1)


class SecondMoment(NamedTuple):
    """``Q = sum_i m_i m_i' / c_i``: how far rows are from 0, and along which axes."""

    values: Tensor  # (k,), increasing
    axes: Tensor  # (k, k), columns

    @classmethod
    def from_rows(cls, loc: Tensor, variance: Tensor) -> "SecondMoment":
        """SecondMoment of rows with means (n_rows, k) and variances (n_rows,)."""
        values, axes = torch.linalg.eigh(loc.mT @ (loc / variance.unsqueeze(-1)))
        return cls(values.clamp(min=0.0), axes)

    def sample_inner(self, noise: Tensor) -> Tensor:
        """Draws of B in the axes of Q, from standard normal numbers (D, k, k).

        The rows enter through Q alone, so a draw costs O(k^3) however many they are.
        """
        return self.values.diag() + self.values.sqrt().unsqueeze(-1) * noise


def isotropic_gradient(
    loc: Tensor, variance: Tensor, distance: SecondMoment, inner: Tensor
) -> GapGradient:
    """Value and derivatives from draws of B in the axes of Q, (D, k, k).

    The added precision is shaped by the first draw alone, and as large as all of them say.
    """
    expansion = expand_langevin(inner)
    slope = expansion.rest.diagonal(dim1=-2, dim2=-1).mean(0)
    anchors = (loc / variance.unsqueeze(-1)) @ distance.axes
    due = anchors.square() @ slope
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS), distance.axes)
    trace = added.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=torch.finfo(due.dtype).tiny)
    added *= (due / trace)[:, None, None]
    return GapGradient(expansion.value.mean(), (anchors * slope) @ distance.axes.mT, added)


# Draws come in pairs, z and -z: what is odd in the noise, most of a gradient's error, cancels.
_MOST_PAIRS = 6  # of a step


@dataclass(frozen=True, eq=False)
class IsotropicRotationGap:
    """O(k), rows of covariance ``c_i 1``: the gap itself, up to F beyond k = 3; a `Gap`."""

    group: Orthogonal  # of all rows
    is_random: ClassVar[bool] = True

    @property
    def side(self) -> Side:
        """Exact where F is; beyond, a lower bound if the large-rank saddle lies above F."""
        return "exact" if self.group.n_components <= EXACT_UP_TO else "lower"

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over ``n_draws`` (256 to 4,096 by default, fewer of wide rows), O(k^3) each."""
        few = max(256, min(4096, (1 << 19) // posterior.mean.shape[1] ** 2))
        noise = self._noise(posterior, (1 + (n_draws or few)) // 2, generator)
        return _antithetic_mean(self._distance(posterior).sample_inner(noise))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Value and derivatives from six pairs of draws."""
        distance = self._distance(posterior)
        variance = mean_variances(posterior)
        inner = distance.sample_inner(self._noise(posterior, _MOST_PAIRS, generator))
        return isotropic_gradient(posterior.mean, variance, distance, inner)

    def _distance(self, posterior: RowPosterior) -> SecondMoment:
        return SecondMoment.from_rows(posterior.mean, mean_variances(posterior))

    def _noise(self, posterior: RowPosterior, n_pairs: int, generator: torch.Generator) -> Tensor:
        k = posterior.mean.shape[1]
        noise = normal_like((n_pairs, k, k), generator=generator, like=posterior.mean)
        return torch.cat([noise, -noise])


@dataclass(frozen=True, eq=False)
class AnchoredRotationGap:
    """O(k), any covariance: the anchor bound, below the gap; a `Gap`.

    Training uses the anchors ``m_i / c_i`` with the mean variance c_i of the row, which are optimal
    for isotropic rows and close otherwise. `estimate` learns anchors: combinations of these and
    of ``S_i^-1 m_i`` by a (2k, k) matrix, a concave problem, on draws of its own.
    """

    group: Orthogonal  # of all rows
    side: ClassVar[Side] = "lower"  # for any anchors, where F is exact or bounded from above
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default, fewer of large matrices) that nothing learned from.

        O(n_rows k^2) a draw.
        """
        few = max(16, min(256, (1 << 24) // posterior.mean.numel()))
        n_pairs = (1 + (n_draws or few)) // 2
        k = posterior.mean.shape[1]
        # Anchors are learned from as many draws as are averaged if the mixing is free, else a few.
        n_learned = n_pairs if k <= FREE_MIXING_UP_TO else max(1, n_pairs // 8)
        centre = posterior.mean.new_zeros(2 * k, k)
        noise = centre.new_zeros(n_learned + n_pairs, 2 * k, k)
        for part in _parts(posterior):
            root = row_root(part.cov)
            features = anchor_features(part, root)
            centre += anchored_inner(features, part.mean)
            noise += anchored_inner(features, row_noise(part, root, len(noise), generator))
        learned = noise[:n_learned]
        mixing = learn_mixing(torch.cat([centre + learned, centre - learned]))
        rest = noise[n_learned:]
        return _antithetic_mean(mixing @ torch.cat([centre + rest, centre - rest]))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Use six pairs of draws, fewer of many rows, and the plain anchors."""
        anchors = plain_anchors(posterior)
        # Many rows make few draws enough, since B sums them.
        n_pairs = max(1, min(_MOST_PAIRS, (1 << 16) // anchors.numel()))
        noise = anchors.new_zeros(n_pairs, anchors.shape[1], anchors.shape[1])
        for part in _parts(posterior):
            drawn = row_noise(part, row_root(part.cov), n_pairs, generator)
            noise += anchored_inner(plain_anchors(part), drawn)
        centre = anchored_inner(anchors, posterior.mean)
        return langevin_gradient(anchors, torch.cat([centre + noise, centre - noise]))


def _antithetic_mean(inner: Tensor) -> Estimate:
    """The gap at draws of B, one half of them the other's opposites."""
    return mean_and_error(langevin_gap(inner).view(2, -1).mean(0))


class _Part(NamedTuple):
    """Some rows of a posterior."""

    mean: Tensor  # (r, k)
    cov: Tensor  # (r, k, k)


def _parts(posterior: RowPosterior) -> Iterator[_Part]:
    for begin, end in matrix_blocks(*posterior.mean.shape):
        yield _Part(posterior.mean[begin:end], posterior.cov[begin:end])


def row_root(cov: Tensor) -> Tensor:
    """Cholesky factors of the rows' covariances, (n, k, k)."""
    return cholesky(
        cov, name="The covariance of a row", remedy="Standardize the matrix, or give X as float64."
    )


def row_noise(
    posterior: RowPosterior, root: Tensor, n_draws: int, generator: torch.Generator
) -> Tensor:
    """Draws of rows less their mean, (n_draws, n_rows, k); ``root``: Cholesky's of covariances."""
    n, k = posterior.mean.shape
    noise = normal_like((n, n_draws, k), generator=generator, like=posterior.mean)
    return (noise @ root.mT).movedim(1, 0)
