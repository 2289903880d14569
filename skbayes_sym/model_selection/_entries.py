"""Model comparison where the data are entries of a matrix, not rows."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array

from skbayes_sym.estimators._fit.rows import Array, numbers_due
from skbayes_sym.estimators.factorization.entries import Observed, observed_entries, with_entries
from skbayes_sym.numerics.arguments import shown


class EntryKFold:
    """Splits the observed entries of a matrix into k folds.

    Rows and columns keep all their entries but those of the test fold, so a factorisation can
    predict them; splitting whole rows asks for something else, the factors of new rows.

    Parameters
    ----------
    n_splits : int, default=5
        At least 2.
    shuffle : bool, default=True
        Whether to deal the entries out at random; otherwise in row-major order, one after the
        other to each fold in turn.
    random_state : int, RandomState instance or None, default=None
        Order of the entries if ``shuffle``.

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
        self, n_splits: int = 5, *, shuffle: bool = True, random_state: Any = None
    ) -> None:
        if not isinstance(n_splits, (int, np.integer)) or n_splits < 2:
            raise ValueError(f"n_splits must be an integer of at least 2, got {n_splits!r}.")
        self.n_splits = int(n_splits)
        self.shuffle = shuffle
        self.random_state = random_state

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Number of folds."""
        return self.n_splits

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """Positions of training and test entries.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            NaN, and in a sparse matrix what isn't stored, is missing.
        y, groups : object
            Ignored.

        Yields
        ------
        train, test : int64 ndarray
            Sorted positions in the list of observed entries in row-major order.
        """
        n = len(observed_entries(_checked(X)).values)
        if n < self.n_splits:
            raise ValueError(f"n_splits={self.n_splits} is more than the {n} observed entries.")
        order = np.arange(n)
        if self.shuffle:
            order = check_random_state(self.random_state).permutation(n)
        fold = np.empty(n, dtype=np.int64)
        fold[order] = np.arange(n) % self.n_splits
        for i in range(self.n_splits):
            yield np.flatnonzero(fold != i), np.flatnonzero(fold == i)


def cross_validate_entries(
    estimator: BaseEstimator,
    X: Any,
    *,
    cv: Any = 5,
    n_jobs: int | None = None,
    return_estimator: bool = False,
) -> dict[str, Any]:
    """Fit on some observed entries of a matrix, score on the others.

    Parameters
    ----------
    estimator : estimator with ``predict_entries(rows, columns, return_std=True)``
        Such as `skbayes_sym.SymVIMatrixFactorization`.
    X : array-like or sparse matrix of shape (n_rows, n_columns)
        NaN, and in a sparse matrix what isn't stored, is missing.
    cv : int or splitter, default=5
        An int is the number of folds of a shuffled `EntryKFold` with ``random_state=0``, so that
        models compared in separate calls see the same folds.
    n_jobs : int, optional
        Folds fitted at once, by joblib.
    return_estimator : bool, default=False
        Whether to return the fitted estimators.

    Returns
    -------
    dict of ndarrays of shape (n_splits,)
        ``test_rmse`` (units of ``X``), ``test_log_density`` (nats an entry: the estimator's
        ``entry_log_density``, else that under a normal with the predicted mean and standard
        deviation), ``test_coverage`` (share of entries within 1.645 standard deviations: 0.9 if
        calibrated), ``fit_time`` and ``score_time`` in seconds; ``estimator``, a list, if asked
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
            raise TypeError(f"estimator must have `{method}`, got {shown(estimator)}.")
    splitter = EntryKFold(int(cv), random_state=0) if isinstance(cv, (int, np.integer)) else cv
    if not hasattr(splitter, "split") or isinstance(splitter, str):
        raise TypeError(f"cv must be a number of folds or a splitter, got {shown(cv)}.")
    checked = _checked(X)
    observed = observed_entries(checked)
    runs = Parallel(n_jobs=n_jobs)(
        delayed(_fit_and_score)(clone(estimator), checked, observed, train, test)
        for train, test in splitter.split(checked)
    )
    scores: dict[str, Any] = {
        name: np.array([run[name] for run in runs]) for name in runs[0] if name != "estimator"
    }
    if return_estimator:
        scores["estimator"] = [run["estimator"] for run in runs]
    return scores


def _fit_and_score(
    estimator: BaseEstimator, X: Any, observed: Observed, train: Array, test: Array
) -> dict[str, Any]:
    start = time.perf_counter()
    estimator.fit(with_entries(X, train))
    fitted = time.perf_counter()
    rows, columns, values = (a[test] for a in observed[:3])
    mean, std = estimator.predict_entries(rows, columns, return_std=True)
    with np.errstate(all="ignore"):
        off = (values - mean) / std
        density = -0.5 * (off**2 + np.log(2.0 * np.pi * std**2))
        rmse = float(np.sqrt(np.mean((values - mean) ** 2)))
    if not np.isfinite(rmse):
        raise ValueError("the squares of X's entries are beyond the range of numbers: rescale X.")
    if hasattr(estimator, "entry_log_density"):
        density = estimator.entry_log_density(rows, columns, values)
    return {
        "test_rmse": rmse,
        "test_log_density": float(np.mean(density)),
        "test_coverage": float(np.mean(np.abs(off) <= 1.645)),
        "fit_time": fitted - start,
        "score_time": time.perf_counter() - fitted,
        "estimator": estimator,
    }


def _checked(X: Any) -> Any:
    with numbers_due("X"):
        return check_array(
            X, accept_sparse=("csr", "csc", "coo"), dtype=(np.float64, np.float32),
            ensure_all_finite="allow-nan", input_name="X",
        )  # fmt: skip
