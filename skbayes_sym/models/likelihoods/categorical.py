"""Likelihoods of classes: a softmax of the outputs, or a logistic sigmoid of one output."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from skbayes_sym.models.likelihoods.likelihood import (
    CACHE_ELEMENTS,
    ClassLikelihood,
    ExpectedLogProb,
    Kind,
    SiteLikelihood,
    SiteTerms,
    choose_n_nodes,
    collapse_equal_weights,
    expect_by_quadrature,
)
from skbayes_sym.models.predictive_mixtures import CategoricalMixture
from skbayes_sym.numerics.arguments import check_count
from skbayes_sym.numerics.gaussian import sobol_normal
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky
from skbayes_sym.numerics.memory import n_rows_per_block

# Rows per weight from which on a few quasi-Monte Carlo points are accurate, and their number.
_MANY_ROWS_PER_WEIGHT = 50.0
_N_POINTS_OF_MANY_ROWS = 128


def log_class_probabilities(outputs: Tensor) -> Tensor:
    """Return the log softmax over the last axis, (*B, N, C).

    torch's CPU kernel vectorises over the last axis. With the rows there, instead of a few classes,
    it is up to ten times as fast.
    """
    return outputs.mT.contiguous().log_softmax(-2).mT


def log_class_frequencies(
    y: npt.NDArray[np.int64], weight: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Return centred logarithms of the weighted class frequencies, (C,)."""
    log_frequency = np.log(np.bincount(y, weights=weight) / weight.sum())
    return np.asarray(log_frequency - log_frequency.mean())


