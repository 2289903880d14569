"""Dates and times in columns of tables, as text or as objects, without torch and pandas.

A date is represented by days since 1970-01-01, with the time of the day as a fraction. Text is read
if it is ISO 8601 (``2020-03-01``, ``2020-03-01T14:30+01:00``, ``2020-03``), has the name of a month
in English (``1 Mar 2020``, ``March 1, 2020``) or consists of day, month and year (``31.12.2020``,
``12/31/2020``). The order of day and month is decided by a number above 12 anywhere in the column.
"""

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from skbayes_sym.numerics.arguments import short_repr

Array = npt.NDArray[Any]

_EPOCH = datetime.datetime(1970, 1, 1)
_MICROSECONDS_PER_DAY = 86_400_000_000
_MINUTES_PER_DAY = 1440.0

# Number of distinct texts of a column that are read to find out whether it holds dates.
_N_TRIAL = 100
# Years without a day (2020-03) lie in this range: 0012-05 is rather a part number.
_MONTHLY_YEARS = (1700, 2199)
# Years of two digits from this one on belong to the 20th century, as in POSIX.
_FIRST_YEAR_OF_1900S = 69

_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_MONTH_NUMBERS = {name: i for i, name in enumerate(_MONTHS, start=1)}
_MONTH_NUMBERS |= {name[:3]: i for i, name in enumerate(_MONTHS, start=1)} | {"sept": 9}

_WEEKDAY = r"(?:(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\.?,?\s+)?"
_TIME = (
    r"(?:(?:\s*T\s*|,?\s+)(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})"
    r"(?:[.,](?P<fraction>\d{1,9}))?)?(?:\s*(?P<half>[ap])\.?m\.?)?"
    r"(?:\s*(?P<zone>Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?))?)?"
)
_DATES = (
    r"(?P<year>\d{4})(?P<separator>[-/.])(?P<month>\d{1,2})(?P=separator)(?P<day>\d{1,2})",
    r"(?P<year>\d{4})-(?P<month>\d{2})",
    r"(?P<first>\d{1,2})(?P<separator>[-/.])(?P<second_number>\d{1,2})(?P=separator)"
    r"(?P<year>\d{4})",
    r"(?P<first>\d{1,2})(?P<separator>[-/])(?P<second_number>\d{1,2})(?P=separator)(?P<year>\d{2})",
    r"(?P<first>\d{2})(?P<separator>\.)(?P<second_number>\d{2})\.(?P<year>\d{2})",
    r"(?P<day>\d{1,2})(?:st|nd|rd|th|\.)?[\s/-]*(?P<name>[a-z]{3,9})\.?,?[\s/-]*"
    r"(?P<year>\d{4}|\d{2})",
    r"(?P<name>[a-z]{3,9})\.?[\s-]+(?P<day>\d{1,2})(?:st|nd|rd|th)?,?[\s-]+(?P<year>\d{4})",
    r"(?P<name>[a-z]{3,9})\.?[\s-]+(?P<year>\d{4})",
)
_PATTERNS = [re.compile(rf"\s*{_WEEKDAY}{date}{_TIME}\s*", re.IGNORECASE) for date in _DATES]


class DateEncoding(NamedTuple):
    """Encoding of the dates of a column.

    Parameters
    ----------
    reference : float
        First date in the training data, in days since 1970-01-01.
    day_first : bool
        Whether the day precedes the month in text such as 1/2/2020.
    utc_offset : float
        Minutes that the clock of the column is ahead of UTC, if dates have zones.
    parts : tuple of str
        Parts of the calendar: "month", "weekday", "hour".
    """

    reference: float
    day_first: bool
    utc_offset: float
    parts: tuple[str, ...]


class ParsedDate(NamedTuple):
    """A date as it is written.

    Parameters
    ----------
    year, month, day : int
        Date. Where the order isn't known from the text alone, ``month`` is the first number and
        ``day`` the second one.
    seconds : float
        Time of the day.
    zone : float or None
        Minutes that the clock is ahead of UTC; None if no zone is written.
    separator : str
        Separator of a date whose order isn't known from the text alone, otherwise "".
    """

    year: int
    month: int
    day: int
    seconds: float
    zone: float | None
    separator: str

    def days(self, day_first: bool) -> float:
        """Return days since 1970-01-01; nan if there is no such date."""
        month = self.month
        day = self.day
        if self.separator and day_first:
            month, day = day, month
        try:
            date = datetime.date(self.year, month, day)
        except ValueError:
            return np.nan
        microseconds = round(1e6 * self.seconds)
        whole_days = (date - _EPOCH.date()).days
        return (whole_days * _MICROSECONDS_PER_DAY + microseconds) / _MICROSECONDS_PER_DAY


