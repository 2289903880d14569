r"""Joint distribution of several targets: a normal copula of their own predictive distributions.

Each target t has a predictive distribution :math:`F_t` of its own. Their dependence is that of
normal scores with a correlation matrix R (Sklar's theorem; Joe 2014, section 4.3),

.. math:: \log p(y) = \sum_t \log p_t(y_t) - \tfrac12 \log |R|
          - \tfrac12 z^\top (R^{-1} - I) z , \qquad z_t = \Phi^{-1}(F_t(y_t)) .

R is estimated from the leave-one-out values of :math:`F_t` at the training targets. Their ranks
become normal scores (van der Waerden), so that errors in the shape of a predictive distribution
don't matter. The correlation of normal scores is an efficient estimator (Klaassen & Wellner 1997;
Genest, Ghoudi & Rivest 1995). It is shrunk towards independence by

.. math:: \lambda = \sum_{s \ne t} \widehat{\mathrm{Var}}(r_{st}) \Big/ \sum_{s \ne t} r_{st}^2

(Schäfer & Strimmer 2005), which is near 1 with few rows or weak dependence, and vanishes as 1 / n.

References
----------
Genest, Ghoudi & Rivest (1995). A semiparametric estimation procedure of dependence parameters in
multivariate families of distributions.

Klaassen & Wellner (1997). Efficient estimation in the bivariate normal copula model: normal margins
are least favourable.

Schäfer & Strimmer (2005). A shrinkage approach to large-scale covariance matrix estimation and
implications for functional genomics.

Joe (2014). Dependence modeling with copulas.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from skbayes_sym.models.predictive_mixtures import TargetPredictive, Uncertainty

# Rows below which targets are independent: a correlation of two rows is always 1 or -1.
MIN_ROWS = 3
# Largest absolute normal score; beyond it the distribution function is 0 or 1 within rounding.
MAX_SCORE = 8.0
# Normal scores between whose quantiles the quantile function is searched: a step of 0.5 makes it
# nearly linear for smooth distributions.
_KNOTS = torch.linspace(-MAX_SCORE, MAX_SCORE, 33, dtype=torch.float64)
# Steps of the search. Each one halves the bracket after a secant, so that smooth functions are
# accurate to rounding, and jumps to 2^-12 of the bracket.
_N_STEPS = 12
# Rows times draws whose quantiles are searched together.
_BLOCK = 1 << 13


def normal_scores(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the normal scores of the ranks of values; a weight of 2 is the row given twice.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Values, of which only the order matters. Equal ones get their mean rank.
    weight : ndarray of shape (n,)
        Positive weights.

    Returns
    -------
    ndarray of shape (n,)
        Quantiles of the standard normal distribution at levels rank / (total weight + 1).
    """
    _, inverse_index = np.unique(values, return_inverse=True)
    tied_weight = np.bincount(inverse_index, weights=weight)
    rank = tied_weight.cumsum() - tied_weight + 0.5 * (tied_weight + 1.0)
    level = rank / (weight.sum() + 1.0)
    return np.asarray(ndtri(level)[inverse_index])


