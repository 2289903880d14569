"""Encoding of table columns as numbers: categorical, Boolean, dates and numbers, some missing.

The encoding of a column is decided once, by the training data, and is then applied whatever dtype a
value arrives with. For example, a level that was text in training may be read back from a csv file
as an int, as a float beside missing values, or as a bool.

Categorical columns with up to 30 levels are one-hot encoded. With more, the 30 most frequent levels
are, and the rank of the level is an additional column. A missing number is replaced by the median,
with an indicator column if values are missing often enough to be informative.

If at least five rows have a level that no other row has, such as a name, the indicator "other" is 1
in rows whose level isn't one-hot encoded. New levels have it, too. The proportion of training rows
with a level of their own estimates the probability of a new level (Good 1953), so that such rows
represent those to come. The rank of a new level is its place among the known ones. In columns
without the indicator, a level that wasn't in the training data represents any of the known levels:
predictions are averaged over them, see `OpenRows`. Numbers as text have no indicator.

A date becomes the days since the first date, and the parts of the calendar that repeat in the
training data. The weekday is one-hot encoded. Month and hour are points on a circle (sine and
cosine).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import indexable
from torch import Tensor

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import safe_indexing
from skbayes_sym.base.stacking_weights import PooledDraws, mixture
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture
from skbayes_sym.numerics.arguments import select_optional, short_repr
from skbayes_sym.numerics.dates import (
    CALENDAR,
    DateEncoding,
    choose_day_order,
    day_of_month,
    encode_calendar,
    format_days,
    most_frequent_offset,
    read_days,
)
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.tables import (
    MISSING,
    READ_DURATION_TEXT,
    READ_FORMATTED_NUMBERS,
    UNKNOWN,
    Levels,
    Table,
    check_no_dates,
    column_kind,
    days_since_reference,
    is_clock_time,
    is_duration_text,
    is_formatted_number,
    level_key,
    level_number,
    missing_dates,
    missing_rows,
    plain_spelling,
    read_table,
    to_float,
)

# Number of levels of a column that are one-hot encoded.
_MAX_ONE_HOT = 30
# Number of rows with a level that no other row has from which a column gets the indicator "other".
_MIN_SINGLE = 5
# Proportion of missing rows from which a column gets an indicator.
_MIN_MISSING = 0.02
# Number of known levels, or combinations of levels, over which an unknown level is averaged.
_MAX_ALTERNATIVES = 32
# Number of columns that a warning names.
_N_NAMED = 5
# Cycles of a part of the calendar that the training dates must span. One cycle can't tell a yearly
# pattern from a trend.
_MIN_CYCLES = 2.0

# Relative difference up to which a value equals a constant, and the proportion of other values from
# which a column varies. Pixels and indicators of rare levels differ in fewer rows.
_MAX_ROUNDING = 1e-6
_MIN_VARYING = 0.05
# A training date is far from the others if it is beyond the central 80 % of them by more than ten
# times their range and ten years. Fewer dates have no range.
_FAR_FACTOR = 10.0
_FAR_DAYS = 3652.5
_MIN_DATES = 5

# Noun, test and remedy for text that represents times.
_TIMES_AS_TEXT = (
    (
        "times of day",
        is_clock_time,
        "Give numbers, such as the hour, as by pandas.to_datetime(column, format='mixed').dt.hour.",
    ),
    ("durations", is_duration_text, READ_DURATION_TEXT),
)

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class Column(NamedTuple):
    """Encoding of one column.

    Parameters
    ----------
    name : str
        Name, or position if columns have no names.
    kind : {"numeric", "boolean", "categorical", "date"}
        Kind of the values.
    one_hot_levels : tuple of str
        Levels with a one-hot column, by decreasing frequency. Empty unless categorical.
    ordered_levels : tuple of str
        All levels in order, if there are more than the one-hot encoded ones.
    median : float
        Median of the numbers, or of the days since the first date, which replaces a missing one.
    has_indicator : bool
        Whether missing values have an indicator column.
    has_missing : bool
        Whether values were missing in the training data.
    date : DateEncoding, optional
        Encoding of dates; None for other kinds.
    has_other : bool
        Whether a column tells which rows have a level that isn't one-hot encoded, or a new one.
    """

    name: str
    kind: str
    one_hot_levels: tuple[str, ...]
    ordered_levels: tuple[str, ...]
    median: float
    has_indicator: bool
    has_missing: bool
    date: DateEncoding | None = None
    has_other: bool = False

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the training data; their positions are the codes."""
        return self.ordered_levels or self.one_hot_levels

    @property
    def output_names(self) -> list[str]:
        """Names of the encoded columns."""
        name = self.name
        if self.date is not None:
            names = [f"{name}_days", *_part_names(name, self.date.parts)]
        elif self.kind != "categorical":
            names = [name]
        elif len(self.levels) == 2 and not self.has_other:
            names = [f"{name}_{self.one_hot_levels[1]}"]
        else:
            names = [f"{name}_{level}" for level in self.one_hot_levels]
            if self.ordered_levels:
                names.append(f"{name}_rank")
            if self.has_other:
                names.append(f"{name}_other")
            if not names and not self.has_indicator:
                names = [name]
        if self.has_indicator:
            return [*names, f"{name}_missing"]
        return names

    @property
    def example(self) -> Any:
        """A value of the column."""
        if self.date is not None:
            return format_days(self.date.reference + self.median)
        if self.one_hot_levels:
            return self.one_hot_levels[0]
        return self.median


