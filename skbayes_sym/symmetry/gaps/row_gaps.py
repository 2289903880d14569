r"""Gaps of independent rows: flips and exchanges of their components, and which gap a group has.

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

# The trapezoidal rule on a normal weight: the error of both functions is below 1e-12.
_NODES = 321
_END = 10.0


@dataclass(frozen=True, eq=False)
class SignFlipGap:
    """Flips of single components of rows with elementwise variances; a `Gap`. Nothing is drawn."""

    group: Units  # of the components: ``index`` is (k, n_rows)
    side: ClassVar[Side] = "exact"  # a quadrature
    is_random: ClassVar[bool] = False

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """The gap itself, O(n_rows k)."""
        return Estimate(float(sign_flip_gap(_distance(posterior)).sum()), 0.0)

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """The gap and its derivatives, without error."""
        distance = _distance(posterior)
        anchors = posterior.mean / posterior.cov.diagonal(dim1=-2, dim2=-1)
        slope = 2.0 * sign_flip_slope(distance)
        return GapGradient(
            sign_flip_gap(distance).sum(), slope * anchors, torch.diag_embed(slope * anchors**2)
        )


def _distance(posterior: RowPosterior) -> Tensor:
    """``sum_i m_i^2 / s_i`` of each component, (k,)."""
    anchors = posterior.mean / posterior.cov.diagonal(dim1=-2, dim2=-1)
    return (anchors * posterior.mean).sum(0)


def sign_flip_gap(distance: Tensor) -> Tensor:
    """Gap of each unit, nats; (*B,) squared distances ``m' S^-1 m`` -> (*B,)."""
    log_ratio, weight = _nodes(distance)
    return log(2.0) - F.softplus(-2.0 * log_ratio) @ weight


def sign_flip_slope(distance: Tensor) -> Tensor:
    """Derivative of `sign_flip_gap`, ``E sigmoid(-2 t)``, in (0, 1/2]."""
    log_ratio, weight = _nodes(distance)
    return torch.sigmoid(-2.0 * log_ratio) @ weight


def _nodes(distance: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.linspace(-_END, _END, _NODES, dtype=distance.dtype, device=distance.device)
    a = distance.unsqueeze(-1)
    return a + a.sqrt() * z, torch.softmax(-0.5 * z * z, 0)


@dataclass(frozen=True, eq=False)
class ComponentGap:
    """Exchanges and flips of components, elementwise variances; a `Gap`. O(2^k k) a draw.

    Rows with diagonal covariances are independent normals, and a component is a unit that owns
    one entry of every row: this is `UnitGap` with derivatives row by row.
    """

    group: Units  # of the components: ``index`` is (k, n_rows)
    side: ClassVar[Side] = "exact"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default), one permanent each."""
        return UnitGap(self.group, Exact()).estimate(
            _flat(posterior), n_draws or 256, generator=generator
        )

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Value and derivatives from 16 draws."""
        gap = UnitGap(self.group, Exact(), n_draws=16)
        value, d_loc, added = gap.value_and_gradients(_flat(posterior), generator=generator)
        mean = posterior.mean
        added = torch.diag_embed(added.view(mean.shape)).to(mean)
        return GapGradient(value.to(mean), d_loc.view(mean.shape).to(mean), added)


class _Flat(NamedTuple):
    """Independent normals: all entries of rows, (n_rows k,), row by row."""

    loc: Tensor
    scale: Tensor


def _flat(posterior: RowPosterior) -> _Flat:
    scale = posterior.cov.diagonal(dim1=-2, dim2=-1).sqrt()
    return _Flat(posterior.mean.flatten(), scale.flatten())


@dataclass(frozen=True, eq=False)
class AnchoredComponentGap:
    r"""Flips, or flips and exchanges, of components, any covariance: below the gap; a `Gap`.

    The bound of `langevin` with the finite group in place of all rotations: with
    :math:`B = \sum_i a_i x_i^\top`,

    .. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)], \qquad
       e^{F(B)} = \frac{1}{k!} \operatorname{perm}(\cosh B)
       \quad\text{or}\quad \prod_h \cosh B_{hh} ,

    the averages of ``exp tr(B T')`` over signed permutations and over flips. It holds for any
    anchors and any q. O(n_rows k^2) a draw, with exchanges also O(2^k k).
    """

    group: Units  # of the components: ``index`` is (k, n_rows)
    side: ClassVar[Side] = "lower"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (128 by default) that the anchors weren't learned from."""
        root = row_root(posterior.cov)
        features = anchor_features(posterior, root)

        def draw(n: int) -> Tensor:
            rows = (posterior.mean + row_noise(posterior, root, 1, generator) for _ in range(n))
            return torch.cat([anchored_inner(features, x) for x in rows])

        n_draws = n_draws or 128
        is_free = posterior.mean.shape[1] <= FREE_MIXING_UP_TO  # numbers that draws overfit
        n_learned = max(n_draws, 32) if is_free else 32
        mixing = learn_mixing(draw(n_learned), self.values)
        return mean_and_error(self.values(mixing @ draw(n_draws)))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Value and slope from four draws, plain anchors; nothing is added to precisions.

        Where the copies are apart both derivatives vanish, and a finite group can't add much.
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
        """``tr B - F(B)`` of each matrix, (*B, k, k) -> (*B,) nats; differentiable."""
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
    """The gap of rows under rotations, or under flips and exchanges of their components.

    ``group``: other groups: ``row_gap.register``; ``is_isotropic``: whether every covariance is a
    multiple of the identity: rotations are then exact; ``is_elementwise``: whether every covariance
    is diagonal: finite groups are then exact. Raises TypeError if no gap is known for the group.
    """
    raise TypeError(
        f"no gap of independent rows is known under {type(group).__name__}: give one of your own, "
        "solver=VI(gap=...)."
    )


@row_gap.register
def _(group: Orthogonal, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    if group.n_components == 1:  # O(1) is a sign flip
        return SignFlipGap(Units(group.index.mT, permute=False, flip=True))
    return IsotropicRotationGap(group) if is_isotropic else AnchoredRotationGap(group)


@row_gap.register
def _(group: Units, *, is_isotropic: bool, is_elementwise: bool = True) -> Gap[RowPosterior]:
    if not is_elementwise:
        return AnchoredComponentGap(group)
    return ComponentGap(group) if group.permutes else SignFlipGap(group)
