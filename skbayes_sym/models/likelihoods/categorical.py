"""Class labels: a softmax of the outputs, or a logistic sigmoid of one."""

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


def log_class_probabilities(outputs: Tensor) -> Tensor:
    """Log softmax over the last axis, (*B, N, C).

    With the classes moved inwards torch's CPU kernel runs over the rows instead of over a few
    classes at a time: up to ten times as fast.
    """
    return outputs.mT.contiguous().log_softmax(-2).mT


def log_class_frequencies(
    y: npt.NDArray[np.int64], weight: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """Logarithms of the classes' shares of the weight (C,), centred."""
    share = np.log(np.bincount(y, weights=weight) / weight.sum())
    return np.asarray(share - share.mean())


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
        points = self.points.to(mean)
        contrasts = _contrasts(mean)
        covariance = contrasts @ covariance @ contrasts.T
        # The factor is finite where nothing is random, too.
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
    """Mean log normaliser, mean probabilities, and derivative by the covariance; uses ``outputs``.

    (n, C, S), (n, C - 1, C - 1), (S, C - 1) -> (n,), (n, C), (n, C, C).
    """
    normaliser = outputs.logsumexp(1)
    p = outputs.sub_(normaliser.unsqueeze(1)).exp_()
    average = p.mean(-1)
    contrasts = _contrasts(p)
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


@dataclass(frozen=True, eq=False)
class Categorical(ClassLikelihood):
    """``p(y = k | f) = softmax(f)_k``; targets are class indices (int64).

    Parameters
    ----------
    n_points : int, default=1024
        Quasi-Monte Carlo points of expectations over correlated outputs, which linear models take
        (a power of two is best). Methods that draw weights use none.
    """

    kind: ClassVar[Kind] = "softmax"

    n_points: int = 1024

    def __post_init__(self) -> None:
        check_count("n_points", self.n_points, 2)

    def fit_constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """`log_class_frequencies`."""
        return log_class_frequencies(y, weight)

    def n_noise(self, n_outputs: int) -> int:
        return n_outputs

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        return CategoricalMixture(log_class_probabilities(outputs), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        log_p = log_class_probabilities(outputs)
        index = y.expand(log_p.shape[:-1]).unsqueeze(-1)
        return log_p.gather(-1, index).squeeze(-1)

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        """Expectation by one reparametrised draw per row: ``f = m + sqrt(v) noise`` (unbiased)."""
        sd = variance.sqrt()
        log_p = log_class_probabilities(torch.addcmul(mean, sd, noise))
        index = y.unsqueeze(-1)
        value = log_p.gather(-1, index).squeeze(-1)
        d_outputs = log_p.exp().neg_()
        d_outputs.scatter_add_(-1, index, torch.ones_like(index, dtype=mean.dtype))
        d_variance = (d_outputs * noise).div_(sd).mul_(0.5)
        return ExpectedLogProb(value, d_outputs, d_variance, mean.new_zeros(len(mean), 0))

    def hessian_root(self, outputs: Tensor, y: Tensor) -> Tensor:
        """``diag(sqrt p) - p sqrt(p)'``, whose square is ``diag(p) - p p'``."""
        p = outputs.softmax(-1)
        root = (0.5 * outputs.log_softmax(-1)).exp()
        columns = root.diag_embed() - p.unsqueeze(-1) * root.unsqueeze(-2)
        return columns.movedim(-1, 0)

    def site_likelihood(self, n_outputs: int, *, seed: int, learn: bool = True) -> SoftmaxSites:
        return SoftmaxSites(sobol_normal(self.n_points, n_outputs - 1, seed=seed))

    def data_term(self, y: Tensor, weight: Tensor, n_outputs: int) -> "CategoricalTerm":
        one_hot = torch.nn.functional.one_hot(y, n_outputs).T
        return CategoricalTerm((one_hot * weight).contiguous(), collapse_equal_weights(weight))


@dataclass(frozen=True, eq=False)
class CategoricalTerm:
    """A `DataTerm` of classes."""

    target: Tensor  # (O, N); one-hot classes times weights
    weight: Tensor  # (N,), or (1,) where all are equal

    def value(self, outputs: Tensor, params: Tensor) -> Tensor:
        return outputs.log_softmax(1).flatten(1) @ self.target.flatten()

    def gradient(self, outputs: Tensor, params: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        log_p = torch.log_softmax(outputs, 1, out=out)
        value = log_p.flatten(1) @ self.target.flatten()
        torch.addcmul(self.target, log_p.exp_(), self.weight, value=-1.0, out=out)
        return value, params


@dataclass(frozen=True)
class Bernoulli(ClassLikelihood):
    """``p(y = 1 | f) = 1 / (1 + exp(-f))``; targets are class indices 0 and 1 (int64)."""

    kind: ClassVar[Kind] = "bernoulli"

    def n_outputs(self, n_targets: int) -> int:
        if n_targets != 2:
            raise ValueError(f"Bernoulli() has two classes, y has {n_targets}. Use Categorical().")
        return 1

    def fit_constant_outputs(
        self, y: npt.NDArray[Any], weight: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """Log odds of the classes' shares."""
        logits = log_class_frequencies(y, weight)
        return logits[1:] - logits[:1]

    def predictive(self, outputs: Tensor, log_weights: Tensor | None = None) -> CategoricalMixture:
        signed = torch.cat([-outputs, outputs], -1)
        return CategoricalMixture(logsigmoid(signed), log_weights)

    def log_prob(self, outputs: Tensor, y: Tensor) -> Tensor:
        return logsigmoid(outputs.squeeze(-1) * (2.0 * y - 1.0))

    def expected_log_prob(
        self, mean: Tensor, variance: Tensor, y: Tensor, noise: Tensor
    ) -> ExpectedLogProb:
        sign = (2.0 * y - 1.0).to(mean).unsqueeze(-1)

        def value_and_slope(f: Tensor) -> tuple[Tensor, Tensor]:
            """Use one sigmoid: ``log s(a) = min(a, 0) + log(1 - s(-|a|))``, to rounding."""
            agreeing = sign * f
            wrong = torch.sigmoid(-agreeing)
            value = torch.log1p(-torch.minimum(wrong, 1.0 - wrong)) + agreeing.clamp_max(0.0)
            return value, sign * wrong

        nodes = choose_n_nodes(variance)
        return expect_by_quadrature(value_and_slope, mean, variance, n_nodes=nodes)
