"""Posterior approximations as plain objects: arrays, draws, densities."""

from dataclasses import dataclass
from math import log, pi
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


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
        noise = torch.randn(
            (n, len(loc)), generator=generator, device=loc.device, dtype=torch.float64
        )
        return loc + scale * noise.to(loc.dtype)

    def log_prob(self, theta: Tensor | npt.ArrayLike) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta)
        loc, scale = (torch.as_tensor(a).to(theta) for a in (self.loc, self.scale))
        z = (theta - loc) / scale
        return -(0.5 * (z * z) + scale.log() + 0.5 * log(2 * pi)).sum(-1)

    def kl_from(self, prior_scale: npt.ArrayLike) -> float:
        """KL[q || N(0, prior_scale^2)] in nats, closed form."""
        ratio = (self.scale / np.asarray(prior_scale)) ** 2
        shift = (self.loc / np.asarray(prior_scale)) ** 2
        return float(0.5 * np.sum(ratio + shift - 1.0 - np.log(ratio)))


class GaussianRows(NamedTuple):
    """Moments of the rows of one factor."""

    mean: npt.NDArray[Any]  # (n, k)
    cov: npt.NDArray[Any]  # (n, k, k)


class MatrixPosterior(NamedTuple):
    """Independent Gaussian rows of U and of V, in scaled units."""

    rows: GaussianRows
    columns: GaussianRows
