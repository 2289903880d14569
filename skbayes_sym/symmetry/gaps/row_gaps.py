r"""Gaps of independent rows under flips and exchanges of components, and a gap for each group.

A component ``N(m, diag s)`` and its mirror image lie ``a = sum_i m_i^2 / s_i`` apart. With
:math:`t \sim N(a, a)` its gap under sign flips is

.. math:: \phi(a) = \log 2 - E \log(1 + e^{-2 t}) \in [0, \log 2),

and the gaps of independent components add up (Moore 2016, section 3.1).
"""

from dataclasses import dataclass
from functools import singledispatch
from math import lgamma, log
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.numerics.permanent import log_permanent
from skbayes_sym.numerics.random import Estimate, mean_and_error
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient, RowPosterior, Side
from skbayes_sym.symmetry.gaps.rotations import (
    FREE_MIXING_UP_TO,
    AnchoredRotationGap,
    IsotropicRotationGap,
    anchor_features,
    anchored_inner,
    learn_mixing,
    plain_anchors,
    row_noise,
    row_root,
)
from skbayes_sym.symmetry.gaps.unit_gap import Exact, UnitGap
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.orthogonal import Orthogonal
from skbayes_sym.symmetry.units import Units

# Trapezoidal rule with a normal weight. The error of both functions is below 1e-12.
_NODES = 321
_END = 10.0


@dataclass(frozen=True, eq=False)
class SignFlipGap:
    """`Gap` under flips of single components, for rows with diagonal covariances.

    Parameters
    ----------
    group : Units
        Group of the components, with an index of shape (k, n_rows).
    """

    group: Units
    side: ClassVar[Side] = "exact"  # a quadrature
    is_random: ClassVar[bool] = False

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Return the gap, in O(n_rows k)."""
        del n_draws, generator  # nothing is random
        return Estimate(float(sign_flip_gap(_distance(posterior)).sum()), 0.0)

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Return the gap, and its derivatives by means and covariances."""
        del generator  # nothing is random
        distance = _distance(posterior)
        anchors = posterior.mean / posterior.cov.diagonal(dim1=-2, dim2=-1)
        slope = 2.0 * sign_flip_slope(distance)
        return GapGradient(
            sign_flip_gap(distance).sum(), slope * anchors, torch.diag_embed(slope * anchors**2)
        )


def _distance(posterior: RowPosterior) -> Tensor:
    """Return ``sum_i m_i^2 / s_i`` of each component, (k,)."""
    anchors = posterior.mean / posterior.cov.diagonal(dim1=-2, dim2=-1)
    return (anchors * posterior.mean).sum(0)


def sign_flip_gap(distance: Tensor) -> Tensor:
    """Return the gap of each unit from squared distances ``m' S^-1 m``, (*B,) -> (*B,) nats."""
    log_ratio, weight = _nodes(distance)
    return log(2.0) - F.softplus(-2.0 * log_ratio) @ weight


def sign_flip_slope(distance: Tensor) -> Tensor:
    """Return the derivative of `sign_flip_gap`, ``E sigmoid(-2 t)``, in (0, 1/2]."""
    log_ratio, weight = _nodes(distance)
    return torch.sigmoid(-2.0 * log_ratio) @ weight


