"""Canonical form of training rows, the scaling of their columns, and checks of inputs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.groups import number_by_appearance
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.scikit_learn import StrOptions
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.tables import (
    column_names,
    has_reordered_rows,
    is_declared_categorical,
    read_table,
)

Array = npt.NDArray[Any]

# Values of ``standardize`` for regressors: inputs and targets, neither, or one of them.
STANDARDIZE: list[Any] = ["boolean", StrOptions({"X", "y"})]

# Number of values that a vectorised reduction of `column_range` compares at once.
_FOLD_WIDTH = 512
# Smallest standard deviation whose reciprocal is finite.
_MIN_STD = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct training rows in lexicographic order.

    Parameters
    ----------
    X : ndarray of shape (n, n_features)
        Inputs.
    y : ndarray of shape (n, n_targets) or (n,)
        Real targets, or class codes.
    weight : ndarray of shape (n,)
        Positive weights: sums over equal rows.
    groups : ndarray of int of shape (n,), optional
        Groups of rows that are left out together.
    row_parameter : ndarray of shape (n, n_targets), optional
        Known parameter of the likelihood: the standard deviation of a known error, or the exposure
        of a count.
    """

    X: Array
    y: Array
    weight: Array
    groups: Array | None = None
    row_parameter: Array | None = None

    @cached_property
    def x_range(self) -> Array:
        """Smallest and largest value of every input column, (2, n_features)."""
        return column_range(self.X)

    @cached_property
    def y_range(self) -> Array:
        """Smallest and largest value of every target, (2, n_targets)."""
        return column_range(self.y)


