"""Frames that hold a list of entries: roles of their columns, and times of the entries.

A frame is a list of entries if ``columns`` names its columns, or if exactly one column has a
well-known name of rows, one of columns and one of values. Any other frame is a matrix. It is
refused if it looks like a list.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import is_frame, short_repr
from skbayes_sym.numerics.tables import require_table

ROLES = ("row", "column", "value", "weight", "time")

# Well-known names. Only the ending may vary, such as "user", "userId" or "User-ID", because
# attributes such as "item_price" begin with the same words.
_STEMS = {
    "row": "row|user|customer|reviewer|member|client|person|people",
    "column": "column|item|movie|film|product|book|song|track|artist|article|business|game|recipe|"
    "anime|asin|isbn|sku",
    "value": "value|rating|score|star|overall",
    "time": "time|date|datetime",
}
_END = r"s?[ _.:-]*(id|no|nr|key|code|idx|index|stamp)?s?"
# Names of an index that `to_csv` saved as a column.
_INDEX = re.compile(r"Unnamed: ?\d+|index|level_\d+", re.IGNORECASE)
_SAVED_INDEX = re.compile(r"Unnamed: ?\d+")
# Names of ids, which don't include "paid".
_ID = re.compile(r"id|Id|ID|.*[ _.:-](id|Id|ID)|.*[a-z](Id|ID)")

_DATE_FORMATS = (
    "%m/%d/%Y", "%d/%m/%Y", "%m/%d/%y", "%d/%m/%y", "%Y/%m/%d", "%m-%d-%Y", "%d-%m-%Y",
    "%d.%m.%Y", "%d.%m.%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y",
    "%d-%b-%y", "%m %d, %Y", "%d %m, %Y", "%Y-%m", "%a, %d %b %Y",
)  # fmt: skip
_CLOCK_FORMATS = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p")
# Largest number of columns of a frame that may be a list of entries with unknown names.
_MAX_LIST_COLUMNS = 8


class ListColumns(NamedTuple):
    """Names of the columns of a frame that hold a list of entries.

    Attributes
    ----------
    row, column : object
        Names of the columns of row labels and of column labels.
    value, weight : object or None
        Names of the columns of values and of weights, if there are any.
    """

    row: Any
    column: Any
    value: Any = None
    weight: Any = None

    @property
    def names(self) -> list[Any]:
        """Names of the columns that exist, in this order."""
        return [name for name in self if name is not None]


def frame_names(X: Any) -> list[Any]:
    """Names of the columns of a frame of pandas, polars or pyarrow."""
    if hasattr(X, "column_names"):
        return list(X.column_names)
    return list(X.columns)


def find_list_columns(X: Any, columns: Any = "auto", *, valued: bool = True) -> list[Any] | None:
    """Find the columns of a frame that hold rows, columns, values and possibly weights.

    Parameters
    ----------
    X : object
        Entries, in any form that ``fit`` takes.
    columns : "auto", tuple or dict, default="auto"
        Parameter ``columns`` of the estimator.
    valued : bool, default=True
        Whether the list must have values. Otherwise values and weights are left out.

    Returns
    -------
    list or None
        Names of the columns; None if ``X`` is a matrix or a tuple.

    Raises
    ------
    ValueError
        If named columns are missing, if two columns could have one role, or if the frame looks like
        a list of entries whose columns aren't known.
    """
    if getattr(getattr(X, "index", None), "nlevels", 1) == 2 and not is_frame(X):
        raise ValueError(
            "X is a Series of entries with their labels as index. Give X.reset_index()."
        )
    require_table(X)
    if not is_frame(X):
        return None
    names = frame_names(X)
    if not isinstance(columns, str):
        return _resolve_columns(names, columns, valued=valued).names
    candidates = {role: match_role(names, role) for role in ("row", "column", "value")}
    roles = ["row", "column"]
    if valued:
        roles.append("value")
    if all(candidates[role] for role in roles):
        return [_require_unique(candidates[role], role) for role in roles]
    _require_matrix(X, names, candidates)
    return None


def match_role(names: Sequence[Any], role: str) -> list[Any]:
    """Return the columns that have a well-known name of a role."""
    pattern = re.compile(f"({_STEMS[role]}){_END}", re.IGNORECASE)
    return [name for name in names if pattern.fullmatch(str(name))]


def looks_like_id(name: Any) -> bool:
    """Whether a column has a name such as id, store_id or storeId."""
    return bool(_ID.fullmatch(str(name)))


def get_role_column(columns: Any, role: str) -> Any:
    """Return the column that ``columns`` names for a role, or None."""
    if isinstance(columns, Mapping):
        return columns.get(role)
    if isinstance(columns, str) or role == "time":
        return None
    index = ROLES.index(role)
    if index >= len(columns):
        return None
    return columns[index]


def check_columns(columns: Any) -> None:
    """Refuse ``columns`` other than "auto", (rows, columns, values[, weights]) or a dict."""
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


def _resolve_columns(names: list[Any], columns: Any, *, valued: bool) -> ListColumns:
    """Return the named columns; roles that a dict leaves out are matched by well-known names."""
    check_columns(columns)
    roles = ["row", "column"]
    if valued:
        roles += ["value", "weight"]
    resolved = {role: get_role_column(columns, role) for role in ROLES}
    missing = [resolved[role] for role in roles if resolved[role] not in (None, *names)]
    if missing:
        argument = dict(columns) if isinstance(columns, Mapping) else tuple(columns)
        raise ValueError(f"columns={argument!r} lists {missing}, but X has the columns {names}.")
    others = [name for name in names if name not in resolved.values()]
    for role in roles[:3]:
        if resolved[role] is None:
            resolved[role] = _require_unique(match_role(others, role), role, names)
    return ListColumns(**{role: resolved[role] for role in roles})


def _require_unique(candidates: list[Any], role: str, names: Sequence[Any] = ()) -> Any:
    """Return the only candidate of a role; ``names`` are all columns, for the message."""
    if len(candidates) > 1:
        raise ValueError(
            f"{candidates} of X may all be the {role}s of a list of entries: say which, by "
            f"columns={{'{role}': {candidates[0]!r}}} or columns=(rows, columns, values)."
        )
    if not candidates:
        raise ValueError(
            f"columns doesn't name the {role}s of the list of entries, and no column of X has a "
            f"well-known name of them: add {role!r} to columns. X has {list(names)}."
        )
    return candidates[0]


def _require_matrix(X: Any, names: list[Any], candidates: Mapping[str, list[Any]]) -> None:
    """Refuse a frame that looks like a list of entries, or a matrix with a column of ids.

    ``candidates`` are the columns with well-known names, by role.
    """
    ids = [name for name in names if _is_id(name, candidates)]
    saved_indices = [name for name in names if _SAVED_INDEX.fullmatch(str(name))]

    # A wide frame is a matrix. Labels of its rows belong in its index.
    if len(names) > _MAX_LIST_COLUMNS:
        if ids or saved_indices:
            name = (ids or saved_indices)[0]
            raise ValueError(
                f"X has the column {name!r}, which looks like labels of rows. For a matrix call "
                f"X.set_index({name!r}) first. For a list of entries give columns=(rows, columns, "
                "values)."
            )
        return

    kinds = {name: _find_kind(X[name]) for name in names}
    if not _looks_like_list(X, names, kinds, candidates):
        return
    if getattr(getattr(X, "index", None), "name", None) is not None:
        remedy = f"If its index {X.index.name!r} belongs to the entries, give X.reset_index()"
    elif len(names) == 2:
        remedy = (
            "An entry needs a value: add a column of values, or give a matrix of 0 and 1 with "
            "likelihood='bernoulli' if entries only say what was chosen"
        )
    else:
        suggestion = _suggest_columns(X, names, kinds, candidates)
        example = ", ".join(map(repr, suggestion))
        remedy = (
            f"For a list of entries name its rows, columns and values, such as columns=({example})"
        )
    raise ValueError(
        f"X has columns {names}, which look like a list of entries. {remedy}. A matrix of numbers "
        "is taken as X.to_numpy(), or by set_index(...) if a column holds the labels of its rows."
    )


def _looks_like_list(
    X: Any, names: list[Any], kinds: Mapping[Any, str], candidates: Mapping[str, list[Any]]
) -> bool:
    """Whether a narrow frame looks like a list of entries.

    Parameters
    ----------
    X : DataFrame
        Frame of at most eight columns.
    names : list
        Names of its columns.
    kinds : dict
        Kinds of the values of the columns.
    candidates : dict
        Columns with well-known names, by role.

    Returns
    -------
    bool
        True if there are ids, a saved index, text or dates, or if two columns of integers have
        distinct pairs.
    """
    saved_indices = [name for name in names if _SAVED_INDEX.fullmatch(str(name))]
    if saved_indices or any(_is_id(name, candidates) for name in names):
        return True
    if candidates["row"] and candidates["column"]:
        return True
    labels = [name for name in names if kinds[name] in "iuU"]
    if candidates["value"]:
        other_labels = set(labels) - set(candidates["value"])
        if candidates["row"] or candidates["column"] or len(other_labels) >= 2:
            return True
    if len(names) > 1 and any(kind in "UM" for kind in kinds.values()):
        return True
    is_candidate = len(labels) >= 2 and len(names) <= 5 and len(set(names)) == len(names)
    return is_candidate and len(X) > 1 and _are_pairs(X[labels[0]], X[labels[1]])


def _is_id(name: Any, candidates: Mapping[str, list[Any]]) -> bool:
    """Whether a column has the name of an id: userId, item_id, customerid."""
    is_known = name in candidates["row"] or name in candidates["column"]
    return looks_like_id(name) or (is_known and str(name).lower().endswith("id"))


def _find_kind(column: Any) -> str:
    """Kind of the values of a column: NumPy's, "U" for text and "M" for dates and durations."""
    values = np.asarray(column)
    if values.dtype.kind == "m":
        return "M"
    if values.dtype.kind not in "OST":
        return values.dtype.kind
    head = [value for value in values.ravel()[:1000].tolist() if not isinstance(value, float)]
    if any(isinstance(value, str | bytes | tuple) for value in head):
        return "U"
    if any(isinstance(value, date | timedelta) for value in head):
        return "M"
    return "f"


