"""What a site needs to know of a likelihood: its expectations over correlated outputs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods import Likelihood

# Numbers of a block of outputs at the points: 1 MB, a core's L2 cache.
_CACHE_NUMBERS = 1 << 17


class SiteTerms(NamedTuple):
    """``E[l]``, ``E[l']`` and ``-E[l'']`` of ``l(f) = log p(y | f)``, one row a datum."""

    value: Tensor  # (N,), nats
    gradient: Tensor  # (N, C)
    curvature: Tensor  # (N, C, C)


class SiteLikelihood(Protocol):
    """Likelihood of a datum with C outputs ``f ~ N(mean, covariance)``."""

    @property
    def params(self) -> Tensor:
        """Log scales of the targets that may be learned (possibly none)."""
        ...

    @property
    def noise_std(self) -> Tensor:
        """Scale of additive noise (1,), learned or not; empty where there is none."""
        ...

    def at(self, params: Tensor) -> "SiteLikelihood": ...

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """``E[l]`` alone, (N,) nats, differentiable."""
        ...

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """(N, C), (N, C, C) and targets -> SiteTerms."""
        ...


@dataclass(frozen=True)
class ScalarSites:
    """One output a datum, by the likelihood's own expectations.

    Bonnet's and Price's theorems turn derivatives by mean and variance into ``E[l']`` and
    ``E[l''] / 2``.
    """

    likelihood: Likelihood

    @property
    def params(self) -> Tensor:
        return self.likelihood.params

    @property
    def noise_std(self) -> Tensor:
        return self.likelihood.noise_std

    def at(self, params: Tensor) -> "ScalarSites":
        return replace(self, likelihood=self.likelihood.at(params))

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        likelihood = self.likelihood.to(mean)
        return likelihood.expected_log_prob(mean, covariance[..., 0], y, None).value

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        expected = self.likelihood.to(mean).expected_log_prob(mean, covariance[..., 0], y, None)
        curvature = -2.0 * expected.d_variance.unsqueeze(-1)
        return SiteTerms(expected.value, expected.d_mean, curvature)


@dataclass(frozen=True, eq=False)
class SoftmaxSites:
    """``p(y = k | f) = softmax(f)_k`` by quasi-Monte Carlo, targets int64 (N,).

    Parameters
    ----------
    points : Tensor of shape (S, C)
        Of ``N(0, I)`` (`skbayes_sym.numerics.quadrature.sobol_normal`), the same for all data.

    Notes
    -----
    Gradient and curvature are those of the S-point value itself, so that a fixed point is its
    stationary point. With ``f = m + L z`` and L the Cholesky factor of the covariance, the
    derivative by the covariance is ``sym(L^-T Phi(L' E[l' z']) L^-1)``, where Phi takes the lower
    triangle and halves its diagonal (Murray 2016, eq. 10).
    """

    points: Tensor

    @property
    def params(self) -> Tensor:
        return self.points.new_zeros(0)

    @property
    def noise_std(self) -> Tensor:
        return self.points.new_zeros(0)

    def at(self, params: Tensor) -> "SoftmaxSites":
        return self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        blocks = self._blocks(mean, covariance)
        normaliser = torch.cat([f.logsumexp(1).mean(-1) for f, _, _ in blocks])
        # The points come in pairs z, -z: the mean of an output is exactly its own.
        return mean.gather(-1, y.unsqueeze(-1)).squeeze(-1) - normaliser

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        parts = [self._derivatives(*block) for block in self._blocks(mean, covariance)]
        normaliser, average, by_covariance = (torch.cat(t) for t in zip(*parts, strict=True))
        index = y.unsqueeze(-1)
        value = mean.gather(-1, index).squeeze(-1) - normaliser
        return SiteTerms(value, (-average).scatter_add_(-1, index, torch.ones_like(index).to(mean)),
                         -(by_covariance + by_covariance.mT))  # fmt: skip

    def _blocks(self, mean: Tensor, covariance: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Outputs (n, C, S) at the points, with factor and points, in rows that fit the cache."""
        points, factor = self.points.to(mean), output_factor(covariance)
        rows = max(1, _CACHE_NUMBERS // points.numel())
        for start in range(0, len(mean), rows):
            block = factor[start : start + rows]
            yield mean[start : start + rows, :, None] + block @ points.T, block, points

    @staticmethod
    def _derivatives(f: Tensor, factor: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean log normaliser, mean probabilities and half the derivative by the covariance."""
        normaliser = f.logsumexp(1)
        p = f.sub_(normaliser.unsqueeze(1)).exp_()
        # E[l' z'] with l' = chosen - p; the points' own mean is 0.
        slope = (p @ points).div_(-len(points))
        inner = (factor.mT @ slope.tril()).tril()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        half = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
        by_covariance = torch.linalg.solve_triangular(factor, half, upper=False, left=False)
        return normaliser.mean(-1), p.mean(-1), by_covariance


def output_factor(covariance: Tensor) -> Tensor:
    """Cholesky factor (*B, C, C) of the outputs' covariance."""
    # Nothing is random along a direction that no weight moves: keep the factor finite.
    tiny = 1e-12 * covariance.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300)
    eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    return torch.linalg.cholesky(covariance + tiny[..., None, None] * eye)