class Scaling(NamedTuple):
    """Scaling of columns: ``scaled = (value - mean) / scale``.

    Parameters
    ----------
    mean, scale : ndarray of shape (n_columns,)
        Location and positive unit of every column.
    """

    mean: Array
    scale: Array

    def apply(self, values: Array) -> Array:
        """Return values in scaled units, which are infinite if they overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = values - self.mean
            scaled /= self.scale
            return scaled


def canonical_rows(
    X: Array,
    y: Array,
    weight: Array,
    groups: Array | None = None,
    row_parameter: Array | None = None,
) -> tuple[Rows, Array]:
    """Merge equal rows of inputs and targets, and sort the distinct ones.

    A data set in another order, or with rows repeated instead of weighted, then becomes the same
    arrays bit for bit, and so does everything computed from them.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Inputs.
    y : ndarray of shape (n_samples, n_targets) or (n_samples,)
        Targets.
    weight : ndarray of shape (n_samples,)
        Positive weights.
    groups : ndarray of int of shape (n_samples,), optional
        Groups of the rows. Equal rows of different groups aren't merged.
    row_parameter : ndarray of shape (n_samples, n_targets), optional
        Known parameters of the likelihood. Equal rows of different parameters aren't merged.

    Returns
    -------
    rows : Rows
        Distinct rows with their total weights.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the distinct rows of every row.
    """
    # Adding 0.0 turns -0.0 into 0.0: equal numbers must be equal rows.
    keys = [] if groups is None else [groups]
    if row_parameter is not None:
        keys.extend(row_parameter.T)
    columns = (c.astype(np.float64) + 0.0 for c in (*X.T, *np.atleast_2d(y.T), *keys))
    order, is_repeat = _lexicographic_order(columns)
    is_distinct = ~is_repeat
    inverse_index = np.empty_like(order)
    inverse_index[order] = np.cumsum(is_distinct) - 1
    first = order[is_distinct]
    # `take` is five times as fast as X[first].
    distinct_X = X.take(first, axis=0) + 0.0
    if groups is None:
        distinct_groups = None
    else:
        distinct_groups = groups[first]
    if row_parameter is not None:
        row_parameter = row_parameter[first]
    if len(first) == len(order):
        distinct_weight: Array = weight[first].astype(np.float64)
    else:
        # Weights are added in increasing order: sums don't depend on the order of the rows.
        up = np.argsort(weight)
        distinct_weight = np.bincount(inverse_index[up], weights=weight[up], minlength=len(first))
    rows = Rows(distinct_X, y[first], distinct_weight, distinct_groups, row_parameter)
    return rows, inverse_index


def drop_rows(rows: Rows, inverse_index: Array, is_dropped: Array) -> tuple[Rows, Array]:
    """Remove distinct rows.

    Parameters
    ----------
    rows : Rows
        Distinct rows.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the distinct rows of every row; -1 if it has none.
    is_dropped : ndarray of bool of shape (n,)
        Distinct rows that are removed.

    Returns
    -------
    rows : Rows
        The other rows.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the other rows of every row; -1 if it has none.
    """
    is_kept = ~is_dropped
    position = np.where(is_kept, np.cumsum(is_kept) - 1, -1)
    groups = None
    if rows.groups is not None:
        groups = number_by_appearance(rows.groups[is_kept])
    row_parameter = None
    if rows.row_parameter is not None:
        row_parameter = rows.row_parameter[is_kept]
    kept = Rows(rows.X[is_kept], rows.y[is_kept], rows.weight[is_kept], groups, row_parameter)
    return kept, np.append(position, -1)[inverse_index]


def _lexicographic_order(columns: Iterable[Array]) -> tuple[Array, Array]:
    """Sort the rows of a table that is given column by column.

    The order is that of ``np.unique(axis=0)``, with equal rows in the order given. It mostly takes
    the time of sorting one column: later columns are compared only for rows that tie in all
    earlier ones, and aren't read if there are none.

    Parameters
    ----------
    columns : iterable of ndarray of shape (n,)
        Columns of the table.

    Returns
    -------
    order : ndarray of int of shape (n,)
        Positions of the rows in lexicographic order.
    is_repeat : ndarray of bool of shape (n,)
        Whether a row, in this order, equals the previous one.
    """
    columns = iter(columns)
    first = next(columns)
    order = np.argsort(first)
    # Whether a row equals the previous one in all columns so far.
    ties = _equals_previous(first[order])
    for column in columns:
        if not ties.any():
            return order, ties
        tied, group = _tied_rows(ties)
        values = column[order[tied]]
        if (_equals_previous(values) >= ties[tied]).all():
            # The column is constant in every group of ties.
            continue
        by_value = np.lexsort((values, group))
        order[tied] = order[tied[by_value]]
        ties[tied] &= _equals_previous(values[by_value])
    tied, group = _tied_rows(ties)
    order[tied] = order[tied[np.lexsort((order[tied], group))]]
    return order, ties


def _equals_previous(values: Array) -> Array:
    """Return whether every value equals the previous one, (n,); False for the first."""
    return np.concatenate([[False], values[1:] == values[:-1]])


def _tied_rows(ties: Array) -> tuple[Array, Array]:
    """Return positions (n_tied,) of rows that tie with a neighbour, and numbers of their groups."""
    tied = np.flatnonzero(ties | np.append(ties[1:], False))
    return tied, np.cumsum(~ties[tied])


# Remedy for text in inputs.
ENCODE = " Encode categories first, by OneHotEncoder for example."
# Remedy for dates in inputs.
_NUMBER_DATES = (
    "Give numbers: days since a date, or a month. The stacks and BayesianMLPRegressor read dates."
)


@contextmanager
def numeric_conversion(name: str, remedy: str = "", X: Any = None, y: Any = None) -> Iterator[None]:
    """Explain errors of conversions to numbers, and locate missing and infinite ones.

    Parameters
    ----------
    name : str
        Name of the argument that is converted.
    remedy : str
        Sentence that tells what to do about text.
    X : table, optional
        Table whose columns without numbers are named, and whose infinities are located.
    y : array-like, optional
        Targets whose missing and infinite values are located.

    Raises
    ------
    TypeError, ValueError
        Naming the argument and the columns.
    """
    try:
        # scikit-learn looks for infinities in a sum, which may overflow for finite numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except RuntimeError as error:
        if "requires grad" not in str(error):
            raise
        raise TypeError(
            f"{name} must hold numbers, got a tensor that requires grad: give its detach()."
        ) from error
    except OverflowError as error:
        # An int such as 10**400.
        raise ValueError(
            f"{name} must hold numbers in the range of float64{_non_numeric_columns(X)}: {error}."
        ) from error
    except TypeError as error:
        # The conversion of an object of another kind, such as a dict.
        if "unsupported ScalarType" in str(error):
            raise TypeError(
                f"{name} must be of a type that NumPy has: {error}. Give its double()."
            ) from error
        if "float() argument" not in str(error):
            raise
        raise TypeError(f"{name} must hold numbers: {error}.{remedy}") from error
    except np.exceptions.DTypePromotionError as error:
        raise ValueError(
            f"{name} must hold numbers, got columns without a common type, such as dates"
            f"{_non_numeric_columns(X)}. {_NUMBER_DATES}"
        ) from error
    except ValueError as error:
        message = _explain_value_error(str(error), name, remedy, X, y)
        if message is None:
            raise
        raise ValueError(message) from error


def _explain_value_error(message: str, name: str, remedy: str, X: Any, y: Any) -> str | None:
    """Explain a message of NumPy or scikit-learn; None if it is of another kind.

    Parameters
    ----------
    message : str
        Message of the ``ValueError``.
    name, remedy : str
        As in `numeric_conversion`.
    X, y : array-like or None
        Inputs and targets, in which the values are located.

    Returns
    -------
    str or None
        Message that names the argument, columns and rows.
    """
    if message.startswith("Input X contains infinity"):
        return f"{message}{_locate(X, np.isinf)}"
    if message.startswith("Input X contains NaN"):
        return (
            f"Input X contains NaN.{_locate(X, np.isnan)} Fill missing values, as by "
            "SimpleImputer, or use an estimator that takes them, such as the stacks and "
            "BayesianMLP."
        )
    if message.startswith(("Input y contains NaN", "Input y contains infinity")):
        where = _locate(y, lambda values: ~np.isfinite(values))
        return f"{message}{where} Leave rows without a target out of X and y."
    if message.startswith("Complex data not supported"):
        return (
            f"Complex data not supported: {_complex_part(name, X)} holds complex numbers. Give "
            "real and imaginary parts, or absolute values."
        )
    if "inhomogeneous shape" in message:
        return f"{name} must have rows of one length{_non_numeric_columns(X)}: {message}"
    # NumPy's errors of text, of mixed types, and of nested sequences.
    phrases = ("could not convert", "Cannot cast", "setting an array element")
    if any(phrase in message for phrase in phrases):
        return f"{name} must hold numbers: {message}{_non_numeric_columns(X)}.{remedy}"
    return None


def _non_numeric_columns(X: Any) -> str:
    """Return a clause with the columns of a frame that aren't numbers; empty for arrays."""
    if is_frame(X):
        kinds = {c: np.asarray(X[c]).dtype.kind for c in X.columns}
    else:
        kinds = {}
    names = [repr(name) for name, kind in kinds.items() if kind not in "biuf"]
    if names:
        return f" (in {_enumerate(names)})"
    return ""


