"""The symmetrisation gap of a factorisation's components under exchanges and flips."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from skbayes_sym.numerics.random import Estimate, mean_and_error
from skbayes_sym.symmetry.gaps.base import GapGradient, RowPosterior, Side
from skbayes_sym.symmetry.gaps.permanent_estimates import Exact
from skbayes_sym.symmetry.gaps.rotations import row_noise
from skbayes_sym.symmetry.gaps.units import UnitGap
from skbayes_sym.symmetry.units import Units

_STEP_DRAWS = 16
_ESTIMATE_DRAWS = 256


@dataclass(frozen=True, eq=False)
class ComponentGap:
    """Exchanges and flips of components, elementwise variances; a `Gap`. O(2^k k) a draw.

    Rows with diagonal covariances are independent normals, and a component is a unit that owns
    one entry of every row: this is `UnitGap` with derivatives row by row.

    Parameters
    ----------
    group : Units
        Of the components: ``index`` is (k, n_rows).
    """

    group: Units
    side: ClassVar[Side] = "exact"
    is_random: ClassVar[bool] = True

    def estimate(
        self, posterior: RowPosterior, n_draws: int | None = None, *, generator: torch.Generator
    ) -> Estimate:
        """Average over draws (256 by default), one permanent each."""
        loc, scale = _flat(posterior)
        draws = (
            self._values(loc, scale, posterior, 1, generator)
            for _ in range(n_draws or _ESTIMATE_DRAWS)
        )
        return mean_and_error(torch.cat(list(draws)))

    def value_and_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """From 16 draws."""
        loc, scale = (t.requires_grad_() for t in _flat(posterior))
        with torch.enable_grad():
            value = self._values(loc, scale, posterior, _STEP_DRAWS, generator).mean()
            d_loc, d_scale = torch.autograd.grad(value, (loc, scale))
        shape = posterior.mean.shape
        added = -(d_scale / scale.detach()).view(shape)  # d/ds^2 = (d/ds) / (2 s)
        return GapGradient(value.detach(), d_loc.view(shape), torch.diag_embed(added))

    def _values(
        self,
        loc: Tensor,
        scale: Tensor,
        posterior: RowPosterior,
        n_draws: int,
        generator: torch.Generator,
    ) -> Tensor:
        noise = row_noise((n_draws, len(posterior.mean)), posterior, generator).flatten(1)
        return UnitGap(self.group, Exact()).values(loc, scale, noise, generator=generator)


def _flat(posterior: RowPosterior) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of all entries, (n_rows k,), row by row."""
    scale = posterior.cov.diagonal(dim1=-2, dim2=-1).sqrt()
    return posterior.mean.detach().flatten(), scale.detach().flatten()
