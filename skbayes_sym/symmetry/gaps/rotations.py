r"""The symmetrisation gap of independent normal rows under O(k), or a lower bound with anchors.

Rows ``x_i ~ N(m_i, S_i)`` of a factorisation are rotated and reflected together by a random T with
Haar distribution. With anchors ``a_i`` and ``B = sum_i a_i x_i'``,

.. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)],

where F is the log of the integral of ``exp tr(B T')`` (`log_haar_integral`). This is the bound of
Barber & Agakov (2003) with a matrix Langevin decoder, for any anchors and any q. With
``S_i = c_i 1`` and ``a_i = m_i / c_i`` it is the gap. (Moore 2016, appendix A, replaces B by its
symmetric part and F by an approximation above it. The printed expression isn't a bound.)

For such rows the gap depends on :math:`Q = \sum_i m_i m_i^\top / c_i` alone, and not on Q's basis.
In the axes of Q its slope is therefore diagonal, although a Monte Carlo estimate of it isn't:
reversing an axis maps Q to itself, and negates the entries beside the diagonal in its row and
column. With ``B = Q + Q^{1/2} Z`` and R the mean rotation given B,

.. math:: \frac{\partial \operatorname{gap}}{\partial m_i} = \frac{1}{c_i} G m_i, \qquad
    G = E[1 - R] \text{ in the axes of } Q, \qquad
    -2 \frac{\partial \operatorname{gap}}{\partial c_i} = \frac{1}{c_i^2} m_i^\top G m_i,

so that k numbers are estimated instead of k (k + 1) / 2. A posterior fitted to n pairs of draws
ends about 0.5 / n nats below its optimum at k = 20, instead of 30 / n.
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
    """Compute ``tr B - F(B)`` for each matrix, (*B, k, k) -> (*B,), nats; differentiable.

    The value of a draw may be negative. The mean over draws of B is a gap or a lower bound. The
    cost is that of the singular values, O(k^3).
    """
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace - log_haar_integral(torch.linalg.svdvals(inner))


def anchored_inner(anchors: Tensor, rows: Tensor) -> Tensor:
    """Compute ``B = sum_i a_i x_i'`` of draws, (n_rows, p) and (*B, n_rows, k) -> (*B, p, k)."""
    return anchors.mT @ rows


# Number of draws for the added precision. It costs O(k^3) for each row and draw, more than all
# other steps, and its error has a second-order effect.
PRECISION_DRAWS = 1


def langevin_gradient(anchors: Tensor, inner: Tensor) -> GapGradient:
    """Compute the value and derivatives of the bound, with fixed anchors.

    Optimal anchors are stationary, so that the derivative through them vanishes. The added
    precision uses the first draw only.

    Parameters
    ----------
    anchors : Tensor of shape (n_rows, k)
        Anchors.
    inner : Tensor of shape (D, k, k)
        Draws of B.
    """
    expansion = expand_langevin(inner)
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS))
    return GapGradient(expansion.value.mean(), anchors @ expansion.gradient.mean(0), added)


class LangevinExpansion(NamedTuple):
    """Second-order expansion of ``tr B - F(B)`` at D draws of B.

    Attributes
    ----------
    value : Tensor of shape (D,)
        Values.
    gradient : Tensor of shape (D, k, k)
        The identity minus the mean rotation.
    u, v : Tensor of shape (D, k, k)
        Singular vectors, B = U diag(s) V'.
    even : Tensor of shape (D, k, k)
        Half the even part of `pair_curvature`.
    mixed : Tensor of shape (D, k, k)
        Hessian in the singular values, plus half the odd part of `pair_curvature`.
    """

    value: Tensor
    gradient: Tensor
    u: Tensor
    v: Tensor
    even: Tensor
    mixed: Tensor

    def first(self, n_draws: int) -> "LangevinExpansion":
        """Return the expansion at the first draws."""
        return LangevinExpansion(*(part[:n_draws] for part in self))


def expand_langevin(inner: Tensor) -> LangevinExpansion:
    """Compute value, gradient and curvature at draws (D, k, k)."""
    u, s, v_transposed = torch.linalg.svd(inner)
    expansion = haar_expansion(s)
    even, odd = pair_curvature(s, expansion)
    rotation = (u * expansion.gradient.to(s).unsqueeze(-2)) @ v_transposed
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
    return LangevinExpansion(
        trace - expansion.value.to(s),
        identity - rotation,
        u,
        v_transposed.mT,
        0.5 * even.to(s),
        (expansion.hessian + 0.5 * odd).to(s),
    )


