"""Predictions of classifiers as NumPy arrays, in the user's class labels."""

from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Bunch, assert_all_finite
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.columns import warn_similar_levels
from skbayes_sym.base.input_validation import (
    ENCODE,
    numeric_conversion,
    refuse_categorical,
    require_rows,
    warn_reordered_rows,
)
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import (
    check_classification_targets,
    num_samples,
    validate_data,
)
from skbayes_sym.base.targets import ClassificationTargets, require_targets
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood, TargetLikelihood
from skbayes_sym.models.likelihoods.registry import SupportedLikelihoods, is_class_likelihood
from skbayes_sym.models.predictive_mixtures import Predictive
from skbayes_sym.numerics.arguments import (
    check_count,
    check_not_masked,
    draw_seed,
    short_repr,
)
from skbayes_sym.numerics.memory import draws_allocation, require_memory
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import fill_masked, is_missing, non_string_column_names

_HOST = torch.device("cpu")


def encode_classes(classes: Array, labels: Any) -> tuple[Array, Array]:
    """Return the positions of labels among the sorted classes, and which labels are known.

    Parameters
    ----------
    classes : ndarray of shape (n_classes,)
        Sorted classes.
    labels : array-like of shape (...)
        Class labels.

    Returns
    -------
    codes : ndarray of the shape of ``labels``
        Positions among the classes; arbitrary for unknown labels.
    is_known : ndarray of bool of the shape of ``labels``
        Whether a label is one of the classes.

    Raises
    ------
    ValueError
        If labels are missing.
    TypeError
        If labels and classes have no common order, such as text and numbers.

    Warns
    -----
    UserWarning
        If none of several labels is known.
    """
    labels = label_array(labels)
    refuse_missing_labels(labels.ravel())
    with numeric_conversion("y"):
        assert_all_finite(labels.ravel(), input_name="y")
    try:
        codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
        is_text = {(array.dtype.kind in "US") for array in (classes, labels) if array.size}
        if len(is_text) > 1 and "O" not in {classes.dtype.kind, labels.dtype.kind}:
            raise TypeError("text and numbers have no common order")
    except TypeError as error:
        raise TypeError(
            f"y must hold labels of the same type as in fit ({classes.tolist()}), got "
            f"{short_repr(labels.tolist())}."
        ) from error
    is_known = np.asarray(classes[codes] == labels)
    if is_known.size > 1 and not is_known.any():
        warn_user(
            f"y holds none of the classes of fit, {short_repr(classes.tolist())}, but labels such "
            f"as {short_repr(labels.flat[0])}. Give the labels that fit had.",
            UserWarning,
        )
    return codes, is_known


def label_array(labels: Any) -> Array:
    """Return labels as an array, of objects if a list holds texts.

    NumPy would make nan and numbers in a list of texts texts.
    """
    array = np.asarray(labels)
    if isinstance(labels, list | tuple) and array.dtype.kind in "US":
        return np.asarray(labels, dtype=object)
    return array


def refuse_missing_labels(labels: Array) -> None:
    """Raise a ValueError if labels (n,) are missing."""
    if labels.dtype.kind != "O":
        return
    for row, label in enumerate(labels):
        if is_missing(label):
            raise ValueError(
                f"Input y contains NaN or other missing labels. The first is in row {row}. Leave "
                "rows without a label out of X and y, or give them a class of their own."
            )


def _read_labels(y: Any) -> Any:
    """Return labels that are numbers of an extension dtype or objects as arrays, others unchanged.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels as the user gave them.

    Raises
    ------
    ValueError
        If labels are missing, or if only some of them are text.

    Warns
    -----
    UserWarning
        If labels differ only by case or by spaces.
    """
    labels = label_array(y)
    if labels.ndim != 1:
        return y
    if labels.dtype.kind in "UT":
        warn_similar_levels("y", map(str, np.unique(labels)), "labels", "y")
        return y
    if labels.dtype.kind in "biu":
        return labels
    if labels.dtype.kind != "O":
        return y
    _check_objects(labels)
    if not len(labels) or isinstance(labels[0], str):
        warn_similar_levels("y", sorted(set(labels.tolist())), "labels", "y")
        return y
    # scikit-learn reads no numbers of the dtype object.
    if all(isinstance(label, bool | np.bool_) for label in labels):
        return labels.astype(bool)
    if all(isinstance(label, Integral) for label in labels):
        return np.array(labels.tolist())
    if all(isinstance(label, Real | Decimal) for label in labels):
        return labels.astype(np.float64)
    return y


def _check_objects(labels: Array) -> None:
    """Raise a ValueError if labels (n,) are missing, or if only some of them are text."""
    refuse_missing_labels(labels)
    for row, label in enumerate(labels):
        is_known = isinstance(label, str | bytes | Real | Decimal | date | np.generic)
        if not is_known:
            raise ValueError(
                f"y must hold text, numbers or dates as labels, got a {type(label).__name__} in "
                f"row {row}. Convert all to text, as by y.astype(str)."
            )
    is_text = np.array([isinstance(label, str) for label in labels], dtype=bool)
    if is_text.any() and not is_text.all():
        text = labels[is_text][0]
        other = labels[~is_text][0]
        raise ValueError(
            f"y must hold labels of one kind, got text such as {text!r} and others such as "
            f"{other!r}. Convert all to text, as by y.astype(str)."
        )