def fit_correlation(cdf: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Estimate the correlation matrix of a normal copula, shrunk towards independence.

    Parameters
    ----------
    cdf : ndarray of shape (n, T)
        Leave-one-out probability of values up to the target, nan for unknown rows.
    weight : ndarray of shape (n,)
        Sample weights. Rows of weight 0 don't count.

    Returns
    -------
    ndarray of shape (T, T)
        Positive definite matrix with unit diagonal.
    """
    n_targets = cdf.shape[1]
    independent = np.eye(n_targets)
    is_known = np.isfinite(cdf).all(axis=1) & (weight > 0.0)
    cdf = cdf[is_known]
    weight = weight[is_known]
    total = weight.sum()
    if len(cdf) < MIN_ROWS or total < MIN_ROWS:
        return independent

    scores = np.column_stack([normal_scores(column, weight) for column in cdf.T])
    scores = scores - weight @ scores / total
    std = np.sqrt(weight @ scores**2 / total)
    scores = np.divide(scores, std, out=np.zeros_like(scores), where=std > 0.0)
    correlation = (scores.T * weight) @ scores / total

    # Variance of an element, from the variance of the products that it is the mean of.
    squares = (scores.T**2 * weight) @ scores**2
    variance = (squares - total * correlation**2) * total / (total - 1.0) ** 3
    off_diagonal = ~independent.astype(bool)
    strength = (correlation[off_diagonal] ** 2).sum()
    noise = variance[off_diagonal].sum()
    shrinkage = 1.0
    if strength > noise:
        shrinkage = noise / strength
    return np.where(off_diagonal, (1.0 - shrinkage) * correlation, 1.0)


def middle_cdf(distribution: TargetPredictive, y: Tensor) -> Tensor:
    """Return the distribution function of each target, (N, T), in the middle of its jumps.

    For counts this is the mean of the probabilities of values below, and of values up to, the count
    (Kazianka & Pilz 2010, the generalised quantile transform).
    """
    below = distribution.cdf(y)
    if not distribution.is_discrete:
        return below
    _, unit = distribution.units
    return 0.5 * (below + distribution.cdf(y - unit))


def bounded_scores(cdf: Tensor) -> Tensor:
    """Return the normal scores of probabilities, at most 8 in absolute value."""
    return torch.special.ndtri(cdf.double()).clamp(-MAX_SCORE, MAX_SCORE)


@dataclass(frozen=True, eq=False)
class CopulaTargets(TargetPredictive):
    """Distribution of T targets whose dependence is a normal copula.

    Parameters
    ----------
    marginals : sequence of TargetPredictive
        Distribution of each target, of one target each.
    correlation : Tensor of shape (T, T)
        Correlation matrix of the normal scores.
    """

    marginals: Sequence[TargetPredictive]
    correlation: Tensor
    log_weights: Tensor | None = None

    @property
    def _like(self) -> Tensor:
        """Return a tensor whose first axis is that of the draws."""
        return torch.zeros(1, dtype=torch.float64)

    @property
    def is_discrete(self) -> bool:
        """Whether all targets are integers."""
        return all(marginal.is_discrete for marginal in self.marginals)

    @property
    def n_rows(self) -> int:
        """Number of rows N."""
        return self.marginals[0].n_rows

    @property
    def n_targets(self) -> int:
        """Number of targets T."""
        return len(self.marginals)

    @cached_property
    def _root(self) -> Tensor:
        """Cholesky factor of the correlation matrix, lower triangular."""
        return torch.linalg.cholesky(self.correlation.double())

    def take(self, rows: np.ndarray) -> "CopulaTargets":
        """Return the distributions of the rows with these indices."""
        return replace(self, marginals=[marginal.take(rows) for marginal in self.marginals])

    def rescale(self, mean: Tensor, scale: Tensor) -> "CopulaTargets":
        """Return the distribution of ``mean + scale * target``, where both have shape (T,)."""
        units = zip(self.marginals, mean.split(1), scale.split(1), strict=True)
        return replace(self, marginals=[marginal.rescale(m, s) for marginal, m, s in units])

    def _join(self, function: Callable[[TargetPredictive], Tensor]) -> Tensor:
        """Evaluate a function (..., N, 1) of each marginal and join the results."""
        return torch.cat([function(marginal).double() for marginal in self.marginals], dim=-1)

    def _join_columns(
        self, function: Callable[[TargetPredictive, Tensor], Tensor], y: Tensor
    ) -> Tensor:
        """Evaluate a function (N, 1) of each marginal and its column of targets."""
        pairs = zip(self.marginals, y.split(1, dim=-1), strict=True)
        return torch.cat([function(*pair).double() for pair in pairs], dim=-1)

    @property
    def means(self) -> Tensor:
        """Expected targets, (1, N, T)."""
        return self.mean().unsqueeze(0)

    @property
    def scales(self) -> Tensor:
        """Standard deviations of the targets, (1, N, T)."""
        return self.std().unsqueeze(0)

    def mean(self) -> Tensor:
        """Return the expected targets, (N, T)."""
        return self._join(lambda marginal: marginal.mean())

    def std(self) -> Tensor:
        """Return the standard deviations, observation noise included, (N, T)."""
        return self._join(lambda marginal: marginal.std())

    def uncertainty(self) -> Uncertainty:
        """Return variances of the targets by source, (N, T)."""
        parts = [marginal.uncertainty() for marginal in self.marginals]
        return Uncertainty(*(torch.cat(columns, dim=-1) for columns in zip(*parts, strict=True)))

    def cdf(self, y: Tensor) -> Tensor:
        """Return ``P(target <= y)`` of each target on its own, (N, T)."""
        return self._join_columns(lambda marginal, column: marginal.cdf(column), y)

    def quantile(self, probability: float) -> Tensor:
        """Return quantiles of each target, (N, T)."""
        return self._join(lambda marginal: marginal.quantile(probability))

    def log_prob_per_target(self, y: Tensor) -> Tensor:
        """Return the log density of each target on its own, (N, T) nats."""
        return self._join_columns(
            lambda marginal, column: marginal.log_prob(column).unsqueeze(-1), y
        )

    def log_prob(self, y: Tensor) -> Tensor:
        """Return the joint log density of the targets of each row, (N,) nats."""
        scores = bounded_scores(self._join_columns(middle_cdf, y))
        root = self._root.to(scores.device)
        whitened = torch.linalg.solve_triangular(root, scores.T, upper=False)
        quadratic = whitened.square().sum(0) - scores.square().sum(1)
        log_copula = -root.diagonal().log().sum() - 0.5 * quadratic
        return self.log_prob_per_target(y).sum(-1) + log_copula

    def log_prob_per_draw(self, y: Tensor) -> Tensor:
        """Return the joint log density as that of a single draw, (1, N) nats."""
        return self.log_prob(y).unsqueeze(0)

    def sample(self, n: int, rng: np.random.Generator) -> Tensor:
        """Sample ``n`` data sets, (n, N, T)."""
        return self.couple(self._join(lambda marginal: marginal.sample(n, rng)), rng)

    def couple(self, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Make independent draws of the targets dependent.

        The normal scores of the draws are multiplied by the Cholesky factor of their correlation
        matrix. The first target doesn't change, and the rows of a draw stay dependent.

        Parameters
        ----------
        draws : Tensor of shape (n, N, T)
            Draws of each target from its own distribution.
        rng : Generator
            Random numbers that break the ties of counts.

        Returns
        -------
        Tensor of shape (n, N, T)
        """
        scores = torch.stack(
            [
                self._draw_scores(marginal, draws[..., t], rng)
                for t, marginal in enumerate(self.marginals)
            ],
            dim=-1,
        )
        coupled = scores @ self._root.to(scores.device).T
        columns = [draws[..., 0].double()]
        for t in range(1, self.n_targets):
            columns.append(invert_scores(self.marginals[t], coupled[..., t]))
        return torch.stack(columns, dim=-1)

    @staticmethod
    def _draw_scores(marginal: TargetPredictive, draws: Tensor, rng: np.random.Generator) -> Tensor:
        """Return the normal scores of draws (n, N), uniform within the jumps of counts."""

        def evaluate(distribution: TargetPredictive, values: Tensor) -> Tensor:
            cdf = distribution.cdf(values)
            if distribution.is_discrete:
                below = distribution.cdf(values - distribution.units[1])
                cdf = below + (cdf - below) * torch.as_tensor(rng.uniform(size=cdf.shape)).to(cdf)
            return bounded_scores(cdf)

        return _evaluate_draws(marginal, draws, evaluate)


def _evaluate_draws(
    marginal: TargetPredictive,
    draws: Tensor,
    function: Callable[[TargetPredictive, Tensor], Tensor],
) -> Tensor:
    """Evaluate a function of a distribution and one target per row, for draws (n, N), in blocks."""
    n_draws, n_rows = draws.shape
    n_repeats = max(1, min(n_draws, _BLOCK // max(1, n_rows)))
    rows = np.tile(np.arange(n_rows), n_repeats)
    if n_repeats > 1:
        repeated = marginal.take(rows)
    else:
        repeated = marginal
    values = []
    for block in draws.split(n_repeats):
        distribution = repeated
        if len(block) < n_repeats:
            distribution = marginal.take(rows[: block.numel()])
        values.append(function(distribution, block.reshape(-1, 1)).reshape(block.shape))
    return torch.cat(values)


def invert_scores(marginal: TargetPredictive, scores: Tensor) -> Tensor:
    """Return the values of a target that have given normal scores.

    Parameters
    ----------
    marginal : TargetPredictive
        Distribution of one target of N rows.
    scores : Tensor of shape (n, N)
        Normal scores: quantiles of the standard normal distribution.

    Returns
    -------
    Tensor of shape (n, N)
        Quantiles of the target at the same levels.
    """
    scores = scores.clamp(-MAX_SCORE + 1e-6, MAX_SCORE - 1e-6)
    levels = torch.special.ndtr(_KNOTS).clamp(1e-15, 1.0 - 1e-15)
    quantiles = torch.cat([marginal.quantile(level).double() for level in levels.tolist()], dim=1)
    index = torch.searchsorted(_KNOTS, scores.contiguous().cpu()).to(scores.device)
    columns = torch.arange(scores.shape[1], device=scores.device)
    low = quantiles[columns, index - 1]
    high = quantiles[columns, index]
    ends = torch.stack([scores, low, high], dim=-1)

    if marginal.is_discrete:
        search = _search_count
    else:
        search = _search_value
    n_draws, n_rows = scores.shape
    n_repeats = max(1, min(n_draws, _BLOCK // max(1, n_rows)))
    values = []
    for block in ends.split(n_repeats):
        rows = np.tile(np.arange(n_rows), len(block))
        if len(block) > 1:
            distribution = marginal.take(rows)
        else:
            distribution = marginal
        target, lower, upper = block.reshape(-1, 3, 1).unbind(1)
        values.append(search(distribution, target, lower, upper).reshape(len(block), n_rows))
    return torch.cat(values)


def _search_value(
    distribution: TargetPredictive, scores: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """Search a bracket for values with given normal scores, by secants and bisection.

    Parameters
    ----------
    distribution : TargetPredictive
        Distribution of one target with a density, of M rows.
    scores : Tensor of shape (M, 1)
        Normal scores.
    lower, upper : Tensor of shape (M, 1)
        Ends of the bracket.

    Returns
    -------
    Tensor of shape (M, 1)
    """
    excess_lower = bounded_scores(distribution.cdf(lower)) - scores
    excess_upper = bounded_scores(distribution.cdf(upper)) - scores

    def secant() -> Tensor:
        slope = excess_upper - excess_lower
        fraction = torch.where(slope > 0.0, -excess_lower / slope, 0.5)
        return lower + fraction.clamp(0.0, 1.0) * (upper - lower)

    for step in range(_N_STEPS):
        if step % 2 == 0:
            value = secant()
        else:
            value = 0.5 * (lower + upper)
        excess = bounded_scores(distribution.cdf(value)) - scores
        is_below = excess < 0.0
        lower = torch.where(is_below, value, lower)
        upper = torch.where(is_below, upper, value)
        excess_lower = torch.where(is_below, excess, excess_lower)
        excess_upper = torch.where(is_below, excess_upper, excess)
    return secant()


def _search_count(
    distribution: TargetPredictive, scores: Tensor, lower: Tensor, upper: Tensor
) -> Tensor:
    """Search a bracket for the smallest counts whose normal scores reach given ones.

    Parameters
    ----------
    distribution : TargetPredictive
        Distribution of one count, of M rows.
    scores : Tensor of shape (M, 1)
        Normal scores.
    lower, upper : Tensor of shape (M, 1)
        Counts at the ends of the bracket.

    Returns
    -------
    Tensor of shape (M, 1)
    """
    location, unit = distribution.units
    below = ((lower - location) / unit).round() - 1.0
    above = ((upper - location) / unit).round()
    while bool((above - below > 1.0).any()):
        middle = (0.5 * (below + above)).floor()
        reaches = bounded_scores(distribution.cdf(location + unit * middle)) >= scores
        is_open = above - below > 1.0
        above = torch.where(is_open & reaches, middle, above)
        below = torch.where(is_open & ~reaches, middle, below)
    return location + unit * above
