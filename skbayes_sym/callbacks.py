"""Callbacks for scikit-learn's protocol (``estimator.set_callbacks``), from scikit-learn 1.9 on."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.base.estimator import BayesianEstimator, is_fitted_attribute
from skbayes_sym.numerics.arguments import check_count

__all__ = ["HeldOut"]


class HeldOut:
    """Stop when rows that the fit doesn't see are no longer predicted better.

    After every block of steps (a hundredth of a fit) the log density of the held-out rows is taken
    as if the fit had stopped there. The estimator ends as it was at the best score: what is
    computed after training, such as ``elbo_``, is then missing or nan, as after an interrupt.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Held-out rows, as the estimator itself gets them: behind the other steps of a pipeline.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
    patience : int, default=10
        Blocks in a row without a better score after which the fit stops.

    Attributes
    ----------
    scores_ : list of float
        Mean log density per held-out row after every block, nats, in the units of ``y``.
    best_score_ : float
        The highest of them.

    Notes
    -----
    Set it on the estimator, not on a search around it: every fit would need rows of its own. Each
    score takes one prediction. Samplers have no model before their end and are left alone.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import SymmetrizedVIRegressor
    >>> from skbayes_sym.callbacks import HeldOut
    >>> X, y = load_diabetes(return_X_y=True)
    >>> watch = HeldOut(X[300:], y[300:], patience=3)
    >>> reg = SymmetrizedVIRegressor((5,), tol=None, random_state=0).set_callbacks(watch)
    >>> reg.fit(X[:300], y[:300]).stop_reason_
    'callback'
    """

    def __init__(self, X: Any, y: Any, patience: int = 10) -> None:
        check_count("patience", patience)
        self.X = X
        self.y = y
        self.patience = patience

    def setup(self, estimator: BaseEstimator, context: Any) -> None:
        """Forget what an earlier fit left."""
        self.scores_: list[float] = []
        self.best_score_ = -np.inf
        self._left = self.patience
        self._best: dict[str, Any] | None = None

    def on_fit_task_begin(self, estimator: BaseEstimator, context: Any) -> None:
        """Do nothing before a block."""

    def on_fit_task_end(
        self, estimator: BaseEstimator, context: Any, *, fitted_estimator: Any = None
    ) -> bool:
        """Score a block; True once ``patience`` is over."""
        if context.task_name != "block" or fitted_estimator is None:
            return False  # the end of the fit, or a block that was begun but not run
        score = float(np.mean(fitted_estimator.log_predictive_density(self.X, self.y)))
        self.scores_.append(score)
        self._left -= 1
        if score > self.best_score_:
            self.best_score_ = score
            self._left = self.patience
            state = vars(fitted_estimator)
            self._best = {k: v for k, v in state.items() if is_fitted_attribute(k)}
        return self._left <= 0

    def teardown(self, estimator: BayesianEstimator, context: Any) -> None:
        """Put the best state back."""
        has_failed = not estimator.__sklearn_is_fitted__()
        if has_failed or self._best is None or self.scores_[-1] == self.best_score_:
            return
        estimator._set_fit({**self._best, "stop_reason_": estimator.stop_reason_})