def _complex_part(name: str, X: Any) -> str:
    """Return a phrase for the columns of a table that are complex, or "y" if none of X is."""
    table = read_table(X)
    if table is None:
        return name
    names = [
        name
        for name, values in zip(table.names, table.columns, strict=True)
        if np.iscomplexobj(values)
    ]
    if names:
        return f"column {_enumerate(names)} of X"
    return "y"


def _locate(values: Any, is_invalid: Callable[[Array], Array]) -> str:
    """Return a sentence with the first row of invalid numbers, and their column in a table."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        return ""
    positions = np.argwhere(is_invalid(numbers))
    if not positions.size:  # none is invalid, or y is a single number
        return ""
    row, *column = positions[0].tolist()
    if not column:
        return f" The first is in row {row}."
    name = column[0]
    if is_frame(values):
        name = list(values.columns)[name]
    return f" The first is in row {row}, column {name!r}."


def _enumerate(names: list[str]) -> str:
    """Join the first five names."""
    ellipsis = ", ..." if len(names) > 5 else ""
    return ", ".join(names[:5]) + ellipsis


def _has_date_dtype(column: Any) -> bool:
    """Whether the dtype of a frame's column is one of dates or times."""
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    return str(dtype).lower().startswith(("date", "timestamp"))


def refuse_categorical(X: Any) -> None:
    """Raise a ValueError if a table has columns of a categorical dtype, or of dates.

    Levels may be numbers, but numbers that don't measure anything. scikit-learn would read dates as
    numbers whose unit depends on their dtype.
    """
    if hasattr(X, "get_columns"):
        columns = X.get_columns()
    elif hasattr(X, "iloc") and X.ndim == 2:
        columns = (X.iloc[:, j] for j in range(X.shape[1]))
    else:
        return
    pairs = list(zip(column_names(X), columns, strict=True))
    dates = [repr(name) for name, column in pairs if _has_date_dtype(column)]
    if dates:
        raise ValueError(
            f"X must hold numbers, got columns of another type, such as dates (in "
            f"{_enumerate(dates)}). {_NUMBER_DATES}"
        )
    categorical = [repr(name) for name, column in pairs if is_declared_categorical(column)]
    if categorical:
        raise ValueError(
            f"X must hold numbers, got columns of a categorical dtype (in "
            f"{_enumerate(categorical)}).{ENCODE} If "
            "their levels are numbers that measure something, convert them by astype(float)."
        )


def warn_reordered_rows(X: Any, **columns: Any) -> None:
    """Warn if a frame and a column of pandas have the same row labels in different orders.

    Parameters
    ----------
    X : array-like of shape (n_samples, n_features)
        Inputs as the user gave them.
    **columns : array-like of shape (n_samples,) or None
        Targets, weights and the like by the names of the arguments.
    """
    for name, column in columns.items():
        if has_reordered_rows(X, column):
            warn_user(
                f"X and {name} have the same row labels in different orders, but rows are "
                f"matched by position. Give {name}.loc[X.index] if labels tell which rows "
                "belong together.",
                UserWarning,
            )


