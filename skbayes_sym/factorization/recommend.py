"""Rankings and similarities of columns under the posterior of a factorisation."""

from typing import NamedTuple

import numpy as np
import torch

from skbayes_sym.base.rows import Array
from skbayes_sym.factorization.entry_distribution import EntryPredictive
from skbayes_sym.factorization.entry_predictor import FactorPredictor, row_prior_cov
from skbayes_sym.numerics.runtime import one_thread

RANKINGS = ("mean", "probability_best", "thompson")


class Recommendations(NamedTuple):
    """Recommended columns of each row, the best first.

    A row that has fewer than n columns left has a shorter list, which is padded at its end. The
    list of a row therefore doesn't depend on the other rows of the call.

    Attributes
    ----------
    columns : ndarray of shape (n_rows, n)
        Labels, or positions if columns have no labels. The padding is -1 for positions and
        numbers, "" for text, and NaT for dates.
    values : ndarray of shape (n_rows, n)
        Expected entries, probabilities, or one draw of entries. The padding is NaN.
    """

    columns: Array
    values: Array

    @property
    def lengths(self) -> Array:
        """Number of columns that are recommended to each row, (n_rows,)."""
        return np.count_nonzero(~np.isnan(self.values), axis=1)


class SimilarColumns(NamedTuple):
    """Columns that correlate most with a given column, in decreasing order.

    Attributes
    ----------
    columns : ndarray of shape (n,)
        Labels, or positions if columns have no labels.
    mean : ndarray of shape (n,)
        Posterior mean of the correlation.
    interval : ndarray of shape (n, 2)
        Ends of the central 90 % interval of the correlation.
    """

    columns: Array
    mean: Array
    interval: Array


def score_columns(
    distribution: EntryPredictive, is_excluded: Array, by: str, n_draws: int,
    generator: torch.Generator,
) -> Array:  # fmt: skip
    """Score the columns of some rows, for a ranking.

    Parameters
    ----------
    distribution : EntryPredictive
        Predictive distribution of all entries of R rows and M columns, row by row.
    is_excluded : ndarray of shape (R, M)
        Mask of the columns that must not be recommended.
    by : {"mean", "probability_best", "thompson"}
        Score: the expected entry, the probability that the column is the row's best one, or a
        single posterior draw of the entry.
    n_draws : int
        Number of joint draws that estimate the probability.
    generator : torch.Generator
        Source of the draws.

    Returns
    -------
    ndarray of shape (R, M)
        Excluded columns have the score -inf.
    """
    n_columns = is_excluded.shape[1]
    if by == "mean":
        scores = distribution.mean().reshape(-1, n_columns)
        return np.where(is_excluded, -np.inf, scores)

    if by == "thompson":
        n_draws = 1
    with one_thread(), torch.no_grad():
        outputs = distribution.predictor.outputs(distribution.x, n_draws, generator=generator)
    draws = outputs[..., 0].numpy().reshape(n_draws, -1, n_columns)
    draws = np.where(is_excluded, -np.inf, draws)
    if by == "thompson":
        return draws[0] * distribution.scale + distribution.location
    best = draws.argmax(axis=2)
    counts = np.stack([np.bincount(row, minlength=n_columns) for row in best.T])
    return np.where(is_excluded, -np.inf, counts / n_draws)


def rank_columns(scores: Array, is_excluded: Array, n: int) -> tuple[Array, Array]:
    """Return the positions and scores of the n best columns of each row, (R, n) each.

    Columns of equal score stay in order. Excluded columns come last and are replaced by padding,
    the position -1 and the score NaN.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
    is_padding = np.take_along_axis(is_excluded, order, axis=1)
    columns = np.where(is_padding, -1, order)
    values = np.where(is_padding, np.nan, np.take_along_axis(scores, order, axis=1))
    return columns, values


def find_similar_columns(
    predictor: FactorPredictor, column: int, n: int, n_draws: int, rng: np.random.Generator
) -> SimilarColumns:
    r"""Find the columns whose expected entries correlate most with those of a given column.

    Parameters
    ----------
    predictor : FactorPredictor
        Posterior of the factors.
    column : int
        Position of the given column.
    n : int
        Number of columns to return, which don't include the given one.
    n_draws : int
        Number of draws of the column factors.
    rng : numpy.random.Generator
        Source of the draws.

    Returns
    -------
    SimilarColumns
        The columns are positions.

    Notes
    -----
    A row :math:`t \sim N(m, C)` of the prior, its offset included, has the expected entries
    :math:`t^\top v_j`. Over such rows, columns i and j have the covariance
    :math:`v_i^\top C v_j`.
    """
    free = list(predictor.coordinates.splits[0].free)
    prior_root = torch.linalg.cholesky(row_prior_cov(predictor.row_priors[0])).numpy()
    mean = predictor.columns.mean[:, free].numpy()
    eigenvalues, eigenvectors = np.linalg.eigh(predictor.columns.cov[:, free][:, :, free].numpy())
    root = eigenvectors * np.sqrt(eigenvalues.clip(min=0.0))[:, None, :]

    # The correlation is the cosine of the angle between columns in the metric C.
    cosines = []
    for _ in range(n_draws):
        noise = rng.standard_normal((*mean.shape, 1))
        draw = (mean + (root @ noise)[..., 0]) @ prior_root
        draw /= np.linalg.norm(draw, axis=1, keepdims=True)
        cosines.append(draw @ draw[column])

    correlation = np.mean(cosines, axis=0)
    is_query = np.arange(len(correlation)) == column
    order = np.argsort(-np.where(is_query, -np.inf, correlation))[:n]
    order = order[order != column]
    interval = np.quantile(cosines, [0.05, 0.95], axis=0)[:, order].T
    return SimilarColumns(order, correlation[order], interval)