def _part_names(name: str, parts: Sequence[str]) -> Iterator[str]:
    """Yield the names of the encoded parts of the calendar."""
    for part in parts:
        suffixes = _WEEKDAYS if part == "weekday" else ("sin", "cos")
        yield from (f"{name}_{part}_{suffix}" for suffix in suffixes)


def as_table(X: Any) -> Table | None:
    """Return the columns of a table that needs an encoding, None for one of complete numbers."""
    table = read_table(X)
    if table is None:
        return None
    has_missing = any([bool(missing_rows(column).any()) for column in table.columns])
    if table.is_numeric and not has_missing:
        return None
    kinds = [
        column_kind(values, name, is_declared)
        for name, values, is_declared in zip(*table, strict=True)
    ]
    if has_missing or {"categorical", "date"} & set(kinds):
        return table
    return None


def boolean_columns(X: Any) -> Array:
    """Return the positions of Boolean columns of a table; of an array there are none."""
    table = read_table(X)
    if table is None:
        return np.flatnonzero([])
    kinds = [column_kind(*column) for column in zip(table.columns, table.names, strict=True)]
    return np.flatnonzero([kind == "boolean" for kind in kinds])


class Encoding(NamedTuple):
    """Encoded rows, and alternatives for those with an unknown level.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_outputs)
        Encoded rows. The encoding of an unknown level is the mean of the known ones.
    is_open : ndarray of bool of shape (n_rows,)
        Whether a row has an unknown level.
    alternatives : list of ndarray of shape (n_open, n_outputs)
        Encodings of the rows with unknown levels by known levels, all equally probable.
    """

    values: Array
    is_open: Array
    alternatives: list[Array]