def added_precision(
    anchors: Tensor, expansion: LangevinExpansion, axes: Tensor | None = None
) -> Tensor:
    """Compute ``E[d^2 F / dx_i^2] = -2 d gap / d S_i`` (Price's theorem).

    Parameters
    ----------
    anchors : Tensor of shape (n_rows, k)
        Anchors.
    expansion : LangevinExpansion
        Expansion at draws of B.
    axes : Tensor of shape (k, k) or None, default=None
        If given, anchors and B are coordinates along these axes. The result never is.

    Returns
    -------
    Tensor of shape (n_rows, k, k)
        Positive semi-definite, because F is convex. The cost is O(n_rows k^3) for each draw.
    """
    rotated_v = expansion.v
    if axes is not None:
        rotated_v = axes @ rotated_v
    n, k = anchors.shape
    added = anchors.new_zeros(n, k, k)
    weight = 1.0 / len(rotated_v)
    for begin, end in matrix_blocks(n, k):
        draws = zip(expansion.u, rotated_v, expansion.even, expansion.mixed, strict=True)
        for u, v, even, mixed in draws:
            rotated = anchors[begin:end] @ u
            local = rotated.unsqueeze(-1) * (rotated.unsqueeze(-2) * (weight * mixed))
            local.diagonal(dim1=-2, dim2=-1).add_(rotated.square() @ even, alpha=weight)
            added[begin:end] += v @ (local @ v.mT)
    return added


FREE_MIXING_UP_TO = 3  # number of components up to which the mixing matrix of anchors is free


def mean_variances(posterior: RowPosterior) -> Tensor:
    """Return the average variance of the entries of each row, (n_rows,)."""
    return posterior.cov.diagonal(dim1=-2, dim2=-1).mean(-1)


def plain_anchors(posterior: RowPosterior) -> Tensor:
    """Return the anchors ``m_i / c_i``, (n_rows, k)."""
    return posterior.mean / mean_variances(posterior).unsqueeze(-1)


def anchor_features(posterior: RowPosterior, root: Tensor) -> Tensor:
    """Return ``m_i / c_i`` and ``S_i^-1 m_i`` side by side, (n_rows, 2k).

    ``root`` (n_rows, k, k) contains the Cholesky factors of the covariances.
    """
    natural_mean = torch.cholesky_solve(posterior.mean.unsqueeze(-1), root).squeeze(-1)
    return torch.cat([plain_anchors(posterior), natural_mean], dim=1)


def learn_mixing(inner: Tensor, compute_gap: Callable[[Tensor], Tensor] = langevin_gap) -> Tensor:
    """Find the matrix W that maximises the mean of ``tr B - F(B)``, ``B = W C``, over draws of C.

    This is a concave problem, because F is convex. W is free for few components. For more it has
    one weight for each of the two sets of anchors, because a free matrix would overfit the draws.

    Parameters
    ----------
    inner : Tensor of shape (D, 2k, k)
        Draws of ``C = sum_i features_i x_i'``.
    compute_gap : callable (*B, k, k) -> (*B,), default=langevin_gap
        Computes ``tr B - F(B)``.

    Returns
    -------
    Tensor of shape (k, 2k)
    """
    k = inner.shape[-1]
    eye = torch.eye(k).to(inner)
    zeros = torch.zeros(k, k).to(inner)
    identity = torch.cat([eye, zeros], 1)
    basis = torch.stack([identity, torch.cat([zeros, eye], 1)])  # W is a combination of these
    if k <= FREE_MIXING_UP_TO:
        basis = torch.eye(2 * k * k).view(-1, k, 2 * k).to(inner)

    def loss(weights: Tensor) -> Tensor:
        return -compute_gap(torch.tensordot(weights, basis, 1) @ inner).mean()

    start = torch.tensordot(basis, identity, 2) / basis.square().sum((-2, -1))
    weights = lbfgs(with_gradient(loss), start, max_iter=20)
    return torch.tensordot(weights, basis, 1)


