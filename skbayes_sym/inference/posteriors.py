"""Posterior approximations as plain objects: arrays, draws, densities."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.numerics.gaussian import kl_elementwise, log_normal
from skbayes_sym.numerics.random import float64_normal


@dataclass(frozen=True, eq=False)
class MeanFieldGaussian:
    """Independent normals over the flat parameter vector.

    Parameters
    ----------
    loc, scale : ndarray of shape (P,)
        Means and standard deviations, in the network's flat order.
    """

    loc: npt.NDArray[Any]
    scale: npt.NDArray[Any]

    @property
    def has_independent_weights(self) -> bool:
        """Yes: outputs are predicted, and gaps known, weight by weight."""
        return True

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P), on the generator's device."""
        loc, scale = (torch.as_tensor(a, device=generator.device) for a in (self.loc, self.scale))
        noise = float64_normal((n, len(loc)), generator=generator)
        return loc + scale * noise.to(loc.dtype)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta)
        loc, scale = (torch.as_tensor(a).to(theta) for a in (self.loc, self.scale))
        return log_normal((theta - loc).square(), scale.log()).sum(-1)

    def kl_from(self, prior_scale: npt.ArrayLike) -> float:
        """KL[q || N(0, prior_scale^2)] in nats, closed form."""
        loc, scale, prior = (torch.as_tensor(a) for a in (self.loc, self.scale, prior_scale))
        return float(kl_elementwise(loc, 2.0 * scale.log(), 2.0 * prior.log()).sum())


class GaussianRows(NamedTuple):
    """Moments of the rows of one factor."""

    mean: npt.NDArray[Any]  # (n, k)
    cov: npt.NDArray[Any]  # (n, k, k)


class MatrixPosterior(NamedTuple):
    """Independent Gaussian rows of U and of V, in scaled units."""

    rows: GaussianRows
    columns: GaussianRows
