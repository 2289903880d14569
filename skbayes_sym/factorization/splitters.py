"""Cross-validation over the entries of a matrix, and scores of rankings."""

import time
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, clone

from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.predictive import predictive
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array, safe_indexing
from skbayes_sym.factorization.frames import check_columns, read_entry_times
from skbayes_sym.factorization.labels import convert_labels
from skbayes_sym.factorization.predict import EntryPredictionMixin
from skbayes_sym.factorization.ratings import (
    extract_entries,
    find_frame_labels,
    is_entry_list,
    keep_entries,
    mask_to_nan,
    split_entry_list,
)
from skbayes_sym.numerics.arguments import check_count, check_number, check_random_state, short_repr

_BY = ("entries", "rows", "columns", "time")
_METRICS = ("ndcg", "precision", "recall", "map", "hit_rate")


class EntryKFold:
    """Splits the observed entries of a matrix, or of a list, into k folds.

    By default every row and column has entries in the training set, from which a factorisation can
    predict the others. The splitters of scikit-learn hold out whole rows of a matrix.

    Parameters
    ----------
    n_splits : int, default=5
        Number of folds, at least 2.
    by : {"entries", "rows", "columns", "time"}, default="entries"
        Unit of the split. "entries" are split one by one. With "rows" or "columns", all entries of
        a row (a user, say) or of a column (a film) are in the same fold, so that the fit hasn't
        seen it. With "time", every fold is a period that is predicted from earlier ones, and the
        earliest of ``n_splits + 1`` periods is in no test fold. Entries of the same time stay
        together. Times are in a frame's column called time, timestamp or date, or in the one that
        ``columns`` names. They are numbers, dates, or text with dates in one format. Text that
        could be either day/month or month/day is refused.
    shuffle : bool, default=True
        Whether to assign units to folds at random. Otherwise they are assigned in order, to each
        fold in turn. Times are always in order.
    random_state : int, RandomState instance or None, default=None
        Seed or generator of the order, if ``shuffle``.
    columns : "auto", tuple of str or dict, default="auto"
        Columns of a frame that hold rows, columns and values, as the model takes them, such as
        ``{"time": "when"}``. `cross_validate_entries` replaces "auto" by the ``columns`` of the
        model.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym.model_selection import EntryKFold
    >>> X = np.array([[1.0, np.nan, 2.0], [3.0, 4.0, np.nan]])
    >>> for train, test in EntryKFold(2, shuffle=False).split(X):
    ...     print(train, test)
    [1 3] [0 2]
    [0 2] [1 3]
    """

    def __init__(
        self, n_splits: int = 5, *, by: str = "entries", shuffle: bool = True,
        random_state: Any = None, columns: Any = "auto",
    ) -> None:  # fmt: skip
        if not isinstance(n_splits, (int, np.integer)) or n_splits < 2:
            raise ValueError(f"n_splits must be an integer of at least 2, got {n_splits!r}.")
        if not isinstance(by, str) or by not in _BY:
            raise ValueError(f"by must be one of {_BY}, got {by!r}.")
        check_columns(columns)
        self.n_splits = int(n_splits)
        self.by = by
        self.shuffle = shuffle
        self.random_state = random_state
        self.columns = columns

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:  # noqa: ARG002
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : object
            Ignored.

        Returns
        -------
        int
            Number of folds.
        """
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:  # noqa: ARG002
        """Generate positions of training and test entries.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns), or list of entries
            NaN, and in a sparse matrix what isn't stored, is missing.
        y, groups : object
            Ignored.

        Yields
        ------
        train, test : int64 ndarray
            Sorted positions among the entries. For a list they are positions in it, so that
            `GridSearchCV` can split a frame. For a matrix they are positions among the observed
            entries in row-major order.
        """
        entries = _read_entries(X, self.columns)
        index = entries.positions
        if len(index) < self.n_splits:
            raise ValueError(
                f"n_splits={self.n_splits} is more than the {len(index)} observed entries."
            )
        if self.by == "time":
            yield from self._split_by_time(index, read_entry_times(X, self.columns)[index])
            return

        # Every unit, an entry, a row or a column, is assigned to a fold.
        unit = np.arange(len(index))
        if self.by != "entries":
            labels = entries.columns
            if self.by == "rows":
                labels = entries.rows
            unit = np.unique(labels, return_inverse=True)[1]
        n_units = int(unit.max()) + 1
        if n_units < self.n_splits:
            raise ValueError(
                f"n_splits={self.n_splits} is more than the {n_units} {self.by} that have entries."
            )
        folds = np.arange(n_units) % self.n_splits
        if self.shuffle:
            order = check_random_state(self.random_state).permutation(n_units)
            folds[order] = np.arange(n_units) % self.n_splits
        for i in range(self.n_splits):
            is_test = folds[unit] == i
            yield index[~is_test], index[is_test]

    def _split_by_time(self, index: Array, times: Array) -> Iterator[tuple[Array, Array]]:
        """Split entries into periods, each predicted from all earlier ones."""
        k = self.n_splits
        # Entries of the same time have the same rank and so the same fold.
        rank = np.searchsorted(np.sort(times), times)
        fold = rank * (k + 1) // len(index) - 1
        empty = np.setdiff1d(np.arange(k), fold)
        if empty.size:
            n_times = len(np.unique(times))
            raise ValueError(
                f"n_splits={k} leaves folds without entries: there are {n_times} different "
                "times, and entries of the same time stay together. Use fewer splits."
            )
        for i in range(k):
            yield np.sort(index[fold < i]), np.sort(index[fold == i])


class _EntryTable(NamedTuple):
    """Observed entries in their order.

    Attributes
    ----------
    rows, columns : ndarray of shape (N,)
        Labels, or positions if rows or columns have no labels.
    values : ndarray of shape (N,)
        Values.
    positions : ndarray of shape (N,)
        Positions in the list, or among the observed entries of a matrix.
    """

    rows: Array
    columns: Array
    values: Array
    positions: Array


def _read_entries(X: Any, columns: Any) -> _EntryTable:
    """Read the observed entries of a matrix or a list."""
    if not is_entry_list(X, columns):
        observed = extract_entries(_check_matrix(X))
        row_labels, column_labels = find_frame_labels(X)
        observed = observed._replace(row_labels=row_labels, column_labels=column_labels)
        rows, columns = observed.entry_labels
        return _EntryTable(rows, columns, observed.values, np.arange(len(observed.values)))
    row_labels, column_labels, values, _ = split_entry_list(X, columns)
    index = np.flatnonzero(~np.isnan(values))
    return _EntryTable(row_labels[index], column_labels[index], values[index], index)


def _select_entries(X: Any, columns: Any, index: Array) -> Any:
    """Select entries by position, in a form that `fit` takes."""
    if isinstance(X, tuple):
        return tuple(part[index] for part in split_entry_list(X) if part is not None)
    if is_entry_list(X, columns):
        return safe_indexing(X, index)
    selected = keep_entries(_check_matrix(X), index)
    if hasattr(X, "index") and hasattr(X, "columns"):
        # Features of rows and columns are aligned by the labels of the frame.
        return type(X)(selected, index=X.index, columns=X.columns)
    return selected


def cross_validate_entries(
    estimator: BaseEstimator, X: Any, *, cv: Any = 5,
    scoring: Mapping[str, Callable[..., float]] | None = None,
    params: Mapping[str, Any] | None = None, n_jobs: int | None = None,
    return_estimator: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Fit a model to a part of the observed entries of a matrix and score it on the others.

    Parameters
    ----------
    estimator : estimator with ``predict_entries(rows, columns, return_std=True)``
        Model to evaluate, such as `skbayes_sym.SymVIMatrixFactorization`.
    X : array-like or sparse matrix of shape (n_rows, n_columns), or list of entries
        NaN, and in a sparse matrix what isn't stored, is missing. A list is a frame as it was read
        or a tuple ``(rows, columns, values)``, as ``fit`` takes it.
    cv : int or splitter, default=5
        An int is the number of folds of a shuffled `EntryKFold` with ``random_state=0``, so that
        models compared in separate calls see the same folds.
    scoring : dict of callables, optional
        Further scores by name. They are functions of a fitted model and a tuple (rows, columns,
        values) of the test entries, such as `RankingScorer`.
    params : dict, optional
        Further arguments of ``fit``, such as ``row_features``.
    n_jobs : int, optional
        Number of folds that are fitted in parallel by joblib.
    return_estimator : bool, default=False
        Whether to return the fitted estimators.

    Returns
    -------
    dict of ndarrays of shape (n_splits,)
        * ``test_rmse``: root mean square error in the units of ``X``.
        * ``test_log_density``: nats per entry. For estimators of other packages it is the density
          of a normal with the predicted mean and standard deviation.
        * ``test_coverage``: proportion of entries within 1.645 predicted standard deviations, 0.9
          for a calibrated model.
        * ``test_`` with the names in ``scoring``.
        * ``fit_time`` and ``score_time`` in seconds.
        * ``estimator``: list of the fitted estimators, only if ``return_estimator``.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import SymVIMatrixFactorization
    >>> from skbayes_sym.model_selection import cross_validate_entries
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + 0.5 * rng.normal(size=(30, 20))
    >>> for k in (1, 2):
    ...     scores = cross_validate_entries(SymVIMatrixFactorization(k, random_state=0), X, cv=2)
    ...     print(k, scores["test_rmse"].mean().round(1))
    1 1.1
    2 0.6
    """
    for method in ("fit", "predict_entries"):
        if not hasattr(estimator, method):
            raise TypeError(f"estimator must have `{method}`, got {short_repr(estimator)}.")
    if isinstance(cv, (int, np.integer)):
        splitter = EntryKFold(int(cv), random_state=0)
    else:
        splitter = cv
    if not hasattr(splitter, "split") or isinstance(splitter, str):
        raise TypeError(f"cv must be a number of folds or a splitter, got {short_repr(cv)}.")
    for name, argument in {"scoring": scoring, "params": params}.items():
        if argument is not None and not isinstance(argument, Mapping):
            raise TypeError(f"{name} must be a dict, got {short_repr(argument)}.")
    columns = getattr(estimator, "columns", "auto")
    if isinstance(splitter, EntryKFold) and isinstance(splitter.columns, str):
        splitter = copy(splitter)
        splitter.columns = columns
    is_list = is_entry_list(X, columns)
    if not is_list and not isinstance(estimator, EntryPredictionMixin):
        # Estimators of other packages predict by position and ignore a frame's labels.
        X = _check_matrix(X)
    entries = _read_entries(X, columns)
    runs = Parallel(n_jobs=n_jobs)(
        delayed(_fit_and_score)(
            clone(estimator),
            _select_entries(X, columns, train),
            tuple(part[np.isin(entries.positions, test)] for part in entries[:3]),
            # A list has a context as well, from which the test entries are predicted.
            _select_entries(X, columns, np.intersect1d(test, entries.positions))
            if is_list
            else None,
            dict(scoring or {}),
            dict(params or {}),
        )
        for train, test in splitter.split(X)
    )
    scores: dict[str, Any] = {
        name: np.array([run[name] for run in runs]) for name in runs[0] if name != "estimator"
    }
    if return_estimator:
        scores["estimator"] = [run["estimator"] for run in runs]
    return scores