@dataclass(frozen=True, eq=False)
class Columns:
    """Encoding of all columns of a table.

    Parameters
    ----------
    columns : tuple of Column
        Encoding of every column.
    kept : ndarray of int
        Positions of the encoded columns that vary in the training data, or all if none does.
    varies : bool, default=True
        Whether any encoded column varies in the training data.
    """

    columns: tuple[Column, ...]
    kept: Array
    varies: bool = True

    @classmethod
    def from_table(cls, table: Table) -> "Columns":
        """Decide the encoding of every column by the training rows."""
        columns = tuple(_fit_column(*column) for column in zip(*table, strict=True))
        encoded = _encode_table(columns, table)[0]
        varying = np.flatnonzero((encoded != encoded[:1]).any(axis=0))
        if not len(varying):
            # A single row doesn't tell which columns are constant.
            return cls(columns, np.arange(encoded.shape[1]), varies=len(encoded) == 1)
        return cls(columns, varying)

    @classmethod
    def from_numbers(cls, names: Sequence[str], medians: Array, booleans: Array) -> "Columns":
        """Return the encoding of a table of numbers, whose positions of Boolean columns are known.

        A missing number is replaced by the median of its column.

        Parameters
        ----------
        names : sequence of str
            Names of the columns.
        medians : ndarray of shape (n_columns,)
            Their medians.
        booleans : ndarray of int
            Positions of Boolean columns.
        """
        columns = [
            Column(name, "numeric", (), (), float(median), False, False)
            for name, median in zip(names, medians, strict=True)
        ]
        for j in booleans.tolist():
            columns[j] = columns[j]._replace(kind="boolean")
        return cls(tuple(columns), np.arange(len(columns)))

    @property
    def n_outputs(self) -> int:
        """Number of encoded columns."""
        return len(self.kept)

    def __repr__(self) -> str:
        kinds = [column.kind for column in self.columns]
        counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        return f"<encoding of {', '.join(counts)} columns as {self.n_outputs} numbers>"

    def get_feature_names_out(self) -> Array:
        """Return the names of the encoded columns, (n_outputs,)."""
        names = [name for column in self.columns for name in column.output_names]
        return np.array(names, dtype=object)[self.kept]

    def describe_dates(self) -> str:
        """Describe what dates are encoded as, one line for each column of dates."""
        lines = []
        for column in self.columns:
            if column.date is not None:
                since = f"days since {format_days(column.date.reference)}"
                parts = ", ".join([since, *column.date.parts])
                lines.append(f"column {column.name!r}: {parts}")
        return "\n".join(lines)

    def measured_outputs(self) -> dict[int, int]:
        """Return the position of the encoded number or days of each numeric or date column.

        Columns that don't vary in the training data have no position.
        """
        position = {int(j): i for i, j in enumerate(self.kept)}
        outputs = {}
        start = 0
        for index, column in enumerate(self.columns):
            if column.kind in ("numeric", "date") and start in position:
                outputs[index] = position[start]
            start += len(column.output_names)
        return outputs

    def binary_columns(self, encoded: Array) -> Array:
        """Return which columns may hold Booleans after `fit`, (n_columns,).

        These are all but numeric columns with values other than 0 and 1.

        Parameters
        ----------
        encoded : ndarray of shape (n_rows, n_outputs)
            Encoded training rows.
        """
        is_binary = np.ones(len(self.columns), dtype=bool)
        for index, output in self.measured_outputs().items():
            column = self.columns[index]
            if column.kind == "numeric":
                values = encoded[:, output]
                is_known = (values == 0.0) | (values == 1.0)
                if column.has_missing and 0.0 <= column.median <= 1.0:
                    # A missing value is the median.
                    is_known |= values == column.median
                is_binary[index] = is_known.all()
        return is_binary

    def encode(self, table: Table) -> Array:
        """Encode rows as numbers, (n_rows, n_outputs); an unknown level is the mean of all."""
        return _encode_table(self.columns, table)[0][:, self.kept]

    def encode_with_alternatives(self, table: Table) -> Encoding:
        """Encode rows, with alternatives for unknown levels, of which it warns.

        Parameters
        ----------
        table : Table
            Rows with the same columns as in training.

        Returns
        -------
        Encoding
        """
        values, codes = _encode_table(self.columns, table)
        self._warn_varying(values)
        values = values[:, self.kept]
        is_open = np.zeros(len(values), dtype=bool)
        for column, column_values, column_codes in zip(
            self.columns, table.columns, codes, strict=True
        ):
            if column_codes is None:
                if column.kind == "boolean":
                    numbers = to_float(column.name, column.kind, column_values)
                    warn_not_boolean(column.name, numbers)
                continue
            is_open |= self._is_open(column, column_codes)
            unknown = np.flatnonzero(column_codes == UNKNOWN)
            if len(unknown):
                _warn_unknown_levels(column, column_values[unknown])
        if not is_open.any():
            return Encoding(values, is_open, [])

        rows = Table(table.names, [c[is_open] for c in table.columns], table.declared)
        open_codes = [select_optional(c, is_open) for c in codes]
        alternatives = []
        for levels in self._alternative_levels():
            filled = [
                None if c is None else np.where(self._is_open(column, c), level, c)
                for column, c, level in zip(self.columns, open_codes, levels, strict=True)
            ]
            alternatives.append(_encode_codes(self.columns, rows, filled)[:, self.kept])
        return Encoding(values, is_open, alternatives)

    def _warn_varying(self, encoded: Array) -> None:
        """Warn of encoded rows (n_rows, all outputs) that vary where the training rows didn't."""
        kept = set(self.kept.tolist() if self.varies else [])
        constant = []
        outputs = []
        start = 0
        for column in self.columns:
            if column.kind != "categorical" and start not in kept:
                constant.append(column)
                outputs.append(start)
            start += len(column.output_names)
        if constant:
            descriptions = [_describe_constant(column) for column in constant]
            medians = np.array([column.median for column in constant])
            warn_varying(descriptions, medians, encoded[:, outputs])

    @staticmethod
    def _is_open(column: Column, codes: Array) -> Array:
        """Return the rows whose level is unknown, or missing though none was in training."""
        is_newly_missing = (codes == MISSING) & (not column.has_missing)
        return ((codes == UNKNOWN) & (not column.has_other)) | is_newly_missing

    def _alternative_levels(self) -> Array:
        """Return codes of known levels that replace unknown ones, (n_alternatives, n_columns).

        These are all combinations if there are few. Otherwise the levels of every column are spread
        evenly over the alternatives, in an independent random order for each column. They depend on
        the training rows only, so that the prediction for a row doesn't depend on the other rows.
        """
        counts = [max(1, len(column.levels)) for column in self.columns]
        n_combinations = 1
        for count in counts:
            n_combinations = min(n_combinations * count, _MAX_ALTERNATIVES + 1)
        n = min(n_combinations, _MAX_ALTERNATIVES)
        codes = np.zeros((n, len(counts)), dtype=int)
        period = 1
        for j, count in enumerate(counts):
            if n == n_combinations:
                codes[:, j] = np.arange(n) // period % count
                period *= count
            else:
                rng = np.random.default_rng(j)
                spaced = (rng.permutation(n) + 0.5) * count / n
                codes[:, j] = rng.permutation(count)[spaced.astype(int)]
        return codes