def _nodes(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return nodes of ``t ~ N(a, a)`` and their weights."""
    z = torch.linspace(-_END, _END, _NODES, dtype=distance.dtype, device=distance.device)
    a = distance.unsqueeze(-1)
    return a + a.sqrt() * z, torch.softmax(-0.5 * z * z, 0)


@dataclass(frozen=True, eq=False)
class ComponentGap:
    """`Gap` under exchanges and flips of components, for rows with diagonal covariances.

    Such rows are independent normals, and a component is a unit with one entry of every row. This
    is therefore `UnitGap` with derivatives row by row. A draw costs O(2^k k).

    Parameters
    ----------
    group : Units
        Group of the components, with an index of shape (k, n_rows).
    """

    group: Units
    side: ClassVar[Side] = "exact"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default), with one permanent each."""
        return UnitGap(self.group, Exact()).estimate(
            _flatten(posterior), n_draws or 256, generator=generator
        )

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate the value and derivatives from 16 draws."""
        gap = UnitGap(self.group, Exact(), n_draws=16)
        value, d_loc, added = gap.value_and_gradients(_flatten(posterior), generator=generator)
        mean = posterior.mean
        added = torch.diag_embed(added.view(mean.shape)).to(mean)
        return GapGradient(value.to(mean), d_loc.view(mean.shape).to(mean), added)


class _Flat(NamedTuple):
    """All entries of rows as independent normals, (n_rows k,), row by row."""

    loc: Tensor
    scale: Tensor


def _flatten(posterior: RowPosterior) -> _Flat:
    """Return the entries of rows with diagonal covariances."""
    scale = posterior.cov.diagonal(dim1=-2, dim2=-1).sqrt()
    return _Flat(posterior.mean.flatten(), scale.flatten())


@dataclass(frozen=True, eq=False)
class AnchoredComponentGap:
    r"""`Gap` under flips, or flips and exchanges, of components, for rows with any covariance.

    This is a lower bound, that of `AnchoredRotationGap` with the finite group in place of all
    rotations. With :math:`B = \sum_i a_i x_i^\top`,

    .. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)], \qquad
       e^{F(B)} = \frac{1}{k!} \operatorname{perm}(\cosh B)
       \quad\text{or}\quad \prod_h \cosh B_{hh} ,

    the averages of ``exp tr(B T')`` over signed permutations and over flips. It holds for any
    anchors and any q. A draw costs O(n_rows k^2), with exchanges also O(2^k k).

    Parameters
    ----------
    group : Units
        Group of the components, with an index of shape (k, n_rows).
    """

    group: Units
    side: ClassVar[Side] = "lower"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (128 by default); the anchors are fitted to separate draws."""
        root = row_root(posterior.cov)
        features = anchor_features(posterior, root)

        def draw(n: int) -> Tensor:
            rows = (posterior.mean + row_noise(posterior, root, 1, generator) for _ in range(n))
            return torch.cat([anchored_inner(features, x) for x in rows])

        n_draws = n_draws or 128
        # A free mixing matrix overfits few draws.
        is_free = posterior.mean.shape[1] <= FREE_MIXING_UP_TO
        n_training = max(n_draws, 32) if is_free else 32
        mixing = learn_mixing(draw(n_training), self.values)
        return mean_and_error(self.values(mixing @ draw(n_draws)))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Estimate the value and slope from four draws with plain anchors.

        Nothing is added to precisions. If the copies are separated, both derivatives vanish, and a
        finite group can't add much.
        """
        anchors = plain_anchors(posterior)
        noise = row_noise(posterior, row_root(posterior.cov), 4, generator)
        inner = anchored_inner(anchors, posterior.mean + noise).detach().requires_grad_()
        with torch.enable_grad():
            value = self.values(inner).mean()
            (slope,) = torch.autograd.grad(value, inner)
        added = torch.zeros_like(posterior.cov)
        return GapGradient(value.detach(), anchors @ slope.sum(0), added)

    def values(self, inner: Tensor) -> Tensor:
        """Compute ``tr B - F(B)`` of each matrix, (*B, k, k) -> (*B,) nats; differentiable."""
        log_cosh = inner.abs() + F.softplus(-2.0 * inner.abs()) - log(2.0)
        trace = inner.diagonal(dim1=-2, dim2=-1).sum(-1)
        if not self.group.permutes:
            return trace - log_cosh.diagonal(dim1=-2, dim2=-1).sum(-1)
        k = inner.shape[-1]
        return trace - log_permanent(log_cosh) + lgamma(k + 1.0)


@singledispatch
def row_gap(
    group: SymmetryGroup, *, is_isotropic: bool, is_elementwise: bool = True
) -> Gap[RowPosterior]:
    """Choose the gap of independent rows under a group.

    Parameters
    ----------
    group : SymmetryGroup
        Rotations, or flips and exchanges of components. ``row_gap.register`` adds other groups.
    is_isotropic : bool
        Whether every covariance is a multiple of the identity. The gap under rotations is then
        exact.
    is_elementwise : bool, default=True
        Whether every covariance is diagonal. The gap under finite groups is then exact.

    Returns
    -------
    Gap

    Raises
    ------
    TypeError
        If no gap is known for the group.
    """
    del is_isotropic, is_elementwise
    raise TypeError(
        f"the symmetry gap of independent rows isn't implemented for {type(group).__name__}: pass "
        "an estimator of it, solver=VI(gap=...)."
    )


@row_gap.register
def _(group: Orthogonal, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    del is_elementwise
    if group.n_components == 1:  # O(1) is a sign flip
        return SignFlipGap(Units(group.index.mT, permute=False, flip=True))
    if is_isotropic:
        return IsotropicRotationGap(group)
    return AnchoredRotationGap(group)


@row_gap.register
def _(group: Units, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    del is_isotropic
    if not is_elementwise:
        return AnchoredComponentGap(group)
    if group.permutes:
        return ComponentGap(group)
    return SignFlipGap(group)
