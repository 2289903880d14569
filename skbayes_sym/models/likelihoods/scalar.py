"""Likelihoods of one output a datum whose expectations are closed or one-dimensional.

Each is a `Likelihood` (``log_prob``, ``expected_log_prob``) and also says how a target looks given
its output: ``mean``, ``variance``, ``cdf`` and ``sample``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.base import ExpectedLogProb, Likelihood
from skbayes_sym.numerics.quadrature import gauss_hermite

# Of expectations over one output. For a logistic likelihood the error is below 1e-8 nats a datum
# for outputs of standard deviation up to 2, 2e-6 at 4 and 3e-3 at 10.
N_NODES = 64

Floats = npt.NDArray[np.float64]


class TargetLikelihood(Likelihood, Protocol):
    """A likelihood of real targets that can describe them, given outputs (*B, N, 1)."""

    @property
    def is_discrete(self) -> bool:
        """Whether targets are whole numbers."""
        ...

    def rescaled(self, scale: Tensor) -> "TargetLikelihood":
        """The law of ``scale * y``, its outputs multiplied by ``scale`` too."""
        ...

    def mean(self, outputs: Tensor) -> Tensor: ...

    def variance(self, outputs: Tensor) -> Tensor: ...

    def cdf(self, y: Tensor, outputs: Tensor) -> Tensor: ...

    def sample(self, outputs: Floats, rng: np.random.Generator) -> Floats:
        """One target an output; NumPy in and out."""
        ...


def by_quadrature(
    log_prob: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
    mean: Tensor,
    variance: Tensor,
    param_slope: Callable[[Tensor], Tensor] | None = None,
) -> ExpectedLogProb:
    """Expectations over ``f ~ N(mean, variance)``, (N, 1) each, by Gauss-Hermite.

    The derivatives are those of the quadrature itself, so a fixed point of them is a stationary
    point of the value: ``d/dv E[l(m + s z)] = E[l'(m + s z) z] / (2 s)``.
    """
    nodes, weights = (t.to(mean) for t in gauss_hermite(N_NODES))
    sd = variance.sqrt()
    f = mean + sd * nodes
    derivative = slope(f) * weights
    d_mean = derivative.sum(-1, keepdim=True)
    d_variance = (derivative * nodes).sum(-1, keepdim=True) / (2.0 * sd)
    d_params = mean.new_zeros(len(mean), 0)
    if param_slope is not None:
        d_params = (param_slope(f) * weights).sum(-1, keepdim=True)
    return ExpectedLogProb((log_prob(f) * weights).sum(-1), d_mean, d_variance, d_params)


@dataclass(frozen=True)
class WithoutParameters:
    """Nothing of its own to learn."""

    n_params: int = 0
    needs_noise: bool = False

    @property
    def params(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)

    @property
    def noise_std(self) -> Tensor:
        return torch.zeros(0, dtype=torch.float64)
