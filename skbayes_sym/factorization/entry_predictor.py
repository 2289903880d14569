"""Predictions of a fitted factorisation: entries of its rows, and of rows that weren't there."""

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
    expected,
    is_class_likelihood,
    is_normal,
    noise_variance,
    sites,
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
_BLOCK = 1 << 14  # entries whose (k, k) matrices are worked on at once
DISTRIBUTION_BLOCK = 1 << 11  # entries at once: with all nodes and classes they fit in the cache


class FactorMoments(NamedTuple):
    """Gaussian rows of one side in all coordinates, float64."""

    mean: Tensor  # (n, D)
    cov: Tensor  # (n, D, D)


@dataclass(frozen=True, eq=False)
class FactorPredictor(BasePredictor):
    """A `Predictor` whose inputs are places (E, 2) of entries; scaled units, on the host.

    With context they are (E, 2 + c), and without it entries are in the average one.
    """

    rows: FactorMoments
    columns: FactorMoments
    network: Coordinates
    row_priors: tuple[RowPrior, RowPrior]  # priors of rows and of columns
    likelihood: Likelihood
    shift: float = 0.0  # output where factors and offsets are zero
    draws: Tensor | None = None  # (S, n + m, D); of Gibbs sampling, in place of the Gaussians
    unknown: tuple[FactorMoments, FactorMoments] | None = None  # without entries
    context: ContextPosterior | None = None

    def distribution(self, x: Tensor) -> Predictive:
        """Distribution of new observations of the entries."""
        if is_normal(self.likelihood):
            mean, variance = (t.unsqueeze(-1) for t in self.moments(x))
            return NormalMixture(mean[None], variance, self.likelihood.noise_scale.square())
        outputs, log_weights = self._at_nodes(x)
        return self.likelihood.predictive(outputs, log_weights)

    def _at_nodes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (S, E, 1) at the nodes of a quadrature, and the logs of its weights (S,)."""
        mean, variance = (t.unsqueeze(-1) for t in self.moments(x))
        # Exact to 1e-9 where outputs spread as much as the noise.
        nodes, weights = gauss_hermite(32)
        outputs = mean + variance.sqrt() * nodes[:, None, None]
        return outputs, weights.log()

    def mean(self, x: Tensor) -> Tensor:
        """Expected entries, without the cost of variances where noise is added, (E, 1)."""
        if self.draws is not None or not self.likelihood.scales_targets:
            return self.distribution(x).mean()
        i, j = x[:, :2].long().T
        means = entry_means(self.rows.mean, self.columns.mean, i, j, self.network.n_components)
        return (means + self._context_moments(x)[0]).unsqueeze(-1) + self.shift

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        return self.likelihood.predictive(self.outputs(x, n, generator=generator))

    def outputs(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Joint draws of the outputs of entries, (n, E, 1).

        Rows and columns are drawn once a draw, so entries that share one are dependent.
        """
        rng = numpy_generator(generator)
        (i, j) = x[:, :2].long().T.numpy()
        if self.draws is not None:
            n_rows = len(self.rows.mean)
            draws = self.draws.numpy()
            chosen = rng.integers(len(draws), size=n)
            pairs = ((draws[s, i], draws[s, n_rows + j]) for s in chosen)
        else:
            u = _drawer(self.rows, i)
            v = _drawer(self.columns, j)
            pairs = ((u(rng), v(rng)) for _ in range(n))
        root_k = sqrt(self.network.n_components)
        products = np.array([np.sum(one * other, axis=1) / root_k for one, other in pairs])
        outputs = torch.as_tensor(products) + self.shift
        if self.context is not None and x.shape[1] > 2:
            outputs = outputs + self.context.drawn(x[:, 2:], n, rng)
        return outputs.unsqueeze(-1)

    def log_density(self, x: Tensor, y: Tensor) -> Tensor:
        """Log densities of new observations of the entries, (E,) nats."""

        def density(places: Tensor, values: Tensor) -> Tensor:
            if not is_class_likelihood(self.likelihood):
                return self.distribution(places).log_prob(values)
            outputs, log_weights = self._at_nodes(places)  # the law is of all classes
            return torch.logsumexp(
                self.likelihood.log_prob(outputs, values) + log_weights[:, None], dim=0
            )

        pairs = zip(x.split(DISTRIBUTION_BLOCK), y.split(DISTRIBUTION_BLOCK), strict=True)
        return torch.cat([density(*pair) for pair in pairs])

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances of the outputs, (E,) each, float64."""
        (i, j) = x[:, :2].long().T
        k = self.network.n_components
        if self.draws is not None:
            mean, variance = draw_moments(self.draws, len(self.rows.mean), i, j, k)
        else:
            mean = entry_means(self.rows.mean, self.columns.mean, i, j, k)
            variance = entry_variances(self.rows, self.columns, i, j, k)
        known, more = self._context_moments(x)
        return mean.double() + self.shift + known, variance.double() + more

    def _context_moments(self, x: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Mean and variance of what the context adds to the outputs, (E,) each."""
        if self.context is None or x.shape[1] == 2:
            return 0.0, 0.0
        return self.context.moments(x[:, 2:])

    def prior_means(self, features: Tensor) -> Tensor:
        """Prior means of rows with these features (n, h), behind the constant if any: (n, d)."""
        coefficients = self.row_priors[0].coefficients
        n_constants = len(coefficients) - features.shape[1]
        constant = coefficients[:n_constants].sum(0)
        return constant + features.to(coefficients) @ coefficients[n_constants:]

    @property
    def transposed(self) -> "FactorPredictor":
        """The predictor of the transposed matrix."""
        k = self.network.n_components
        n_first = self.network.row_offsets
        n_last = self.network.column_offsets
        order = [*range(k), *range(k + n_first, k + n_first + n_last), *range(k, k + n_first)]
        turned = [
            FactorMoments(side.mean[:, order], side.cov[:, order][:, :, order])
            for side in (self.columns, self.rows, *(self.unknown or ())[::-1])
        ]
        draws = self.draws
        n = len(self.rows.mean)
        if draws is not None:
            draws = torch.cat([draws[:, n:], draws[:, :n]], dim=1)[..., order]
        return replace(
            self, rows=turned[0], columns=turned[1], network=Coordinates(k, n_last, n_first),
            row_priors=self.row_priors[::-1], draws=draws,
            unknown=(turned[2], turned[3]) if self.unknown else None,
        )  # fmt: skip

    def append_rows(self, more: FactorMoments) -> "FactorPredictor":
        """The predictor of more rows, after those that are there."""
        n = len(self.rows.mean)
        draws = self.draws
        if draws is not None:  # drawn by themselves: columns are as each draw has them
            rng = np.random.default_rng(0)
            draw = _drawer(more, np.arange(len(more.mean)))
            new = [torch.as_tensor(draw(rng)).to(draws) for _ in draws]
            draws = torch.cat([draws[:, :n], torch.stack(new), draws[:, n:]], dim=1)
        pairs = zip(self.rows, more, strict=True)
        return replace(self, rows=FactorMoments(*(torch.cat(pair) for pair in pairs)), draws=draws)

    def append_unseen(self, n_rows: int, n_columns: int) -> "FactorPredictor":
        """The predictor of so many more rows and columns, of which nothing is known."""
        predictor = self
        for n in (n_rows, n_columns):
            if n:
                assert predictor.unknown is not None
                one = predictor.unknown[0]
                more = FactorMoments(*(part.expand(n, *part.shape[1:]) for part in one))
                predictor = predictor.append_rows(more)
            predictor = predictor.transposed
        return predictor

    def row_posterior(self, data: CSREntries, prior_means: Tensor) -> FactorMoments:
        """Posterior of every row given q(V); a row without entries is at its prior.

        One mean-field update over the row's observed entries, its offset and factors jointly,
        ``P = Lambda + sum_j E[v v'] / (k s^2)``, ``P m = Lambda m_0 + sum_j r_j E[v] / (sqrt k
        s^2)``. Entries that aren't normal are updated in turn with it, twenty times.
        """
        packed = pack_second_moments(*self.columns)
        side = self._side
        row_prior = self.row_priors[0]
        noise = Noise(self.network.n_components, noise_variance(self.likelihood))
        prior_cov = row_prior_cov(row_prior)
        parts = list[FactorMoments]()
        for begin, end in matrix_blocks(data.n_rows, self.columns.mean.shape[1]):
            block = data.block(begin, end)
            means = prior_means[begin:end]
            rows = FactorMoments(*append_fixed(means, prior_cov.repeat(end - begin, 1, 1), side))
            known = self._context_moments(block.asked)[0]
            gaussian = block._replace(value=block.value - known)
            trust = -1
            before = -inf
            for _ in range(1 if is_normal(self.likelihood) else 20):
                if not is_normal(self.likelihood):
                    seen = self._seen(block, rows)
                    terms = expected(self.likelihood, seen)
                    bound = seen.total(terms.value)
                    trust = update_trust_radius(trust, bound, before, block)
                    before = bound
                    value, weight = sites(seen, terms, trust)
                    gaussian = block._replace(value=value - self.shift - known, weight=weight)
                sums, _ = eliminate_fixed(
                    compute_packed_equations(gaussian, packed, self.columns.mean), side
                )
                factor, _, target = compute_row_conditionals(sums, row_prior, means, noise)
                best = torch.cholesky_solve(target.unsqueeze(-1), factor).squeeze(-1)
                rows = FactorMoments(*append_fixed(best, torch.cholesky_inverse(factor), side))
            parts.append(rows)
        return FactorMoments(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def row_log_density(self, data: CSREntries, features: Tensor) -> float:
        """Log density of the entries of new rows, the rows integrated out, nats; of others but
        normal ones a lower bound on it."""
        prior_means = self.prior_means(features)
        if is_normal(self.likelihood):
            return float(self.row_log_densities(data, prior_means).sum())
        rows = self.row_posterior(data, prior_means)
        row_prior = self.row_priors[0]
        mean, cov = select_free(*rows, self._side)
        off = mean - prior_means
        precision = row_prior.precision
        trace = (cov * precision).sum()
        squares = ((off @ precision) * off).sum()
        log_ratio = log_det(make_cholesky(cov)).sum() + len(mean) * log_det(
            make_cholesky(precision)
        )
        kl = kl_from_standard(trace, squares, log_ratio, mean.numel())
        seen = self._seen(data, rows)
        return seen.total(expected(self.likelihood, seen).value) - float(kl)

    def row_log_densities(self, data: CSREntries, prior_means: Tensor) -> Tensor:
        r"""Log density of the normal entries of each row, the row integrated out, (n_rows,) nats.

        A normal with the mean and the covariance that the entries have under the row's prior
        :math:`z \sim N(\mu, \Sigma)` and q(V),

        .. math:: \mu^\top \bar v_j / \sqrt k, \qquad \tfrac1k \bar v_i^\top \Sigma \bar v_j
            + \delta_{ij} \left(s^2 + \tfrac1k \operatorname{tr} S_j (\Sigma + \mu \mu^\top)\right)

        exact if V is known. O(k^2) an entry.
        """
        k = self.network.n_components
        row = data.row
        columns = self.columns
        prior_cov = row_prior_cov(self.row_priors[0])
        means, covs = append_fixed(prior_means, prior_cov.expand(data.n_rows, -1, -1), self._side)
        known = FactorMoments(means, torch.zeros_like(covs))
        variance = noise_variance(self.likelihood) + (
            (columns.cov * covs[:1]).sum((-2, -1))[data.other] / k
            + entry_variances(known, columns, row, data.other, k)
        )
        off = data.value - entry_means(means, columns.mean, row, data.other, k)
        alone = off.square() / variance + variance.log() + LOG_2PI
        total = alone.new_zeros(data.n_rows).index_add_(0, row, alone)
        # In coordinates where the row is standard normal; the entries' variances are weights.
        turned = columns.mean[:, list(self._side.free)] @ make_cholesky(prior_cov) / sqrt(k)
        none = turned.new_zeros(1, 1, 1).expand(len(turned), *prior_cov.shape)
        packed = pack_second_moments(turned, none)
        white = data._replace(value=off, weight=variance.reciprocal())
        parts = []
        for begin, end in matrix_blocks(data.n_rows, turned.shape[1]):
            second, first = compute_normal_equations(white.block(begin, end), packed, turned)
            root = make_cholesky(add_to_diagonal(second, 1.0))
            explained = torch.linalg.solve_triangular(root, first.unsqueeze(-1), upper=False)
            parts.append(log_det(root) - explained.square().sum((-2, -1)))
        return -0.5 * (total + torch.cat(parts))

    @property
    def _side(self) -> CoordinateSplit:
        return self.network.sides[0]

    def _seen(self, data: CSREntries, rows: FactorMoments) -> EntryMoments:
        moments = replace(self, rows=rows, draws=None).moments(data.asked)
        return EntryMoments(data.value, data.weight, *moments)

    def arrays(self) -> dict[str, Any]:
        """Fitted state as NumPy arrays and plain numbers, without the likelihood's kind."""
        return {
            "rows": tuple(t.numpy() for t in self.rows),
            "columns": tuple(t.numpy() for t in self.columns),
            "offsets": (self.network.row_offsets, self.network.column_offsets),
            "n_components": self.network.n_components,
            "laws": tuple(tuple(t.numpy() for t in row_prior[:2]) for row_prior in self.row_priors),
            "unknown": None
            if self.unknown is None
            else tuple(tuple(t.numpy() for t in side) for side in self.unknown),
            "context": None if self.context is None else tuple(t.numpy() for t in self.context[:2]),
            "params": self.likelihood.params.numpy(),
            "shift": self.shift,
            "draws": None if self.draws is None else self.draws.numpy(),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], likelihood: Likelihood) -> "FactorPredictor":
        """The inverse of `arrays`, with the likelihood at any parameters."""
        rows, columns, *unknown = (
            FactorMoments(*(torch.as_tensor(a).double() for a in side))
            for side in (arrays["rows"], arrays["columns"], *(arrays["unknown"] or ()))
        )
        draws = arrays["draws"]
        context = arrays["context"]
        first, second = (
            RowPrior(torch.as_tensor(a), torch.as_tensor(b)) for a, b in arrays["laws"]
        )
        return cls(
            rows, columns, Coordinates(arrays["n_components"], *arrays["offsets"]),
            (first, second), likelihood.at(torch.as_tensor(arrays["params"])), arrays["shift"],
            None if draws is None else torch.as_tensor(draws),
            (unknown[0], unknown[1]) if unknown else None,
            None if context is None else ContextPosterior.of(*context),
        )  # fmt: skip


