"""Frames that hold a list of entries: which column is what.

A frame is a list of entries if ``columns`` names its columns, or if exactly one column has a
well-known name of rows, one of columns and one of values. Any other frame is a matrix, whose
columns are the columns of the matrix, unless it looks like a list: then it is refused.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import is_frame, short_repr

ROLES = ("row", "column", "value", "weight", "time")

# Well-known names. Only the ending may vary, such as "user", "userId" or "User-ID": attributes such
# as "item_price" begin with the same words.
_STEMS = {
    "row": "row|user|customer|reviewer|member|client|person|people",
    "column": "column|item|movie|film|product|book|song|track|artist|article|business|game|recipe|"
    "anime|asin|isbn|sku",
    "value": "value|rating|score|star|overall",
    "time": "time|date|datetime",
}
_END = r"s?[ _.:-]*(id|no|nr|key|code|idx|index|stamp)?s?"
_INDEX = re.compile(r"Unnamed: ?\d+|index|level_\d+", re.IGNORECASE)  # saved by `to_csv`
_ID = re.compile(r"id|Id|ID|.*[ _.:-](id|Id|ID)|.*[a-z](Id|ID)")  # "paid" is none

_DATE_FORMATS = (
    "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d", "%m-%d-%Y", "%d-%m-%Y",
    "%d.%m.%Y", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y",
    "%d-%b-%y", "%m %d, %Y", "%d %m, %Y", "%Y-%m", "%a, %d %b %Y",
)  # fmt: skip
_CLOCKS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
_MOST_NARROW = 8  # columns of a frame that may be a list of entries with unknown names


class ListColumns(NamedTuple):
    """Names of the columns of a frame that hold a list of entries."""

    row: Any
    column: Any
    value: Any = None
    weight: Any = None

    @property
    def names(self) -> list[Any]:
        """Names of the columns that are there, in this order."""
        return [name for name in self if name is not None]


def frame_names(X: Any) -> list[Any]:
    """Names of the columns of a frame of pandas, polars or pyarrow."""
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def find_list_columns(X: Any, columns: Any = "auto", *, valued: bool = True) -> list[Any] | None:
    """Find the columns of a frame that hold rows, columns, values and maybe weights.

    Parameters
    ----------
    X : object
        Anything `fit` takes.
    columns : "auto", tuple or dict
        As the estimator takes it.
    valued : bool, default=True
        Whether the list must have values; weights are left out otherwise.

    Returns
    -------
    list or None
        None if ``X`` is a matrix or a tuple.

    Raises
    ------
    ValueError
        If columns that were named are missing, if two columns could have one role, or if the frame
        looks like a list of entries whose columns aren't known.
    """
    if not is_frame(X):
        return None
    names = frame_names(X)
    if not isinstance(columns, str):
        return _named_columns(names, columns, valued=valued).names
    found = {role: match_role(names, role) for role in ("row", "column", "value")}
    if found["row"] and found["column"] and (found["value"] or not valued):
        roles = ("row", "column", "value") if valued else ("row", "column")
        return [_only(found[role], role) for role in roles]
    _require_matrix(X, names, found)
    return None


def match_role(names: Sequence[Any], role: str) -> list[Any]:
    """Columns with a well-known name of that role."""
    pattern = re.compile(f"({_STEMS[role]}){_END}", re.IGNORECASE)
    return [name for name in names if pattern.fullmatch(str(name))]


def looks_like_id(name: Any) -> bool:
    """Whether a column has a name such as id, store_id or storeId."""
    return bool(_ID.fullmatch(str(name)))


def get_role_column(columns: Any, role: str) -> Any:
    """The column that ``columns`` names for a role, or None."""
    if isinstance(columns, Mapping):
        return columns.get(role)
    place = ROLES.index(role)
    is_tuple = not isinstance(columns, str)
    return columns[place] if is_tuple and role != "time" and place < len(columns) else None


def check_columns(columns: Any) -> None:
    """Refuse a ``columns`` that isn't "auto", (rows, columns, values[, weights]) or a dict."""
    if isinstance(columns, Mapping):
        unknown = [role for role in columns if role not in ROLES]
        if unknown:
            raise ValueError(f"columns={dict(columns)!r} has {unknown}, but roles are {ROLES}.")
    elif isinstance(columns, str):
        if columns != "auto":
            raise ValueError(
                f"columns must be 'auto', a tuple of names or a dict of names, got {columns!r}."
            )
    elif not isinstance(columns, list | tuple) or len(columns) not in (3, 4):
        raise ValueError(
            "columns must be 'auto', a dict, or the names (rows, columns, values) or (rows, "
            f"columns, values, weights), got {short_repr(columns)}."
        )