def _are_pairs(first: Any, second: Any) -> bool:
    """Whether two columns look like ids of entries: each repeats, but their pairs don't."""
    codes = [np.unique(np.asarray(part), return_inverse=True)[1] for part in (first, second)]
    sizes = [int(code.max()) + 1 for code in codes]
    n_pairs = len(np.unique(codes[0].astype(np.int64) * sizes[1] + codes[1]))
    return n_pairs == len(codes[0]) and max(sizes) < len(codes[0]) and min(sizes) > 10


def warn_like_entries(X: Array) -> None:
    """Warn about a matrix of three or four columns that looks like (row, column, value) entries.

    Parameters
    ----------
    X : ndarray of shape (n_rows, n_columns)
        Matrix of numbers, of which the fourth column can be a time.
    """
    if X.shape[1] not in (3, 4) or not len(X) or np.isnan(X).any():
        return
    labels = X[:, :2]
    if (labels == np.floor(labels)).all() and _are_pairs(labels[:, 0], labels[:, 1]):
        warn_user(
            f"X is read as a matrix of {len(X)} rows and {X.shape[1]} columns, but looks like a "
            "list of entries. If its first columns label rows and columns, give fit the tuple "
            "(rows, columns, values), or a frame with these columns.",
            UserWarning,
        )


