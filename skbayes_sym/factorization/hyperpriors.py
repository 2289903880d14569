r"""Priors of the rows of a factor, fixed or learned, and their contribution to the bound.

The free coordinates of row i are :math:`\theta_i \sim N(B^\top g_i, \Lambda^{-1})`, with features
:math:`g_i` of the row, the first of which is a constant. Learned parameters have the conjugate
hyperprior :math:`\Lambda \sim W(W_0, \nu_0)`, :math:`W_0^{-1} = w I`, and
:math:`B \mid \Lambda \sim MN(0, K_0^{-1}, \Lambda^{-1})`. Without features it is the normal-Wishart
prior of Bayesian probabilistic matrix factorisation (Salakhutdinov & Mnih 2008, eqs. 5 and 14).
With features B is the link matrix of Macau (Simm et al. 2017). Each block of coordinates has its
own Wishart prior: a single block gives a full covariance, and one block per coordinate gives
automatic relevance determination.

Given q of the rows, the optimal q of a block's B and :math:`\Lambda` has a closed form. With it,

.. math:: E_q[\log p(\theta)] - KL[q(B, \Lambda) \| p] =
   -\tfrac{n d}{2} \log 2\pi + \log Z(\nu_n, W_n) - \log Z(\nu_0, W_0)
   + \tfrac{d}{2} \log \frac{|K_0|}{|K_n|}

depends on the rows only through sums of their moments. It is invariant under rotations of a block,
because :math:`W_0` is, and so under rotations of the factors if they are in one block.
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

# Scatter w of the Wishart prior, relative to the variance of the entries. With a larger one,
# components that explain nothing keep too much variance.
SCATTER = 0.3
# Prior precision beta_0 of the means, relative to the precision of the rows.
_CONSTANT_PRECISION = 1.0
_SHRINKAGE_RANGE = 1e-6, 1e8


class Features(NamedTuple):
    """Features of the rows of a factor: a constant if means are learned, then given features.

    Attributes
    ----------
    forward : Tensor of shape (n, g)
        Features, float64.
    backward : Tensor of shape (g, n)
        Their transpose.
    gram : Tensor of shape (g, g)
        Inner products of the features.
    n_constants : int
        1 if the first feature is a constant, otherwise 0.
    """

    forward: Tensor
    backward: Tensor
    gram: Tensor
    n_constants: int

    @classmethod
    def build(cls, n: int, *, is_centred: bool, like: Tensor, columns: Tensor | None) -> "Features":
        """Build the features of n rows.

        Parameters
        ----------
        n : int
            Number of rows.
        is_centred : bool
            Whether the prior means are zero, so that there is no constant.
        like : Tensor
            Tensor whose device is used.
        columns : Tensor of shape (n, h) or None
            Given features, dense or sparse.

        Returns
        -------
        Features
            Constant and given features.
        """
        forward = torch.ones(n, 0 if is_centred else 1, dtype=torch.float64, device=like.device)
        n_constants = forward.shape[1]
        if columns is not None:
            forward = torch.cat([forward, columns.to_dense().to(forward)], dim=1)
        return cls(forward, forward.mT, forward.mT @ forward, n_constants)

    @property
    def is_penalised(self) -> Tensor:
        """Mask (g,) of the features whose coefficients are shrunk by a learned amount."""
        return torch.arange(len(self.gram), device=self.gram.device) >= self.n_constants

    @property
    def n_penalised(self) -> int:
        """Number of features whose coefficients are shrunk."""
        return max(0, len(self.gram) - self.n_constants)


class PriorBlock(NamedTuple):
    """Coordinates that share a prior.

    Attributes
    ----------
    coordinates : tuple of int
        Positions among the free coordinates.
    scale : float or None
        Standard deviation of the prior; None if its covariance is learned.
    """

    coordinates: tuple[int, ...]
    scale: float | None = None


class RowStatistics(NamedTuple):
    """Sufficient statistics of the rows of a factor, float64.

    Attributes
    ----------
    n : int
        Number of rows.
    first : Tensor of shape (g, d)
        Sum of ``g_i E[theta_i]'``.
    second : Tensor of shape (d, d)
        Sum of ``E[theta_i theta_i']``.
    """

    n: int
    first: Tensor
    second: Tensor

    def multiply(self, scales: Tensor) -> "RowStatistics":
        """Return the statistics of rows whose coordinates are multiplied by scales (d,)."""
        second = scales.unsqueeze(-1) * self.second * scales
        return RowStatistics(self.n, self.first * scales, second)


class RowPrior(NamedTuple):
    """Prior of the rows at the expected hyperparameters, float64.

    Attributes
    ----------
    precision : Tensor of shape (d, d)
        ``E[Lambda]``.
    coefficients : Tensor of shape (g, d)
        ``E[Lambda]^-1 E[Lambda B']'``.
    shrinkage : float
        Prior precision of the coefficients of features, relative to the precision of the rows.
    """

    precision: Tensor
    coefficients: Tensor
    shrinkage: float = 1.0


class _Regression(NamedTuple):
    """Regression of a block's rows on its features.

    Attributes
    ----------
    coefficients : Tensor of shape (g, b)
        Posterior means of the coefficients.
    factor : Tensor of shape (g, g)
        Cholesky factor of K_n.
    scatter : Tensor of shape (b, b)
        Residual second moments.
    log_ratio : float
        ``b / 2 log(|K_0| / |K_n|)``.
    """

    coefficients: Tensor
    factor: Tensor
    scatter: Tensor
    log_ratio: float


@dataclass(frozen=True, eq=False)
class Hyperprior:
    """Prior of the rows of a factor, with the conjugate prior of its learned parameters.

    Parameters
    ----------
    blocks : tuple of PriorBlock
        Blocks of coordinates, which include every free coordinate once.
    features : Features
        Features of the rows.
    scatter : float
        Scatter w of the Wishart prior, which is equivalent to one row of variance w.
    """

    blocks: tuple[PriorBlock, ...]
    features: Features
    scatter: float

    @property
    def n_free(self) -> int:
        """Number d of free coordinates."""
        return sum(len(block.coordinates) for block in self.blocks)

    @property
    def is_learned(self) -> bool:
        """Whether any parameter of the prior is learned."""
        return self.features.n_penalised > 0 or any(block.scale is None for block in self.blocks)

    def row_statistics(self, mean: Tensor, cov: Tensor) -> RowStatistics:
        """Sufficient statistics of rows with means (n, d) and sum of covariances (d, d)."""
        mean = mean.double()
        second = mean.mT @ mean + cov.double()
        return RowStatistics(len(mean), self.features.backward @ mean, second)

    def initial_row_prior(self, variance: float) -> RowPrior:
        """Initial prior of the rows: mean zero, and the given variance where it is learned."""
        diagonal = torch.empty(self.n_free, dtype=torch.float64)
        for coordinates, scale in self.blocks:
            diagonal[list(coordinates)] = 1.0 / variance if scale is None else scale**-2
        gram = self.features.gram
        return RowPrior(diagonal.diag().to(gram), gram.new_zeros(len(gram), self.n_free))

    def means(self, row_prior: RowPrior) -> Tensor:
        """Prior means of the rows, (n, d)."""
        return self.features.forward @ row_prior.coefficients

    def optimise(self, statistics: RowStatistics, row_prior: RowPrior) -> tuple[RowPrior, float]:
        """Compute the optimal prior of rows.

        Parameters
        ----------
        statistics : RowStatistics
            Sufficient statistics of the rows.
        row_prior : RowPrior
            Present prior, of which the shrinkage is used.

        Returns
        -------
        row_prior : RowPrior
            Optimal prior.
        value : float
            Contribution of the prior to the bound, nats.
        """
        precision = torch.zeros_like(statistics.second)
        coefficients = torch.zeros_like(statistics.first)
        total = 0.0
        squares = 0.0
        is_penalised = self.features.is_penalised
        for block in self.blocks:
            regression = self._regress(block, statistics, row_prior.shrinkage)
            scatter = regression.scatter
            block_precision, value = self._expect_precision(block, scatter, statistics.n)
            total += value + regression.log_ratio
            index = index_tensor(block.coordinates, precision)
            precision[index.unsqueeze(-1), index] = block_precision
            coefficients[:, index] = regression.coefficients
            if self.features.n_penalised:
                # E[tr(Lambda B' B)] over the coefficients of features.
                penalised = regression.coefficients[is_penalised]
                squares += float((block_precision * (penalised.mT @ penalised)).sum())
                variances = torch.cholesky_inverse(regression.factor).diagonal()
                squares += len(block_precision) * float(variances[is_penalised].sum())
        shrinkage = self._update_shrinkage(squares, row_prior)
        return RowPrior(precision, coefficients, shrinkage), total

    def sample(
        self, statistics: RowStatistics, row_prior: RowPrior, generator: torch.Generator
    ) -> RowPrior:
        """Draw the prior from its conditional distribution given the rows, for Gibbs sampling.

        Parameters
        ----------
        statistics : RowStatistics
            Sufficient statistics of the rows.
        row_prior : RowPrior
            Present prior, of which the shrinkage is used.
        generator : torch.Generator
            Source of the draws.

        Returns
        -------
        RowPrior
            Drawn prior.
        """
        precision = torch.zeros_like(statistics.second)
        coefficients = torch.zeros_like(statistics.first)
        squares = 0.0
        for block in self.blocks:
            regression = self._regress(block, statistics, row_prior.shrinkage)
            scatter = regression.scatter
            block_precision = self._sample_precision(block, scatter, statistics.n, generator)

            # B = B_n + L^-T Z R^-1 with K_n = L L' and Lambda = R R' is matrix normal.
            mean = regression.coefficients
            noise = float64_normal(tuple(mean.shape), generator=generator)
            root = cholesky(
                block_precision, name="A drawn precision", remedy="Use fewer components."
            )
            noise = torch.linalg.solve_triangular(root, noise, upper=False, left=False)
            noise = torch.linalg.solve_triangular(regression.factor.mT, noise, upper=True)
            block_coefficients = mean + noise * self._has_coefficients(block).unsqueeze(-1)

            index = index_tensor(block.coordinates, precision)
            precision[index.unsqueeze(-1), index] = block_precision
            coefficients[:, index] = block_coefficients
            if self.features.n_penalised:
                penalised = block_coefficients[self.features.is_penalised]
                squares += float((block_precision * (penalised.mT @ penalised)).sum())
        return RowPrior(precision, coefficients, self._update_shrinkage(squares, row_prior))

    def scale_slope(self, row_prior: RowPrior) -> Tensor:
        """Slope of the contribution to the bound in the log scale of coordinates, plus n, (d,).

        It holds at the optimal prior if everything is learned. If the scatter w is small beside
        the rows, their scale is free except for the number of coordinates that share a Wishart
        prior.
        """
        n_shared = torch.empty(self.n_free).to(row_prior.precision)
        for block in self.blocks:
            n_shared[list(block.coordinates)] = float(len(block.coordinates))
        return self.scatter * row_prior.precision.diagonal() - n_shared

    def _has_coefficients(self, block: PriorBlock) -> Tensor:
        """Mask (g,) of the features that a block is regressed on.

        A block of a given scale has the mean zero, and so no constant.
        """
        return self.features.is_penalised | (block.scale is None)

    def _regress(
        self, block: PriorBlock, statistics: RowStatistics, shrinkage: float
    ) -> _Regression:
        """Regress the rows of a block on its features."""
        mask = self._has_coefficients(block).double()
        index = index_tensor(block.coordinates, statistics.second)
        is_penalised = self.features.is_penalised
        strengths = self.features.gram.new_tensor([_CONSTANT_PRECISION, shrinkage])
        prior_precision = strengths[is_penalised.long()].double()
        precision = self.features.gram * mask * mask.unsqueeze(-1) + prior_precision.diag()
        factor = cholesky(
            precision,
            name="The precision of the coefficients of features",
            remedy="Scale the features, or leave out those that repeat others.",
        )
        cross = statistics.first[:, index] * mask.unsqueeze(-1)
        coefficients = torch.cholesky_solve(cross, factor)
        scatter = statistics.second[index][:, index] - cross.mT @ coefficients
        log_ratio = 0.0
        if len(prior_precision):
            log_det_ratio = float(prior_precision.log().sum() - log_det(factor))
            log_ratio = 0.5 * len(index) * log_det_ratio
        return _Regression(coefficients, factor, 0.5 * (scatter + scatter.mT), log_ratio)

    def _expect_precision(self, block: PriorBlock, scatter: Tensor, n: int) -> tuple[Tensor, float]:
        """Return ``E[Lambda]`` of a block and its contribution to the bound.

        ``scatter`` are the residual second moments of n rows. The contribution includes the ratio
        of the normalising constants of the Wishart posterior and prior.
        """
        b = len(scatter)
        identity = torch.eye(b, dtype=scatter.dtype, device=scatter.device)
        base = -0.5 * n * b * log(2.0 * pi)
        if block.scale is not None:
            squares = 0.5 * float(scatter.trace()) / block.scale**2
            return identity / block.scale**2, base - n * b * log(block.scale) - squares
        factor = self._factorise_scatter(scatter)
        inverse = torch.cholesky_inverse(factor)
        dof = float(b + n)
        value = _log_wishart(dof, float(log_det(factor)), b)
        return dof * inverse, base + value - _log_wishart(b, b * log(self.scatter), b)

    def _sample_precision(
        self, block: PriorBlock, scatter: Tensor, n: int, generator: torch.Generator
    ) -> Tensor:
        """Draw ``Lambda`` of a block from ``W(W_n, nu_n)`` by the Bartlett decomposition.

        Parameters
        ----------
        block : PriorBlock
            Block of coordinates.
        scatter : Tensor of shape (b, b)
            Residual second moments of the rows.
        n : int
            Number of rows.
        generator : torch.Generator
            Source of the draws.

        Returns
        -------
        Tensor of shape (b, b)
            Drawn precision, or that of the given scale.
        """
        if block.scale is not None:
            return self._expect_precision(block, scatter, n)[0]
        b = len(scatter)
        # W_n = R R' with R = L^-T, where L is the Cholesky factor of W_n^-1.
        factor = self._factorise_scatter(scatter)
        chi = numpy_generator(generator).chisquare(b + n - torch.arange(b).numpy())
        normal = float64_normal((b, b), generator=generator).tril(-1)
        lower = normal + torch.as_tensor(chi, device=scatter.device).sqrt().diag()
        root = torch.linalg.solve_triangular(factor.mT, lower, upper=True)
        return root @ root.mT

    def _factorise_scatter(self, scatter: Tensor) -> Tensor:
        """Cholesky factor of the posterior scatter ``W_n^-1`` of a block."""
        identity = torch.eye(len(scatter), dtype=scatter.dtype, device=scatter.device)
        return cholesky(
            scatter + self.scatter * identity,
            name="The scatter of the rows of a side",
            remedy="Use standardize=True, or give prior a number.",
        )

    def _update_shrinkage(self, squares: float, row_prior: RowPrior) -> float:
        """Maximise over the shrinkage given the coefficients: a step of expectation maximisation.

        ``squares`` is the expected sum of squared coefficients in units of the rows' variance.
        """
        n_coefficients = self.features.n_penalised * self.n_free
        if n_coefficients == 0:
            return row_prior.shrinkage
        low, high = _SHRINKAGE_RANGE
        return min(max(n_coefficients / max(squares, n_coefficients / high), low), high)


class FactorPrior(NamedTuple):
    """Prior of the rows of U and of V.

    Attributes
    ----------
    scale : float or {"learn", "ard"}
        Standard deviation of the entries of U and V. "learn" learns a mean and a full covariance
        for each factor, "ard" a mean and a scale for every component of each factor.
    features : tuple of Tensor or None
        Features of rows (n, g) and of columns (m, h).
    scatter : float
        Scatter w of the Wishart priors.
    """

    scale: float | str
    features: tuple[Tensor | None, Tensor | None] = (None, None)
    scatter: float = SCATTER

    @property
    def learns_scales(self) -> bool:
        """Whether the scales of the factors are learned."""
        return isinstance(self.scale, str)

    def hyperpriors(
        self, shape: tuple[int, int], coordinates: Coordinates, like: Tensor
    ) -> tuple[Hyperprior, Hyperprior]:
        """Priors of the rows of U and of V, for a matrix of a given shape.

        ``like`` is a tensor whose device is used.
        """
        rows, columns = (
            self._make_hyperprior(n, coordinates, index, like) for index, n in enumerate(shape)
        )
        return rows, columns

    def _make_hyperprior(
        self, n: int, coordinates: Coordinates, index: int, like: Tensor
    ) -> Hyperprior:
        """Make the prior of the n rows of one factor.

        Parameters
        ----------
        n : int
            Number of rows.
        coordinates : Coordinates
            Components and offsets.
        index : {0, 1}
            0 for U, 1 for V.
        like : Tensor
            Tensor whose device is used.

        Returns
        -------
        Hyperprior
            Prior of the rows.
        """
        k = coordinates.n_components
        split = coordinates.splits[index]
        free = tuple(range(len(split.free)))
        blocks: tuple[PriorBlock, ...]
        if self.scale == "learn":
            blocks = (PriorBlock(free),)
        elif isinstance(self.scale, str):  # "ard"
            blocks = tuple(PriorBlock((i,)) for i in free)
        else:
            blocks = (PriorBlock(free[:k], float(self.scale)),)
            if len(free) > k:
                # The scale of offsets is learned.
                blocks = (*blocks, PriorBlock(free[k:]))
        is_centred = all(block.scale is not None for block in blocks)
        columns = self.features[index]
        features = Features.build(n, is_centred=is_centred, like=like, columns=columns)
        return Hyperprior(blocks, features, self.scatter * split.fixed_value**2)


def _log_wishart(dof: float, log_det_inverse: float, b: int) -> float:
    """Log normaliser of ``|Lambda|^((dof - b - 1) / 2) exp(-tr(W^-1 Lambda) / 2)``."""
    half = torch.tensor(0.5 * dof, dtype=torch.float64)
    gamma = float(torch.special.multigammaln(half, b))
    return 0.5 * dof * b * log(2.0) - 0.5 * dof * log_det_inverse + gamma