def _drawer(side: FactorMoments, asked: Array) -> Callable[[np.random.Generator], Array]:
    """Draws of the row of every entry, (E, D); rows that entries are asked of are drawn once.

    Pinned coordinates have no variance, so roots are by eigenvalues.
    """
    distinct, place = np.unique(asked, return_inverse=True)
    mean = side.mean.numpy()[distinct]
    cov = side.cov.numpy()[distinct]
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]

    def draw(rng: np.random.Generator) -> Array:
        noise = rng.standard_normal((*mean.shape, 1))
        return np.asarray((mean + (root @ noise)[..., 0])[place])

    return draw


def make_cholesky(matrix: Tensor) -> Tensor:
    """Cholesky factors of covariances or precisions of rows."""
    return cholesky(
        matrix, name="A matrix of the rows' prior", remedy="Give prior a number near 1."
    )


def row_prior_cov(row_prior: RowPrior) -> Tensor:
    """Covariance of a row under its prior, (d, d)."""
    return torch.cholesky_inverse(make_cholesky(row_prior.precision))


def entry_means(u: Tensor, v: Tensor, i: Tensor, j: Tensor, n_components: int) -> Tensor:
    """Mean of ``u_i . v_j / sqrt(k)`` under independent rows with these means, (E,)."""
    parts = [(u[a] * v[b]).sum(-1) for a, b in zip(i.split(_BLOCK), j.split(_BLOCK), strict=True)]
    return torch.cat(parts) / sqrt(n_components)


