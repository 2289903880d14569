"""Predictions from the posterior of the factors: known entries, and entries of new rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.factorization.context import ContextPosterior
from skbayes_sym.factorization.coordinate_ascent import Noise, compute_row_conditionals
from skbayes_sym.factorization.entry_sites import (
    EntryMoments,
    compute_sites,
    expected_log_prob,
    is_class_likelihood,
    is_normal,
    noise_variance,
    update_trust_radius,
)
from skbayes_sym.factorization.hyperpriors import RowPrior
from skbayes_sym.factorization.sparse_entries import (
    Coordinates,
    CoordinateSplit,
    CSREntries,
    append_fixed,
    compute_normal_equations,
    compute_packed_equations,
    eliminate_fixed,
    pack_second_moments,
    select_free,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.numerics.gaussian import LOG_2PI, gauss_hermite, kl_from_standard
from skbayes_sym.numerics.linalg import add_to_diagonal, cholesky, log_det, matrix_blocks
from skbayes_sym.numerics.random import numpy_generator

Array = npt.NDArray[Any]
# Entries whose (k, k) matrices are handled at once.
_BLOCK = 1 << 14
# Entries whose distributions are evaluated at once: with all quadrature nodes and classes they
# stay in the CPU's cache.
DISTRIBUTION_BLOCK = 1 << 11
# Sweeps between a new row and the sites of its entries.
_SITE_SWEEPS = 20


class FactorMoments(NamedTuple):
    """Gaussian posterior of the rows of one factor in all coordinates, float64.

    Attributes
    ----------
    mean : Tensor of shape (n, D)
        Means.
    cov : Tensor of shape (n, D, D)
        Covariances.
    """

    mean: Tensor
    cov: Tensor


@dataclass(frozen=True, eq=False)
class FactorPredictor(BasePredictor):
    """Predictor of entries in scaled units, on the CPU.

    Its inputs x are pairs (row, column), (E, 2), or pairs with an encoded context, (E, 2 + c).
    Without a context, entries are predicted in the average one.

    Parameters
    ----------
    rows, columns : FactorMoments
        Posterior of the rows of U and of V.
    coordinates : Coordinates
        Components and offsets of the rows.
    row_priors : tuple of RowPrior
        Priors of the rows of U and of V.
    likelihood : Likelihood
        Likelihood at the learned parameters.
    intercept : float, default=0.0
        Output where factors and offsets are zero.
    draws : Tensor of shape (S, n + m, D), optional
        Draws of a sampler, used in place of the Gaussians.
    unseen : tuple of FactorMoments, optional
        A row of U, and one of V, without entries: the distribution of unknown labels.
    context : ContextPosterior, optional
        Posterior of the effects of context.
    """

    rows: FactorMoments
    columns: FactorMoments
    coordinates: Coordinates
    row_priors: tuple[RowPrior, RowPrior]
    likelihood: Likelihood
    intercept: float = 0.0
    draws: Tensor | None = None
    unseen: tuple[FactorMoments, FactorMoments] | None = None
    context: ContextPosterior | None = None

    @property
    def n_components(self) -> int:
        """Number k of components."""
        return self.coordinates.n_components

    @property
    def _split(self) -> CoordinateSplit:
        """Free and fixed coordinates of the rows of U."""
        return self.coordinates.splits[0]

    def distribution(self, x: Tensor) -> Predictive:
        """Distribution of new observations of the entries."""
        if is_normal(self.likelihood):
            mean, variance = self.moments(x)
            noise = self.likelihood.noise_scale.square()
            return NormalMixture(mean.unsqueeze(-1)[None], variance.unsqueeze(-1), noise)
        outputs, log_weights = self._quadrature(x)
        return self.likelihood.predictive(outputs, log_weights)

    def _quadrature(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (S, E, 1) at the nodes of a quadrature, and its log weights (S,)."""
        mean, variance = self.moments(x)
        # Exact to 1e-9 if outputs have the same standard deviation as the noise.
        nodes, weights = gauss_hermite(32)
        deviation = variance.unsqueeze(-1).sqrt()
        outputs = mean.unsqueeze(-1) + deviation * nodes[:, None, None]
        return outputs, weights.log()

    def mean(self, x: Tensor) -> Tensor:
        """Expected entries, (E, 1); variances aren't computed if the noise is additive."""
        if self.draws is not None or not self.likelihood.scales_targets:
            return self.distribution(x).mean()
        i, j = x[:, :2].long().T
        means = entry_means(self.rows.mean, self.columns.mean, i, j, self.n_components)
        context_mean, _ = self._context_moments(x)
        return (means + context_mean).unsqueeze(-1) + self.intercept

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Distributions of entries given each of n joint draws of the factors."""
        return self.likelihood.predictive(self.outputs(x, n, generator=generator))

    def outputs(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw the outputs of entries jointly, (n, E, 1).

        Every draw has one factor per row and column, so entries that share one are dependent.

        Parameters
        ----------
        x : Tensor of shape (E, 2 + n_context)
            Row, column and context of each entry.
        n : int
            Number of draws.
        generator : torch.Generator
            Source of random numbers.
        """
        rng = numpy_generator(generator)
        i, j = x[:, :2].long().T.numpy()
        if self.draws is not None:
            n_rows = len(self.rows.mean)
            draws = self.draws.numpy()
            chosen = rng.integers(len(draws), size=n)
            factors = ((draws[s, i], draws[s, n_rows + j]) for s in chosen)
        else:
            sample_rows = _make_sampler(self.rows, i)
            sample_columns = _make_sampler(self.columns, j)
            factors = ((sample_rows(rng), sample_columns(rng)) for _ in range(n))
        root_k = sqrt(self.n_components)
        products = np.array([np.sum(u * v, axis=1) / root_k for u, v in factors])
        outputs = torch.as_tensor(products) + self.intercept
        if self.context is not None and x.shape[1] > 2:
            outputs = outputs + self.context.sample(x[:, 2:], n, rng)
        return outputs.unsqueeze(-1)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log densities of new observations of the entries, (E,) nats."""
        blocks = zip(x.split(DISTRIBUTION_BLOCK), y.split(DISTRIBUTION_BLOCK), strict=True)
        return torch.cat([self._block_log_density(*block) for block in blocks])

    def _block_log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log densities of a block of entries, (E,) nats."""
        if not is_class_likelihood(self.likelihood):
            return self.distribution(x).log_prob(y)
        # The distribution would be one of all classes.
        outputs, log_weights = self._quadrature(x)
        log_prob = self.likelihood.log_prob(outputs, y)
        return torch.logsumexp(log_prob + log_weights[:, None], dim=0)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the outputs, (E,) each, float64."""
        i, j = x[:, :2].long().T
        if self.draws is not None:
            n_rows = len(self.rows.mean)
            mean, variance = draw_moments(self.draws, n_rows, i, j, self.n_components)
        else:
            mean = entry_means(self.rows.mean, self.columns.mean, i, j, self.n_components)
            variance = entry_variances(self.rows, self.columns, i, j, self.n_components)
        context_mean, context_variance = self._context_moments(x)
        return (
            mean.double() + self.intercept + context_mean,
            variance.double() + context_variance,
        )

    def _context_moments(self, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Means and variances of the contribution of the context to the outputs, (E,) each."""
        if self.context is None or x.shape[1] == 2:
            return 0.0, 0.0
        return self.context.moments(x[:, 2:])

    def prior_means(self, features: Tensor) -> Tensor:
        """Prior means (n, d) of rows with features (n, h), without the constant feature."""
        coefficients = self.row_priors[0].coefficients
        n_constants = len(coefficients) - features.shape[1]
        constant = coefficients[:n_constants].sum(0)
        return constant + features.to(coefficients) @ coefficients[n_constants:]

    @property
    def transposed(self) -> "FactorPredictor":
        """The predictor of the transposed matrix."""
        coordinates = self.coordinates
        k = coordinates.n_components
        n_row_offsets = int(coordinates.row_offsets)
        first_column_offset = k + n_row_offsets
        # The offset of the columns becomes that of the rows, which comes first.
        column_offsets = range(first_column_offset, coordinates.n_coordinates)
        order = [*range(k), *column_offsets, *range(k, first_column_offset)]

        def reorder(factor: FactorMoments) -> FactorMoments:
            return FactorMoments(factor.mean[:, order], factor.cov[:, order][:, :, order])

        unseen = None
        if self.unseen is not None:
            unseen_row, unseen_column = self.unseen
            unseen = (reorder(unseen_column), reorder(unseen_row))
        draws = self.draws
        n_rows = len(self.rows.mean)
        if draws is not None:
            draws = torch.cat([draws[:, n_rows:], draws[:, :n_rows]], dim=1)[..., order]
        return replace(
            self,
            rows=reorder(self.columns),
            columns=reorder(self.rows),
            coordinates=Coordinates(k, coordinates.column_offsets, coordinates.row_offsets),
            row_priors=self.row_priors[::-1],
            draws=draws,
            unseen=unseen,
        )

    def append_rows(self, new: FactorMoments) -> "FactorPredictor":
        """Return a predictor with further rows after the present ones."""
        n_rows = len(self.rows.mean)
        draws = self.draws
        if draws is not None:
            # New rows are drawn independently of the columns of each draw.
            rng = np.random.default_rng(0)
            sample = _make_sampler(new, np.arange(len(new.mean)))
            new_draws = torch.stack([torch.as_tensor(sample(rng)).to(draws) for _ in draws])
            draws = torch.cat([draws[:, :n_rows], new_draws, draws[:, n_rows:]], dim=1)
        mean = torch.cat([self.rows.mean, new.mean])
        cov = torch.cat([self.rows.cov, new.cov])
        return replace(self, rows=FactorMoments(mean, cov), draws=draws)

    def append_unseen(self, n_rows: int, n_columns: int) -> "FactorPredictor":
        """Return a predictor with further rows and columns that have no entries."""
        predictor = self
        for n in (n_rows, n_columns):
            if n:
                assert predictor.unseen is not None
                mean, cov = predictor.unseen[0]
                new = FactorMoments(mean.expand(n, *mean.shape[1:]), cov.expand(n, *cov.shape[1:]))
                predictor = predictor.append_rows(new)
            # Columns are appended as rows of the transposed matrix.
            predictor = predictor.transposed
        return predictor

    def row_posterior(self, data: CSREntries, prior_means: Tensor) -> FactorMoments:
        """Posterior of new rows given q(V); a row without entries stays at its prior.

        Parameters
        ----------
        data : CSREntries
            Entries of the rows.
        prior_means : Tensor of shape (n, d)
            Prior means of the rows.

        Returns
        -------
        FactorMoments
            Means and covariances of the rows.

        Notes
        -----
        It is one mean-field update of a row, with its offset, from its observed entries,
        ``P = Lambda + sum_j E[v v'] / (k s^2)``, ``P m = Lambda m_0 + sum_j r_j E[v] / (sqrt k
        s^2)``. Entries of other likelihoods than Gaussian ones are replaced by sites, and rows and
        sites are updated in turn twenty times.
        """
        packed = pack_second_moments(*self.columns)
        prior_cov = row_prior_cov(self.row_priors[0])
        blocks = list[FactorMoments]()
        for begin, end in matrix_blocks(data.n_rows, self.columns.mean.shape[1]):
            block = data.slice_rows(begin, end)
            blocks.append(self._block_posterior(block, prior_means[begin:end], prior_cov, packed))
        mean = torch.cat([block.mean for block in blocks])
        return FactorMoments(mean, torch.cat([block.cov for block in blocks]))

    def _block_posterior(
        self, block: CSREntries, prior_means: Tensor, prior_cov: Tensor, packed: Tensor
    ) -> FactorMoments:
        """Posterior of a block of new rows.

        Parameters
        ----------
        block : CSREntries
            Entries of the rows.
        prior_means : Tensor of shape (n, d)
            Prior means of the rows.
        prior_cov : Tensor of shape (d, d)
            Prior covariance of a row.
        packed : Tensor
            Packed second moments of the columns.

        Returns
        -------
        FactorMoments
            Means and covariances of the rows.
        """
        noise = Noise(self.n_components, noise_variance(self.likelihood))
        context_mean, _ = self._context_moments(block.inputs)
        entries = block._replace(value=block.value - context_mean)
        if is_normal(self.likelihood):
            return self._update_rows(entries, prior_means, packed, noise)

        prior_covs = prior_cov.repeat(block.n_rows, 1, 1)
        rows = FactorMoments(*append_fixed(prior_means, prior_covs, self._split))
        log2_radius = -1
        previous_bound = -inf
        for _ in range(_SITE_SWEEPS):
            moments = self._entry_moments(block, rows)
            terms = expected_log_prob(self.likelihood, moments)
            bound = moments.weighted_sum(terms.value)
            log2_radius = update_trust_radius(log2_radius, bound, previous_bound, block)
            previous_bound = bound
            value, weight = compute_sites(moments, terms, log2_radius)
            sites = block._replace(value=value - self.intercept - context_mean, weight=weight)
            rows = self._update_rows(sites, prior_means, packed, noise)
        return rows

    def _update_rows(
        self, entries: CSREntries, prior_means: Tensor, packed: Tensor, noise: Noise
    ) -> FactorMoments:
        """Compute the posterior of rows from Gaussian entries.

        Parameters
        ----------
        entries : CSREntries
            Gaussian entries, without the effects of their context.
        prior_means : Tensor of shape (n, d)
            Prior means of the rows.
        packed : Tensor
            Packed second moments of the columns.
        noise : Noise
            Noise of the entries.

        Returns
        -------
        FactorMoments
            Means and covariances of the rows.
        """
        packed_equations = compute_packed_equations(entries, packed, self.columns.mean)
        equations, _ = eliminate_fixed(packed_equations, self._split)
        factor, _, target = compute_row_conditionals(
            equations, self.row_priors[0], prior_means, noise
        )
        mean = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
        cov = torch.cholesky_inverse(factor)
        return FactorMoments(*append_fixed(mean, cov, self._split))

    def row_log_density(self, data: CSREntries, features: Tensor) -> float:
        """Log density in nats of the entries of new rows, with the rows integrated out.

        For other than Gaussian entries it is a lower bound.

        Parameters
        ----------
        data : CSREntries
            Entries of the rows.
        features : Tensor of shape (n, h)
            Encoded features of the rows.

        Returns
        -------
        float
            Nats, summed over all entries.
        """
        prior_means = self.prior_means(features)
        if is_normal(self.likelihood):
            return float(self.row_log_densities(data, prior_means).sum())

        # Divergence of the rows' posterior from their prior.
        rows = self.row_posterior(data, prior_means)
        mean, cov = select_free(*rows, self._split)
        precision = self.row_priors[0].precision
        deviation = mean - prior_means
        trace = (cov * precision).sum()
        squares = ((deviation @ precision) * deviation).sum()
        log_det_cov = log_det(make_cholesky(cov)).sum()
        log_det_precision = log_det(make_cholesky(precision))
        log_ratio = log_det_cov + len(mean) * log_det_precision
        kl = kl_from_standard(trace, squares, log_ratio, mean.numel())

        moments = self._entry_moments(data, rows)
        terms = expected_log_prob(self.likelihood, moments)
        return moments.weighted_sum(terms.value) - float(kl)

    def row_log_densities(self, data: CSREntries, prior_means: Tensor) -> Tensor:
        r"""Log density of the Gaussian entries of each new row, with the row integrated out.

        Parameters
        ----------
        data : CSREntries
            Entries of the rows.
        prior_means : Tensor of shape (n, d)
            Prior means of the rows.

        Returns
        -------
        Tensor of shape (n,)
            Nats.

        Notes
        -----
        The density is a normal one with the mean and the covariance that the entries have under the
        row's prior :math:`z \sim N(\mu, \Sigma)` and q(V),

        .. math:: \mu^\top \bar v_j / \sqrt k, \qquad \tfrac1k \bar v_i^\top \Sigma \bar v_j
            + \delta_{ij} \left(s^2 + \tfrac1k \operatorname{tr} S_j (\Sigma + \mu \mu^\top)\right)

        It is exact if V is known. The cost is O(k^2) per entry.
        """
        k = self.n_components
        row_index = data.row_index
        columns = self.columns

        # The part of the variance of every entry that is independent of the other entries.
        prior_cov = row_prior_cov(self.row_priors[0])
        prior_covs = prior_cov.expand(data.n_rows, -1, -1)
        means, covs = append_fixed(prior_means, prior_covs, self._split)
        certain_rows = FactorMoments(means, torch.zeros_like(covs))
        variance = noise_variance(self.likelihood) + (
            (columns.cov * covs[:1]).sum((-2, -1))[data.indices] / k
            + entry_variances(certain_rows, columns, row_index, data.indices, k)
        )
        expected = entry_means(means, columns.mean, row_index, data.indices, k)
        residual = data.value - expected
        independent = residual.square() / variance + variance.log() + LOG_2PI
        total = independent.new_zeros(data.n_rows).index_add_(0, row_index, independent)

        # The row's common factor, in coordinates in which it is standard normal. It is a weighted
        # regression, by Woodbury's identity.
        split = self._split
        loadings = columns.mean[:, list(split.free)] @ make_cholesky(prior_cov) / sqrt(k)
        no_cov = loadings.new_zeros(1, 1, 1).expand(len(loadings), *prior_cov.shape)
        packed = pack_second_moments(loadings, no_cov)
        residuals = data._replace(value=residual, weight=variance.reciprocal())
        corrections = []
        for begin, end in matrix_blocks(data.n_rows, loadings.shape[1]):
            block = residuals.slice_rows(begin, end)
            gram, rhs = compute_normal_equations(block, packed, loadings)
            root = make_cholesky(add_to_diagonal(gram, 1.0))
            explained = torch.linalg.solve_triangular(root, rhs.unsqueeze(-1), upper=False)
            corrections.append(log_det(root) - explained.square().sum((-2, -1)))
        return -0.5 * (total + torch.cat(corrections))

    def _entry_moments(self, data: CSREntries, rows: FactorMoments) -> EntryMoments:
        """Moments of the outputs of entries of new rows."""
        predictor = replace(self, rows=rows, draws=None)
        return EntryMoments(data.value, data.weight, *predictor.moments(data.inputs))

    def to_arrays(self) -> dict[str, Any]:
        """Return the state as NumPy arrays and plain numbers, without the likelihood's kind."""
        unseen = None
        if self.unseen is not None:
            unseen = tuple((factor.mean.numpy(), factor.cov.numpy()) for factor in self.unseen)
        context = None
        if self.context is not None:
            context = (self.context.mean.numpy(), self.context.cov.numpy())
        draws = None
        if self.draws is not None:
            draws = self.draws.numpy()
        return {
            "rows": (self.rows.mean.numpy(), self.rows.cov.numpy()),
            "columns": (self.columns.mean.numpy(), self.columns.cov.numpy()),
            "offsets": (self.coordinates.row_offsets, self.coordinates.column_offsets),
            "n_components": self.n_components,
            "row_priors": tuple(
                (prior.precision.numpy(), prior.coefficients.numpy()) for prior in self.row_priors
            ),
            "unseen": unseen,
            "context": context,
            "params": self.likelihood.params.numpy(),
            "intercept": self.intercept,
            "draws": draws,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], likelihood: Likelihood) -> "FactorPredictor":
        """Restore a predictor from `to_arrays`, and a likelihood at any parameters."""
        rows_prior, columns_prior = (
            RowPrior(torch.as_tensor(precision), torch.as_tensor(coefficients))
            for precision, coefficients in arrays["row_priors"]
        )
        unseen = None
        if arrays["unseen"] is not None:
            unseen_row, unseen_column = arrays["unseen"]
            unseen = (_restore_moments(unseen_row), _restore_moments(unseen_column))
        draws = None
        if arrays["draws"] is not None:
            draws = torch.as_tensor(arrays["draws"])
        context = None
        if arrays["context"] is not None:
            context = ContextPosterior.from_moments(*arrays["context"])
        return cls(
            rows=_restore_moments(arrays["rows"]),
            columns=_restore_moments(arrays["columns"]),
            coordinates=Coordinates(arrays["n_components"], *arrays["offsets"]),
            row_priors=(rows_prior, columns_prior),
            likelihood=likelihood.at(torch.as_tensor(arrays["params"])),
            intercept=arrays["intercept"],
            draws=draws,
            unseen=unseen,
            context=context,
        )


