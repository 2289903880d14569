r"""Priors of the rows of one side, given or learned with the factors, and their part of the bound.

The free coordinates of row i are :math:`\theta_i \sim N(B^\top g_i, \Lambda^{-1})`, with features
:math:`g_i` of the row, a constant the first of them. What is learned has the conjugate prior
:math:`\Lambda \sim W(W_0, \nu_0)`, :math:`W_0^{-1} = w I`, and
:math:`B \mid \Lambda \sim MN(0, K_0^{-1}, \Lambda^{-1})`: without features the normal-Wishart of
Bayesian probabilistic matrix factorisation (Salakhutdinov & Mnih 2008, eqs. 5 and 14), with
features the link matrix of Macau (Simm et al. 2017). Blocks of coordinates have Wisharts of their
own: one block is a full covariance, one a coordinate is automatic relevance determination.

Given q of the rows, the best q of a block's B and :math:`\Lambda` is known in closed form; put in,

.. math:: E_q[\log p(\theta)] - KL[q(B, \Lambda) \| p] =
   -\tfrac{n d}{2} \log 2\pi + \log Z(\nu_n, W_n) - \log Z(\nu_0, W_0)
   + \tfrac{d}{2} \log \frac{|K_0|}{|K_n|}

depends on rows through sums of their moments alone. It is invariant under rotations of a block,
since :math:`W_0` is, and of the factors if they are in one block.
"""

from dataclasses import dataclass
from math import log, pi
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.factorization.sparse_entries import Coordinates
from skbayes_sym.numerics.linalg import cholesky, log_det
from skbayes_sym.numerics.random import float64_normal, numpy_generator
from skbayes_sym.numerics.runtime import index_tensor

# What a learned prior's Wishart knows of a variance, in units of the entries': larger scatters
# leave too much of components that explain nothing.
SCATTER = 0.3
_CONSTANT_PRECISION = 1.0  # beta_0: of the means, in units of the rows' own precision
_SHRINKAGE_RANGE = 1e-6, 1e8


class Features(NamedTuple):
    """Features of the rows of a side: a constant, if means are learned, then those given."""

    forward: Tensor  # (n, g), float64, dense or sparse
    backward: Tensor  # (g, n)
    gram: Tensor  # (g, g), their inner products
    n_constants: int  # 0 or 1

    @classmethod
    def of(cls, n: int, *, is_centred: bool, like: Tensor, columns: Tensor | None) -> "Features":
        """A constant for means that are learned, and what is given (n, g), dense or sparse."""
        forward = torch.ones(n, 0 if is_centred else 1, dtype=torch.float64, device=like.device)
        n_constants = forward.shape[1]
        if columns is not None:
            forward = torch.cat([forward, columns.to_dense().to(forward)], dim=1)
        return cls(forward, forward.mT, forward.mT @ forward, n_constants)

    @property
    def is_penalised(self) -> Tensor:
        """Features with coefficients that are shrunk by a learned amount, (g,) bool."""
        return torch.arange(len(self.gram), device=self.gram.device) >= self.n_constants

    @property
    def n_penalised(self) -> int:
        """Number of shrunken coefficients."""
        return max(0, len(self.gram) - self.n_constants)


class PriorBlock(NamedTuple):
    """Coordinates that share a prior: ``scale`` is its standard deviation, or None: learned."""

    coordinates: tuple[int, ...]  # positions among the free ones
    scale: float | None = None


class RowStatistics(NamedTuple):
    """Sums over the rows of a side, float64."""

    n: int
    first: Tensor  # (g, d), sum of g_i E[theta_i]'
    second: Tensor  # (d, d), sum of E[theta_i theta_i']

    def scaled(self, scales: Tensor) -> "RowStatistics":
        """Sums over rows with coordinates multiplied by these (d,)."""
        second = scales.unsqueeze(-1) * self.second * scales
        return RowStatistics(self.n, self.first * scales, second)


class RowPrior(NamedTuple):
    """The prior of rows as their updates see it, float64."""

    precision: Tensor  # (d, d), E[Lambda]
    coefficients: Tensor  # (g, d), E[Lambda]^-1 E[Lambda B']'
    shrinkage: float = 1.0  # precision of coefficients of features, over that of the rows


class _Regression(NamedTuple):
    """A block's rows regressed on its features."""

    coefficients: Tensor  # (g, b)
    factor: Tensor  # Cholesky's of K_n, (g, g)
    rest: Tensor  # (b, b), what is left of the second moments
    log_ratio: float  # b / 2 log(|K_0| / |K_n|)