def warn_not_boolean(name: str, numbers: Array) -> None:
    """Warn if a column that held Booleans in `fit` holds numbers (n_rows,) other than 0 and 1."""
    is_other = ~np.isnan(numbers) & (numbers != 0.0) & (numbers != 1.0)
    if is_other.any():
        row = int(is_other.argmax())
        warn_user(
            f"column {name!r} of X held Booleans in fit, but holds numbers such as "
            f"{float(numbers[row])!r} in row {row}: predictions for them are extrapolations. "
            "Convert the column to the Booleans that fit had.",
            UserWarning,
        )


def _describe_constant(column: Column) -> str:
    """Return the name and the value of a column that was constant in `fit`."""
    if column.date is not None:
        value = format_days(column.date.reference + column.median)
    elif column.kind == "boolean":
        value = str(bool(column.median))
    else:
        value = f"{column.median:g}"
    if column.has_missing and column.median == 0.0:
        value += " or missing"
    return f"{column.name!r} ({value} in fit)"


def warn_varying(columns: Sequence[str], constants: Array, numbers: Array) -> None:
    """Warn if columns that were constant in `fit` have other values in several rows.

    Parameters
    ----------
    columns : sequence of str
        Descriptions of J columns.
    constants : ndarray of shape (J,)
        Values in `fit`.
    numbers : ndarray of shape (n_rows, J)
        Values now, nan where missing.
    """
    # A float32 is the same number.
    size = np.maximum(np.abs(constants), np.abs(numbers))
    with np.errstate(invalid="ignore", over="ignore"):
        differs = np.abs(numbers - constants) > _MAX_ROUNDING * size
    is_varying = differs.any(axis=0) & (differs.mean(axis=0) >= _MIN_VARYING)
    positions = np.flatnonzero(is_varying).tolist()
    if not positions:
        return
    listed = [columns[j] for j in positions[:_N_NAMED]]
    if len(positions) > _N_NAMED:
        listed.append("...")
    warn_user(
        f"X varies in columns that were constant in fit, so that their effect is unknown: "
        f"{', '.join(listed)}. Fit to rows in which they vary, or check the values.",
        UserWarning,
    )


def warn_booleans(names: Sequence[str]) -> None:
    """Warn of columns that held numbers other than 0 and 1 in `fit`, and hold Booleans now."""
    if names:
        listed = ", ".join(map(repr, names[:_N_NAMED]))
        if len(names) > _N_NAMED:
            listed += ", ..."
        warn_user(
            "X holds Booleans in columns that held numbers other than 0 and 1 in fit, and they are "
            f"read as 0 and 1: {listed}. Give the numbers that fit had.",
            UserWarning,
        )


def _warn_unknown_levels(column: Column, values: Array) -> None:
    """Warn of values (n_unknown,) that are no level, and name levels that are spelled alike.

    A column with the indicator "other" is expected to bring new levels. It is warned about only if
    they are spelled like a known level.
    """
    if len(values) == 1:
        n_unknown = "1 row"
    else:
        n_unknown = f"{len(values)} rows"
    example = values[0]
    hint = ""
    spelling = {plain_spelling(level): level for level in column.levels}
    for value in values:
        known = spelling.get(plain_spelling(level_key(value)))
        if known is not None:
            example = value
            remedy = _normalise_text(known, level_key(value), "column")
            hint = (
                f" It differs from the level {known!r} only by case or spaces: convert the column "
                f"before fit and predictions, as by {remedy}, if they mean the same."
            )
            break
    if column.has_other and not hint:
        return
    meaning = "averaged over the known levels"
    if column.has_other:
        meaning = "those for levels of a single row"
    warn_user(
        f"column {column.name!r} of X holds levels that fit hasn't seen, such as "
        f"{short_repr(example)} ({n_unknown}): predictions for them are {meaning}.{hint}",
        UserWarning,
    )