def _fit_and_score(
    estimator: BaseEstimator, training: Any, test: tuple[Array, ...], test_list: Any,
    scoring: dict[str, Callable[..., float]], params: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Fit an estimator to the training entries of a fold and score it on the test entries.

    Parameters
    ----------
    estimator : BaseEstimator
        Unfitted estimator.
    training : object
        Training entries, as ``fit`` takes them.
    test : tuple of ndarray
        Rows, columns and values of the test entries.
    test_list : object or None
        Test entries as a list, if the user gave a list.
    scoring : dict of callables
        Further scores by name.
    params : dict
        Further arguments of ``fit``.

    Returns
    -------
    dict
        Scores, times in seconds, and the fitted estimator.
    """
    start_time = time.perf_counter()
    estimator.fit(training, **params)
    fitted_time = time.perf_counter()

    rows, columns, values = test
    distribution = None
    test_entries = test_list
    if test_list is None:
        test_entries = (rows, columns)
    if isinstance(estimator, EntryPredictionMixin):
        distribution = predictive(estimator, test_entries)
        mean, std = distribution.moments()
    else:
        mean, std = estimator.predict_entries(rows, columns, return_std=True)

    with np.errstate(all="ignore"):
        standardized = (values - mean) / std
        log_density = -0.5 * (standardized**2 + np.log(2.0 * np.pi * std**2))
        rmse = float(np.sqrt(np.mean((values - mean) ** 2)))
    if not np.isfinite(rmse):
        raise ValueError("the squares of the entries of X overflow: rescale X.")
    if distribution is not None:
        log_density = distribution.log_prob(values)
    return {
        "test_rmse": rmse,
        "test_log_density": float(np.mean(log_density)),
        "test_coverage": float(np.mean(np.abs(standardized) <= 1.645)),
        **{f"test_{name}": scorer(estimator, test) for name, scorer in scoring.items()},
        "fit_time": fitted_time - start_time,
        "score_time": time.perf_counter() - fitted_time,
        "estimator": estimator,
    }


@dataclass(frozen=True)
class RankingScorer:
    r"""Score of the columns that a fitted factorisation recommends, for ``scoring=``.

    The list of every row has a score. The result is the mean over the rows that have a relevant
    entry, and other rows don't count.

    Parameters
    ----------
    metric : {"ndcg", "precision", "recall", "map", "hit_rate"}, default="ndcg"
        Let the list have n ranks and the row R relevant columns, and let :math:`h_r` be 1 if the
        column at rank r is relevant, otherwise 0:

        - "precision": :math:`\sum_r h_r / n`;
        - "recall": :math:`\sum_r h_r / R`;
        - "ndcg": :math:`\sum_r h_r / \log_2 (r + 1)` divided by its largest possible value,
          :math:`\sum_{r \le \min(R, n)} 1 / \log_2 (r + 1)`;
        - "map": the mean over rows of the average precision
          :math:`\sum_r h_r P_r / \min(R, n)`, with the precision :math:`P_r` of the first r ranks;
        - "hit_rate": 1 if there is any relevant column in the list, otherwise 0.
    n : int, default=10
        Length of a list. Columns that the row had in the fit aren't in it. If a row has fewer
        columns left, its list is shorter, and the missing ranks count as not relevant.
    relevant : float, optional
        Smallest value of a relevant entry; by default every entry is relevant.

    Examples
    --------
    >>> import numpy as np
    >>> from skbayes_sym import SymVIMatrixFactorization
    >>> from skbayes_sym.model_selection import RankingScorer, cross_validate_entries
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + 0.5 * rng.normal(size=(30, 20))
    >>> scoring = {"ndcg": RankingScorer(n=5, relevant=1.0)}
    >>> model = SymVIMatrixFactorization(2, random_state=0)
    >>> cross_validate_entries(model, X, cv=2, scoring=scoring)["test_ndcg"].round(1)
    array([0.9, 0.8])
    """

    metric: str = "ndcg"
    n: int = 10
    relevant: float | None = None

    def __post_init__(self) -> None:
        if self.metric not in _METRICS:
            raise ValueError(f"metric must be one of {_METRICS}, got {self.metric!r}.")
        check_count("n", self.n)

    def __call__(self, estimator: EntryPredictionMixin, X: Any, y: Any = None) -> float:  # noqa: ARG002
        """Return the mean score over the rows that have a relevant entry.

        Parameters
        ----------
        estimator : estimator with ``recommend``
            Fitted model.
        X : list of entries, or array-like or sparse matrix
            Entries that ``fit`` hasn't seen. A column that is relevant twice counts once.
        y : None
            Ignored.

        Returns
        -------
        float
            Mean score.
        """
        entries = _read_entries(X, getattr(estimator, "columns", "auto"))
        is_relevant = np.ones(len(entries.values), dtype=bool)
        if self.relevant is not None:
            check_number("relevant", self.relevant)
            is_relevant = entries.values >= self.relevant
        if not is_relevant.any():
            raise ValueError(f"no entry of X is relevant: all are below {self.relevant}.")

        # The distinct relevant columns of each row.
        rows, row_index = np.unique(entries.rows[is_relevant], return_inverse=True)
        columns = entries.columns
        known_labels = getattr(estimator, "column_labels_", None)
        if known_labels is not None:
            columns = convert_labels(columns, known_labels, "columns of X")
        relevant: list[set[Any]] = [set() for _ in rows]
        pairs = zip(row_index.tolist(), columns[is_relevant].tolist(), strict=True)
        for i, column in pairs:
            relevant[i].add(column)

        recommended = estimator.recommend(rows, self.n)
        lengths = getattr(recommended, "lengths", np.full(len(rows), self.n))
        scores = []
        lists = zip(recommended.columns, lengths, relevant, strict=True)
        for listed, length, row_relevant in lists:
            hits = np.isin(listed[:length], list(row_relevant))
            scores.append(_score_ranking(self.metric, self.n, hits, len(row_relevant)))
        return float(np.mean(scores))


def _score_ranking(metric: str, n: int, hits: Array, n_relevant: int) -> float:
    """Score the list of a row.

    Parameters
    ----------
    metric : str
        Metric of `RankingScorer`.
    n : int
        Number of ranks.
    hits : ndarray of at most n elements
        Mask of the ranks whose column is relevant.
    n_relevant : int
        Number of relevant columns of the row.

    Returns
    -------
    float
        Score.
    """
    rank = np.arange(1, len(hits) + 1)
    max_hits = min(n_relevant, n)
    if metric == "precision":
        return int(hits.sum()) / n
    if metric == "recall":
        return float(hits.sum()) / n_relevant
    if metric == "hit_rate":
        return float(hits.any())
    if metric == "map":
        return float(np.sum(hits * np.cumsum(hits) / rank)) / max_hits
    gains = 1.0 / np.log2(rank + 1)
    return float(hits @ gains / np.sum(1.0 / np.log2(np.arange(2, max_hits + 2))))


def _check_matrix(X: Any) -> Any:
    """Validate a matrix in which NaN is missing."""
    with numeric_conversion("X"):
        return check_array(
            mask_to_nan(X),
            accept_sparse=("csr", "csc", "coo"),
            dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan",
            input_name="X",
        )