@dataclass(frozen=True, eq=False)
class Hyperprior:
    """The prior of one side."""

    blocks: tuple[PriorBlock, ...]  # every free coordinate in one of them
    features: Features
    scatter: float  # ``w``: the prior knows a variance of this much of one row

    @property
    def n_free(self) -> int:
        """Free coordinates d."""
        return sum(len(block.coordinates) for block in self.blocks)

    @property
    def is_learned(self) -> bool:
        """Whether anything of it is."""
        return self.features.n_penalised > 0 or any(block.scale is None for block in self.blocks)

    def moments(self, mean: Tensor, cov: Tensor) -> RowStatistics:
        """Sums over rows with these means (n, d) and this sum (d, d) of covariances."""
        mean = mean.double()
        second = mean.mT @ mean + cov.double()
        return RowStatistics(len(mean), self.features.backward @ mean, second)

    def held(self, variance: float) -> RowPrior:
        """The law that sweeps begin with: mean zero; what is to be learned has this variance."""
        diagonal = torch.empty(self.n_free, dtype=torch.float64)
        for coordinates, scale in self.blocks:
            diagonal[list(coordinates)] = 1.0 / variance if scale is None else scale**-2
        gram = self.features.gram
        return RowPrior(diagonal.diag().to(gram), gram.new_zeros(len(gram), self.n_free))

    def means(self, row_prior: RowPrior) -> Tensor:
        """Prior means of the rows, (n, d)."""
        return self.features.forward @ row_prior.coefficients

    def learned(
        self, moments: RowStatistics, row_prior: RowPrior, generator: torch.Generator | None = None
    ) -> tuple[RowPrior, float]:
        """The best law of these rows, and its part of the bound in nats.

        With a generator a draw of the law given the rows, for Gibbs sampling, and 0.
        """
        precision = torch.zeros_like(moments.second)
        coefficients = torch.zeros_like(moments.first)
        total = 0.0
        squares = 0.0
        for block in self.blocks:
            fit = self._regression(block, moments, row_prior.shrinkage)
            best = fit.coefficients
            if generator is None:
                part, value = self._precision(block, fit.rest, moments.n)
                total += value + fit.log_ratio
            else:
                part = self._drawn_precision(block, fit.rest, moments.n, generator)
                # B = B_n + L^-T Z R^-1 with K_n = L L', Lambda = R R' has the matrix normal law.
                noise = float64_normal(tuple(best.shape), generator=generator)
                root = cholesky(part, name="A drawn precision", remedy="Use fewer components.")
                noise = torch.linalg.solve_triangular(root, noise, upper=False, left=False)
                noise = torch.linalg.solve_triangular(fit.factor.mT, noise, upper=True)
                best = best + noise * self._has_mean(block).unsqueeze(-1)
            where = index_tensor(block.coordinates, precision)
            precision[where.unsqueeze(-1), where], coefficients[:, where] = part, best
            if self.features.n_penalised:  # E[tr(Lambda B' B)] over the coefficients of features
                shrunk = best[self.features.is_penalised]
                squares += float((part * (shrunk.mT @ shrunk)).sum())
                if generator is None:
                    spread = torch.cholesky_inverse(fit.factor).diagonal()
                    squares += len(part) * float(spread[self.features.is_penalised].sum())
        return RowPrior(precision, coefficients, self._shrinkage(squares, row_prior)), total

    def growth(self, row_prior: RowPrior) -> Tensor:
        """Slope of the part of the bound in the log size of coordinates, plus n, (d,).

        At the best law, everything learned: where the scatter is small beside the rows, their size
        is free but for the number of coordinates that share a Wishart.
        """
        n_shared = torch.empty(self.n_free).to(row_prior.precision)
        for block in self.blocks:
            n_shared[list(block.coordinates)] = float(len(block.coordinates))
        return self.scatter * row_prior.precision.diagonal() - n_shared

    def _has_mean(self, block: PriorBlock) -> Tensor:
        """Which features a block is regressed on: a given scale means a given mean of zero."""
        return self.features.is_penalised | (block.scale is None)

    def _regression(
        self, block: PriorBlock, moments: RowStatistics, shrinkage: float
    ) -> _Regression:
        uses = self._has_mean(block).double()
        where = index_tensor(block.coordinates, moments.second)
        is_penalised = self.features.is_penalised
        strengths = self.features.gram.new_tensor([_CONSTANT_PRECISION, shrinkage])
        prior = strengths[is_penalised.long()].double()
        posterior = self.features.gram * uses * uses.unsqueeze(-1) + prior.diag()
        factor = cholesky(
            posterior,
            name="The precision of the coefficients of features",
            remedy="Scale the features, or leave out those that repeat others.",
        )
        cross = moments.first[:, where] * uses.unsqueeze(-1)
        coefficients = torch.cholesky_solve(cross, factor)
        rest = moments.second[where][:, where] - cross.mT @ coefficients
        log_ratio = 0.0
        if len(prior):
            log_ratio = 0.5 * len(where) * float(prior.log().sum() - log_det(factor))
        return _Regression(coefficients, factor, 0.5 * (rest + rest.mT), log_ratio)

    def _precision(self, block: PriorBlock, rest: Tensor, n: int) -> tuple[Tensor, float]:
        """``E[Lambda]`` of a block and the log normaliser that its Wishart leaves."""
        b = len(rest)
        identity = torch.eye(len(rest), dtype=rest.dtype, device=rest.device)
        base = -0.5 * n * b * log(2.0 * pi)
        if block.scale is not None:
            value = base - n * b * log(block.scale) - 0.5 * float(rest.trace()) / block.scale**2
            return identity / block.scale**2, value
        factor = self._scatter_factor(rest)
        inverse = torch.cholesky_inverse(factor)
        dof = float(b + n)
        value = _log_wishart(dof, float(log_det(factor)), b)
        return dof * inverse, base + value - _log_wishart(b, b * log(self.scatter), b)

    def _drawn_precision(
        self, block: PriorBlock, rest: Tensor, n: int, generator: torch.Generator
    ) -> Tensor:
        """Draw from ``W(W_n, nu_n)`` by Bartlett's decomposition."""
        if block.scale is not None:
            return self._precision(block, rest, n)[0]
        b = len(rest)
        # W_n = R R' with R = L^-T, L of the inverse.
        factor = self._scatter_factor(rest)
        chi = numpy_generator(generator).chisquare(b + n - torch.arange(b).numpy())
        normal = float64_normal((b, b), generator=generator).tril(-1)
        lower = normal + torch.as_tensor(chi, device=rest.device).sqrt().diag()
        root = torch.linalg.solve_triangular(factor.mT, lower, upper=True)
        return root @ root.mT

    def _scatter_factor(self, rest: Tensor) -> Tensor:
        identity = torch.eye(len(rest), dtype=rest.dtype, device=rest.device)
        return cholesky(
            rest + self.scatter * identity,
            name="The scatter of the rows of a side",
            remedy="Use standardize=True, or give prior a number.",
        )

    def _shrinkage(self, squares: float, row_prior: RowPrior) -> float:
        """The most probable one given the coefficients: a step of expectation maximisation."""
        n_coefficients = self.features.n_penalised * self.n_free
        if n_coefficients == 0:
            return row_prior.shrinkage
        low, high = _SHRINKAGE_RANGE
        return min(max(n_coefficients / max(squares, n_coefficients / high), low), high)