def parse_text(text: str) -> ParsedDate | None:
    """Return the date that a text represents, or None."""
    if not any(character.isdigit() for character in text):
        return None
    for pattern in _PATTERNS:
        match = pattern.fullmatch(text)
        if match is not None:
            return _read_match(match.groupdict())
    return None


def _read_match(parts: dict[str, Any]) -> ParsedDate | None:
    """Return the date with these parts, or None if a part is out of range.

    Parameters
    ----------
    parts : dict of str to str or None
        Groups of the pattern that matched. ``first`` and ``second_number`` are the day and month of
        dates such as 3/4/2024, in either order. ``half`` is "a" or "p" of am and pm.

    Returns
    -------
    ParsedDate or None
        The day is the first if there is none.
    """
    # The date. Whether day or month comes first is decided later for the whole column, so that
    # both are up to 31 here.
    year = int(parts["year"])
    if len(parts["year"]) == 2:
        year += 1900 if year >= _FIRST_YEAR_OF_1900S else 2000
    separator = ""
    if parts.get("first"):
        separator = parts["separator"]
        month = int(parts["first"])
        day = int(parts["second_number"])
    else:
        name = parts.get("name")
        if name is None:
            month = int(parts["month"])
        else:
            month = _MONTH_NUMBERS.get(name.lower(), 0)
        day = int(parts.get("day") or 1)
        is_monthly = not parts.get("day") and name is None
        if is_monthly and not _MONTHLY_YEARS[0] <= year <= _MONTHLY_YEARS[1]:
            return None
    if not (1 <= month <= 31 and 1 <= day <= 31):
        return None

    # The time of day; 24:00 is the end of the day, and second 60 a leap second.
    hour = int(parts["hour"] or 0)
    minute = int(parts["minute"] or 0)
    second = float(f"{parts['second'] or 0}.{parts['fraction'] or 0}")
    if parts["half"]:
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + 12 * (parts["half"].lower() == "p")
    if hour > 24 or minute > 59 or second >= 61.0 or (hour == 24 and minute + second > 0):
        return None
    zone = _read_zone(parts["zone"])
    return ParsedDate(year, month, day, 3600.0 * hour + 60.0 * minute + second, zone, separator)


def _read_zone(text: str | None) -> float | None:
    """Return the minutes that a zone is ahead of UTC, or None without a zone."""
    if text is None:
        return None
    if text[0] not in "+-":
        return 0.0
    digits = text[1:].replace(":", "").ljust(4, "0")
    minutes = 60.0 * int(digits[:2]) + int(digits[2:])
    return -minutes if text[0] == "-" else minutes


class DayOrder(NamedTuple):
    """Order of day and month in a column.

    Parameters
    ----------
    day_first : bool
        Whether the day precedes the month.
    undecided : str
        A text whose order isn't decided by the column, otherwise "".
    """

    day_first: bool
    undecided: str = ""


def choose_day_order(texts: Iterable[str]) -> DayOrder:
    """Decide whether day or month comes first in texts such as 31/12/2020.

    A number above 12 is a day. Without one, a number that is the same in all dates is the day, as
    in monthly data. Otherwise dates with dots begin with the day, and others with the month.
    """
    dates = [(text, parse_text(text)) for text in texts]
    local = [(text, date) for text, date in dates if date is not None and date.separator]
    if not local:
        return DayOrder(False)
    n_day_first = sum(date.month > 12 for _, date in local)
    n_month_first = sum(date.day > 12 for _, date in local)
    if n_day_first or n_month_first:
        return DayOrder(n_day_first > n_month_first)
    example, date = local[0]
    if date.separator == ".":
        return DayOrder(True)
    if all(date.month == date.day for _, date in local):
        return DayOrder(False)
    has_constant_first = len({date.month for _, date in local}) == 1
    has_constant_second = len({date.day for _, date in local}) == 1
    return DayOrder(has_constant_first and not has_constant_second, example)


def is_date_object(value: Any) -> bool:
    """Whether a value is a date, a time stamp or a period, missing ones included."""
    is_date = isinstance(value, datetime.date | np.datetime64)
    return is_date or type(value).__name__ in {"Period", "NaTType"}


def is_missing_date(value: Any) -> bool:
    """Whether a date object is missing, as ``NaT`` is."""
    return is_date_object(value) and value != value


