"""Normal noise, one standard deviation per target."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import log, pi
from typing import ClassVar

import torch
from torch import Tensor
from torch.distributions import Normal

from skbayes_sym.models.likelihoods.expectations import ExpectedLogProb, collapsed_weight
from skbayes_sym.models.likelihoods.likelihood import Kind, TargetLikelihood
from skbayes_sym.models.predictive_mixtures import NormalMixture


@dataclass(frozen=True, eq=False)
class Gaussian(TargetLikelihood):
    """``y ~ N(f, noise_scale^2)``, independent over outputs.

    Parameters
    ----------
    log_noise : Tensor of shape (O,)
        Log standard deviation of the noise of every output; 0 by default.
    learn : bool, default=True
        Whether it is a free parameter (type-II maximum likelihood: the ELBO then bounds the
        evidence at the learned value).
    """

    kind: ClassVar[Kind] = "normal"

    log_noise: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.float64))
    learn: bool = True

    @property
    def params(self) -> Tensor:
        return self.log_noise if self.learn else self.log_noise[..., :0]

    def at(self, params: Tensor) -> "Gaussian":
        return replace(self, log_noise=params) if self.learn else self

    @property
    def noise_scale(self) -> Tensor:
        return self.log_noise.exp()

    def distribution(self, outputs: Tensor) -> Normal:
        return Normal(outputs, self.noise_scale.to(outputs), validate_args=False)

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> NormalMixture:
        variance = self.noise_scale.to(outputs) ** 2
        return NormalMixture(outputs, outputs.new_zeros(()), variance, log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        z = (y - outputs) * (-self.log_noise).exp()
        return -(0.5 * (z * z) + self.log_noise + 0.5 * log(2 * pi)).sum(-1)

    @property
    def is_discrete(self) -> bool:
        return False

    @property
    def scales_targets(self) -> bool:
        return True

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Closed form: ``-[(y - m)^2 + v] / 2 s^2 - log s - log(2 pi)/2``."""
        precision = (-2.0 * self.log_noise).exp()
        residual = y - mean
        scaled = torch.addcmul(variance, residual, residual) * precision
        constant = (self.log_noise + 0.5 * log(2 * pi)).sum()
        value = scaled.sum(-1).mul_(-0.5).sub_(constant)
        d_variance = (-0.5 * precision).expand_as(mean)
        d_params = scaled - 1.0 if self.learn else scaled[:, :0]
        return ExpectedLogProb(value, residual * precision, d_variance, d_params)

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        root = (-self.log_noise).exp().expand(outputs.shape[-1]).diag()
        return root.unsqueeze(1).expand(-1, outputs.shape[0], -1)

    def given(self, y: Tensor, weight: Tensor, n_outputs: int) -> "GaussianTerm":
        fixed = None if self.learn else self.log_noise
        return GaussianTerm(
            y.T.contiguous(), collapsed_weight(weight), weight.sum().double(), fixed
        )


@dataclass(frozen=True, eq=False)
class GaussianTerm:
    """A `DataTerm` with one noise a chain and output.

    ``fixed`` (O,): log standard deviation of the noise; by default it is what ``params`` holds.
    """

    y: Tensor  # (O, N)
    weight: Tensor  # (N,), or (1,) where all are equal
    total_weight: Tensor  # (); float64
    fixed: Tensor | None = None

    @cached_property
    def _constant(self) -> Tensor:
        return (-0.5 * log(2 * pi) * self.total_weight * len(self.y)).to(self.y)

    @cached_property
    def _total(self) -> Tensor:
        return self.total_weight.to(self.y)

    @cached_property
    def _log_weight(self) -> Tensor:
        return self.weight.log()

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        return self.gradient(outputs, params, torch.empty_like(outputs))[0]

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        log_noise = params if self.fixed is None else self.fixed.expand(len(params), -1)
        precision = torch.add(self._log_weight, log_noise.unsqueeze(2), alpha=-2.0).exp_()
        residual = torch.sub(self.y, outputs, out=outputs)
        torch.mul(residual, precision, out=out)
        squares = residual.mul_(out).sum(2)  # (C, O)
        minus_twice = torch.addcmul(squares, log_noise, self._total, value=2.0).sum(1)
        value = torch.add(self._constant, minus_twice, alpha=-0.5)
        d_params = squares.sub_(self._total) if self.fixed is None else params
        return value, d_params
