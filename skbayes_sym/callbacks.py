"""Callbacks for ``estimator.set_callbacks``, which needs scikit-learn 1.9 or later."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.base.estimator import BayesianEstimator, is_fitted_attribute
from skbayes_sym.numerics.arguments import check_count

__all__ = ["HeldOut"]


class HeldOut:
    """Early stopping by the log density of held-out rows.

    After every block of steps (a hundredth of a fit) the held-out rows are predicted as if the fit
    had stopped there. At the end the estimator gets the state with the best score. Attributes that
    are computed after training, such as ``elbo_``, are then missing or nan, as after an interrupt.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Held-out rows as the estimator receives them, after the other steps of a pipeline.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Held-out targets or classes.
    patience : int, default=10
        Number of consecutive blocks without a better score after which the fit stops.

    Attributes
    ----------
    scores_ : list of float
        Mean log density of the held-out rows after every block, in nats per row and in the units of
        ``y``.
    best_score_ : float
        Highest of these scores.

    Notes
    -----
    Set the callback on the estimator, not on a search around it, because every fit of a search
    would need different held-out rows. A score costs one prediction. Samplers have no model before
    they end, so the callback has no effect on them.

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

    # The arguments of these methods are those of scikit-learn's protocol.
    def setup(self, estimator: BaseEstimator, context: Any) -> None:  # noqa: ARG002
        """Reset the scores before a fit."""
        self.scores_: list[float] = []
        self.best_score_ = -np.inf
        self._n_blocks_left = self.patience
        self._best_state: dict[str, Any] | None = None

    def on_fit_task_begin(self, estimator: BaseEstimator, context: Any) -> None:
        """Do nothing before a block."""

    def on_fit_task_end(
        self,
        estimator: BaseEstimator,  # noqa: ARG002
        context: Any,
        *,
        fitted_estimator: Any = None,
    ) -> bool:
        """Score a block; return True if the fit should stop."""
        if context.task_name != "block" or fitted_estimator is None:
            return False  # the end of the fit, or a block that didn't run
        score = float(np.mean(fitted_estimator.log_predictive_density(self.X, self.y)))
        self.scores_.append(score)
        self._n_blocks_left -= 1
        if score > self.best_score_:
            self.best_score_ = score
            self._n_blocks_left = self.patience
            state = vars(fitted_estimator)
            self._best_state = {k: v for k, v in state.items() if is_fitted_attribute(k)}
        return self._n_blocks_left <= 0

    def teardown(self, estimator: BayesianEstimator, context: Any) -> None:  # noqa: ARG002
        """Give the estimator its best state."""
        has_failed = not estimator.__sklearn_is_fitted__()
        if has_failed or self._best_state is None or self.scores_[-1] == self.best_score_:
            return
        # Apart from fits, only a callback replaces the fitted state.
        estimator._set_fit({**self._best_state, "stop_reason_": estimator.stop_reason_})  # noqa: SLF001
