"""Encoding of tables: categorical, boolean and numeric columns with missing values as numbers.

`fit` decides once what each column is. The encoding is then applied to whatever dtype a value
arrives with: a level that was text in training may be read back from a csv file as an int, a float
beside missing values, or a bool.

A categorical column is one-hot encoded. With more than 30 levels the 30 most frequent ones are, and
the rank of the level is an additional column. A missing number is replaced by the median, with an
indicator column where values are missing often enough to be informative. A level that `fit` hasn't
seen stands for any of the known levels: predictions are averaged over them (`OpenRows`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted, indexable
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.base.rows import Array, require_rows
from skbayes_sym.base.scikit_learn import safe_indexing, validate_data
from skbayes_sym.base.stacking_weights import mixture
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.tables import (
    MISSING,
    UNKNOWN,
    Levels,
    Table,
    check_no_dates,
    column_kind,
    fill_masked,
    level_key,
    level_number,
    missing_rows,
    non_string_column_names,
    read_table,
    to_float,
)

_MAX_ONE_HOT = 30  # levels with a column of their own
_MIN_MISSING = 0.02  # proportion of missing rows from which a column gets an indicator
_MAX_ALTERNATIVES = 32  # known levels, or combinations of them, that stand for an unknown one


class Column(NamedTuple):
    """Encoding of one column.

    Parameters
    ----------
    name : str
        Name, or position where columns have no names.
    kind : {"numeric", "boolean", "categorical"}
    one_hot_levels : tuple of str
        Levels with a one-hot column, by frequency. Empty unless categorical.
    ordered_levels : tuple of str
        All levels in order, where they are more than have a one-hot column.
    median : float
        Median of the numbers, which replaces a missing one.
    has_indicator : bool
        Whether missing values have an indicator column.
    has_missing : bool
        Whether values were missing in training at all.
    """

    name: str
    kind: str
    one_hot_levels: tuple[str, ...]
    ordered_levels: tuple[str, ...]
    median: float
    has_indicator: bool
    has_missing: bool

    @property
    def levels(self) -> tuple[str, ...]:
        """All levels that occurred in training; their positions are the codes."""
        return self.ordered_levels or self.one_hot_levels


def as_table(X: Any) -> Table | None:
    """Columns of a table with levels or missing values; None if it holds numbers only."""
    table = read_table(X)
    if table is None:
        return None
    gaps = [bool(missing_rows(c).any()) for c in table.columns]
    if table.is_numeric and not any(gaps):
        return None
    kinds = [column_kind(*column) for column in zip(table.columns, table.names, table.declared,
                                              strict=True)]  # fmt: skip
    return table if any(gaps) or "categorical" in kinds else None


class Encoding(NamedTuple):
    """Encoded rows; those with an unknown level once for each alternative.

    ``values`` (n_rows, n_outputs): unknown levels are the mean of the known ones. ``is_open``
    (n_rows,): rows with an unknown level. ``alternatives``: their encodings by known levels, each
    (n_open, n_outputs) and equally probable.
    """

    values: Array
    is_open: Array
    alternatives: list[Array]


@dataclass(frozen=True, eq=False)
class Columns:
    """Encoding of all columns of a table.

    ``kept``: positions of the encoded columns that vary in training; all if none does.
    """

    columns: tuple[Column, ...]
    kept: Array

    @classmethod
    def from_table(cls, table: Table) -> "Columns":
        """Decide the encoding of every column from training rows."""
        columns = [_column(*column) for column in zip(*table, strict=True)]
        everything = cls(tuple(columns), np.arange(0))._encode(table)[0]
        varies = np.flatnonzero((everything != everything[:1]).any(axis=0))
        return cls(tuple(columns), varies if len(varies) else np.arange(everything.shape[1]))

    @property
    def n_outputs(self) -> int:
        """Number of encoded columns."""
        return len(self.kept)

    def encode(self, table: Table) -> Array:
        """All columns as numbers, (n_rows, n_outputs); an unknown level is the mean of all."""
        return self._encode(table)[0][:, self.kept]

    def encode_with_alternatives(self, table: Table) -> Encoding:
        """The same with the alternatives for unknown levels.

        Warns of unknown levels by column and value.
        """
        values, codes = self._encode(table)
        values = values[:, self.kept]
        is_open = np.zeros(len(values), dtype=bool)
        for column, given, code in zip(self.columns, table.columns, codes, strict=True):
            if code is None:
                continue
            is_open |= self._is_open(column, code)
            unknown = np.flatnonzero(code == UNKNOWN)
            if len(unknown):
                what = "1 row" if len(unknown) == 1 else f"{len(unknown)} rows"
                warn_user(
                    f"column {column.name!r} of X holds levels that fit hasn't seen, such as "
                    f"{short_repr(given[unknown[0]])} ({what}): predictions for them are averaged "
                    "over the known levels.",
                    UserWarning,
                )
        if not is_open.any():
            return Encoding(values, is_open, [])
        rows = Table(table.names, [c[is_open] for c in table.columns], table.declared)
        open_codes = [None if code is None else code[is_open] for code in codes]
        alternatives = []
        for chosen in self._alternatives():
            filled = [
                None if code is None else np.where(self._is_open(column, code), level, code)
                for column, code, level in zip(self.columns, open_codes, chosen, strict=True)
            ]
            alternatives.append(self._join(rows, filled)[:, self.kept])
        return Encoding(values, is_open, alternatives)

    def _encode(self, table: Table) -> tuple[Array, list[Array | None]]:
        codes = [
            Levels(column.levels).codes(values) if column.kind == "categorical" else None
            for column, values in zip(self.columns, table.columns, strict=True)
        ]
        for column, values, code in zip(self.columns, table.columns, codes, strict=True):
            if code is not None:
                check_no_dates(values, column.name)
        return self._join(table, codes), codes

    def _join(self, table: Table, codes: Sequence[Array | None]) -> Array:
        parts = []
        for column, values, code in zip(self.columns, table.columns, codes, strict=True):
            parts.append(_numbers(column, values) if code is None else _one_hot(column, code))
        return np.column_stack(parts)

    @staticmethod
    def _is_open(column: Column, codes: Array) -> Array:
        """Rows whose level is unknown, or missing where no row of training was."""
        never_missing = (codes == MISSING) & (not column.has_missing)
        return (codes == UNKNOWN) | never_missing

    def _alternatives(self) -> Array:
        """Codes of known levels that stand for unknown ones, (n_alternatives, n_columns).

        All combinations where these are few. Otherwise every column goes through its levels in an
        order of its own. They depend on the training rows only, so that a row's prediction doesn't
        depend on the other rows.
        """
        counts = [max(1, len(column.levels)) for column in self.columns]
        n_combinations = 1
        for count in counts:
            n_combinations = min(n_combinations * count, _MAX_ALTERNATIVES + 1)
        n = min(n_combinations, _MAX_ALTERNATIVES)
        chosen = np.zeros((n, len(counts)), dtype=int)
        period = 1
        for j, count in enumerate(counts):
            if n == n_combinations:
                chosen[:, j] = np.arange(n) // period % count
                period *= count
            else:
                rng = np.random.default_rng(j)
                spaced = (rng.permutation(n) + 0.5) * count / n
                chosen[:, j] = rng.permutation(count)[spaced.astype(int)]
        return chosen


def _column(name: str, values: Array, is_declared: bool) -> Column:
    kind = column_kind(values, name, is_declared)
    missing = missing_rows(values)
    if kind == "categorical" and values.dtype.kind in "OTUS":
        blank = [isinstance(v, str) and not v.strip() for v in values.tolist()]
        missing = missing | np.array(blank, dtype=bool)
    proportion = float(missing.mean())
    has_missing = bool(missing.any())
    has_indicator = _MIN_MISSING <= proportion < 1.0
    if kind != "categorical":
        numbers = values[~missing].astype(np.float64)
        median = float(_median(numbers)) if len(numbers) else 0.0
        return Column(name, kind, (), (), median, has_indicator, has_missing)
    keys = [level_key(v) for v in values[~missing]]
    levels, counts = np.unique(np.array(keys, dtype=object), return_counts=True)
    by_count = tuple(levels[np.argsort(-counts, kind="stable")][:_MAX_ONE_HOT].tolist())
    numbers_of_levels = [level_number(level) for level in levels]
    n_numbers = len(levels) - numbers_of_levels.count(None)
    order: tuple[str, ...] = ()
    if len(levels) > _MAX_ONE_HOT:
        order = tuple(levels.tolist())
        if n_numbers == len(levels):
            order = tuple(sorted(order, key=level_to_float))
    if order and not is_declared and n_numbers > len(order) / 2:
        warn_user(
            f"column {name!r} of X holds numbers as text and is read as words: if it measures "
            "something, convert it first, as by pandas.to_numeric(column, errors='coerce').",
            UserWarning,
        )
    return Column(name, kind, by_count, order, 0.0, has_indicator, has_missing)


def level_to_float(level: str) -> float:
    """Number of a level whose text is one."""
    number = level_number(level)
    assert number is not None
    return number


def _median(numbers: Array) -> Array:
    """Medians of columns, by halves: two of the largest numbers may have no sum."""
    return np.asarray(2.0 * np.median(numbers / 2.0, axis=0))


def _numbers(column: Column, values: Array) -> Array:
    """A numeric or boolean column and its indicator, (n_rows, 1 or 2)."""
    numbers = to_float(column.name, column.kind, values)
    missing = np.isnan(numbers)
    numbers[missing] = column.median
    if np.isinf(numbers).any():
        raise ValueError(f"Input X contains infinity, in column {column.name!r}.")
    indicator = [missing.astype(np.float64)] * column.has_indicator
    return np.column_stack([numbers, *indicator])


def _one_hot(column: Column, codes: Array) -> Array:
    """A categorical column from the codes of its levels; unknown ones are the mean of all."""
    missing = codes == MISSING
    unknown = codes == UNKNOWN
    indicator = [missing.astype(np.float64)] * column.has_indicator
    levels = column.levels
    if len(levels) == 2:  # one column; halfway if neither
        value = np.where(codes < 0, 0.5, codes == levels.index(column.one_hot_levels[1]))
        return np.column_stack([value.astype(np.float64), *indicator])
    position = {level: code for code, level in enumerate(levels)}
    mean = 1.0 / max(len(levels), 1)
    parts = [np.where(unknown, mean, codes == position[word]) for word in column.one_hot_levels]
    if column.ordered_levels:
        rank = np.where(unknown, 0.5 * (len(levels) - 1), np.maximum(codes, 0)) / len(levels)
        parts.append(rank)
    if not parts and not indicator:  # no level at all: all values were missing
        parts = [np.zeros(len(codes))]
    return np.column_stack([*parts, *indicator])


@dataclass(frozen=True, eq=False)
class OpenRows:
    """Rows of a question of which some have unknown levels, as the estimator takes them.

    ``known`` are the other rows, at ``known_index`` of the question; ``alternatives`` the rows at
    ``open_index`` by each of the known levels.
    """

    known: Any
    known_index: Array
    alternatives: Sequence[Any]
    open_index: Array

    def __len__(self) -> int:
        return len(self.known_index) + len(self.open_index)


class LevelBlock:
    """A block of rows with unknown levels, by each of the known levels."""

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
    """Mixture of what a predictor answers for each of the known levels.

    It is as wide as the levels differ. In joint draws every function has one of the levels.
    """

    base: Any

    def distribution(self, x: Any) -> Any:
        return mixture([self.base.distribution(block) for block in x.blocks], [1.0] * len(x.blocks))

    def mean(self, x: Any) -> Tensor:
        return torch.stack([self.base.mean(block) for block in x.blocks]).mean(0)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        distributions = self._by_level(
            x, n, generator, lambda *a, **k: self.base.sample_conditionals(*a, **k)
        )
        level = self._levels(x, n, generator)
        draw = torch.arange(n)
        if isinstance(distributions[0], CategoricalMixture):
            return CategoricalMixture(
                torch.stack([distribution.log_probs for distribution in distributions])[level, draw]
            )
        parts = [
            torch.stack(
                [
                    getattr(distribution, name).expand_as(distribution.loc)
                    for distribution in distributions
                ]
            )[level, draw]
            for name in ("loc", "variance", "noise_variance")
        ]
        return NormalMixture(*parts)

    def sample_functions(self, x: Any, n: int, *, generator: torch.Generator) -> Tensor:
        values = self._by_level(
            x, n, generator, lambda *a, **k: self.base.sample_functions(*a, **k)
        )
        return torch.stack(values)[self._levels(x, n, generator), torch.arange(n)]

    def _by_level(
        self, x: Any, n: int, generator: torch.Generator, draw: Callable[..., Any]
    ) -> list[Any]:
        """The same functions at every level."""
        state = generator.get_state()
        drawn = []
        for block in x.blocks:
            generator.set_state(state)
            drawn.append(draw(block, n, generator=generator))
        return drawn

    def _levels(self, x: Any, n: int, generator: torch.Generator) -> Tensor:
        """Level of every function; from a stream of its own, like that of other rows."""
        stream = generator_from(generator.initial_seed())
        return torch.randint(len(x.blocks), (n,), generator=stream)


class TabularInputMixin:
    """An estimator that takes tables with categorical columns and missing values.

    It stands before the mixin that checks targets. ``columns_in_`` is the encoding of the columns;
    None where all were numbers.
    """

    columns_in_: Columns | None = None
    x_mean_: Array
    dtype_: str
    # Of a table of numbers: the medians of its columns, and which are booleans.
    _medians_in_: Array
    _column_names_in_: list[str] | None = None
    _booleans_in_: Array
    _ensure_all_finite: ClassVar[bool | str] = "allow-nan"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.input_tags.string = False
        return tags

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        X = fill_masked(X)
        require_rows(X)
        table = as_table(X)
        columns = None if table is None else Columns.from_table(table)
        numbers = X if table is None or columns is None else columns.encode(table)
        checked: tuple[Array, Array] = super()._check_targets(numbers, y)  # type: ignore[misc]
        if table is not None:
            validate_data(self, X, skip_check_array=True)  # the columns that were given
            self._column_names_in_ = non_string_column_names(X)
        self.columns_in_ = columns
        if columns is None:
            self._medians_in_ = _median(checked[0])
            whole = read_table(X)
            named = [] if whole is None else zip(whole.columns, whole.names, strict=True)
            self._booleans_in_ = np.flatnonzero([column_kind(*each) == "boolean" for each in named])
        return checked

    def _check_inputs(self, X: Any) -> Any:
        check_is_fitted(self)
        X = fill_masked(X)
        table = None
        if self.columns_in_ is None:
            if not (isinstance(X, np.ndarray) and X.dtype.kind in "fiub"):
                table = read_table(X)
            if table is None or table.is_numeric:
                numbers: Array = super()._check_inputs(X)  # type: ignore[misc]
                missing = np.isnan(numbers)
                if missing.any():
                    numbers = np.where(missing, self._medians_in_, numbers).astype(numbers.dtype)
                return self._join_raw_rows(numbers, X)
        require_rows(X)
        self._check_columns(X)  # type: ignore[attr-defined]
        table = read_table(X) if table is None else table
        if table is None:
            super()._check_inputs(X)  # type: ignore[misc]  # says what is wrong with it
            raise ValueError("X must be a table with two axes.")
        encoding = self._column_encoding().encode_with_alternatives(table)
        if not encoding.is_open.any():
            return self._join_raw_rows(encoding.values, X)
        known = np.flatnonzero(~encoding.is_open)
        unknown = np.flatnonzero(encoding.is_open)
        rows = indexable(X)[0]
        open_rows = safe_indexing(rows, unknown)
        return OpenRows(
            self._join_raw_rows(encoding.values[known], safe_indexing(rows, known)),
            known,
            [self._join_raw_rows(values, open_rows) for values in encoding.alternatives],
            unknown,
        )

    def _column_encoding(self) -> Columns:
        """Encoding of the columns, also of a table of numbers."""
        if self.columns_in_ is not None:
            return self.columns_in_
        names = self._column_names_in_
        if names is None:
            default = [f"{j}" for j in range(len(self._medians_in_))]
            names = list(vars(self).get("feature_names_in_", default))
        columns = [
            Column(name, "numeric", (), (), float(median), False, False)
            for name, median in zip(names, self._medians_in_, strict=True)
        ]
        for j in self._booleans_in_.tolist():
            columns[j] = columns[j]._replace(kind="boolean")
        return Columns(tuple(columns), np.arange(len(columns)))

    def _indexed_blocks(self, X: Any) -> Iterator[tuple[Any, Any]]:
        """Blocks of rows and their positions; those with unknown levels first."""
        if not isinstance(X, OpenRows):
            yield from super()._indexed_blocks(X)  # type: ignore[misc]
            return
        blocks = [self.input_blocks(rows) for rows in X.alternatives]  # type: ignore[attr-defined]
        start = 0
        for alternatives in zip(*blocks, strict=True):
            block = LevelBlock(alternatives)
            yield block, X.open_index[start : start + len(block)]
            start += len(block)
        for block, rows in super()._indexed_blocks(X.known):  # type: ignore[misc]
            yield block, X.known_index[rows]

    def predictor(self, like: Any) -> Any:
        if isinstance(like, LevelBlock):
            return LevelPredictor(super().predictor(like.blocks[0]))  # type: ignore[misc]
        return super().predictor(like)  # type: ignore[misc]

    def _example_row(self) -> Any:
        """Row that the estimator takes, a frame where `fit` saw names."""
        if self.columns_in_ is None:
            row = self.x_mean_[None].astype(self.dtype_)
        else:
            values = [
                c.one_hot_levels[0] if c.one_hot_levels else c.median
                for c in self.columns_in_.columns
            ]
            row = np.array([values], dtype=object)
        try:
            from pandas import DataFrame
        except ImportError:
            return row
        return DataFrame(row, columns=vars(self).get("feature_names_in_"))

    def _join_raw_rows(self, encoded: Array, X: Any) -> Any:
        """Rows of a question: as numbers, where nothing else is needed."""
        return encoded