def _suggest_columns(
    X: Any, names: list[Any], kinds: Mapping[Any, str], candidates: Mapping[str, list[Any]]
) -> tuple[Any, Any, Any]:
    """Suggest columns of rows, columns and values, for an error message.

    Parameters
    ----------
    X : DataFrame
        Frame that looks like a list of entries.
    names : list
        Names of its columns.
    kinds : dict
        Kinds of the values of the columns.
    candidates : dict
        Columns with well-known names, by role.

    Returns
    -------
    tuple
        Names of three columns.
    """
    suggested = {role: candidates[role][0] for role in candidates if candidates[role]}
    time_columns = match_role(names, "time")
    remaining = [
        name
        for name in names
        if name not in suggested.values()
        and not _INDEX.fullmatch(str(name))
        and name not in time_columns
    ]

    def repeats(name: Any) -> bool:
        return 1 < len(np.unique(np.asarray(X[name]).astype(str))) < len(X)

    # Labels are text or integers that occur several times, preferably ids.
    for role in ("row", "column"):
        labels = [name for name in remaining if kinds[name] in "iuU" and repeats(name)]
        labels = [name for name in labels if looks_like_id(name)] or labels or remaining
        if role not in suggested and labels:
            suggested[role] = labels[0]
            remaining.remove(labels[0])

    # Values are numbers, preferably floats.
    numbers = [name for name in remaining if kinds[name] in "iuf"] or remaining
    if "value" not in suggested and numbers:
        suggested["value"] = next((name for name in numbers if kinds[name] == "f"), numbers[0])
    row, column, value = (suggested.get(role, f"{role}s") for role in ("row", "column", "value"))
    return row, column, value


def select_context_columns(X: Any, context: Any, columns: Any) -> Any:
    """Select the columns of a frame that hold the context of its entries.

    Parameters
    ----------
    X : DataFrame
        List of entries.
    context : str or list of str
        Names of the columns.
    columns : "auto", tuple or dict
        Parameter ``columns`` of the estimator.

    Returns
    -------
    DataFrame
        Frame with these columns.

    Raises
    ------
    ValueError
        If ``X`` isn't a frame that has them besides rows, columns and values.
    """
    if isinstance(context, str):
        names = [context]
    else:
        names = list(context)
    list_columns = find_list_columns(X, columns)
    others = []
    if list_columns is not None:
        others = [name for name in frame_names(X) if name not in list_columns]
    missing = [name for name in names if name not in others]
    if missing:
        description = "X is no frame with more than"
        if others:
            description = f"X has {others} besides"
        raise ValueError(f"{context=} lists {missing}, but {description} rows, columns and values.")
    is_pyarrow = hasattr(X, "column_names")
    if is_pyarrow:
        return X.select(names)
    return X[names]


