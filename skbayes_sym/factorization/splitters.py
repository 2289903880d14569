"""Model comparison where the data are entries of a matrix, not rows; and scores of rankings."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, clone

from skbayes_sym.base.rows import Array, numeric_conversion
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

    By default rows and columns keep all their entries but those of the test fold, so a
    factorisation can predict them; scikit-learn's splitters hold out whole rows of a matrix.

    Parameters
    ----------
    n_splits : int, default=5
        At least 2.
    by : {"entries", "rows", "columns", "time"}, default="entries"
        What is dealt out to the folds: single entries; rows or columns with all their entries,
        users or films that the fit then hasn't seen; or stretches of time, each predicted from what
        came before it (the earliest of ``n_splits + 1`` is in no test fold). Entries of the same
        time stay together. Times stand in a frame's column called time, timestamp or date, or in
        the one that ``columns`` names. They are numbers, dates, or words that are dates in one
        format; words that could be either day/month or month/day are refused.
    shuffle : bool, default=True
        Whether to deal out at random; otherwise in order, one after the other to each fold in turn.
        Times are in order always.
    random_state : int, RandomState instance or None, default=None
        Order if ``shuffle``.
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

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """Positions of training and test entries.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns), or list of entries
            NaN, and in a sparse matrix what isn't stored, is missing.
        y, groups : object
            Ignored.

        Yields
        ------
        train, test : int64 ndarray
            Sorted positions among the entries: those of a list in its order (so a frame goes
            through `GridSearchCV`), of a matrix the observed ones in row-major order.
        """
        (rows, columns, _, place) = _encode_entries(X, self.columns)
        k = self.n_splits
        if len(place) < k:
            raise ValueError(f"n_splits={k} is more than the {len(place)} observed entries.")
        if self.by == "time":
            times = read_entry_times(X, self.columns)[place]
            # Entries of the same time are in the same fold, so all training entries are earlier.
            first = np.searchsorted(np.sort(times), times)
            fold = first * (k + 1) // len(place) - 1
            empty = np.setdiff1d(np.arange(k), fold)
            if empty.size:
                n_times = len(np.unique(times))
                raise ValueError(
                    f"n_splits={k} leaves folds without entries: there are {n_times} different "
                    "times, and entries of the same time stay together. Use fewer splits."
                )
            for i in range(k):
                yield np.sort(place[fold < i]), np.sort(place[fold == i])
            return
        dealt = np.arange(len(place))  # of each entry what is dealt out
        if self.by != "entries":
            dealt = np.unique(rows if self.by == "rows" else columns, return_inverse=True)[1]
        n = int(dealt.max()) + 1
        if n < k:
            raise ValueError(f"n_splits={k} is more than the {n} {self.by} that have entries.")
        folds = np.arange(n) % k
        if self.shuffle:
            folds[check_random_state(self.random_state).permutation(n)] = np.arange(n) % k
        for i in range(k):
            yield place[folds[dealt] != i], place[folds[dealt] == i]


def _encode_entries(X: Any, columns: Any) -> tuple[Array, Array, Array, Array]:
    """Observed entries in their order: labels or positions, values, and places in the list."""
    if not is_entry_list(X, columns):
        seen = extract_entries(_checked(X))
        row_labels, column_labels = find_frame_labels(X)
        seen = seen._replace(row_labels=row_labels, column_labels=column_labels)
        return *seen.entry_labels, seen.values, np.arange(len(seen.values))
    rows, places, values, _ = split_entry_list(X, columns)
    place = np.flatnonzero(~np.isnan(values))
    return rows[place], places[place], values[place], place


def _part(X: Any, columns: Any, place: Array) -> Any:
    """Some of the entries, as a fit takes them."""
    if isinstance(X, tuple):
        return tuple(part[place] for part in split_entry_list(X) if part is not None)
    if is_entry_list(X, columns):
        return safe_indexing(X, place)
    part = keep_entries(_checked(X), place)
    if hasattr(X, "index") and hasattr(X, "columns"):  # labels find their features by name
        return type(X)(part, index=X.index, columns=X.columns)
    return part


def cross_validate_entries(
    estimator: BaseEstimator, X: Any, *, cv: Any = 5,
    scoring: Mapping[str, Callable[..., float]] | None = None,
    params: Mapping[str, Any] | None = None, n_jobs: int | None = None,
    return_estimator: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Fit on some observed entries of a matrix, score on the others.

    Parameters
    ----------
    estimator : estimator with ``predict_entries(rows, columns, return_std=True)``
        Such as `skbayes_sym.SymVIMatrixFactorization`.
    X : array-like or sparse matrix of shape (n_rows, n_columns), or list of entries
        NaN, and in a sparse matrix what isn't stored, is missing. A list is a frame as it was read
        or a tuple ``(rows, columns, values)``, as ``fit`` takes it.
    cv : int or splitter, default=5
        An int is the number of folds of a shuffled `EntryKFold` with ``random_state=0``, so that
        models compared in separate calls see the same folds.
    scoring : dict of callables, optional
        Further scores by name, of a fitted model and a tuple (rows, columns, values) of the test
        entries, such as `RankingScorer`.
    params : dict, optional
        Further arguments of ``fit``, such as ``row_features``.
    n_jobs : int, optional
        Folds fitted at once, by joblib.
    return_estimator : bool, default=False
        Whether to return the fitted estimators.

    Returns
    -------
    dict of ndarrays of shape (n_splits,)
        ``test_rmse`` (units of ``X``), ``test_log_density`` (nats an entry; of other estimators
        under a normal with the predicted mean and standard deviation), ``test_coverage`` (share of
        entries within 1.645 standard deviations: 0.9 if calibrated), ``test_`` with the names in
        ``scoring``, ``fit_time`` and ``score_time`` in seconds; ``estimator``, a list, if asked
        for.

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
    splitter = EntryKFold(int(cv), random_state=0) if isinstance(cv, (int, np.integer)) else cv
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
        X = _checked(X)  # others answer by position, not by a frame's labels
    *parts, place = _encode_entries(X, columns)
    runs = Parallel(n_jobs=n_jobs)(
        delayed(_fit_and_score)(
            clone(estimator), _part(X, columns, train), [a[np.isin(place, test)] for a in parts],
            _part(X, columns, np.intersect1d(test, place)) if is_list else None,
            dict(scoring or {}), dict(params or {}),
        )
        for train, test in splitter.split(X)
    )  # fmt: skip
    scores: dict[str, Any] = {
        name: np.array([run[name] for run in runs]) for name in runs[0] if name != "estimator"
    }
    if return_estimator:
        scores["estimator"] = [run["estimator"] for run in runs]
    return scores


def _fit_and_score(
    estimator: BaseEstimator, training: Any, test: Sequence[Array], asked: Any,
    scoring: dict[str, Callable[..., float]], params: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    start = time.perf_counter()
    estimator.fit(training, **params)
    fitted = time.perf_counter()
    rows, columns, values = test
    row_prior = None
    if isinstance(estimator, EntryPredictionMixin):
        row_prior = estimator._predictive((rows, columns) if asked is None else asked)
        mean, std = row_prior.moments()
    else:
        mean, std = estimator.predict_entries(rows, columns, return_std=True)
    with np.errstate(all="ignore"):
        off = (values - mean) / std
        density = -0.5 * (off**2 + np.log(2.0 * np.pi * std**2))
        rmse = float(np.sqrt(np.mean((values - mean) ** 2)))
    if not np.isfinite(rmse):
        raise ValueError("the squares of X's entries are beyond the range of numbers: rescale X.")
    if row_prior is not None:
        density = row_prior.log_prob(values)
    return {
        "test_rmse": rmse,
        "test_log_density": float(np.mean(density)),
        "test_coverage": float(np.mean(np.abs(off) <= 1.645)),
        **{f"test_{name}": scorer(estimator, tuple(test)) for name, scorer in scoring.items()},
        "fit_time": fitted - start,
        "score_time": time.perf_counter() - fitted,
        "estimator": estimator,
    }


@dataclass(frozen=True)
class RankingScorer:
    r"""Score of the lists of columns that a fitted factorisation recommends; for ``scoring=``.

    Every row is scored by its own list, and the score is the mean over the rows that have a
    relevant entry. Other rows don't count.

    Parameters
    ----------
    metric : {"ndcg", "precision", "recall", "map", "hit_rate"}, default="ndcg"
        With :math:`h_r` whether the column at place r of the list is relevant, n places, and R
        relevant columns of the row:

        - "precision": :math:`\sum_r h_r / n`;
        - "recall": :math:`\sum_r h_r / R`;
        - "ndcg": :math:`\sum_r h_r / \log_2 (r + 1)` divided by its largest possible value,
          :math:`\sum_{r \le \min(R, n)} 1 / \log_2 (r + 1)`;
        - "map": the mean over rows of the average precision
          :math:`\sum_r h_r P_r / \min(R, n)`, with the precision :math:`P_r` of the first r places;
        - "hit_rate": whether there is any relevant column in the list.
    n : int, default=10
        Length of a list. Columns that the row had in the fit aren't in it. If a row has fewer
        columns left, its list is shorter, and its last places count as not relevant.
    relevant : float, optional
        Least value of an entry that counts as relevant; by default every one does.

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

    def __call__(self, estimator: EntryPredictionMixin, X: Any, y: Any = None) -> float:
        """Mean score over the rows that have a relevant entry.

        ``estimator``: fitted, with ``recommend``; ``X``: entries that `fit` hasn't seen. A column
        that is relevant twice counts once.
        """
        rows, columns, values, _ = _encode_entries(X, getattr(estimator, "columns", "auto"))
        if self.relevant is not None:
            check_number("relevant", self.relevant)
        kept = values >= (-np.inf if self.relevant is None else self.relevant)
        if not kept.any():
            raise ValueError(f"no entry of X is relevant, at least {self.relevant}.")
        asked, whose = np.unique(rows[kept], return_inverse=True)
        known = getattr(estimator, "column_labels_", None)
        if known is not None:
            columns = convert_labels(columns, known, "columns of X")
        relevant: list[set[Any]] = [set() for _ in asked]
        for i, column in zip(whose.tolist(), columns[kept].tolist(), strict=True):
            relevant[i].add(column)
        recommended = estimator.recommend(asked, self.n)
        lengths = getattr(recommended, "lengths", np.full(len(asked), self.n))
        lists = zip(recommended.columns, lengths, strict=True)
        scores = [
            _ranking_score(self.metric, self.n, np.isin(listed[:length], list(wanted)), len(wanted))
            for (listed, length), wanted in zip(lists, relevant, strict=True)
        ]
        return float(np.mean(scores))


def _ranking_score(metric: str, n: int, hits: Array, n_relevant: int) -> float:
    """Score of one list; ``hits``: which of its places are relevant, at most n."""
    place = np.arange(1, len(hits) + 1)
    most = min(n_relevant, n)
    if metric == "precision":
        return int(hits.sum()) / n
    if metric == "recall":
        return float(hits.sum()) / n_relevant
    if metric == "hit_rate":
        return float(hits.any())
    if metric == "map":
        return float(np.sum(hits * np.cumsum(hits) / place)) / most
    gains = 1.0 / np.log2(place + 1)
    return float(hits @ gains / np.sum(1.0 / np.log2(np.arange(2, most + 2))))


def _checked(X: Any) -> Any:
    with numeric_conversion("X"):
        return check_array(
            mask_to_nan(X), accept_sparse=("csr", "csc", "coo"), dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan", input_name="X",
        )  # fmt: skip