class SecondMoment(NamedTuple):
    """Precision-weighted second moment of the row means, ``Q = sum_i m_i m_i' / c_i``.

    Attributes
    ----------
    values : Tensor of shape (k,)
        Eigenvalues, increasing.
    axes : Tensor of shape (k, k)
        Eigenvectors, the columns.
    """

    values: Tensor
    axes: Tensor

    @classmethod
    def from_rows(cls, loc: Tensor, variance: Tensor) -> "SecondMoment":
        """Compute it from means (n_rows, k) and variances (n_rows,)."""
        values, axes = torch.linalg.eigh(loc.mT @ (loc / variance.unsqueeze(-1)))
        return cls(values.clamp(min=0.0), axes)

    def sample_inner(self, noise: Tensor) -> Tensor:
        """Return draws of B in the axes of Q, from standard normal noise (D, k, k).

        They depend on the rows through Q alone, so that the cost O(k^3) doesn't depend on their
        number.
        """
        return self.values.diag() + self.values.sqrt().unsqueeze(-1) * noise


def isotropic_gradient(
    loc: Tensor, variance: Tensor, moment: SecondMoment, inner: Tensor
) -> GapGradient:
    """Compute the value and derivatives of the gap of isotropic rows.

    The shape of the added precision is that of the first draw. Its trace uses all draws.

    Parameters
    ----------
    loc : Tensor of shape (n_rows, k)
        Means.
    variance : Tensor of shape (n_rows,)
        Variances.
    moment : SecondMoment
        Second moment of the rows.
    inner : Tensor of shape (D, k, k)
        Draws of B in its axes.
    """
    expansion = expand_langevin(inner)
    slope = expansion.gradient.diagonal(dim1=-2, dim2=-1).mean(0)
    anchors = (loc / variance.unsqueeze(-1)) @ moment.axes
    exact_trace = anchors.square() @ slope
    added = added_precision(anchors, expansion.first(PRECISION_DRAWS), moment.axes)
    trace = added.diagonal(dim1=-2, dim2=-1).sum(-1)
    trace = trace.clamp(min=torch.finfo(exact_trace.dtype).tiny)
    added *= (exact_trace / trace)[:, None, None]
    return GapGradient(expansion.value.mean(), (anchors * slope) @ moment.axes.mT, added)


# Number of pairs of draws in a training step. Draws are antithetic, z and -z, so that odd functions
# of the noise, which are most of a gradient's error, cancel.
_MAX_STEP_PAIRS = 6


@dataclass(frozen=True, eq=False)
class IsotropicRotationGap:
    """`Gap` under O(k) of rows with covariances ``c_i 1``, exact up to the error of F for k > 3.

    Parameters
    ----------
    group : Orthogonal
        Group of all rows.
    """

    group: Orthogonal
    is_random: ClassVar[bool] = True

    @property
    def side(self) -> Side:
        """Exact if F is exact, otherwise a lower bound if the large-rank saddle lies above F."""
        if self.group.n_components <= EXACT_UP_TO:
            return "exact"
        return "lower"

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 to 4,096 by default, fewer for wide rows), O(k^3) each."""
        default = max(256, min(4096, (1 << 19) // posterior.mean.shape[1] ** 2))
        noise = self._noise(posterior, (1 + (n_draws or default)) // 2, generator)
        return _antithetic_mean(self._second_moment(posterior).sample_inner(noise))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate the value and derivatives from six pairs of draws."""
        moment = self._second_moment(posterior)
        variance = mean_variances(posterior)
        inner = moment.sample_inner(self._noise(posterior, _MAX_STEP_PAIRS, generator))
        return isotropic_gradient(posterior.mean, variance, moment, inner)

    def _second_moment(self, posterior: RowPosterior) -> SecondMoment:
        """Return the second moment of the posterior's rows."""
        return SecondMoment.from_rows(posterior.mean, mean_variances(posterior))

    def _noise(self, posterior: RowPosterior, n_pairs: int, generator: torch.Generator) -> Tensor:
        """Return antithetic noise (2 n_pairs, k, k)."""
        k = posterior.mean.shape[1]
        noise = normal_like((n_pairs, k, k), generator=generator, like=posterior.mean)
        return torch.cat([noise, -noise])