def _fit_column(name: str, values: Array, is_declared: bool) -> Column:
    """Decide the encoding of one column.

    ``is_declared`` tells whether the column has a categorical dtype.
    """
    kind = column_kind(values, name, is_declared)
    if kind == "date":
        return _fit_dates(name, values)
    is_missing = missing_rows(values)
    if kind == "categorical" and values.dtype.kind in "OTUS":
        # Blank text counts as missing.
        is_blank = [isinstance(v, str) and not v.strip() for v in values.tolist()]
        is_missing = is_missing | np.array(is_blank, dtype=bool)
    has_missing = bool(is_missing.any())
    has_indicator = has_missing and _MIN_MISSING <= float(is_missing.mean()) < 1.0
    present = values[~is_missing]
    if kind != "categorical":
        if len(present):
            median = float(column_medians(present.astype(np.float64)))
        else:
            median = 0.0
        return Column(name, kind, (), (), median, has_indicator, has_missing)

    check_no_dates(values, name)
    keys = [level_key(value) for value in present]
    levels, counts = np.unique(np.array(keys, dtype=object), return_counts=True)
    warn_similar_levels(f"column {name!r} of X", levels.tolist(), "levels", "column")
    # The order of numbers means something, also of those with units.
    is_numeric = all(level_number(level) is not None for level in levels)
    is_ordered = is_numeric
    if len(levels) > _MAX_ONE_HOT and not is_declared:
        is_ordered |= _warn_numbers_as_text(name, levels.tolist())

    # Rows whose level no other row has tell what new levels are worth.
    is_single = counts == 1
    has_other = int(is_single.sum()) >= _MIN_SINGLE and not is_ordered
    by_frequency = np.argsort(-counts, kind="stable")
    if has_other:
        by_frequency = by_frequency[counts[by_frequency] > 1]
    one_hot_levels = tuple(levels[by_frequency][:_MAX_ONE_HOT].tolist())
    ordered_levels: tuple[str, ...] = ()
    if len(levels) > _MAX_ONE_HOT:
        ordered_levels = tuple(levels.tolist())
        if is_numeric:
            ordered_levels = tuple(sorted(ordered_levels, key=level_to_float))
    elif has_other and not one_hot_levels:
        warn_user(
            f"column {name!r} of X has a value of its own in every row, such as "
            f"{short_repr(levels[0])}: nothing can be learned from it, and it isn't used.",
            UserWarning,
        )
    return Column(
        name, kind, one_hot_levels, ordered_levels, 0.0, has_indicator, has_missing, None, has_other
    )


def warn_similar_levels(place: str, levels: Iterable[str], noun: str, variable: str) -> None:
    """Warn of levels or labels that are the same apart from case and from spaces around them.

    Parameters
    ----------
    place : str
        Where they are, such as ``"column 'town' of X"``.
    levels : iterable of str
        Distinct levels.
    noun : {"levels", "labels"}
        Word for them.
    variable : str
        Name of the column in the code of the remedy.
    """
    spelling: dict[str, str] = {}
    for level in levels:
        known = spelling.setdefault(plain_spelling(level), level)
        if known != level:
            remedy = _normalise_text(known, level, variable)
            warn_user(
                f"{place} holds the {noun} {known!r} and {level!r}, which differ only by case or "
                f"spaces and are distinct here. If they mean the same, convert them first, as by "
                f"{remedy}.",
                UserWarning,
            )
            return


def _normalise_text(first: str, second: str, variable: str) -> str:
    """Return the code that makes two spellings the same."""
    code = variable
    if first.strip() != first or second.strip() != second:
        code += ".str.strip()"
        first, second = first.strip(), second.strip()
    if first.lower() != second.lower():
        code += ".str.replace(r'\\s+', ' ', regex=True)"
        first, second = " ".join(first.split()), " ".join(second.split())
    if first != second:
        code += ".str.lower()"
    return code


