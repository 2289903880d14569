"""Canonical form of training rows, and the scaling of their columns."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.base.groups import number_by_appearance
from skbayes_sym.base.scikit_learn import StrOptions

Array = npt.NDArray[Any]

# Values of ``standardize`` for regressors: inputs and targets, neither, or one of them.
STANDARDIZE: list[Any] = ["boolean", StrOptions({"X", "y"})]

# Number of values that a vectorised reduction of `column_range` compares at once.
_FOLD_WIDTH = 512
# Equal rows are separate observations if every value of every column is met this often on average.
_COMMON_VALUE = 10
# A row that was observed more often becomes this many rows, each with an equal part of its weight.
# It is the smallest number of rows in a leaf of scikit-learn's boosting.
_MAX_PARTS = 20
# Smallest standard deviation whose reciprocal is finite.
_MIN_STD = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows in lexicographic order.

    Rows are distinct, unless `split_observations` found that equal ones are separate observations.

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


def split_observations(rows: Rows, inverse_index: Array) -> tuple[Rows, Array]:
    """Separate equal rows again if they are observations of their own, and not copies.

    Members of stacks are judged by rows that they haven't seen. In a table of 24 combinations of
    sex, age and fare, the other observations of a combination tell what it is worth, and leaving
    out all of them with the same target would leave those that contradict it. In a table with a
    continuous column equal rows are copies, such as those of a bootstrap sample, and a copy mustn't
    predict the others.

    Equal rows are taken for observations if every column of the inputs has each of its values in
    ten rows or more on average, or if most distinct rows share their inputs with rows of other
    targets. In the second case integer weights are numbers of observations, too.

    Parameters
    ----------
    rows : Rows
        Distinct rows with their total weights, without groups.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the distinct rows of every row; -1 if it has none.

    Returns
    -------
    rows : Rows
        Rows of the same total weights. At most 20 of them are equal.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among them of every row; -1 if it has none.
    """
    n_observations = _count_observations(rows, inverse_index[inverse_index >= 0])
    n_parts = np.minimum(n_observations, _MAX_PARTS)
    if n_parts.max() == 1:
        return rows, inverse_index
    position = np.repeat(np.arange(len(n_parts)), n_parts)
    row_parameter = rows.row_parameter
    if row_parameter is not None:
        row_parameter = row_parameter[position]
    weight = (rows.weight / n_parts)[position]
    split = Rows(rows.X[position], rows.y[position], weight, None, row_parameter)

    # The first of several equal rows become the first part, and so on.
    order = np.argsort(inverse_index, kind="stable")
    sorted_index = inverse_index[order]
    rank = np.empty_like(inverse_index)
    rank[order] = np.arange(len(order)) - np.searchsorted(sorted_index, sorted_index)
    n_copies = np.bincount(inverse_index[inverse_index >= 0])
    first_part = np.cumsum(n_parts) - n_parts
    part = first_part[inverse_index] + rank * n_parts[inverse_index] // n_copies[inverse_index]
    return split, np.where(inverse_index < 0, -1, part)


def _count_observations(rows: Rows, inverse_index: Array) -> Array:
    """Return how often each distinct row was observed, int (n,); ones if equal rows are copies.

    Numbers of observations above 20 may be given as 20.

    Parameters
    ----------
    rows : Rows
        Distinct rows.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the distinct rows of every row.
    """
    n_distinct = len(rows.X)
    n_copies = np.bincount(inverse_index, minlength=n_distinct)
    # Distinct rows are sorted by their inputs first.
    same_inputs = (rows.X[1:] == rows.X[:-1]).all(axis=1)
    shares_inputs = np.append(same_inputs, False) | np.append(False, same_inputs)
    if 2 * shares_inputs.sum() > n_distinct:
        if (rows.weight == np.rint(rows.weight)).all():
            return np.minimum(rows.weight, _MAX_PARTS).astype(int)
        return n_copies
    ones = np.ones(n_distinct, dtype=int)
    if n_distinct in (1, len(inverse_index)):
        return ones
    max_values = len(inverse_index) / _COMMON_VALUE
    if any(len(np.unique(column)) > max_values for column in rows.X.T):
        return ones
    return n_copies


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
            f"{describe(int(np.isfinite(scale).argmin()))} has values so far apart that its "
            "standard deviation overflows. Rescale it, or take its logarithm."
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