def entry_variances(
    rows: FactorMoments, columns: FactorMoments, i: Tensor, j: Tensor, n_components: int
) -> Tensor:
    """Variance of ``u_i . v_j / sqrt(k)`` under q, without the noise, (E,)."""
    parts = []
    for a, b in zip(i.split(_BLOCK), j.split(_BLOCK), strict=True):
        u = rows.mean[a]
        v = columns.mean[b]
        u_cov = rows.cov[a]
        v_cov = columns.cov[b]
        by_u = (u_cov @ v.unsqueeze(-1)).squeeze(-1) * v
        by_v = (v_cov @ u.unsqueeze(-1)).squeeze(-1) * u
        parts.append((by_u + by_v).sum(-1) + (u_cov * v_cov).sum((-2, -1)))
    return torch.cat(parts) / n_components


def draw_moments(
    draws: Tensor, n: int, i: Tensor, j: Tensor, n_components: int
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``u_i . v_j / sqrt(k)`` over draws (S, n + m, D), (E,) each."""
    total = draws.new_zeros(len(i))
    squares = draws.new_zeros(len(i))
    for draw in draws:
        value = (draw[i] * draw[n + j]).sum(-1) / sqrt(n_components)
        total += value
        squares += value.square()
    mean = total / len(draws)
    return mean, (squares / len(draws) - mean.square()).clamp(min=0.0)