def _warn_numbers_as_text(name: str, levels: Sequence[str]) -> bool:
    """Warn that a column is read as words, although most of its levels are numbers or times.

    Returns whether there was a reason to warn.
    """
    for noun, is_of_kind, remedy in _TIMES_AS_TEXT:
        times = [level for level in levels if is_of_kind(level)]
        if len(times) > len(levels) / 2:
            warn_user(
                f"column {name!r} of X holds {noun} as text such as {times[0]!r} and is read as "
                f"words. {remedy}",
                UserWarning,
            )
            return True
    is_number = [level_number(level) is not None for level in levels]
    formatted = [
        level
        for level, is_plain in zip(levels, is_number, strict=True)
        if not is_plain and is_formatted_number(level)
    ]
    if sum(is_number) + len(formatted) <= len(levels) / 2:
        return False
    remedy = "as by pandas.to_numeric(column, errors='coerce')"
    example = ""
    if formatted:
        example = f" such as {formatted[0]!r}"
        remedy = READ_FORMATTED_NUMBERS
    warn_user(
        f"column {name!r} of X holds numbers as text{example} and is read as words: if it measures "
        f"something, convert it first, {remedy}.",
        UserWarning,
    )
    return True


def _fit_dates(name: str, values: Array) -> Column:
    """Decide the encoding of a column of dates."""
    missing = missing_dates(values)
    present = values[~missing]
    if present.dtype.kind == "M":
        texts = {}
    else:
        texts = dict.fromkeys(map(str, present.tolist()))
    order = choose_day_order(texts)
    if order.undecided:
        first = "day" if order.day_first else "month"
        warn_user(
            f"column {name!r} of X holds dates such as {order.undecided!r}, of which none has a "
            f"day above 12: they are read with the {first} first. Convert them first, as by "
            f"pandas.to_datetime(column, dayfirst={not order.day_first}), if that is wrong.",
            UserWarning,
        )
    offset = most_frequent_offset(name, values, order.day_first, missing)
    days = read_days(name, values, order.day_first, offset, missing)[~missing]
    _warn_far_dates(name, days, np.flatnonzero(~missing))
    reference = float(days.min()) if len(days) else 0.0
    parts = tuple(part for part in CALENDAR if _repeats(part, days))
    date = DateEncoding(reference, order.day_first, offset, parts)
    if len(days):
        median = float(column_medians(days - reference))
    else:
        median = 0.0
    has_missing = bool(missing.any())
    has_indicator = has_missing and _MIN_MISSING <= float(missing.mean()) < 1.0
    return Column(name, "date", (), (), median, has_indicator, has_missing, date)


def _warn_far_dates(name: str, days: Array, rows: Array) -> None:
    """Warn of training dates far from all others, such as mistyped years.

    Parameters
    ----------
    name : str
        Name of the column.
    days : ndarray of shape (n,)
        Days since 1970-01-01.
    rows : ndarray of int of shape (n,)
        Their rows.
    """
    if len(days) < _MIN_DATES:
        return
    low, high = np.quantile(days, [0.1, 0.9])
    limit = max(_FAR_FACTOR * (high - low), _FAR_DAYS)
    is_far = (days > high + limit) | (days < low - limit)
    if not is_far.any():
        return
    near = days[~is_far]
    row = int(is_far.argmax())
    n_rows = "1 row" if is_far.sum() == 1 else f"{int(is_far.sum())} rows"
    warn_user(
        f"column {name!r} of X holds dates far from all others in {n_rows}, such as "
        f"{format_days(days[row])} in row {rows[row]}, where the others are from "
        f"{format_days(near.min())} to {format_days(near.max())}. Correct them, or give missing "
        "values if they mean that a date isn't known.",
        UserWarning,
    )


def _repeats(part: str, days: Array) -> bool:
    """Whether a part of the calendar varies and dates span at least two of its cycles."""
    calendar = CALENDAR[part]
    if not len(days) or np.ptp(days) < _MIN_CYCLES * calendar.period:
        return False
    if part == "weekday" and len(np.unique(day_of_month(days))) == 1:
        # The weekday of the first of a month is arbitrary.
        return False
    return len(np.unique(np.floor(calendar.phase(days)))) > 1


def level_to_float(level: str) -> float:
    """Return the number that the text of a level represents."""
    number = level_number(level)
    assert number is not None
    return number


def column_medians(numbers: Array) -> Array:
    """Return the medians of columns; halves are averaged, since sums of numbers may overflow."""
    return np.asarray(2.0 * np.median(numbers / 2.0, axis=0))


