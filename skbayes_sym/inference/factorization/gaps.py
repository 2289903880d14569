"""Symmetrisation gaps of a factorisation's posterior: how they pull in training, what they report.

One class a group. Called, each gives the `Pull` of a sweep from a few fresh draws; ``report`` gives
the gap or a lower bound on it, with its Monte Carlo error, and ``side`` says which of the two.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from skbayes_sym.inference.factorization.covariance import row_root
from skbayes_sym.inference.factorization.vi import FactorPosterior
from skbayes_sym.numerics.monte_carlo import Estimate, mean_and_error
from skbayes_sym.numerics.optimise import by_autograd, lbfgs
from skbayes_sym.symmetry.gaps.haar_integral import EXACT_UP_TO
from skbayes_sym.symmetry.gaps.permanent_estimates import Exact
from skbayes_sym.symmetry.gaps.rotations import (
    LangevinExpansion,
    Pull,
    anchored_inner,
    expand_langevin,
    force,
    isotropic_inner,
    langevin_gap,
    stiffness,
)
from skbayes_sym.symmetry.gaps.sign_flips import sign_flip_gap, sign_flip_slope
from skbayes_sym.symmetry.gaps.units import unit_gap
from skbayes_sym.symmetry.units import Units

# Numbers drawn a look for draws of all rows: many rows make few draws enough, since B sums them.
_NUMBERS_A_LOOK = 1 << 16
_MOST_DRAWS = 6
_PERMUTED_DRAWS = 16
# The stiffness costs O(k^3) a row and draw, more than all else, and its error counts twice over.
_STIFFNESS_DRAWS = 1
_REPORT_DRAWS = 256
_REPORT_NUMBERS = 1 << 24  # most numbers drawn for a report
# Draws that anchors are learned from, as a part of those that report; all, if the mixing is free.
_LEARNING_SHARE = 8
_MIXING_STEPS = 20
_FREE_MIXING_UP_TO = 3


def mean_variances(posterior: FactorPosterior) -> Tensor:
    """Average variance of the entries of each row, (n_rows,)."""
    return posterior.cov.diagonal(dim1=-2, dim2=-1).mean(-1)


def plain_anchors(posterior: FactorPosterior) -> Tensor:
    """``m_i / c_i``, (n_rows, k)."""
    return posterior.mean / mean_variances(posterior).unsqueeze(-1)


@dataclass
class IsotropicRotationGap:
    """O(k), rows of covariance ``c_i 1``: the gap itself, up to F beyond k = 3."""

    generator: torch.Generator
    is_random: bool = True

    def __call__(self, posterior: FactorPosterior) -> Pull:
        anchors = plain_anchors(posterior)
        return _pull(anchors, self._inner(posterior, _MOST_DRAWS))

    def report(self, posterior: FactorPosterior, n_draws: int | None = None) -> Estimate:
        """The gap."""
        return mean_and_error(langevin_gap(self._inner(posterior, n_draws or _REPORT_DRAWS)))

    def side(self, n_components: int) -> str:
        """Exact where F is; beyond, a lower bound if the large-rank saddle lies above F."""
        return "exact" if n_components <= EXACT_UP_TO else "lower"

    def _inner(self, posterior: FactorPosterior, n_draws: int) -> Tensor:
        noise = _normal((n_draws, posterior.mean.shape[1]), posterior, self.generator)
        return isotropic_inner(posterior.mean, mean_variances(posterior), noise)


@dataclass
class AnchoredRotationGap:
    """O(k), any covariance: the anchor bound, below the gap.

    Training uses the anchors ``m_i / c_i`` with the mean variance c_i of the row, which are optimal
    for isotropic rows and close otherwise. The report learns anchors: combinations of these and
    of ``S_i^-1 m_i`` by a (2k, k) matrix, a concave problem, on draws of its own.
    """

    generator: torch.Generator
    is_random: bool = True

    def __call__(self, posterior: FactorPosterior) -> Pull:
        anchors = plain_anchors(posterior)
        n_draws = max(1, min(_MOST_DRAWS, _NUMBERS_A_LOOK // anchors.numel()))
        root = row_root(posterior.cov)
        inner = anchored_inner(anchors, self._rows(posterior, root, n_draws))
        return _pull(anchors, inner)

    def report(self, posterior: FactorPosterior, n_draws: int | None = None) -> Estimate:
        """Lower bound with learned anchors; draws to learn on and to report from are separate."""
        root = row_root(posterior.cov)
        features = _anchor_features(posterior, root)
        few = max(16, min(_REPORT_DRAWS, _REPORT_NUMBERS // posterior.mean.numel()))
        n_draws = n_draws or few

        def draw(n: int) -> Tensor:
            rows = (self._rows(posterior, root, 1) for _ in range(n))
            return torch.cat([anchored_inner(features, x) for x in rows])

        is_free = posterior.mean.shape[1] <= _FREE_MIXING_UP_TO
        mixing = learn_mixing(draw(n_draws if is_free else max(2, n_draws // _LEARNING_SHARE)))
        return mean_and_error(langevin_gap(mixing @ draw(n_draws)))

    def side(self, n_components: int) -> str:
        """A lower bound for any anchors, where F is exact or bounded from above."""
        return "lower"

    def _rows(self, posterior: FactorPosterior, root: Tensor, n_draws: int) -> Tensor:
        noise = _normal((len(posterior.mean), n_draws), posterior, self.generator)
        return posterior.mean + (noise @ root.mT).movedim(1, 0)


def _anchor_features(posterior: FactorPosterior, root: Tensor) -> Tensor:
    """``m_i / c_i`` and ``S_i^-1 m_i`` side by side, (n_rows, 2k)."""
    whitened = torch.cholesky_solve(posterior.mean.unsqueeze(-1), root).squeeze(-1)
    return torch.cat([plain_anchors(posterior), whitened], dim=1)


def learn_mixing(inner: Tensor) -> Tensor:
    """The matrix W that maximises the mean of ``tr B - F(B)``, ``B = W C``, over draws of C.

    A concave problem where F is convex. W is free for few components; for more it weighs the two
    kinds of anchors by one number each, since a free matrix would learn the draws by heart.

    Parameters
    ----------
    inner : Tensor of shape (D, 2k, k)
        ``C = sum_i features_i x_i'`` of each draw.

    Returns
    -------
    Tensor of shape (k, 2k)
    """
    k = inner.shape[-1]
    basis = _mixing_basis(k).to(inner)

    def loss(weights: Tensor) -> Tensor:
        return -langevin_gap(torch.tensordot(weights, basis, 1) @ inner).mean()

    identity = torch.cat([torch.eye(k), torch.zeros(k, k)], dim=1).to(inner)
    start = torch.tensordot(basis, identity, 2) / basis.square().sum((-2, -1))
    weights = lbfgs(by_autograd(loss), start, max_iter=_MIXING_STEPS)
    return torch.tensordot(weights, basis, 1)


def _mixing_basis(k: int) -> Tensor:
    """Matrices (p, k, 2k) that W is combined from."""
    if k <= _FREE_MIXING_UP_TO:
        return torch.eye(2 * k * k).view(-1, k, 2 * k)
    none = torch.zeros(k, k)
    return torch.stack([torch.cat([torch.eye(k), none], 1), torch.cat([none, torch.eye(k)], 1)])


@dataclass
class SignFlipGap:
    """Flips of single components, elementwise variances: exact, no draws."""

    is_random: bool = False

    def __call__(self, posterior: FactorPosterior) -> Pull:
        mean, variance = posterior.mean, posterior.cov.diagonal(dim1=-2, dim2=-1)
        anchors = mean / variance
        distance = (anchors * mean).sum(0)
        slope = 2.0 * sign_flip_slope(distance)
        return Pull(
            sign_flip_gap(distance).sum(), slope * anchors, torch.diag_embed(slope * anchors**2)
        )

    def report(self, posterior: FactorPosterior, n_draws: int | None = None) -> Estimate:
        """The gap; there is nothing to draw."""
        return Estimate(float(self(posterior).value), 0.0)

    def side(self, n_components: int) -> str:
        """A quadrature."""
        return "exact"


@dataclass
class SignedPermutationGap:
    """Exchanges and flips of components, elementwise variances: permanents, O(2^k k) a draw."""

    generator: torch.Generator
    is_random: bool = True

    def __call__(self, posterior: FactorPosterior) -> Pull:
        mean, variance = posterior.mean, posterior.cov.diagonal(dim1=-2, dim2=-1)
        loc = mean.flatten().requires_grad_()
        scale = variance.sqrt().flatten().requires_grad_()
        with torch.enable_grad():
            value = self._draws(loc, scale, posterior, _PERMUTED_DRAWS).mean()
            by_loc, by_scale = torch.autograd.grad(value, (loc, scale))
        stiff = -(by_scale / scale.detach()).view(mean.shape)  # d/ds^2 = (d/ds) / (2 s)
        return Pull(value.detach(), by_loc.view(mean.shape), torch.diag_embed(stiff))

    def report(self, posterior: FactorPosterior, n_draws: int | None = None) -> Estimate:
        """The gap."""
        scale = posterior.cov.diagonal(dim1=-2, dim2=-1).sqrt()
        draws = (
            self._draws(posterior.mean.flatten(), scale.flatten(), posterior, 1)
            for _ in range(n_draws or _REPORT_DRAWS)
        )
        return mean_and_error(torch.cat(list(draws)))

    def side(self, n_components: int) -> str:
        """A permanent a draw."""
        return "exact"

    def _draws(
        self, loc: Tensor, scale: Tensor, posterior: FactorPosterior, n_draws: int
    ) -> Tensor:
        n_rows, k = posterior.mean.shape
        index = torch.arange(n_rows * k, device=loc.device).view(n_rows, k).mT
        noise = _normal((n_draws, n_rows), posterior, self.generator).flatten(1)
        group = Units(index, flip=True)
        return unit_gap(group, loc, scale, noise, Exact(), generator=self.generator)


def _normal(
    shape: tuple[int, int], posterior: FactorPosterior, generator: torch.Generator
) -> Tensor:
    """Standard normal noise (*shape, k)."""
    mean = posterior.mean
    full = (*shape, mean.shape[1])
    return torch.randn(full, generator=generator, device=mean.device, dtype=mean.dtype)


def _pull(anchors: Tensor, inner: Tensor) -> Pull:
    expansion = expand_langevin(inner)
    few = LangevinExpansion(*(part[:_STIFFNESS_DRAWS] for part in expansion))
    return Pull(expansion.value.mean(), force(anchors, expansion), stiffness(anchors, few))