def _object_days(value: Any) -> tuple[float, float | None]:
    """Return days since 1970-01-01 of a date object, and the minutes that it is ahead of UTC."""
    if type(value).__name__ == "Period":
        value = value.start_time
    if isinstance(value, np.datetime64):
        return float(_array_days(np.array([value]))[0]), None
    if not isinstance(value, datetime.datetime):
        return float((value - _EPOCH.date()).days), None
    offset = value.utcoffset()
    difference = value.replace(tzinfo=None) - _EPOCH
    microseconds = (difference.days * 86_400 + difference.seconds) * 1_000_000
    days = (microseconds + difference.microseconds) / _MICROSECONDS_PER_DAY
    return days, None if offset is None else offset.total_seconds() / 60.0


def _array_days(values: Array) -> Array:
    """Return days since 1970-01-01 of a datetime64 array; nan for NaT."""
    microseconds = values.astype("datetime64[us]").astype(np.int64)
    return np.where(np.isnat(values), np.nan, microseconds / _MICROSECONDS_PER_DAY)


def holds_dates(values: Array, is_missing: Callable[[Any], bool]) -> bool:
    """Whether a column holds dates: objects without exception, or text of which most are dates.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        Values of the column.
    is_missing : callable
        Whether a value is missing.
    """
    if values.dtype.kind == "M":
        return True
    if values.dtype.kind not in "OUT":
        return False
    n_objects = 0
    texts: dict[str, None] = {}
    for value in values.tolist():
        if isinstance(value, str):
            if value.strip() and not is_missing(value):
                texts[value] = None
        elif is_date_object(value):
            n_objects += 1
        elif not is_missing(value):
            return False
    distinct = list(texts)
    if not distinct:
        return n_objects > 0
    # A sorted column can begin with unusual values.
    step = max(1, len(distinct) // _N_TRIAL)
    trial = distinct[::step]
    n_dates = sum(parse_text(text) is not None for text in trial)
    return 2 * n_dates > len(trial)


def read_days(
    name: str,
    values: Array,
    day_first: bool,
    utc_offset: float,
    missing: Sequence[bool] | Array,
) -> Array:
    """Return a column of dates as days since 1970-01-01 on one clock, nan if missing.

    Parameters
    ----------
    name : str
        Name of the column.
    values : ndarray of shape (n_rows,)
        Dates as text or objects.
    day_first : bool
        Whether the day precedes the month in text such as 1/2/2020.
    utc_offset : float
        Minutes that the clock is ahead of UTC. Dates without a zone are on this clock.
    missing : array-like of bool of shape (n_rows,)
        Whether a value is missing.

    Returns
    -------
    ndarray of shape (n_rows,)

    Raises
    ------
    ValueError
        Naming column, row and value, if a value isn't a date.
    """
    days, zones = _read_column(name, values, day_first, missing)
    shift = (utc_offset - zones) / _MINUTES_PER_DAY
    days = np.where(np.isnan(zones), days, days + shift)
    # The same moment on another clock is the same number, without the rounding of the shift.
    return np.asarray(np.rint(days * _MICROSECONDS_PER_DAY) / _MICROSECONDS_PER_DAY)


def most_frequent_offset(name: str, values: Array, day_first: bool, missing: Array) -> float:
    """Return the most frequent offset from UTC of a column in minutes; 0 without zones.

    Parameters
    ----------
    name : str
        Name of the column.
    values : ndarray of shape (n_rows,)
        Dates as text or objects.
    day_first : bool
        Whether the day precedes the month in text such as 1/2/2020.
    missing : ndarray of bool of shape (n_rows,)
        Whether a value is missing.
    """
    zones = _read_column(name, values, day_first, missing)[1]
    zones = zones[~np.isnan(zones)]
    if not len(zones):
        return 0.0
    distinct, counts = np.unique(zones, return_counts=True)
    return float(distinct[counts.argmax()])


def _read_column(
    name: str, values: Array, day_first: bool, missing: Sequence[bool] | Array
) -> tuple[Array, Array]:
    """Return days since 1970-01-01 and offsets from UTC in minutes; nan without a zone.

    Parameters
    ----------
    name : str
        Name of the column.
    values : ndarray of shape (n_rows,)
        Dates as text or objects.
    day_first : bool
        Whether the day precedes the month in text such as 1/2/2020.
    missing : array-like of bool of shape (n_rows,)
        Whether a value is missing.
    """
    zones = np.full(len(values), np.nan)
    if values.dtype.kind == "M":
        return _array_days(values), zones
    days = np.full(len(values), np.nan)
    known: dict[str, tuple[float, float | None]] = {}
    for row, value in enumerate(values.tolist()):
        if missing[row]:
            continue
        if is_date_object(value):
            result = _object_days(value)
        elif isinstance(value, str):
            if value not in known:
                date = parse_text(value)
                known[value] = (np.nan, None) if date is None else (date.days(day_first), date.zone)
            result = known[value]
        else:
            result = (np.nan, None)
        days[row] = result[0]
        if np.isnan(days[row]):
            raise ValueError(_describe_invalid(name, row, value, day_first))
        if result[1] is not None:
            zones[row] = result[1]
    return days, zones


def _describe_invalid(name: str, row: int, value: Any, day_first: bool) -> str:
    """Describe a value that isn't a date, and what to do about it.

    Parameters
    ----------
    name : str
        Name of the column.
    row : int
        Position of the row.
    value : object
        The value.
    day_first : bool
        Whether the day precedes the month in text such as 1/2/2020.
    """
    if isinstance(value, str):
        date = parse_text(value)
    else:
        date = None
    order = ""
    if date is not None and date.separator:
        order = f" with the {'day' if day_first else 'month'} first, as in other rows"
    remedy = "Correct it, or leave it empty if it is missing."
    if not isinstance(value, str):
        remedy = "Give dates, or their text."
    return (
        f"column {name!r} of X holds dates, but {short_repr(value)} in row {row} isn't a date"
        f"{order}. {remedy} A column that holds words needs a categorical dtype, as by "
        "astype('category')."
    )


class Calendar(NamedTuple):
    """A part of the calendar that repeats.

    Parameters
    ----------
    period : float
        Length of a cycle in days.
    phase : callable
        Position in the cycle of days since 1970-01-01, from 0 to ``n_values``.
    n_values : int
        Number of values in a cycle.
    """

    period: float
    phase: Callable[[Array], Array]
    n_values: int


def _month(days: Array) -> Array:
    """Return the month, from 0 for January, with the part of it that has passed."""
    dates = np.floor(days).astype(np.int64).astype("datetime64[D]")
    months = dates.astype("datetime64[M]")
    length = ((months + 1).astype("datetime64[D]") - months.astype("datetime64[D]")).astype(float)
    passed = (dates - months.astype("datetime64[D]")).astype(float)
    return np.asarray(months.astype(np.int64) % 12 + passed / length)


def _weekday(days: Array) -> Array:
    """Return the day of the week, from 0 for Monday."""
    return np.asarray((np.floor(days) + 3.0) % 7.0)


def _hour(days: Array) -> Array:
    """Return the time of the day in hours."""
    # Microseconds are exact, but their fractions of a day aren't.
    return np.asarray(np.round((days - np.floor(days)) * _MICROSECONDS_PER_DAY) / 3.6e9)


CALENDAR = {
    "month": Calendar(365.2425, _month, 12),
    "weekday": Calendar(7.0, _weekday, 7),
    "hour": Calendar(1.0, _hour, 24),
}


def encode_calendar(days: Array, parts: Sequence[str]) -> list[Array]:
    """Encode parts of the calendar of days since 1970-01-01, which are nan if missing.

    Returns one array (n_rows,) for each encoded column. The weekday is one-hot encoded: sine and
    cosine cost 0.05 nats per row on simulated daily sales. Month and hour vary smoothly: one-hot
    encoding of the month costs 0.05 nats per row on daily weather.
    """
    is_missing = np.isnan(days)
    filled = np.where(is_missing, 0.0, days)
    encoded = []
    for part in parts:
        calendar = CALENDAR[part]
        phase = calendar.phase(filled)
        if part == "weekday":
            for k in range(calendar.n_values):
                encoded.append(np.where(is_missing, 1.0 / calendar.n_values, phase == k))
            continue
        angle = 2.0 * np.pi * phase / calendar.n_values
        encoded += [np.where(is_missing, 0.0, np.sin(angle))]
        encoded += [np.where(is_missing, 0.0, np.cos(angle))]
    return encoded


def day_of_month(days: Array) -> Array:
    """Return the day of the month, from 0."""
    dates = np.floor(days).astype(np.int64).astype("datetime64[D]")
    return (dates - dates.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64)


def format_days(days: float) -> str:
    """Return days since 1970-01-01 as an ISO date, with the time of the day unless it is 0."""
    microseconds = round(days * _MICROSECONDS_PER_DAY)
    date, time = str(np.datetime64(microseconds, "us")).split("T")
    if time.startswith("00:00:00.000000"):
        return date
    return f"{date} {time.split('.')[0]}"


def to_datetimes(days: Array) -> Array:
    """Return days since 1970-01-01 as datetime64; NaT if they are nan."""
    is_missing = np.isnan(days)
    microseconds = np.round(np.where(is_missing, 0.0, days) * _MICROSECONDS_PER_DAY)
    dates = microseconds.astype(np.int64).astype("datetime64[us]")
    dates[is_missing] = np.datetime64("NaT")
    return dates