def _restore_moments(arrays: tuple[Array, Array]) -> FactorMoments:
    """Convert means and covariances to float64 tensors."""
    mean, cov = arrays
    return FactorMoments(torch.as_tensor(mean).double(), torch.as_tensor(cov).double())


def _make_sampler(
    factor: FactorMoments, row_index: Array
) -> Callable[[np.random.Generator], Array]:
    """Return a function that draws the row of every entry, (E, D).

    A row that several entries share is drawn once. Fixed coordinates have no variance, so roots of
    the covariances are computed from eigenvalues.
    """
    distinct, inverse = np.unique(row_index, return_inverse=True)
    mean = factor.mean.numpy()[distinct]
    values, vectors = np.linalg.eigh(factor.cov.numpy()[distinct])
    root = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]

    def sample(rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((*mean.shape, 1))
        return np.asarray((mean + (root @ noise)[..., 0])[inverse])

    return sample


def make_cholesky(matrix: Tensor) -> Tensor:
    """Cholesky factors of covariances or precisions of rows."""
    return cholesky(
        matrix, name="A matrix of the rows' prior", remedy="Give prior a number near 1."
    )


def row_prior_cov(row_prior: RowPrior) -> Tensor:
    """Covariance of a row under its prior, (d, d)."""
    return torch.cholesky_inverse(make_cholesky(row_prior.precision))


def entry_means(u: Tensor, v: Tensor, i: Tensor, j: Tensor, n_components: int) -> Tensor:
    """Means of ``u_i . v_j / sqrt(k)`` under independent rows.

    Parameters
    ----------
    u, v : Tensor of shape (n, D) and (m, D)
        Means of the rows of both factors.
    i, j : int64 Tensor of shape (E,)
        Rows and columns of the entries.
    n_components : int
        Number k of components.

    Returns
    -------
    Tensor of shape (E,)
        Means.
    """
    blocks = zip(i.split(_BLOCK), j.split(_BLOCK), strict=True)
    products = [(u[rows] * v[columns]).sum(-1) for rows, columns in blocks]
    return torch.cat(products) / sqrt(n_components)


def entry_variances(
    rows: FactorMoments, columns: FactorMoments, i: Tensor, j: Tensor, n_components: int
) -> Tensor:
    """Variances of ``u_i . v_j / sqrt(k)`` under q, without the noise.

    Parameters
    ----------
    rows, columns : FactorMoments
        Posterior of the rows of both factors.
    i, j : int64 Tensor of shape (E,)
        Rows and columns of the entries.
    n_components : int
        Number k of components.

    Returns
    -------
    Tensor of shape (E,)
        Variances.
    """
    variances = []
    for row_index, column_index in zip(i.split(_BLOCK), j.split(_BLOCK), strict=True):
        u = rows.mean[row_index]
        v = columns.mean[column_index]
        u_cov = rows.cov[row_index]
        v_cov = columns.cov[column_index]
        v_cov_v = (u_cov @ v.unsqueeze(-1)).squeeze(-1) * v
        u_cov_u = (v_cov @ u.unsqueeze(-1)).squeeze(-1) * u
        variances.append((v_cov_v + u_cov_u).sum(-1) + (u_cov * v_cov).sum((-2, -1)))
    return torch.cat(variances) / n_components


def draw_moments(
    draws: Tensor, n_rows: int, i: Tensor, j: Tensor, n_components: int
) -> tuple[Tensor, Tensor]:
    """Means and variances of ``u_i . v_j / sqrt(k)`` over draws.

    Parameters
    ----------
    draws : Tensor of shape (S, n + m, D)
        Draws of the rows of both factors.
    n_rows : int
        Number n of rows of the first factor.
    i, j : int64 Tensor of shape (E,)
        Rows and columns of the entries.
    n_components : int
        Number k of components.

    Returns
    -------
    mean, variance : Tensor of shape (E,)
        Moments over the draws.
    """
    total = draws.new_zeros(len(i))
    squares = draws.new_zeros(len(i))
    for draw in draws:
        value = (draw[i] * draw[n_rows + j]).sum(-1) / sqrt(n_components)
        total += value
        squares += value.square()
    mean = total / len(draws)
    return mean, (squares / len(draws) - mean.square()).clamp(min=0.0)
