"""Splits of rows."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import num_samples


class NoSplit:
    """One split, in which all rows train and all rows test.

    For scores that need no held-out rows: a model's evidence already prefers what predicts well
    over what fits well.

    See Also
    --------
    evidence_scorer : Such a score.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import NoSplit, evidence_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg, grid = BayesianLinearRegressor(), {"prior": [0.1, 0.2, 0.4]}
    >>> search = GridSearchCV(reg, grid, scoring=evidence_scorer, cv=NoSplit()).fit(X, y)
    >>> search.best_params_, round(search.best_score_)
    ({'prior': 0.2}, -2406)
    """

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[Array, Array]]:
        """All rows, twice.

        Parameters
        ----------
        X : array-like of shape (n_samples, ...)
        y, groups : object
            Ignored.

        Yields
        ------
        train, test : int64 ndarray
            ``0, 1, ..., n_samples - 1``.
        """
        rows = np.arange(num_samples(X))
        yield rows, rows.copy()

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """One."""
        return 1

    def __repr__(self) -> str:
        return "NoSplit()"
