"""Likelihoods with a known parameter in every row: an error of measurement, or an exposure.

Methods train with these in place of the likelihood that they extend. The parameters of the rows are
further columns of the targets, so that batches and folds carry them along. Predictions use the
extended likelihood itself, for no known error and an exposure of 1.
"""

from dataclasses import dataclass, replace
from math import log, pi
from typing import Self

import numpy as np
import numpy.typing as npt
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import ExpectedLogProb, Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Extended(Likelihood):
    """Likelihood whose free parameters are those of the one that it extends.

    Parameters
    ----------
    base : Likelihood
        The extended likelihood, with one output per target.
    """

    base: Likelihood

    @property
    def params(self) -> Tensor:
        """Free parameters, (n_params,)."""
        return self.base.params

    @property
    def noise_scale(self) -> Tensor:
        """Scale of the noise, (T,) or (0,)."""
        return self.base.noise_scale

    @property
    def scales_targets(self) -> bool:
        """Whether targets may be centred and scaled."""
        return self.base.scales_targets

    @property
    def is_discrete(self) -> bool:
        """Whether targets are integers."""
        return self.base.is_discrete

    def at(self, params: Tensor) -> Self:
        """Return the likelihood at other values of the parameters."""
        return replace(self, base=self.base.at(params))

    def to(self, like: Tensor) -> Self:
        """Return a copy with constants in the dtype and on the device of ``like``."""
        return replace(self, base=self.base.to(like))


class KnownErrors(_Extended):
    """``y ~ N(f, noise_scale^2 + e^2)``, targets (N, 2 T): y, and the known errors e.

    Parameters
    ----------
    base : Gaussian
        Normal noise in addition to the known errors.
    """

    base: Gaussian

    def _variance(self, errors: Tensor) -> Tensor:
        """Return the variance of every target, (N, T)."""
        return (2.0 * self.base.log_noise.to(errors)).exp() + errors.square()

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        targets, errors = y.chunk(2, -1)
        variance = self._variance(errors)
        terms = (targets - outputs).square() / variance + variance.log() + log(2.0 * pi)
        return -0.5 * terms.sum(-1)

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return the root of the negative Hessian, which is diagonal, (T, N, T)."""
        _, errors = y.chunk(2, -1)
        return self._variance(errors).rsqrt().diag_embed().movedim(-1, 0)


class ExposedCounts(_Extended):
    """Counts of mean ``t exp(f)``, targets (N, 2 T): the counts, and their exposures t."""

    def n_noise(self, n_outputs: int) -> int:
        """Return the number of normal variables per row that `expected_log_prob` needs."""
        return self.base.n_noise(n_outputs)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log probability of each row, (*B, N) nats."""
        counts, exposure = y.chunk(2, -1)
        return self.base.log_prob(outputs + exposure.log(), counts)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Compute expectations over independent outputs.

        Parameters
        ----------
        mean, variance : Tensor of shape (N, O)
            Moments of the outputs.
        y : Tensor of shape (N, 2 T)
            Counts and exposures.
        noise : Tensor of shape (N, n_noise(O))
            Standard normal variables.

        Returns
        -------
        ExpectedLogProb
        """
        counts, exposure = y.chunk(2, -1)
        return self.base.expected_log_prob(mean + exposure.log(), variance, counts, noise)

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return a root of the negative Hessian with respect to the outputs, (O, N, O)."""
        counts, exposure = y.chunk(2, -1)
        return self.base.hessian_root(outputs + exposure.log(), counts)

    def fit_constant_outputs(self, y: Floats, weight: Floats) -> Floats | None:
        """Return the outputs (O,) that fit best without features."""
        counts, exposure = np.split(y, 2, axis=1)
        return self.base.fit_constant_outputs(counts / exposure, weight * exposure[:, 0])


def extend_likelihood(likelihood: Likelihood) -> Likelihood:
    """Return the likelihood of rows with known parameters: errors of real targets, or exposures."""
    if isinstance(likelihood, Gaussian):
        return KnownErrors(likelihood)
    return ExposedCounts(likelihood)
