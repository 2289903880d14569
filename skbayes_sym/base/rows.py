"""Training data in one canonical form, and the scaling of its columns."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.scikit_learn import StrOptions
from skbayes_sym.numerics.arguments import is_frame
from skbayes_sym.numerics.tables import column_names, is_declared_categorical

Array = npt.NDArray[Any]

# Of a regressor: both, neither, or one of them.
STANDARDIZE: list[Any] = ["boolean", StrOptions({"X", "y"})]

_FOLDED = 512  # numbers side by side of which ends are sought
_LEAST_SPREAD = float(np.finfo(np.float64).tiny)  # whose reciprocal is a number


@dataclass(frozen=True, eq=False)
class Rows:
    """Distinct training rows in lexicographic order, each with the weight it carries."""

    X: Array  # (n, n_features)
    y: Array  # (n, n_targets) numbers, or (n,) class codes
    weight: Array  # (n,), positive

    @cached_property
    def x_range(self) -> Array:
        """`column_range` of the inputs."""
        return column_range(self.X)

    @cached_property
    def y_range(self) -> Array:
        """`column_range` of the targets."""
        return column_range(self.y)


class Scaling(NamedTuple):
    """``scaled = (value - mean) / scale``, column by column."""

    mean: Array
    scale: Array

    def apply(self, values: Array) -> Array:
        """Values in scaled units; infinite where they are too far away for numbers."""
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = values - self.mean
            scaled /= self.scale
            return scaled


def canonical_rows(X: Array, y: Array, weight: Array) -> tuple[Rows, Array]:
    """Merge equal (x, y) rows and sort the rest; weights must be positive.

    A data set and the same data with rows repeated instead of weighted, or in another order, then
    become the same arrays bit for bit, and so does everything computed from them. The second result
    is the place among the distinct rows of every row given.
    """
    # Adding 0.0 turns -0.0 into 0.0: equal numbers must be equal rows.
    columns = (c.astype(np.float64) + 0.0 for c in (*X.T, *np.atleast_2d(y.T)))
    order, repeats = _sorted_by(columns)
    distinct = ~repeats
    origin = np.empty_like(order)
    origin[order] = np.cumsum(distinct) - 1
    first = order[distinct]
    kept = X.take(first, axis=0) + 0.0  # five times as fast as X[first]
    if len(first) == len(order):
        return Rows(kept, y[first], weight[first].astype(np.float64)), origin
    # Equal rows are summed from the smallest weight up: the order given must not matter.
    up = np.argsort(weight)
    merged = np.bincount(origin[up], weights=weight[up], minlength=len(first))
    return Rows(kept, y[first], merged), origin


def _sorted_by(columns: Iterable[Array]) -> tuple[Array, Array]:
    """Lexicographic order of a table given column by column, and where it repeats a row.

    The order of ``np.unique(axis=0)``, equal rows as they were given, at the price of sorting one
    column: later ones are read only where all before them tie, and not at all if none do.
    """
    columns = iter(columns)
    first = next(columns)
    order = np.argsort(first)
    ties = _equals_previous(first[order])  # with the row before, in all columns so far
    for column in columns:
        if not ties.any():
            return order, ties
        tied, group = _tied(ties)
        values = column[order[tied]]
        if (_equals_previous(values) >= ties[tied]).all():
            continue  # constant in every group of ties
        by_value = np.lexsort((values, group))
        order[tied] = order[tied[by_value]]
        ties[tied] &= _equals_previous(values[by_value])
    tied, group = _tied(ties)
    order[tied] = order[tied[np.lexsort((order[tied], group))]]
    return order, ties


def _equals_previous(values: Array) -> Array:
    return np.concatenate([[False], values[1:] == values[:-1]])


def _tied(ties: Array) -> tuple[Array, Array]:
    """Places (n_tied,) of rows that share a group with a neighbour, and the group's number."""
    tied = np.flatnonzero(ties | np.append(ties[1:], False))
    return tied, np.cumsum(~ties[tied])


ENCODE = " Encode categories first, by OneHotEncoder for example."


@contextmanager
def numeric_conversion(what: str, remedy: str = "", X: Any = None) -> Iterator[None]:
    """Say what a word that is no number was found in, and what to do about it.

    ``X``: a table whose column is named.
    """
    try:
        # scikit-learn looks for infinities in a sum, which may be one of finite numbers.
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except RuntimeError as error:
        if "requires grad" not in str(error):
            raise
        raise TypeError(
            f"{what} must hold numbers, got a tensor that requires grad: give its detach()."
        ) from error
    except OverflowError as error:  # an int such as 10**400
        raise ValueError(
            f"{what} must hold numbers in the range of float64{_culprits(X)}: {error}."
        ) from error
    except np.exceptions.DTypePromotionError as error:
        raise ValueError(
            f"{what} must hold numbers, got columns without a common type, such as dates"
            f"{_culprits(X)}. Give numbers: days since a date, or a month."
        ) from error
    except ValueError as error:
        # NumPy's errors of text, of mixed types, and of nested or ragged sequences.
        phrases = ("could not convert", "Cannot cast", "setting an array element")
        if not any(phrase in str(error) for phrase in phrases):
            raise
        raise ValueError(f"{what} must hold numbers: {error}{_culprits(X)}.{remedy}") from error