def _named_columns(names: list[Any], columns: Any, *, valued: bool) -> ListColumns:
    """Columns by the names that were given; those that a dict leaves out by well-known names."""
    check_columns(columns)
    roles = ("row", "column", "value", "weight") if valued else ("row", "column")
    chosen = {role: get_role_column(columns, role) for role in ROLES}
    missing = [chosen[role] for role in roles if chosen[role] not in (None, *names)]
    if missing:
        written = dict(columns) if isinstance(columns, Mapping) else tuple(columns)
        raise ValueError(f"columns={written!r} names {missing}, X has {names}.")
    others = [name for name in names if name not in chosen.values()]
    for role in roles[:3]:
        if chosen[role] is None:
            chosen[role] = _only(match_role(others, role), role, names)
    return ListColumns(**{role: chosen[role] for role in roles})


def _only(found: list[Any], role: str, names: Sequence[Any] = ()) -> Any:
    """The only column of a role."""
    if len(found) > 1:
        raise ValueError(
            f"{found} of X may all be the {role}s of a list of entries: say which, by "
            f"columns={{'{role}': {found[0]!r}}} or columns=(rows, columns, values)."
        )
    if not found:
        raise ValueError(
            f"columns doesn't name the {role}s of the list of entries, and no column of X has a "
            f"well-known name of them: add {role!r} to columns. X has {list(names)}."
        )
    return found[0]


def _require_matrix(X: Any, names: list[Any], found: Mapping[str, list[Any]]) -> None:
    """Refuse a frame that looks like a list of entries, or a matrix with a column of ids.

    ``found``: columns with well-known names, by role.
    """
    ids = [name for name in names if _is_id(name, found)]
    saved = [name for name in names if re.fullmatch(r"Unnamed: ?\d+", str(name))]
    if len(names) > _MOST_NARROW:
        if ids or saved:
            name = (ids or saved)[0]
            raise ValueError(
                f"X has the column {name!r}, which looks like labels of rows. For a matrix call "
                f"X.set_index({name!r}) first. For a list of entries give columns=(rows, columns, "
                "values)."
            )
        return
    kinds = {name: _kind(X[name]) for name in names}
    labels = [name for name in names if kinds[name] in "iuU" and name not in saved]
    has_pairs = bool(found["row"] and found["column"])
    has_values = bool(found["value"]) and (
        bool(found["row"] or found["column"]) or len(set(labels) - set(found["value"])) >= 2
    )
    has_words = len(names) > 1 and any(kind in "UM" for kind in kinds.values())
    looks_listed = bool(ids or saved or has_pairs or has_values or has_words)
    if not looks_listed and len(labels) >= 2 and len(names) <= 5 and len(set(names)) == len(names):
        looks_listed = len(X) > 1 and _are_pairs(*(X[name] for name in labels[:2]))
    if not looks_listed:
        return
    if len(names) == 2:
        remedy = (
            "An entry needs a value: add a column of values, or give a matrix of 0 and 1 with "
            "likelihood='bernoulli' if entries only say what was chosen"
        )
    else:
        example = ", ".join(map(repr, _suggested(X, names, kinds, found)))
        remedy = (
            f"For a list of entries name its rows, columns and values, such as columns=({example})"
        )
    raise ValueError(
        f"X has columns {names}, which look like a list of entries. {remedy}. A matrix of numbers "
        "is taken as X.to_numpy(), or by set_index(...) if a column holds the labels of its rows."
    )


