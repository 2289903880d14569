"""Classifiers for a scikit-learn user: their `Predictor`, in the user's labels."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import Bunch, assert_all_finite
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.rows import (
    ENCODE,
    Array,
    Rows,
    Scaling,
    numeric_conversion,
    refuse_categorical,
    require_rows,
)
from skbayes_sym.base.scikit_learn import (
    check_classification_targets,
    num_samples,
    validate_data,
)
from skbayes_sym.base.training import Targets, Training
from skbayes_sym.models.likelihoods import OF_CLASSES
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.likelihood import Likelihood, TargetLikelihood
from skbayes_sym.models.predictive_mixtures import Predictive
from skbayes_sym.numerics.arguments import (
    check_count,
    check_not_masked,
    draw_seed,
    short_repr,
    unique_classes,
)
from skbayes_sym.numerics.memory import draws_allocation, require_memory
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import fill_masked, non_string_column_names

_HOST = torch.device("cpu")


def encode_classes(classes: Array, labels: Any) -> tuple[Array, Array]:
    """Columns of labels among the sorted classes, and whether they are known at all.

    Raises a ValueError of missing labels, and a TypeError of labels of another kind.
    """
    labels = np.asarray(labels)
    with numeric_conversion("y"):
        assert_all_finite(labels.ravel(), input_name="y")
    try:
        codes = np.searchsorted(classes, labels).clip(0, len(classes) - 1)
        is_word = {(array.dtype.kind in "US") for array in (classes, labels) if array.size}
        if len(is_word) > 1 and "O" not in {classes.dtype.kind, labels.dtype.kind}:
            raise TypeError("words and numbers have no common order")
    except TypeError as error:
        raise TypeError(
            f"y must hold labels of one kind, as those of fit ({classes.tolist()}), got "
            f"{short_repr(labels.tolist())}."
        ) from error
    return codes, np.asarray(classes[codes] == labels)


class BayesianClassifierMixin(ClassifierMixin):
    """Everything a classifier predicts."""

    classes_: Array
    likelihood: Any = "auto"
    _column_names_in_: list[str] | None = None
    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]] = {"auto": Categorical(), **OF_CLASSES}
    _unsupported_likelihoods: ClassVar[tuple[type, ...]] = (TargetLikelihood,)

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        X = fill_masked(X)
        require_rows(X)
        refuse_categorical(X)
        check_not_masked("y", y)
        names = non_string_column_names(X)
        with numeric_conversion("X", ENCODE, X):
            X, y = validate_data(self, X, y, dtype=FLOATS)
            check_classification_targets(y)
        self._column_names_in_ = names
        return X, y

    def _encode_targets(self, y: Array) -> Targets:
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes in y, got 1 class: "
                f"{classes.tolist()[0]!r}."
            )
        return Targets(codes.astype(np.int64), y.ndim, classes)

    def _scale_targets(self, rows: Rows) -> Scaling | None:
        return None

    def _count_outputs(self, data: Training) -> int:
        return len(data.classes)

    def predict(self, X: Any) -> Array:
        """The most probable class of every row, (n_samples,)."""
        winners = self.predict_proba(X).argmax(axis=1)
        return self.classes_[winners]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict`: the share of rows, or of ``sample_weight``, whose class it is."""
        check_not_masked("y", y)
        unique_classes(np.asarray(y), "y")
        predicted = self.predict(X)
        with filters_lock:
            return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def predict_proba(self, X: Any) -> Array:
        """Posterior predictive probabilities, (n_samples, n_classes), columns as in `classes_`."""
        return self.evaluate_functional(X, lambda p: [p.mean()])[0]

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def sample_f(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions from the posterior: class probabilities, joint over rows.

        One seed means the same functions, whatever rows are asked for.

        Returns
        -------
        ndarray of shape (n_samples_X, n_classes, n_samples)
        """
        n = check_count("n_samples", n_samples)
        seed = draw_seed(random_state)
        check_is_fitted(self)
        parts = [draws_allocation(n, num_samples(X), len(self.classes_))]
        require_memory(parts, _HOST, task="sample_f")

        def functions(x: Tensor, rows: slice) -> list[Tensor]:
            drawn = self.predictor(x).sample_functions(x, n, generator=generator_from(seed))
            return [drawn.movedim(0, -1)]

        return self._map_blocks(X, functions)[0]

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Entropy of the predicted class in nats, split by its source.

        Returns
        -------
        Bunch of ndarrays of shape (n_samples,)
            ``epistemic`` (mutual information of class and weights; shrinks with data),
            ``aleatoric`` (expected entropy given the weights) and their sum ``total``.
        """
        total, epistemic, aleatoric = self.evaluate_functional(X, lambda p: list(p.uncertainty()))
        return Bunch(total=total, epistemic=epistemic, aleatoric=aleatoric)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log probability of observed classes, (n_samples,) nats; -inf for a class never seen."""
        check_is_fitted(self)
        codes, known = self._encode_observed_classes(y, num_samples(X))
        # By way of logarithms: probabilities underflow where these are numbers.
        log_prob = self.evaluate_functional(X, lambda p, codes: [p.log_prob(codes)], codes)[0]
        return np.where(known, log_prob, -np.inf)

    def _encode_observed_classes(self, y: Any, n_rows: int) -> tuple[Array, Array]:
        """Columns of `predict_proba` that labels belong to, and whether they are known at all."""
        check_not_masked("y", y)
        labels = np.asarray(y).ravel()
        if len(labels) != n_rows:
            raise ValueError(f"X has {n_rows} rows and y {len(labels)}: they must match.")
        return encode_classes(self.classes_, labels)

    @property
    def fitted_likelihood(self) -> Likelihood:
        """How labels follow from functions."""
        return self.resolved_likelihood

    def evaluate_functional(
        self,
        X: Any,
        functional: Callable[..., list[Tensor]],
        codes: Array | None = None,
        distribution: Callable[[Tensor], Predictive] | None = None,
    ) -> list[Array]:
        """Functionals of the law, or of another ``law`` of rows, block by block."""

        def ask(x: Tensor, rows: slice) -> list[Tensor]:
            of_rows = self.predictor(x).distribution(x) if distribution is None else distribution(x)
            observed = () if codes is None else (torch.as_tensor(codes[rows], device=x.device),)
            return functional(of_rows, *observed)

        return self._map_blocks(X, ask, codes)