def _culprits(X: Any) -> str:
    """The columns of a frame that aren't numbers, as a clause; nothing of arrays."""
    kinds = {c: np.asarray(X[c]).dtype.kind for c in X.columns} if is_frame(X) else {}
    wrong = [repr(name) for name, kind in kinds.items() if kind not in "biuf"]
    return f" (in {', '.join(wrong[:5])}{', ...' if len(wrong) > 5 else ''})" if wrong else ""


def refuse_categorical(X: Any) -> None:
    """Refuse columns of a categorical dtype: their levels may be numbers, but measure nothing."""
    if not hasattr(X, "iloc") and not hasattr(X, "get_columns"):
        return
    columns = (
        X.get_columns() if hasattr(X, "get_columns") else (X.iloc[:, j] for j in range(X.shape[1]))
    )
    named = zip(column_names(X), columns, strict=True)
    wrong = [name for name, column in named if is_declared_categorical(column)]
    if wrong:
        some = ", ".join(map(repr, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
        raise ValueError(
            f"X must hold numbers, got columns of a categorical dtype (in {some}).{ENCODE} If "
            "their levels are numbers that measure something, convert them by astype(float)."
        )


def require_rows(X: Any) -> None:
    """Refuse images and the like that weren't flattened, which only their shape tells."""
    shape = tuple(getattr(X, "shape", ()))
    if len(shape) < 3:
        return
    is_last = len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] > 4
    image = shape[1:]
    move = ""
    if is_last:
        image = (shape[3], *shape[1:3])
        move = "np.moveaxis(X, 3, 1)"
    raise ValueError(
        f"X has shape {shape}, but rows of X have one axis. Give {move or 'X'}.reshape(len(X), -1);"
        f" LILAClassifier and LILARegressor take such images with image_shape={image}."
    )


def column_range(values: Array) -> Array:
    """Smallest and largest value of every column, (2, K).

    Of many rows side by side: NumPy's own takes six times as long where columns are few.
    """
    n_rows, n_columns = values.shape
    fold = max(1, _FOLDED // n_columns)
    whole = n_rows // fold * fold

    def end(smallest_or_largest: Callable[..., Array]) -> Array:
        folded = smallest_or_largest(values[:whole].reshape(-1, fold * n_columns), axis=0)
        rows = np.concatenate([folded.reshape(fold, n_columns), values[whole:]])
        return smallest_or_largest(rows, axis=0)

    ends = (np.min, np.max)
    return np.stack([f(values, axis=0) if whole < 2 * fold else end(f) for f in ends])


def is_standardized(standardize: bool | str, name: str) -> bool:
    """Whether ``standardize`` scales "X", or "y"."""
    return standardize == name if isinstance(standardize, str) else bool(standardize)


def column_scaling(
    values: Array, weight: Array, *, enabled: bool, value_range: Array | None = None
) -> Scaling:
    """Weighted mean and standard deviation of every column; constant columns get scale 1.

    ``value_range``: `column_range` of the values, if it is known.
    """
    n_columns = values.shape[1]
    if not enabled:
        return Scaling(np.zeros(n_columns), np.ones(n_columns))
    values = values.astype(np.float64, copy=False)
    share = weight / weight.sum()
    mean = share @ values
    (low, high) = column_range(values) if value_range is None else value_range
    constant = low == high
    mean = np.where(constant, values[0], mean)
    # In units of a power of two near the largest, so that no square over- or underflows; exact.
    with np.errstate(over="ignore", invalid="ignore"):
        unit = np.exp2(np.frexp(np.maximum(high - mean, mean - low))[1] - 1.0)
        away = values - mean
        away /= unit
        scale = unit * np.sqrt(share @ np.square(away, out=away))
    if not np.isfinite(scale).all():
        raise ValueError(
            f"column {int(np.isfinite(scale).argmin())} spans more than numbers can: it holds "
            "values too far apart for a standard deviation. Rescale it, or take its logarithm."
        )
    if (subnormal := ~constant & (scale < _LEAST_SPREAD)).any():
        raise ValueError(
            f"column {int(subnormal.argmax())} spreads by less than {_LEAST_SPREAD:.2g}, in units "
            "of which nothing can be said. Rescale it."
        )
    return Scaling(mean, np.where(constant | (scale == 0.0), 1.0, scale))


def target_scaling(rows: Rows, *, enabled: bool) -> Scaling:
    """Return weighted mean and standard deviation of every target.

    Equal targets have no spread of their own. Their unit is their absolute value, or 1 where they
    are 0, so that predictions from them have the unit of the targets.
    """
    scaling = column_scaling(rows.y, rows.weight, enabled=enabled, value_range=rows.y_range)
    low, high = rows.y_range
    size = np.abs(np.asarray(low, dtype=np.float64))
    is_constant = (low == high) & (size >= _LEAST_SPREAD)
    if not enabled or not is_constant.any():
        return scaling
    return Scaling(scaling.mean, np.where(is_constant, size, scaling.scale))