def _is_id(name: Any, found: Mapping[str, list[Any]]) -> bool:
    """Whether a column has the name of an id: userId, item_id, customerid."""
    is_known = name in found["row"] or name in found["column"]
    return looks_like_id(name) or (is_known and str(name).lower().endswith("id"))


def _kind(column: Any) -> str:
    """Kind of the values of a column: NumPy's, "U" of words and "M" of dates."""
    values = np.asarray(column)
    if values.dtype.kind not in "OST":
        return "M" if values.dtype.kind == "m" else values.dtype.kind
    first = [value for value in values.ravel()[:1000].tolist() if not isinstance(value, float)]
    if any(isinstance(value, str | bytes | tuple) for value in first):
        return "U"
    return "M" if any(isinstance(value, date | timedelta) for value in first) else "f"


def _are_pairs(first: Any, second: Any) -> bool:
    """Whether two columns look like ids of entries: every pair is there once, ids repeat."""
    codes = [np.unique(np.asarray(part), return_inverse=True)[1] for part in (first, second)]
    sizes = [int(code.max()) + 1 for code in codes]
    n_pairs = len(np.unique(codes[0].astype(np.int64) * sizes[1] + codes[1]))
    return n_pairs == len(codes[0]) and max(sizes) < len(codes[0]) and min(sizes) > 10


def _suggested(
    X: Any, names: list[Any], kinds: Mapping[Any, str], found: Mapping[str, list[Any]]
) -> tuple[Any, Any, Any]:
    """The likeliest rows, columns and values, for a message."""
    chosen = {role: found[role][0] for role in found if found[role]}
    left = [
        name for name in names
        if name not in chosen.values() and not _INDEX.fullmatch(str(name))
        and name not in match_role(names, "time")
    ]  # fmt: skip

    def repeats(name: Any) -> bool:
        return 1 < len(np.unique(np.asarray(X[name]).astype(str))) < len(X)

    for role in ("row", "column"):
        likely = [name for name in left if kinds[name] in "iuU" and repeats(name)]
        likely = [name for name in likely if _ID.fullmatch(str(name))] or likely or left
        if role not in chosen and likely:
            chosen[role] = likely[0]
            left.remove(likely[0])
    numbers = [name for name in left if kinds[name] in "iuf"] or left
    if "value" not in chosen and numbers:
        chosen["value"] = next((name for name in numbers if kinds[name] == "f"), numbers[0])
    first, second, third = (chosen.get(role, f"{role}s") for role in ("row", "column", "value"))
    return first, second, third


def select_context_columns(X: Any, context: Any, columns: Any) -> Any:
    """Columns of a frame that are the context of its entries, by name.

    Raises ValueError if X isn't a frame that has them besides rows, columns and values.
    """
    names = [context] if isinstance(context, str) else list(context)
    taken = find_list_columns(X, columns)
    others = [] if taken is None else [name for name in frame_names(X) if name not in taken]
    missing = [name for name in names if name not in others]
    if missing:
        had = f"X has {others} besides" if others else "X is no frame with more than"
        raise ValueError(f"{context=} names {missing}, but {had} rows, columns and values.")
    return X[names] if not hasattr(X, "column_names") else X.select(names)


def read_entry_times(X: Any, columns: Any = "auto") -> Array:
    """Times of the entries of a frame, as numbers that can be ordered, (N,).

    Parameters
    ----------
    X : object
        Anything `fit` takes.
    columns : "auto", tuple or dict
        A dict may name the column of times; by default it has a well-known name.

    Raises
    ------
    ValueError
        If there is no such column, or two, or a time is missing or can't be ordered.
    """
    if not is_frame(X):
        raise ValueError("X has no column of times: give a frame that has one.")
    names = frame_names(X)
    name = get_role_column(columns, "time")
    if name is None:
        taken = (
            [] if isinstance(columns, str) else [get_role_column(columns, role) for role in ROLES]
        )
        found = [one for one in match_role(names, "time") if one not in taken]
        if not found:
            raise ValueError(
                "X has no column of times that is called time, timestamp or date: name it by "
                f"columns={{'time': ...}}. X has {names}."
            )
        name = _only(found, "time")
    elif name not in names:
        raise ValueError(f"columns names {name!r} as time, X has {names}.")
    return parse_times(X[name], name)