class BayesianClassifierMixin(ClassifierMixin):
    """Predictions of a classifier."""

    likelihood: Any = "auto"
    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]] = SupportedLikelihoods(
        is_class_likelihood, {"auto": Categorical()}
    )
    # Types of likelihoods that need a regressor.
    _unsupported_likelihoods: ClassVar[tuple[type, ...]] = (TargetLikelihood,)

    classes_: Array

    def _validate_training_data(self, X: Any, y: Any) -> tuple[Array, ClassificationTargets]:
        """Return numeric inputs and class labels, and set ``n_features_in_`` and the like."""
        X = fill_masked(X)
        require_rows(X)
        refuse_categorical(X)
        check_not_masked("y", y)
        require_targets(y)
        y = _read_labels(y)
        column_names = non_string_column_names(X)
        with numeric_conversion("X", ENCODE, X, y):
            X, y = validate_data(self, X, y, dtype=FLOATS)
            check_classification_targets(y)
        self._column_names_in_ = column_names
        return X, ClassificationTargets(y, type(self).__name__)

    def _count_outputs(self, data: Training) -> int:
        """Return the number of classes."""
        return len(data.classes)

    def predict(self, X: Any) -> Array:
        """Predict the most probable class of every row.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples,)
            Class labels.
        """
        codes = self.predict_proba(X).argmax(axis=1)
        return self.classes_[codes]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Compute the accuracy of `predict`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Observed classes.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.

        Returns
        -------
        float
            Weighted fraction of rows whose class is predicted.
        """
        warn_reordered_rows(X, y=y, sample_weight=sample_weight)
        check_not_masked("y", y)
        require_targets(y)
        encode_classes(self.classes_, y)
        predicted = self.predict(X)
        with filters_lock:
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def predict_proba(self, X: Any) -> Array:
        """Predict posterior predictive probabilities of all classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities, with columns in the order of `classes_`.
        """
        return self.evaluate_functional(X, lambda p: [p.mean()])[0]

    def predict_log_proba(self, X: Any) -> Array:
        """Predict the logarithms of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
        """
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def sample_f(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions from the posterior: class probabilities, joint over rows.

        The same seed yields the same functions at whatever rows they are evaluated.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of functions, at least one.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the functions.

        Returns
        -------
        ndarray of shape (n_samples_X, n_classes, n_samples)
            Class probabilities given each of the functions.

        Raises
        ------
        MemoryError
            Before anything is drawn, if the draws don't fit into memory.
        """
        n = check_count("n_samples", n_samples)
        seed = draw_seed(random_state)
        check_is_fitted(self)
        parts = [draws_allocation(n, num_samples(X), len(self.classes_))]
        require_memory(parts, _HOST, task="sample_f")

        def sample(x: Tensor, _rows: Any) -> list[Tensor]:
            functions = self._predictor_at(x).sample_functions(x, n, generator=generator_from(seed))
            return [functions.movedim(0, -1)]

        return self._map_blocks(X, sample)[0]

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Predict the entropy of the class in nats, split by its source.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Bunch of ndarrays of shape (n_samples,)
            ``epistemic`` is the mutual information of class and weights, which decreases with more
            data. ``aleatoric`` is the expected entropy given the weights. ``total`` is their sum.
        """
        total, epistemic, aleatoric = self.evaluate_functional(X, lambda p: list(p.uncertainty()))
        return Bunch(total=total, epistemic=epistemic, aleatoric=aleatoric)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Compute the log probability of observed classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,)
            Observed classes.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log probabilities in nats; -inf for a class that wasn't in the training data.
        """
        check_is_fitted(self)
        warn_reordered_rows(X, y=y)
        codes, is_known = self._encode_observed_classes(y, num_samples(X))
        # Log probabilities are finite even where probabilities underflow.
        log_prob = self.evaluate_functional(X, lambda p, codes: [p.log_prob(codes)], codes)[0]
        return np.where(is_known, log_prob, -np.inf)

    def _log_probability_by_draw(
        self, X: Any, y: Any, distribution: Callable[[Tensor], Predictive]
    ) -> Array:
        """Log probability of observed classes given every draw of a posterior of draws, (S, N)."""
        warn_reordered_rows(X, y=y)
        codes, is_known = self._encode_observed_classes(y, len(self.check_inputs(X)))
        (values,) = self.evaluate_functional(
            X, lambda p, y: [p.log_prob_per_draw(y).T], codes, distribution=distribution
        )
        return np.where(is_known, values.T, -np.inf)

    def _encode_observed_classes(self, y: Any, n_rows: int) -> tuple[Array, Array]:
        """Return the columns of `predict_proba` of observed labels, and which are known."""
        check_not_masked("y", y)
        labels = label_array(y).ravel()
        if len(labels) != n_rows:
            raise ValueError(f"X has {n_rows} rows and y {len(labels)}: they must match.")
        return encode_classes(self.classes_, labels)

    @property
    def fitted_likelihood(self) -> Likelihood:
        """Distribution of the class given the outputs."""
        return self.resolved_likelihood

    def evaluate_functional(
        self,
        X: Any,
        functional: Callable[..., list[Tensor]],
        codes: Array | None = None,
        distribution: Callable[[Tensor], Predictive] | None = None,
    ) -> list[Array]:
        """Evaluate a functional of the predictive distributions, in blocks of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        functional : callable
            Takes the predictive distribution of a block of rows, and if ``codes`` are given those
            of the block. Returns tensors with the rows as their first axis.
        codes : ndarray of shape (n_samples, ...), optional
            Codes of observed classes.
        distribution : callable (x) -> Predictive, optional
            Predictive distribution at scaled inputs; that of `predictor` by default.

        Returns
        -------
        list of ndarray
            Results of the functional, joined over blocks.
        """

        def evaluate(x: Tensor, rows: Any) -> list[Tensor]:
            if distribution is None:
                predictive = self._predictor_at(x).distribution(x)
            else:
                predictive = distribution(x)
            if codes is None:
                return functional(predictive)
            return functional(predictive, torch.as_tensor(codes[rows], device=x.device))

        return self._map_blocks(X, evaluate, codes)
