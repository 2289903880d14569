"""Expectations of a likelihood over correlated outputs, which a Gaussian site is made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.expectations import ExpectedLogProb
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky
from skbayes_sym.numerics.memory import rows_within

if TYPE_CHECKING:
    from skbayes_sym.models.likelihoods.likelihood import Likelihood

# Numbers of a block of outputs at the points: 1 MB, a core's L2 cache.
_CACHE_NUMBERS = 1 << 17
_CACHE_ROWS = _CACHE_NUMBERS // 64  # of likelihoods with one output, times the nodes of their rule


class SiteTerms(NamedTuple):
    """``E[l]``, ``E[l']`` and ``-E[l'']`` of ``l(f) = log p(y | f)``, row by row."""

    value: Tensor  # (N,), nats
    gradient: Tensor  # (N, C)
    curvature: Tensor  # (N, C, C)


class _Expectation(torch.autograd.Function):
    """``E[l]`` with the derivatives that come with it: nothing is recorded on the way."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, covariance: Tensor, terms: SiteTerms) -> Tensor:
        ctx.save_for_backward(terms.gradient, terms.curvature)
        return terms.value

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, None]:
        gradient, curvature = ctx.saved_tensors
        slope = slopes[0].unsqueeze(-1)
        return slope * gradient, -0.5 * slope.unsqueeze(-1) * curvature, None


class SiteLikelihood:
    """Expectations of a row's log likelihood over its C outputs ``f ~ N(mean, covariance)``."""

    @property
    def params(self) -> Tensor:
        """Log scales of the targets that may be learned, none by default."""
        return torch.zeros(0, dtype=torch.float64)

    @property
    def noise_scale(self) -> Tensor:
        """Scale of additive noise (1,), learned or not; empty where there is none."""
        return torch.zeros(0, dtype=torch.float64)

    def at(self, params: Tensor) -> "SiteLikelihood":
        return self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """``E[l]`` alone, (N,) nats, differentiable in the moments."""
        with torch.no_grad():
            terms = self(mean.detach(), covariance.detach(), y)
        return cast(Tensor, _Expectation.apply(mean, covariance, terms))

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """(N, C), (N, C, C) and targets -> SiteTerms."""
        raise NotImplementedError

    def outputs(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Outputs at the points of the rule, (S, N, C), up to a shift of all outputs of a row."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScalarSites(SiteLikelihood):
    """Sites of one output per row, by the likelihood's own expectations.

    Bonnet's and Price's theorems turn derivatives by mean and variance into ``E[l']`` and
    ``E[l''] / 2``.
    """

    likelihood: "Likelihood"
    learn: bool = True  # whether the likelihood's scale is a free parameter

    @property
    def params(self) -> Tensor:
        return self.likelihood.params if self.learn else self.likelihood.params[:0]

    @property
    def noise_scale(self) -> Tensor:
        return self.likelihood.noise_scale

    def at(self, params: Tensor) -> "ScalarSites":
        return replace(self, likelihood=self.likelihood.at(params)) if self.learn else self

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        if self.params.numel():
            return torch.cat([e.value for e in self._blocks(mean, covariance, y)])
        return super().value(mean, covariance, y)

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        blocks = list(self._blocks(mean, covariance, y))
        value, d_mean, d_variance, _ = (torch.cat(t) for t in zip(*blocks, strict=True))
        return SiteTerms(value, d_mean, -2.0 * d_variance.unsqueeze(-1))

    def _blocks(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Iterator[ExpectedLogProb]:
        """Expectations in rows that fit the cache with all nodes of a quadrature."""
        likelihood, variance = self.likelihood.to(mean), covariance[..., 0]
        for start in range(0, len(mean), _CACHE_ROWS):
            rows = slice(start, start + _CACHE_ROWS)
            no_noise = mean.new_empty(len(mean[rows]), 0)
            yield likelihood.expected_log_prob(mean[rows], variance[rows], y[rows], no_noise)


@dataclass(frozen=True, eq=False)
class SoftmaxSites(SiteLikelihood):
    """``p(y = k | f) = softmax(f)_k`` by quasi-Monte Carlo, targets int64 (N,).

    ``points`` (S, C - 1): of ``N(0, I)`` (`skbayes_sym.numerics.gaussian.sobol_normal`), the same
    for all data.

    Gradient and curvature are those of the S-point value itself, so that a fixed point is its
    stationary point. A shift of all outputs changes nothing, so only C - 1 orthonormal contrasts
    ``g = H f`` are random: ``g = H m + L z`` with L the Cholesky factor of their covariance. The
    derivative by that is ``sym(L^-T Phi(L' E[l' z']) L^-1)``, where Phi takes the lower triangle
    and halves its diagonal (Murray 2016, eq. 10).
    """

    points: Tensor

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().value(mean, covariance, y)
        blocks = self._blocks(mean, covariance)
        normaliser = torch.cat([f.logsumexp(1).mean(-1) for f, _ in blocks])
        # The points come in pairs z, -z: the mean of an output is exactly its own.
        return mean.gather(-1, y.unsqueeze(-1)).squeeze(-1) - normaliser

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        points = self.points.to(mean)
        parts = [_softmax_slopes(*block, points) for block in self._blocks(mean, covariance)]
        normaliser, average, by_covariance = (torch.cat(t) for t in zip(*parts, strict=True))
        index = y.unsqueeze(-1)
        value = mean.gather(-1, index).squeeze(-1) - normaliser
        gradient = (-average).scatter_add_(-1, index, torch.ones_like(index).to(mean))
        return SiteTerms(value, gradient, -(by_covariance + by_covariance.mT))

    def outputs(self, mean: Tensor, covariance: Tensor) -> Tensor:
        return torch.cat([f for f, _ in self._blocks(mean, covariance)]).movedim(-1, 0)

    def _blocks(self, mean: Tensor, covariance: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs (n, C, S) at the points and the contrasts' factor, in rows that fit the cache."""
        points, contrasts = self.points.to(mean), _contrasts(mean)
        covariance = contrasts @ covariance @ contrasts.T
        # The factor is finite where nothing is random, too.
        tiny = 1e-12 * covariance.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300)
        factor = cholesky(
            add_to_diagonal(covariance, tiny.unsqueeze(-1)),
            what="The covariance of a row's outputs",
            remedy="Standardize the features or give a smaller prior.",
        )
        rows = rows_within(_CACHE_NUMBERS, points.numel() + len(points))
        for start in range(0, len(mean), rows):
            block = factor[start : start + rows]
            yield mean[start : start + rows, :, None] + contrasts.T @ block @ points.T, block


def _softmax_slopes(
    outputs: Tensor, factor: Tensor, points: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean log normaliser, mean probabilities, and derivative by the covariance; uses ``outputs``.

    (n, C, S), (n, C - 1, C - 1), (S, C - 1) -> (n,), (n, C), (n, C, C).
    """
    normaliser = outputs.logsumexp(1)
    p = outputs.sub_(normaliser.unsqueeze(1)).exp_()
    average, contrasts = p.mean(-1), _contrasts(p)
    # E[l' z'] with l' = chosen - p; the points' own mean is 0.
    slope = contrasts @ (p @ points).div_(-len(points))
    inner = (factor.mT @ slope.tril()).tril()
    inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    half = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    by_contrasts = torch.linalg.solve_triangular(factor, half, upper=False, left=False)
    return normaliser.mean(-1), average, contrasts.T @ by_contrasts @ contrasts


def _contrasts(outputs: Tensor) -> Tensor:
    """Orthonormal rows H (C - 1, C) orthogonal to (1, ..., 1) (Helmert), for (N, C, ...)."""
    n = outputs.shape[1]
    rows = torch.ones(n, n, dtype=outputs.dtype, device=outputs.device).tril(-1)[1:]
    index = torch.arange(1, n, dtype=outputs.dtype, device=outputs.device)
    rows.diagonal(offset=1).copy_(-index)
    return rows / (index * (index + 1)).sqrt().unsqueeze(1)