def parse_times(raw: Any, name: Any = "time") -> Array:
    """Dates, numbers or words that state one of them, as numbers in their order, (N,).

    Words are read as numbers, in ISO format, or in the only common format that fits all of them.

    Raises ValueError if times are missing or of no such form, or if formats disagree.
    """
    times = np.asarray(raw)
    if times.dtype.kind in "OUST":
        times = _parsed_times(times.tolist(), name)
    if times.dtype.kind not in "iufmM":
        raise ValueError(
            f"{name} must hold times, got {times.dtype} such as {short_repr(times[:1])}."
        )
    is_missing = np.isnat(times) if times.dtype.kind in "mM" else np.isnan(times.astype(float))
    _require_times(is_missing, name)
    return times


def _require_times(is_missing: Array, name: Any) -> None:
    if is_missing.any():
        raise ValueError(
            f"{name} is missing in {np.count_nonzero(is_missing)} entries, the first at position "
            f"{np.argmax(is_missing)}: they can't be ordered by time. Leave them out."
        )


def _parsed_times(values: list[Any], name: Any) -> Array:
    """Times from Python objects: dates, numbers or words."""
    is_missing = [
        value is None or value != value or type(value).__name__ in ("NAType", "NaTType")
        or str(value).strip() == ""
        for value in values
    ]  # fmt: skip
    _require_times(np.array(is_missing, dtype=bool), name)
    if all(isinstance(value, datetime) for value in values):
        return np.array([_seconds(value) for value in values])
    texts = [str(value).strip() for value in values]
    distinct = sorted(set(texts))
    parsed = _numbers(distinct)
    if parsed is None:
        parsed = _iso_dates(distinct)
    if parsed is None:
        parsed = _formatted_dates(distinct, name)
    return np.array([parsed[text] for text in texts])


def _numbers(texts: Sequence[str]) -> dict[str, float] | None:
    try:
        return {text: float(text) for text in texts}
    except ValueError:
        return None


def _iso_dates(texts: Sequence[str]) -> dict[str, float] | None:
    if any(len(text) < 8 for text in texts):  # "2024" and "12:30" are no dates
        return None
    try:
        dates = {text: datetime.fromisoformat(text) for text in texts}
    except ValueError:
        return None
    if len({moment.tzinfo is None for moment in dates.values()}) > 1:
        return None
    return {text: _seconds(moment) for text, moment in dates.items()}


def _formatted_dates(texts: Sequence[str], name: Any) -> dict[str, float]:
    """Dates in a common format, if only one fits or all agree on the order."""
    fits = dict[str, dict[str, float]]()
    for date_format in (day + clock for day in _DATE_FORMATS for clock in _CLOCKS):
        try:
            fits[date_format] = {
                text: _seconds(datetime.strptime(text, date_format)) for text in texts
            }
        except ValueError:
            continue
    if not fits:
        raise ValueError(
            f"{name} holds words such as {short_repr(texts[0])}, which aren't numbers, ISO dates "
            "or dates in one common format. Convert it first, by pandas.to_datetime for example."
        )
    orders = {tuple(sorted(texts, key=parsed.__getitem__)) for parsed in fits.values()}
    if len(orders) > 1:
        raise ValueError(
            f"{name} holds dates such as {short_repr(texts[0])}, which fit {' and '.join(fits)} in "
            f"different orders. Convert it first: pandas.to_datetime(X[{name!r}], "
            f"format={next(iter(fits))!r})."
        )
    return next(iter(fits.values()))


def _seconds(moment: datetime) -> float:
    """Seconds since 1970, of dates without a time zone in their own."""
    if moment.tzinfo is not None:
        return moment.timestamp()
    return (moment - datetime(1970, 1, 1)).total_seconds()
