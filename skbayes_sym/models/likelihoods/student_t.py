"""Heavy-tailed noise: Student's t around the output."""

from dataclasses import dataclass, field, replace
from math import lgamma, log, pi

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.distributions import Distribution

from skbayes_sym.models.likelihoods.base import ExpectedLogProb
from skbayes_sym.models.likelihoods.defaults import TargetLikelihood
from skbayes_sym.models.likelihoods.expectations import by_quadrature


@dataclass(frozen=True, eq=False)
class StudentT(TargetLikelihood):
    """``(y - f) / noise_scale ~ t(df)``, targets (N, T).

    Parameters
    ----------
    log_noise : Tensor of shape (T,)
        Log of the scale (not the standard deviation, which is larger by sqrt(df / (df - 2))); 0 by
        default.
    df : float, default=4.0
        Degrees of freedom.
    learn : bool, default=True
        Whether the scale is a free parameter.
    """

    log_noise: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    df: float = 4.0
    learn: bool = True

    def __post_init__(self) -> None:
        if not self.df > 0.0:
            raise ValueError(f"df must be positive, got {self.df!r}.")

    @property
    def params(self) -> Tensor:
        return self.log_noise if self.learn else self.log_noise[..., :0]

    @property
    def noise_scale(self) -> Tensor:
        return self.log_noise.exp()

    def at(self, params: Tensor) -> "StudentT":
        return replace(self, log_noise=params) if self.learn else self

    def distribution(self, outputs: Tensor) -> Distribution:
        scale = self.noise_scale.to(outputs)
        return torch.distributions.StudentT(self.df, outputs, scale, validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._log_prob(y - outputs).sum(-1)

    def _log_prob(self, residual: Tensor) -> Tensor:
        df = self.df
        constant = lgamma(0.5 * (df + 1)) - lgamma(0.5 * df) - 0.5 * log(df * pi)
        z = residual * (-self.log_noise).exp()
        return constant - self.log_noise - 0.5 * (df + 1) * torch.log1p(z * z / df)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        if mean.shape[-1] > 1:
            return super().expected_log_prob(mean, variance, y, noise)
        df, precision = self.df, (-2.0 * self.log_noise).exp()

        def weight(f: Tensor) -> Tensor:  # of the row in a weighted least-squares fit
            return (df + 1) * precision / (df + (y - f) ** 2 * precision)

        return by_quadrature(
            lambda f: self._log_prob(y - f), lambda f: weight(f) * (y - f), mean, variance,
            (lambda f: weight(f) * (y - f) ** 2 - 1.0) if self.learn else None,
        )  # fmt: skip

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs  # where df <= 1 the median

    def variance(self, outputs: Tensor) -> Tensor:
        """Infinite for ``df <= 2``."""
        factor = self.df / (self.df - 2.0) if self.df > 2.0 else float("inf")
        return (2.0 * self.log_noise).exp().to(outputs) * factor * torch.ones_like(outputs)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        z = ((y - outputs) * (-self.log_noise).exp().to(outputs)).double()
        # torch has no incomplete beta function.
        value = torch.as_tensor(stdtr(self.df, z.cpu().numpy()), device=z.device)
        return value.to(outputs)

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        noise = torch.as_tensor(rng.standard_t(self.df, size=tuple(outputs.shape)))
        return outputs + self.noise_scale.to(outputs) * noise.to(outputs)