def _encode_table(columns: Sequence[Column], table: Table) -> tuple[Array, list[Array | None]]:
    """Return all encoded columns, and the level codes of categorical ones (else None)."""
    codes: list[Array | None] = []
    for column, values in zip(columns, table.columns, strict=True):
        if column.kind == "categorical":
            codes.append(Levels(column.levels).codes(column.name, values))
        else:
            codes.append(None)
    for column, values, column_codes in zip(columns, table.columns, codes, strict=True):
        if column_codes is not None:
            check_no_dates(values, column.name)
    return _encode_codes(columns, table, codes), codes


def _encode_codes(columns: Sequence[Column], table: Table, codes: Sequence[Array | None]) -> Array:
    """Encode numbers from the table and levels from their codes, (n_rows, n_outputs)."""
    parts = []
    for column, values, column_codes in zip(columns, table.columns, codes, strict=True):
        if column.date is not None:
            parts.append(_encode_dates(column, column.date, values))
        elif column_codes is None:
            parts.append(_encode_numbers(column, values))
        else:
            parts.append(_encode_levels(column, column_codes, values))
    return np.column_stack(parts)


def _encode_numbers(column: Column, values: Array) -> Array:
    """Encode a numeric or Boolean column, with its indicator if it has one, (n_rows, 1 or 2)."""
    numbers = to_float(column.name, column.kind, values)
    # A missing value is replaced by the median of the training rows.
    is_missing = np.isnan(numbers)
    numbers[is_missing] = column.median
    if np.isinf(numbers).any():
        raise ValueError(f"Input X contains infinity, in column {column.name!r}.")
    if not column.has_indicator:
        return numbers[:, None]
    return np.column_stack([numbers, is_missing.astype(np.float64)])


def _encode_dates(column: Column, encoding: DateEncoding, values: Array) -> Array:
    """Encode a column of dates, (n_rows, n_outputs).

    A missing date has the median day and no phase in the calendar.
    """
    days = days_since_reference(column.name, values, encoding)
    is_missing = np.isnan(days)
    encoded = [np.where(is_missing, column.median, days)]
    calendar_parts = encode_calendar(days + encoding.reference, encoding.parts)
    if column.has_indicator:
        return np.column_stack([*encoded, *calendar_parts, is_missing.astype(np.float64)])
    return np.column_stack([*encoded, *calendar_parts])


def _encode_levels(column: Column, codes: Array, values: Array) -> Array:
    """Encode a categorical column from values and codes of its levels, (n_rows, n_outputs)."""
    levels = column.levels
    is_missing = codes == MISSING
    is_unknown = codes == UNKNOWN
    if column.has_indicator:
        indicator = [is_missing.astype(np.float64)]
    else:
        indicator = []
    if len(levels) == 2 and not column.has_other:
        # One column is enough; a value that is neither level is halfway between them.
        is_second = codes == levels.index(column.one_hot_levels[1])
        values = np.where(codes < 0, 0.5, is_second)
        return np.column_stack([values.astype(np.float64), *indicator])

    level_code = {level: code for code, level in enumerate(levels)}
    is_level = [codes == level_code[level] for level in column.one_hot_levels]
    mean = 1.0 / max(len(levels), 1)
    if column.has_other:
        mean = 0.0
    parts = [np.where(is_unknown, mean, rows) for rows in is_level]
    if column.ordered_levels:
        rank = np.maximum(codes, 0).astype(np.float64)
        rank[is_unknown] = 0.5 * (len(levels) - 1)
        if column.has_other:
            for row in np.flatnonzero(is_unknown):
                rank[row] = bisect_left(levels, level_key(values[row])) - 0.5
        parts.append(rank / len(levels))
    if column.has_other:
        is_one_hot = np.any(is_level, axis=0) if is_level else np.zeros(len(codes), dtype=bool)
        parts.append((~is_one_hot & ~is_missing).astype(np.float64))
    if not parts and not indicator:
        # All values were missing in training, so there is no level.
        parts = [np.zeros(len(codes))]
    return np.column_stack([*parts, *indicator])