@dataclass(frozen=True, eq=False)
class AnchoredRotationGap:
    """Lower bound of the `Gap` under O(k) of rows with any covariance, by anchors.

    Training uses the anchors ``m_i / c_i`` with the mean variance c_i of the row. They are optimal
    for isotropic rows, and nearly optimal otherwise. `estimate` fits combinations of these and of
    ``S_i^-1 m_i`` by a (2k, k) matrix, a concave problem, on separate draws.

    Parameters
    ----------
    group : Orthogonal
        Group of all rows.
    """

    group: Orthogonal
    side: ClassVar[Side] = "lower"  # for any anchors, if F is exact or bounded from above
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default, fewer for large matrices).

        The anchors are fitted to separate draws. A draw costs O(n_rows k^2).
        """
        default = max(16, min(256, (1 << 24) // posterior.mean.numel()))
        n_pairs = (1 + (n_draws or default)) // 2
        k = posterior.mean.shape[1]
        # A free mixing matrix needs as many draws as are averaged, two weights need fewer.
        if k <= FREE_MIXING_UP_TO:
            n_training = n_pairs
        else:
            n_training = max(1, n_pairs // 8)
        centre = posterior.mean.new_zeros(2 * k, k)
        noise = centre.new_zeros(n_training + n_pairs, 2 * k, k)
        for part in _row_blocks(posterior):
            root = row_root(part.cov)
            features = anchor_features(part, root)
            centre += anchored_inner(features, part.mean)
            noise += anchored_inner(features, row_noise(part, root, len(noise), generator))
        training = noise[:n_training]
        mixing = learn_mixing(torch.cat([centre + training, centre - training]))
        fresh = noise[n_training:]
        return _antithetic_mean(mixing @ torch.cat([centre + fresh, centre - fresh]))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate from six pairs of draws, or fewer for many rows, with plain anchors."""
        anchors = plain_anchors(posterior)
        # With many rows few draws suffice, because B is a sum over rows.
        n_pairs = max(1, min(_MAX_STEP_PAIRS, (1 << 16) // anchors.numel()))
        noise = anchors.new_zeros(n_pairs, anchors.shape[1], anchors.shape[1])
        for part in _row_blocks(posterior):
            rows = row_noise(part, row_root(part.cov), n_pairs, generator)
            noise += anchored_inner(plain_anchors(part), rows)
        centre = anchored_inner(anchors, posterior.mean)
        return langevin_gradient(anchors, torch.cat([centre + noise, centre - noise]))


def _antithetic_mean(inner: Tensor) -> Estimate:
    """Average the gap over antithetic draws of B, the second half with opposite noise."""
    return mean_and_error(langevin_gap(inner).view(2, -1).mean(0))


class _RowBlock(NamedTuple):
    """A block of r rows of a posterior.

    Attributes
    ----------
    mean : Tensor of shape (r, k)
        Means.
    cov : Tensor of shape (r, k, k)
        Covariances.
    """

    mean: Tensor
    cov: Tensor


def _row_blocks(posterior: RowPosterior) -> Iterator[_RowBlock]:
    """Split the rows into blocks of limited memory."""
    for begin, end in matrix_blocks(*posterior.mean.shape):
        yield _RowBlock(posterior.mean[begin:end], posterior.cov[begin:end])


def row_root(cov: Tensor) -> Tensor:
    """Return the Cholesky factors of the rows' covariances, (n, k, k)."""
    return cholesky(
        cov, name="The covariance of a row", remedy="Standardize the matrix, or give X as float64."
    )


def row_noise(
    posterior: RowPosterior, root: Tensor, n_draws: int, generator: torch.Generator
) -> Tensor:
    """Sample rows without their mean.

    Parameters
    ----------
    posterior : RowPosterior
        Independent normal rows.
    root : Tensor of shape (n_rows, k, k)
        Cholesky factors of their covariances.
    n_draws : int
        Number of draws.
    generator : torch.Generator
        Random number generator.

    Returns
    -------
    Tensor of shape (n_draws, n_rows, k)
    """
    n, k = posterior.mean.shape
    noise = normal_like((n, n_draws, k), generator=generator, like=posterior.mean)
    return (noise @ root.mT).movedim(1, 0)
