r"""Exchanges and flips of components whose covariances aren't diagonal: a bound by anchors.

The bound of `langevin` with the finite group in place of all rotations: with
:math:`B = \sum_i a_i x_i^\top`,

.. math:: I(T; x) \ge E_q[\operatorname{tr} B - F(B)], \qquad
   e^{F(B)} = \frac{1}{k!} \operatorname{perm}(\cosh B)
   \quad\text{or}\quad \prod_h \cosh B_{hh} ,

the averages of ``exp tr(B T')`` over signed permutations and over flips. It holds for any anchors
and any q.
"""

from dataclasses import dataclass
from math import lgamma, log
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from skbayes_sym.numerics.permanent import log_permanent
from skbayes_sym.numerics.random import Estimate, mean_and_error
from skbayes_sym.symmetry.gaps.anchors import (
    FREE_MIXING_UP_TO,
    anchor_features,
    learn_mixing,
    plain_anchors,
)
from skbayes_sym.symmetry.gaps.base import GapGradient, RowPosterior, Side
from skbayes_sym.symmetry.gaps.langevin import anchored_inner
from skbayes_sym.symmetry.gaps.rotations import row_noise, row_root
from skbayes_sym.symmetry.units import Units

_STEP_DRAWS = 4
_ESTIMATE_DRAWS = 128
_LEARNING_DRAWS = 32


@dataclass(frozen=True, eq=False)
class AnchoredComponentGap:
    """Flips, or flips and exchanges, of components, any covariance: below the gap; a `Gap`.

    O(n_rows k^2) a draw, with exchanges also O(2^k k).

    Parameters
    ----------
    group : Units
        Of the components: ``index`` is (k, n_rows).
    """

    group: Units
    side: ClassVar[Side] = "lower"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (128 by default) that the anchors weren't learned from."""
        root = row_root(posterior.cov)
        features = anchor_features(posterior, root)

        def draw(n: int) -> Tensor:
            rows = (self._rows(posterior, root, 1, generator) for _ in range(n))
            return torch.cat([anchored_inner(features, x) for x in rows])

        n_draws = n_draws or _ESTIMATE_DRAWS
        is_free = posterior.mean.shape[1] <= FREE_MIXING_UP_TO  # numbers that draws overfit
        n_learned = max(n_draws, _LEARNING_DRAWS) if is_free else _LEARNING_DRAWS
        mixing = learn_mixing(draw(n_learned), self.values)
        return mean_and_error(self.values(mixing @ draw(n_draws)))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """From four draws, plain anchors; what it adds to precisions is left out.

        Where the copies are apart both derivatives vanish, and a finite group can't add much.
        """
        anchors = plain_anchors(posterior)
        rows = self._rows(posterior, row_root(posterior.cov), _STEP_DRAWS, generator)
        inner = anchored_inner(anchors, rows).detach().requires_grad_()
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

    def _rows(
        self, posterior: RowPosterior, root: Tensor, n_draws: int, generator: torch.Generator
    ) -> Tensor:
        noise = row_noise((len(posterior.mean), n_draws), posterior, generator)
        return posterior.mean + (noise @ root.mT).movedim(1, 0)
