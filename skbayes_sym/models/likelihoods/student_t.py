"""Heavy-tailed noise: Student's t around the output."""

from dataclasses import dataclass, replace
from math import lgamma, log, pi

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor

from skbayes_sym.models.likelihoods.base import ExpectedLogProb
from skbayes_sym.models.likelihoods.scalar import Floats, by_quadrature


@dataclass(frozen=True, eq=False)
class StudentT:
    """``(y - f) / noise_std ~ t(df)``, targets (N, 1).

    Parameters
    ----------
    log_noise : Tensor of shape (1,)
        Log of the scale (not the standard deviation, which is larger by sqrt(df / (df - 2))).
    df : float
        Degrees of freedom.
    learn : bool
        Whether the scale is a free parameter.
    """

    log_noise: Tensor
    df: float = 4.0
    learn: bool = True
    needs_noise: bool = False
    is_discrete: bool = False

    @property
    def n_params(self) -> int:
        return 1 if self.learn else 0

    @property
    def params(self) -> Tensor:
        return self.log_noise if self.learn else self.log_noise[:0]

    @property
    def noise_std(self) -> Tensor:
        return self.log_noise.exp()

    def at(self, params: Tensor) -> "StudentT":
        return replace(self, log_noise=params) if self.learn else self

    def to(self, like: Tensor) -> "StudentT":
        return replace(self, log_noise=self.log_noise.to(like))

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._log_prob(y - outputs).squeeze(-1)

    def _log_prob(self, residual: Tensor) -> Tensor:
        df = self.df
        constant = lgamma(0.5 * (df + 1)) - lgamma(0.5 * df) - 0.5 * log(df * pi)
        z = residual * (-self.log_noise).exp()
        return constant - self.log_noise - 0.5 * (df + 1) * torch.log1p(z * z / df)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor | None = None
    ) -> ExpectedLogProb:
        df, precision = self.df, (-2.0 * self.log_noise).exp()

        def weight(f: Tensor) -> Tensor:  # of the datum in a weighted least-squares fit
            return (df + 1) * precision / (df + (y - f) ** 2 * precision)

        return by_quadrature(
            lambda f: self._log_prob(y - f), lambda f: weight(f) * (y - f), mean, variance,
            (lambda f: weight(f) * (y - f) ** 2 - 1.0) if self.learn else None,
        )  # fmt: skip

    def rescaled(self, scale: Tensor) -> "StudentT":
        return replace(self, log_noise=self.log_noise + scale.log())

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs

    def variance(self, outputs: Tensor) -> Tensor:
        """Infinite for ``df <= 2``."""
        factor = self.df / (self.df - 2.0) if self.df > 2.0 else float("inf")
        return (2.0 * self.log_noise).exp().to(outputs) * factor * torch.ones_like(outputs)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        z = ((y - outputs) * (-self.log_noise).exp().to(outputs)).double()
        # torch has no incomplete beta function.
        value = torch.as_tensor(stdtr(self.df, z.cpu().numpy()), device=z.device)
        return value.to(outputs)

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Floats:
        noise = float(self.noise_std[0])
        return outputs + noise * rng.standard_t(self.df, size=outputs.shape)
