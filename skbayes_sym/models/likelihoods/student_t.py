"""Heavy-tailed noise: Student's t around the output, its degrees of freedom given or learned."""

from dataclasses import dataclass, field, replace
from math import lgamma, log, pi
from typing import ClassVar

import numpy as np
import torch
from scipy.special import stdtr
from torch import Tensor
from torch.distributions import Distribution

from skbayes_sym.models.likelihoods.expectations import ExpectedLogProb, by_quadrature
from skbayes_sym.models.likelihoods.likelihood import Kind, TargetLikelihood

_UNIT_DF = 4.0  # where the logarithm of a learned tail is 0


@dataclass(frozen=True, eq=False)
class StudentT(TargetLikelihood):
    """``(y - f) / noise_scale ~ t(df)``, targets (N, T).

    Parameters
    ----------
    log_noise : Tensor of shape (T,)
        Log of the scale (not the standard deviation, which is larger by sqrt(df / (df - 2))); 0 by
        default.
    df : "learn" or float, default=4.0
        Degrees of freedom, of all targets.
    learn : bool, default=True
        Whether the scale is a free parameter.
    log_tail : Tensor of shape (1,)
        Log of ``4 / df`` where ``df`` is learned; 0 by default. Samplers and ensembles give
        ``4 / df`` a half-normal prior (`HalfNormal`): of scale 1, ``df`` is above 2 with
        probability 0.95, above 4 with 0.68, and beyond 30, where the law is nearly normal, with
        0.11.
    """

    kind: ClassVar[Kind] = "student-t"

    log_noise: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    df: float | str = 4.0
    learn: bool = True
    log_tail: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))

    def __post_init__(self) -> None:
        if self.df != "learn" and (isinstance(self.df, str) or not self.df > 0.0):
            raise ValueError(f"df must be positive or 'learn', got {self.df!r}.")

    @property
    def _learns_df(self) -> bool:
        return self.df == "learn"

    @property
    def degrees_of_freedom(self) -> Tensor:
        """``df``, given or at what was learned, (..., 1)."""
        return torch.as_tensor(self._df).to(self.log_tail)

    @property
    def _df(self) -> float | Tensor:
        return _UNIT_DF * (-self.log_tail).exp() if self._learns_df else float(self.df)

    @property
    def _log_constant(self) -> float | Tensor:
        df = self._df
        if isinstance(df, float):
            return lgamma(0.5 * (df + 1)) - lgamma(0.5 * df) - 0.5 * log(df * pi)
        gammas = torch.lgamma(0.5 * (df + 1)) - torch.lgamma(0.5 * df)
        return gammas - 0.5 * (df.log() + log(pi))

    @property
    def params(self) -> Tensor:
        noise = self.log_noise if self.learn else self.log_noise[..., :0]
        if not self._learns_df:
            return noise
        noise = noise.expand(*self.log_tail.shape[:-1], noise.shape[-1])
        return torch.cat([noise, self.log_tail], -1)

    @property
    def noise_scale(self) -> Tensor:
        return self.log_noise.exp()

    def at(self, params: Tensor) -> "StudentT":
        likelihood = self
        if self._learns_df:
            likelihood, params = replace(self, log_tail=params[..., -1:]), params[..., :-1]
        return replace(likelihood, log_noise=params) if self.learn else likelihood

    def distribution(self, outputs: Tensor) -> Distribution:
        scale, df = self.noise_scale.to(outputs), self.degrees_of_freedom.to(outputs)
        return torch.distributions.StudentT(df, outputs, scale, validate_args=False)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self._log_prob(y - outputs).sum(-1)

    def _log_prob(self, residual: Tensor) -> Tensor:
        df = self._df
        z = residual * (-self.log_noise).exp()
        return self._log_constant - self.log_noise - 0.5 * (df + 1) * torch.log1p(z * z / df)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        if mean.shape[-1] > 1 or self._learns_df:
            return super().expected_log_prob(mean, variance, y, noise)
        df, precision = self._df, (-2.0 * self.log_noise).exp()

        def weight(f: Tensor) -> Tensor:  # of the row in a weighted least-squares fit
            return (df + 1) * precision / (df + (y - f) ** 2 * precision)

        return by_quadrature(
            lambda f: (self._log_prob(y - f), weight(f) * (y - f)), mean, variance,
            (lambda f: weight(f) * (y - f) ** 2 - 1.0) if self.learn else None,
        )  # fmt: skip

    def bound(self, mean: Tensor, variance: Tensor, y: Tensor) -> ExpectedLogProb:
        """Density at ``sqrt((y - m)^2 + v)``: t is a mixture of normals over precisions."""
        df, precision = torch.as_tensor(self._df).to(mean), (-2.0 * self.log_noise).exp()
        squares = (y - mean).square() + variance
        z = squares * precision / df
        weight = (df + 1) / (df * (1.0 + z)) * precision
        slopes = [weight * squares - 1.0] if self.learn else []
        if self._learns_df:  # by the log of 4 / df
            digamma = torch.digamma(0.5 * (df + 1)) - torch.digamma(0.5 * df)
            by_df = 0.5 * (digamma - 1.0 / df - torch.log1p(z) + (df + 1) / df * z / (1.0 + z))
            slopes.append((-df * by_df).sum(-1, keepdim=True))
        d_params = torch.cat(slopes, -1) if slopes else squares[:, :0]
        value = self._log_prob(squares.sqrt()).sum(-1)
        return ExpectedLogProb(value, weight * (y - mean), -0.5 * weight, d_params)

    def mean(self, outputs: Tensor) -> Tensor:
        return outputs  # where df <= 1 the median

    def variance(self, outputs: Tensor) -> Tensor:
        """Infinite for ``df <= 2``."""
        df = self.degrees_of_freedom
        factor = torch.where(df > 2.0, df / (df - 2.0), torch.inf)
        return ((2.0 * self.log_noise).exp() * factor).to(outputs) * torch.ones_like(outputs)

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor:
        z = ((y - outputs) * (-self.log_noise).exp().to(outputs)).double()
        # torch has no incomplete beta function.
        df = self.degrees_of_freedom.double().cpu().numpy()
        value = torch.as_tensor(stdtr(df, z.cpu().numpy()), device=z.device)
        return value.to(outputs)

    def sample(self, outputs: Tensor, rng: np.random.Generator) -> Tensor:
        df = self.degrees_of_freedom.double().cpu().numpy()
        noise = torch.as_tensor(rng.standard_t(df, size=tuple(outputs.shape)))
        return outputs + self.noise_scale.to(outputs) * noise.to(outputs)