def require_rows(X: Any) -> None:
    """Raise a ValueError if the rows of an array have several axes, such as images."""
    shape = tuple(getattr(X, "shape", ()))
    if len(shape) < 3:
        return
    has_channels_last = len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] > 4
    image = shape[1:]
    move = ""
    if has_channels_last:
        image = (shape[3], *shape[1:3])
        move = "np.moveaxis(X, 3, 1)"
    raise ValueError(
        f"X has shape {shape}, but rows of X have one axis. Give {move or 'X'}.reshape(len(X), -1);"
        f" LILAClassifier and LILARegressor take such images with image_shape={image}."
    )


def column_range(values: Array) -> Array:
    """Return the smallest and the largest value of every column, (2, n_columns).

    Several rows are compared side by side. NumPy's own reduction takes six times as long for few
    columns.
    """
    n_rows, n_columns = values.shape
    fold = max(1, _FOLD_WIDTH // n_columns)
    n_folded = n_rows // fold * fold

    def reduce(extremum: Callable[..., Array]) -> Array:
        if n_folded < 2 * fold:
            return extremum(values, axis=0)
        folded = extremum(values[:n_folded].reshape(-1, fold * n_columns), axis=0)
        remaining = np.concatenate([folded.reshape(fold, n_columns), values[n_folded:]])
        return extremum(remaining, axis=0)

    return np.stack([reduce(np.min), reduce(np.max)])


def is_standardized(standardize: bool | str, name: str) -> bool:
    """Whether the parameter ``standardize`` applies to ``name``, "X" or "y"."""
    if isinstance(standardize, str):
        return standardize == name
    return bool(standardize)


def column_scaling(
    values: Array,
    weight: Array,
    *,
    enabled: bool,
    value_range: Array | None = None,
    describe: Callable[[int], str] = lambda j: f"column {j}",
) -> Scaling:
    """Return the weighted mean and standard deviation of every column.

    Parameters
    ----------
    values : ndarray of shape (n, n_columns)
        Values of n distinct rows.
    weight : ndarray of shape (n,)
        Positive weights of the rows.
    enabled : bool
        If False, the means are 0 and the scales 1.
    value_range : ndarray of shape (2, n_columns), optional
        `column_range` of the values, if it is known.
    describe : callable
        Returns the words for a column in error messages, given its position.

    Returns
    -------
    Scaling
        Constant columns have the scale 1.

    Raises
    ------
    ValueError
        If a standard deviation overflows or its reciprocal does.
    """
    n_columns = values.shape[1]
    if not enabled:
        return Scaling(np.zeros(n_columns), np.ones(n_columns))
    values = values.astype(np.float64, copy=False)
    relative_weight = weight / weight.sum()
    mean = relative_weight @ values
    low, high = column_range(values) if value_range is None else value_range
    is_constant = low == high
    mean = np.where(is_constant, values[0], mean)
    # In units of a power of two near the largest deviation, no square over- or underflows. These
    # divisions are exact.
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.exp2(np.frexp(np.maximum(high - mean, mean - low))[1] - 1.0)
        deviation = values - mean
        deviation /= unit
        scale = unit * np.sqrt(relative_weight @ np.square(deviation, out=deviation))
    if not np.isfinite(scale).all():
        raise ValueError(
            f"{describe(int(np.isfinite(scale).argmin()))} spans more than numbers can: it holds "
            "values too far apart for a standard deviation. Rescale it, or take its logarithm."
        )
    is_subnormal = ~is_constant & (scale < _MIN_STD)
    if is_subnormal.any():
        raise ValueError(
            f"{describe(int(is_subnormal.argmax()))} spreads by less than {_MIN_STD:.2g}, whose "
            "reciprocal is not a number. Rescale it."
        )
    return Scaling(mean, np.where(is_constant | (scale == 0.0), 1.0, scale))


def target_scaling(rows: Rows, *, enabled: bool) -> Scaling:
    """Return the weighted mean and standard deviation of every target.

    Constant targets have no standard deviation. Their scale is their absolute value, or 1 if they
    are 0, so that predictions have the unit of the targets.

    Parameters
    ----------
    rows : Rows
        Distinct training rows.
    enabled : bool
        If False, the means are 0 and the scales 1.

    Returns
    -------
    Scaling
    """

    def describe(j: int) -> str:
        return "y" if rows.y.shape[1] == 1 else f"column {j} of y"

    scaling = column_scaling(
        rows.y, rows.weight, enabled=enabled, value_range=rows.y_range, describe=describe
    )
    low, high = rows.y_range
    magnitude = np.abs(np.asarray(low, dtype=np.float64))
    is_constant = (low == high) & (magnitude >= _MIN_STD)
    if not enabled or not is_constant.any():
        return scaling
    return Scaling(scaling.mean, np.where(is_constant, magnitude, scaling.scale))


def unwrap_single(values: Array) -> Any:
    """Return the number of a single target as a float, and those of several as they are, (T,)."""
    if len(values) == 1:
        return float(values[0])
    return values
