"""Priors over the flat parameter vector."""

from dataclasses import dataclass
from math import log, pi

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GaussianPrior:
    """Independent zero-mean normals: ``theta_k ~ N(0, scale_k^2)``.

    Parameters
    ----------
    scale : Tensor of shape (P,)
        Standard deviations.
    """

    scale: Tensor

    @property
    def precision(self) -> Tensor:
        """Inverse variances (P,)."""
        return self.scale**-2

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        scale = self.scale.to(theta)
        z = theta / scale
        constant = scale.log().sum() + 0.5 * log(2 * pi) * scale.numel()
        return -0.5 * (z * z).sum(-1) - constant

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P)."""
        scale = self.scale.to(generator.device)
        noise = torch.randn(
            (n, scale.numel()), generator=generator, device=scale.device, dtype=scale.dtype
        )
        return noise * scale