@dataclass(frozen=True, eq=False)
class SoftmaxSites(SiteLikelihood):
    """Expectations of ``p(y = k | f) = softmax(f)_k`` by quasi-Monte Carlo, for targets int64 (N,).

    Parameters
    ----------
    points : Tensor of shape (S, C - 1)
        Points of ``N(0, I)`` (`skbayes_sym.numerics.gaussian.sobol_normal`), the same for all rows.

    Notes
    -----
    Gradient and curvature are those of the S-point average itself, so a fixed point is a stationary
    point of it. A shift of all outputs changes nothing, so only C - 1 orthonormal contrasts ``g = H
    f`` are random: ``g = H m + L z``, where L is the Cholesky factor of their covariance. The
    derivative with respect to the covariance is ``sym(L^-T Phi(L' E[l' z']) L^-1)``, where Phi
    takes the lower triangle and halves its diagonal (Murray 2016, eq. 10).
    """

    points: Tensor

    def value(self, mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
        """Return ``E[l]``, (N,) nats, differentiable with respect to the moments."""
        if torch.is_grad_enabled():
            return super().value(mean, covariance, y)
        blocks = self._blocks(mean, covariance)
        normaliser = torch.cat([f.logsumexp(1).mean(-1) for f, _ in blocks])
        # The points come in pairs z, -z, so that their average has no error in the mean.
        return mean.gather(-1, y.unsqueeze(-1)).squeeze(-1) - normaliser

    def __call__(self, mean: Tensor, covariance: Tensor, y: Tensor) -> SiteTerms:
        """Return expectations for means (N, C), covariances (N, C, C) and classes (N,)."""
        points = self.points.to(mean)
        parts = [_softmax_slopes(*block, points) for block in self._blocks(mean, covariance)]
        normaliser, average, by_covariance = (torch.cat(t) for t in zip(*parts, strict=True))
        index = y.unsqueeze(-1)
        value = mean.gather(-1, index).squeeze(-1) - normaliser
        gradient = (-average).scatter_add_(-1, index, torch.ones_like(index).to(mean))
        return SiteTerms(value, gradient, -(by_covariance + by_covariance.mT))

    def outputs(self, mean: Tensor, covariance: Tensor) -> Tensor:
        """Return outputs at the points, (S, N, C)."""
        return torch.cat([f for f, _ in self._blocks(mean, covariance)]).movedim(-1, 0)

    def _blocks(self, mean: Tensor, covariance: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs (n, C, S) at the points and the contrasts' factor, for blocks of rows.

        The blocks fit into the cache.
        """
        points = self.points.to(mean)
        contrasts = _contrasts(mean)
        covariance = contrasts @ covariance @ contrasts.T
        # This keeps the factor finite if the covariance is zero.
        tiny = 1e-12 * covariance.diagonal(dim1=-2, dim2=-1).amax(-1).clamp_min(1e-300)
        factor = cholesky(
            add_to_diagonal(covariance, tiny.unsqueeze(-1)),
            name="The covariance of a row's outputs",
            remedy="Standardize the features or give a smaller prior.",
        )
        rows = n_rows_per_block(CACHE_ELEMENTS, points.numel() + len(points))
        for start in range(0, len(mean), rows):
            block = factor[start : start + rows]
            yield mean[start : start + rows, :, None] + contrasts.T @ block @ points.T, block


def _softmax_slopes(
    outputs: Tensor, factor: Tensor, points: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mean log normaliser, mean probabilities, and the derivative by the covariance.

    Shapes are (n, C, S), (n, C - 1, C - 1), (S, C - 1) -> (n,), (n, C), (n, C, C). ``outputs`` is
    overwritten.
    """
    normaliser = outputs.logsumexp(1)
    p = outputs.sub_(normaliser.unsqueeze(1)).exp_()
    average = p.mean(-1)
    contrasts = _contrasts(p)
    # E[l' z'] with l' = one_hot(y) - p. The mean of the points is 0.
    slope = contrasts @ (p @ points).div_(-len(points))
    inner = (factor.mT @ slope.tril()).tril()
    inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    half = torch.linalg.solve_triangular(factor.mT, inner, upper=True)
    by_contrasts = torch.linalg.solve_triangular(factor, half, upper=False, left=False)
    return normaliser.mean(-1), average, contrasts.T @ by_contrasts @ contrasts


def _contrasts(outputs: Tensor) -> Tensor:
    """Return orthonormal rows H (C - 1, C) orthogonal to (1, ..., 1) (Helmert), for (N, C, ...)."""
    n = outputs.shape[1]
    rows = torch.ones(n, n, dtype=outputs.dtype, device=outputs.device).tril(-1)[1:]
    index = torch.arange(1, n, dtype=outputs.dtype, device=outputs.device)
    rows.diagonal(offset=1).copy_(-index)
    return rows / (index * (index + 1)).sqrt().unsqueeze(1)


@dataclass(frozen=True, eq=False)
class Categorical(ClassLikelihood):
    """``p(y = k | f) = softmax(f)_k``; targets are class indices (int64).

    Parameters
    ----------
    n_points : int, default=1024
        Number of quasi-Monte Carlo points for expectations over correlated outputs, which linear
        models compute. Powers of two are best. Fits with at least 50 rows per weight take at most
        128, or 32 per class if these are more: their outputs vary so little that the average over
        these is as accurate. Methods that sample weights use none.
    """

    kind: ClassVar[Kind] = "softmax"

    n_points: int = 1024

    def __post_init__(self) -> None:
        check_count("n_points", self.n_points, 2)

    def fit_constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the log class frequencies."""
        return log_class_frequencies(y, weight)

    def n_noise(self, n_outputs: int) -> int:
        """Return how many standard normal variables per row `expected_log_prob` needs."""
        return n_outputs

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        return CategoricalMixture(log_class_probabilities(outputs), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        log_p = log_class_probabilities(outputs)
        index = y.expand(log_p.shape[:-1]).unsqueeze(-1)
        return log_p.gather(-1, index).squeeze(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Estimate the expectation by one draw per row, ``f = m + sqrt(v) noise`` (unbiased)."""
        sd = variance.sqrt()
        log_p = log_class_probabilities(torch.addcmul(mean, sd, noise))
        index = y.unsqueeze(-1)
        value = log_p.gather(-1, index).squeeze(-1)
        d_outputs = log_p.exp().neg_()
        d_outputs.scatter_add_(-1, index, torch.ones_like(index, dtype=mean.dtype))
        d_variance = (d_outputs * noise).div_(sd).mul_(0.5)
        return ExpectedLogProb(value, d_outputs, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:  # noqa: ARG002
        """Return ``diag(sqrt p) - p sqrt(p)'``, whose square is ``diag(p) - p p'``."""
        p = outputs.softmax(-1)
        root = (0.5 * outputs.log_softmax(-1)).exp()
        columns = root.diag_embed() - p.unsqueeze(-1) * root.unsqueeze(-2)
        return columns.movedim(-1, 0)

    def site_likelihood(
        self,
        n_outputs: int,
        *,
        seed: int,
        learn: bool = True,  # noqa: ARG002
        rows_per_weight: float = 1.0,
    ) -> SoftmaxSites:
        """Return expectations over the correlated outputs of a row."""
        n_points = self.n_points
        if rows_per_weight >= _MANY_ROWS_PER_WEIGHT:
            n_points = min(n_points, max(_N_POINTS_OF_MANY_ROWS, 32 * (n_outputs - 1)))
        return SoftmaxSites(sobol_normal(n_points, n_outputs - 1, seed=seed))

    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> "CategoricalTerm":
        """Return the log likelihood for fixed targets."""
        one_hot = torch.nn.functional.one_hot(y, n_outputs).T
        return CategoricalTerm((one_hot * weight).contiguous(), collapse_equal_weights(weight))


@dataclass(frozen=True, eq=False)
class CategoricalTerm:
    """A `DataTerm` of the softmax likelihood."""

    target: Tensor  # (O, N); one-hot classes times weights
    weight: Tensor  # (N,), or (1,) if all are equal

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:  # noqa: ARG002
        """Return the log likelihood of each chain, (C,) nats."""
        return outputs.log_softmax(1).flatten(1) @ self.target.flatten()

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and the derivative by ``params``; the one by outputs goes to ``out``."""
        log_p = torch.log_softmax(outputs, 1, out=out)
        value = log_p.flatten(1) @ self.target.flatten()
        torch.addcmul(self.target, log_p.exp_(), self.weight, value=-1.0, out=out)
        return value, params


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``; targets are class indices 0 and 1 (int64)."""

    kind: ClassVar[Kind] = "bernoulli"

    def n_outputs(self, n_targets: int) -> int:
        """Return the number of outputs, which is 1."""
        if n_targets != 2:
            raise ValueError(f"Bernoulli() has two classes, y has {n_targets}. Use Categorical().")
        return 1

    def fit_constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Return the log odds of the class frequencies."""
        logits = log_class_frequencies(y, weight)
        return logits[1:] - logits[:1]

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        """Return the distribution of new targets for S draws of the outputs, (S, N, O)."""
        signed = torch.cat([-outputs, outputs], -1)
        return CategoricalMixture(logsigmoid(signed), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the log density of each row, (*B, N) nats."""
        return logsigmoid(outputs.squeeze(-1) * (2.0 * y - 1.0))

    def expected_log_prob(
        self,
        mean: Tensor,
        variance: Tensor,
        y: Tensor,
        noise: Tensor,  # noqa: ARG002
    ) -> ExpectedLogProb:
        """Compute the expectation by Gauss-Hermite quadrature."""
        sign = (2.0 * y - 1.0).to(mean).unsqueeze(-1)

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            """Use one sigmoid: ``log s(a) = min(a, 0) + log(1 - s(-|a|))``, to rounding."""
            margin = sign * f
            error = torch.sigmoid(-margin)
            value = torch.log1p(-torch.minimum(error, 1.0 - error)) + margin.clamp_max(0.0)
            return value, sign * error

        nodes = choose_n_nodes(variance)
        return expect_by_quadrature(value_and_slope, mean, variance, n_nodes=nodes)