class FactorPrior(NamedTuple):
    """Prior of the rows of U and of V.

    ``scale`` is the standard deviation of their entries, or "learn" (a mean and a full covariance
    a side) or "ard" (a mean and a scale a component and side).
    """

    scale: float | str
    features: tuple[Tensor | None, Tensor | None] = (None, None)  # (n, g) and (m, h)
    scatter: float = SCATTER

    @property
    def learns_scales(self) -> bool:
        """Whether the scales of the factors are learned."""
        return isinstance(self.scale, str)

    def sides(
        self, shape: tuple[int, int], network: Coordinates, like: Tensor
    ) -> tuple[Hyperprior, Hyperprior]:
        """Priors of the rows and of the columns of a matrix of that shape."""
        priors = []
        for n, side, columns in zip(shape, network.sides, self.features, strict=True):
            k = network.n_components
            every = tuple(range(len(side.free)))
            blocks: tuple[PriorBlock, ...] = tuple(PriorBlock((i,)) for i in every)  # "ard"
            if self.scale == "learn":
                blocks = (PriorBlock(every),)
            elif not isinstance(self.scale, str):
                parts = PriorBlock(every[:k], float(self.scale)), PriorBlock(every[k:])
                blocks = parts if len(every) > k else parts[:1]
            is_centred = all(block.scale is not None for block in blocks)
            features = Features.of(n, is_centred=is_centred, like=like, columns=columns)
            priors.append(Hyperprior(blocks, features, self.scatter * side.pin**2))
        return priors[0], priors[1]


def _log_wishart(dof: float, log_det_inverse: float, b: int) -> float:
    """Log normaliser of ``|Lambda|^((dof - b - 1) / 2) exp(-tr(W^-1 Lambda) / 2)``."""
    half = torch.tensor(0.5 * dof, dtype=torch.float64)
    gamma = float(torch.special.multigammaln(half, b))
    return 0.5 * dof * b * log(2.0) - 0.5 * dof * log_det_inverse + gamma