def read_entry_times(X: Any, columns: Any = "auto") -> Array:
    """Read the times of the entries of a frame, as numbers or dates that can be ordered.

    Parameters
    ----------
    X : object
        Entries, in any form that ``fit`` takes.
    columns : "auto", tuple or dict, default="auto"
        A dict may name the column of times. By default it has a well-known name.

    Returns
    -------
    ndarray of shape (N,)
        Times.

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
        list_columns = []
        if not isinstance(columns, str):
            list_columns = [get_role_column(columns, role) for role in ROLES]
        candidates = [other for other in match_role(names, "time") if other not in list_columns]
        if not candidates:
            raise ValueError(
                "X has no column of times that is called time, timestamp or date: name it by "
                f"columns={{'time': ...}}. X has {names}."
            )
        name = _require_unique(candidates, "time")
    elif name not in names:
        raise ValueError(f"columns lists {name!r} as time, but X has the columns {names}.")
    return parse_times(X[name], name)


def parse_times(raw: Any, name: Any = "time") -> Array:
    """Convert dates, numbers or their text to values in the order of time.

    Text is read as numbers, in ISO format, or in the only common format that fits all of it.

    Parameters
    ----------
    raw : array-like of shape (N,)
        Times.
    name : str, default="time"
        Name of the column in error messages.

    Returns
    -------
    ndarray of shape (N,)
        Numbers or dates.

    Raises
    ------
    ValueError
        If times are missing or of no such form, or if formats disagree on their order.
    """
    times = np.asarray(raw)
    if times.dtype.kind in "OUST":
        times = _parse_objects(times.tolist(), name)
    if times.dtype.kind not in "iufmM":
        raise ValueError(
            f"{name} must hold times, got {times.dtype} such as {short_repr(times[:1])}."
        )
    if times.dtype.kind in "mM":
        _refuse_missing(np.isnat(times), name)
    else:
        _refuse_missing(np.isnan(times.astype(float)), name)
    return times


def _refuse_missing(is_missing: Array, name: Any) -> None:
    """Refuse missing times."""
    if is_missing.any():
        raise ValueError(
            f"{name} is missing in {np.count_nonzero(is_missing)} entries, the first at position "
            f"{np.argmax(is_missing)}: they can't be ordered by time. Leave them out."
        )


def _parse_objects(values: list[Any], name: Any) -> Array:
    """Convert Python objects to times: dates, numbers or text."""
    is_missing = [
        value is None
        or value != value
        or type(value).__name__ in ("NAType", "NaTType")
        or str(value).strip() == ""
        for value in values
    ]
    _refuse_missing(np.array(is_missing, dtype=bool), name)
    if all(isinstance(value, datetime) for value in values):
        return np.array([_to_seconds(value) for value in values])
    texts = [str(value).strip() for value in values]
    distinct = sorted(set(texts))
    parsed = _parse_numbers(distinct)
    if parsed is None:
        parsed = _parse_iso_dates(distinct)
    if parsed is None:
        parsed = _parse_formatted_dates(distinct, name)
    return np.array([parsed[text] for text in texts])


def _parse_numbers(texts: Sequence[str]) -> dict[str, float] | None:
    """Convert text to numbers; None if any text is no number."""
    try:
        return {text: float(text) for text in texts}
    except ValueError:
        return None


def _parse_iso_dates(texts: Sequence[str]) -> dict[str, float] | None:
    """Convert ISO dates to seconds; None if any text is no date, or some lack a time zone."""
    # Shorter text such as "2024" and "12:30" is no date.
    if any(len(text) < 8 for text in texts):
        return None
    try:
        dates = {text: datetime.fromisoformat(text) for text in texts}
    except ValueError:
        return None
    if len({moment.tzinfo is None for moment in dates.values()}) > 1:
        return None
    return {text: _to_seconds(moment) for text, moment in dates.items()}


def _parse_formatted_dates(texts: Sequence[str], name: Any) -> dict[str, float]:
    """Convert dates in a common format to seconds, if all formats that fit agree on the order."""
    fits = dict[str, dict[str, float]]()
    for date_format in (day + clock for day in _DATE_FORMATS for clock in _CLOCK_FORMATS):
        try:
            fits[date_format] = {
                text: _to_seconds(datetime.strptime(text, date_format)) for text in texts
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


def _to_seconds(moment: datetime) -> float:
    """Seconds since 1970; a date without a time zone is taken as UTC."""
    if moment.tzinfo is not None:
        return moment.timestamp()
    return (moment - datetime(1970, 1, 1)).total_seconds()
