"""Fitted members of a stack as pipelines of scikit-learn."""

from copy import copy
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, is_classifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.predictive import predicts_counts
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.runtime import filters_lock


class EncodedColumns(TransformerMixin, BaseEstimator):
    """Encode and standardise columns as a fitted stack does.

    It is the first step of the pipelines in ``estimators_`` of a stack, and isn't fitted on its
    own.

    Attributes
    ----------
    stack_ : PredictiveStackingRegressor or PredictiveStackingClassifier
        Fitted stack without its members.
    """

    def fit(self, X: Any, y: Any = None) -> "EncodedColumns":  # noqa: ARG002 -- an interface
        """Raise an error, since the encoding belongs to a stack.

        Parameters
        ----------
        X : object
            Ignored.
        y : object
            Ignored.
        """
        raise TypeError(
            "EncodedColumns is part of a fitted stack and can't be fitted: fit the stack, and take "
            "the pipelines of its estimators_."
        )

    def transform(self, X: Any) -> Array:
        """Return encoded and standardised columns.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows as they are passed to the stack.

        Returns
        -------
        ndarray of shape (n_samples, n_columns)
            Unknown levels of a category are encoded by the average over the known levels.
        """
        check_is_fitted(self)
        encoded: Array = self.stack_.encode_rows(X)
        return encoded

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "stack_")


def make_pipeline_member(stack: Any, inner: Any) -> Pipeline:
    """Put the encoding of columns before a fitted member, and the units of the targets after it.

    Parameters
    ----------
    stack : PredictiveStackingRegressor or PredictiveStackingClassifier
        Fitted stack without its members.
    inner : estimator
        Estimator that was fitted to encoded columns and, for regression, standardised targets.

    Returns
    -------
    Pipeline
        Its last step is the classifier, or a `TransformedTargetRegressor` whose ``regressor_`` is
        the regressor.
    """
    columns = EncodedColumns()
    columns.stack_ = stack
    if predicts_counts(inner):
        # It was fitted to the counts themselves.
        return Pipeline([("columns", columns), ("model", inner)])
    if is_classifier(inner):
        # Trees are fitted to codes of the classes.
        classifier = copy(inner)
        classifier.classes_ = stack.classes_
        return Pipeline([("columns", columns), ("model", classifier)])

    from sklearn.compose import TransformedTargetRegressor
    from sklearn.frozen import FrozenEstimator

    scaler = StandardScaler()
    scaler.mean_ = stack.y_mean_
    scaler.scale_ = stack.y_scale_
    scaler.var_ = stack.y_scale_**2
    scaler.n_features_in_ = 1
    scaler.n_samples_seen_ = 1

    # Without a fit of the regressor, which is frozen, and with the known units of the targets.
    model = TransformedTargetRegressor(FrozenEstimator(inner), check_inverse=False)
    with filters_lock:
        model.fit(np.zeros((1, len(stack.x_mean_))), np.zeros(1))
    model.set_params(transformer=scaler)
    model.transformer_ = scaler
    model.regressor_ = inner
    return Pipeline([("columns", columns), ("model", model)])