@dataclass(frozen=True, eq=False)
class OpenRows:
    """Inputs of a prediction of which some rows have unknown levels.

    Parameters
    ----------
    known : array-like
        Encoded rows whose levels are all known.
    known_index : ndarray of int
        Their positions among all rows.
    alternatives : sequence of array-like
        Encoded rows with unknown levels, by each of the alternative known levels.
    open_index : ndarray of int
        Positions of these rows among all rows.
    """

    known: Any
    known_index: Array
    alternatives: Sequence[Any]
    open_index: Array

    @classmethod
    def from_encoding(
        cls, encoding: Encoding, X: Any, join_raw_rows: Callable[[Array, Any], Any]
    ) -> "OpenRows":
        """Split encoded rows by whether they have unknown levels.

        Parameters
        ----------
        encoding : Encoding
            Encoded rows.
        X : array-like of shape (n_rows, n_columns)
            The rows as the user gave them.
        join_raw_rows : callable (encoded, rows) -> inputs
            Makes the model's inputs from encoded rows and the same rows of ``X``.

        Returns
        -------
        OpenRows
        """
        known_index = np.flatnonzero(~encoding.is_open)
        open_index = np.flatnonzero(encoding.is_open)
        rows = indexable(X)[0]
        open_rows = safe_indexing(rows, open_index)
        return cls(
            join_raw_rows(encoding.values[known_index], safe_indexing(rows, known_index)),
            known_index,
            [join_raw_rows(values, open_rows) for values in encoding.alternatives],
            open_index,
        )

    def __len__(self) -> int:
        return len(self.known_index) + len(self.open_index)


class LevelBlock:
    """A block of rows with unknown levels, encoded by each of the alternative known levels."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.blocks = blocks

    def __len__(self) -> int:
        return len(self.blocks[0])

    @property
    def device(self) -> torch.device:
        """Device of predictions."""
        device: torch.device = self.blocks[0].device
        return device


@dataclass(frozen=True, eq=False)
class LevelPredictor(BasePredictor):
    """Equal mixture of a predictor's distributions for all alternative known levels.

    The mixture is as wide as the levels differ. In joint draws every function has one of the
    levels.

    Parameters
    ----------
    base : Predictor
        Predictor for rows of known levels.
    """

    base: Any

    def distribution(self, x: Any) -> Any:
        """Return the mixture over levels."""
        return mixture([self.base.distribution(block) for block in x.blocks], [1.0] * len(x.blocks))

    def mean(self, x: Any) -> Tensor:
        """Return the average of the expected targets over levels."""
        return torch.stack([self.base.mean(block) for block in x.blocks]).mean(0)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Return distributions of the targets given each of ``n`` sampled functions."""
        distributions = self._sample_by_level(self.base.sample_conditionals, x, n, generator)
        level = self._sample_levels(x, n, generator)
        draw = torch.arange(n)
        if isinstance(distributions[0], CategoricalMixture):
            log_probs = torch.stack([d.log_probs for d in distributions])
            return CategoricalMixture(log_probs[level, draw])
        if not all(isinstance(d, NormalMixture) for d in distributions):
            return PooledDraws(distributions, level * n + draw)
        loc = torch.stack([d.loc for d in distributions])
        variance = torch.stack([d.variance.expand_as(d.loc) for d in distributions])
        noise_variance = torch.stack([d.noise_variance.expand_as(d.loc) for d in distributions])
        return NormalMixture(loc[level, draw], variance[level, draw], noise_variance[level, draw])

    def sample_functions(self, x: Any, n: int, *, generator: torch.Generator) -> Tensor:
        """Return expected targets given each of ``n`` sampled functions, (n, N, T)."""
        values = self._sample_by_level(self.base.sample_functions, x, n, generator)
        return torch.stack(values)[self._sample_levels(x, n, generator), torch.arange(n)]

    @staticmethod
    def _sample_by_level(
        sample: Callable[..., Any], x: Any, n: int, generator: torch.Generator
    ) -> list[Any]:
        """Evaluate the same ``n`` sampled functions at every alternative.

        Parameters
        ----------
        sample : callable (x, n, *, generator)
            Method of the predictor that samples functions.
        x : LevelBlock
            Rows by each of the alternatives.
        n : int
            Number of functions.
        generator : torch.Generator
            Its state is reset before every alternative.

        Returns
        -------
        list
            What ``sample`` returns, for every alternative.
        """
        state = generator.get_state()
        samples = []
        for block in x.blocks:
            generator.set_state(state)
            samples.append(sample(block, n, generator=generator))
        return samples

    @staticmethod
    def _sample_levels(x: Any, n: int, generator: torch.Generator) -> Tensor:
        """Sample the level of every function, from a stream that doesn't depend on other rows."""
        stream = generator_from(generator.initial_seed())
        return torch.randint(len(x.blocks), (n,), generator=stream)
