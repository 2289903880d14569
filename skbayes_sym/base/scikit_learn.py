"""Functions of scikit-learn that are private, differ between versions or need a lock."""

import re
from collections.abc import Callable
from functools import wraps
from importlib.metadata import PackageNotFoundError, metadata
from inspect import Signature, formatannotation, signature
from typing import Any

from sklearn.base import BaseEstimator, _fit_context
from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.model_selection import BaseCrossValidator, BaseShuffleSplit
from sklearn.model_selection import check_cv as _check_cv
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions, validate_params
from sklearn.utils.metaestimators import _BaseComposition as BaseComposition
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.multiclass import check_classification_targets as _check_classification_targets
from sklearn.utils.validation import _check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples
from sklearn.utils.validation import check_array as _check_array
from sklearn.utils.validation import column_or_1d as _column_or_1d
from sklearn.utils.validation import validate_data as _validate_data

from skbayes_sym.base.groups import encode_groups
from skbayes_sym.base.public_names import estimators_with_argument
from skbayes_sym.numerics.runtime import filters_lock, with_filters_lock

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:
    # Before version 1.9 there are no callbacks.

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Base class without ``set_callbacks``."""


check_array = with_filters_lock(_check_array)
check_classification_targets = with_filters_lock(_check_classification_targets)
check_cv = with_filters_lock(_check_cv)
check_sample_weight = with_filters_lock(_check_sample_weight)
column_or_1d = with_filters_lock(_column_or_1d)


@with_filters_lock
def validate_data(estimator: BaseEstimator, *args: Any, **kwargs: Any) -> Any:
    """Call scikit-learn's function, and name the remedy for sparse rows and reordered columns.

    Parameters
    ----------
    estimator : estimator
        Estimator whose attributes describe the columns.
    *args, **kwargs : object
        As for scikit-learn.

    Returns
    -------
    ndarray or tuple of ndarray
        Validated arrays.

    Raises
    ------
    TypeError
        If the rows are a sparse matrix, or a frame whose columns are all sparse.
    ValueError
        If the arrays are invalid, or the names of the columns aren't those of `fit`.
    """
    try:
        return _validate_data(estimator, *args, **kwargs)
    except TypeError as error:
        if not str(error).startswith("Sparse data was passed for X"):
            raise
        raise TypeError(
            "Sparse data was passed for X, but dense data is required: give X.toarray(), or "
            "X.sparse.to_dense() for a frame. In a pipeline, transformers return dense arrays by "
            "OneHotEncoder(sparse_output=False) and ColumnTransformer(..., sparse_threshold=0)."
        ) from None
    except ValueError as error:
        message = str(error)
        if not message.startswith("The feature names should match") or "now missing" in message:
            raise
        remedy = "X[list(model.feature_names_in_)] has the columns of fit in their order."
        raise ValueError(f"{message}{remedy}") from None


# A module name before the name of a class, in the text of an annotation.
_MODULE_NAME = re.compile(r"\b(?:[a-z_]\w*\.)+")


class _ShortAnnotation:
    """Annotation that prints without module names."""

    def __init__(self, annotation: Any) -> None:
        self._text = _MODULE_NAME.sub("", formatannotation(annotation))

    def __repr__(self) -> str:
        return self._text


class ReadableSignature:
    """Signature of a class with short annotations, with which `help` begins."""

    def __get__(self, instance: object, owner: type) -> Signature:
        _, *parameters = signature(owner.__init__).parameters.values()  # type: ignore[misc]
        for i, parameter in enumerate(parameters):
            if parameter.annotation is not parameter.empty:
                short = _ShortAnnotation(parameter.annotation)
                parameters[i] = parameter.replace(annotation=short)
        return Signature(parameters)


def splits_groups(splitter: Any) -> bool:
    """Whether an object is a splitter of scikit-learn that keeps groups together."""
    if not isinstance(splitter, BaseCrossValidator | BaseShuffleSplit):
        return False
    return bool(splitter.get_metadata_routing().split.requests.get("groups"))


def split_rows(splitter: Any, X: Any, y: Any, groups: Any = None) -> list[tuple[Any, Any]]:
    """Split rows into folds, with their groups unless the splitter ignores them.

    Parameters
    ----------
    splitter : splitter
        Result of `check_cv`.
    X, y : array-like
        Rows and targets.
    groups : array-like, optional
        Groups of the rows.

    Returns
    -------
    list of (ndarray, ndarray)
        Training and test indices.
    """
    is_known = isinstance(splitter, BaseCrossValidator | BaseShuffleSplit)
    if is_known and not splits_groups(splitter):
        # It would warn that it ignores the groups.
        groups = None
    if is_known and groups is not None:
        # scikit-learn sorts the groups, which can be of types that don't compare with each other.
        groups = encode_groups(groups, num_samples(X))
    with filters_lock:
        return list(splitter.split(X, y, groups))


def class_page_template() -> str:
    """Return the URL template of the page of a class; empty as long as the package has no site."""
    try:
        lines = metadata("skbayes-sym").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    site = dict(line.split(", ", 1) for line in lines).get("Documentation", ".invalid")
    if ".invalid" in site:
        return ""
    return f"{site}/api/generated/skbayes_sym.{{estimator_name}}.html"


__all__ = [
    "BaseComposition",
    "BaseScorer",
    "CallbackSupportMixin",
    "HasMethods",
    "Interval",
    "ReadableSignature",
    "StrOptions",
    "check_array",
    "check_classification_targets",
    "check_cv",
    "check_sample_weight",
    "class_page_template",
    "column_or_1d",
    "fit_context",
    "num_samples",
    "safe_indexing",
    "safe_split",
    "split_rows",
    "splits_groups",
    "validate_data",
    "validate_params",
]  # fmt: skip


def fit_context(*, prefer_skip_nested_validation: bool) -> Callable[[Any], Any]:
    """Decorate a fit method as scikit-learn does, and name the user's class in argument errors.

    Parameters
    ----------
    prefer_skip_nested_validation : bool
        As in scikit-learn: whether the parameters of inner estimators aren't validated.

    Returns
    -------
    callable
        Decorator of a method that fits. Python's own error message for an unexpected argument would
        name the private base class that defines the method.
    """
    decorate = _fit_context(prefer_skip_nested_validation=prefer_skip_nested_validation)

    def decorated(method: Any) -> Any:
        fit = decorate(method)
        accepted = signature(method).parameters
        has_var_keyword = any(p.kind is p.VAR_KEYWORD for p in accepted.values())

        @wraps(fit)
        def checked_fit(owner: Any, *args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in accepted and not has_var_keyword:
                    names = ", ".join(list(accepted)[1:])
                    remedy = ""
                    alternatives = estimators_with_argument(method.__name__, name)
                    if alternatives:
                        remedy = f" {name} is for {', '.join(alternatives)}."
                    raise TypeError(
                        f"{type(owner).__name__}.{method.__name__}() got an unexpected keyword "
                        f"argument {name!r}: it takes {names}.{remedy}"
                    )
            return fit(owner, *args, **kwargs)

        return checked_fit

    return decorated
