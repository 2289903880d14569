"""Densities of which kernels and chains know the truth."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from skbayes_sym.base.log_density import Evaluation, by_autograd


class AutogradPosterior(NamedTuple):
    """Any prior and likelihood, differentiated by torch."""

    n_dims: int
    prior: Callable
    likelihood: Callable

    def __call__(self, position):
        return self.prior(position) + self.likelihood(position)

    def evaluate(self, position):
        return by_autograd(self, position)


@dataclass(frozen=True, eq=False)
class Normal:
    """A normal with its mean and precision matrix."""

    mean: torch.Tensor
    precision: torch.Tensor

    @property
    def n_dims(self):
        return len(self.mean)

    def __call__(self, position):
        return self.evaluate(position).value

    def evaluate(self, position):
        away = position - self.mean.to(position)
        gradient = -(away @ self.precision.to(position))
        return Evaluation(0.5 * (gradient * away).sum(1), gradient)


def scaled(scale, mean=0.0):
    """Independent coordinates of these scales."""
    return Normal(torch.full_like(scale, mean), torch.diag(scale**-2))


def flat(position):
    return position.new_zeros(len(position))


def quartic():
    """Coupled and not Gaussian, so that no order of an integrator's error vanishes."""

    def log_prob(x):
        return -(x**4).sum(1) / 4 - 0.5 * (x[:, 0] - x[:, 1]) ** 2 - x[:, 2].cosh()

    return AutogradPosterior(3, log_prob, flat)
