"""Labels of rows and columns in one form, whatever dtype they arrive in.

The same id is an integer in one file, a float in a column with missing values, and text in a third
file. Labels are therefore stored as integers, floats, text or dates, and labels in later calls are
converted to the kind that the fit had.
"""

import re
from collections.abc import Hashable
from typing import Any

import numpy as np

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import short_repr

# Text that stands for an integer, also with leading zeros or as the text of a float.
_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})(\.0*)?\s*")
# Not every integer beyond this is a float.
_LARGEST_EXACT = 2.0**53
_KINDS = {"i": "numbers", "u": "numbers", "f": "numbers", "U": "text", "M": "dates", "m": "times"}


def check_labels(raw: Any, name: Hashable) -> Array:
    """Convert labels to integers, floats, text or dates.

    Parameters
    ----------
    raw : array-like of shape (N,)
        Column of a frame, array or list. Integral floats become integers. Labels of several types,
        or of other types such as tuples, are represented by their text.
    name : str
        Name of the labels in error messages.

    Returns
    -------
    ndarray of shape (N,)
        Converted labels.

    Raises
    ------
    ValueError
        If the labels aren't 1D, or a label is missing.
    """
    labels = _as_array(raw, name)
    if labels.ndim != 1:
        raise ValueError(f"{name} of a list of entries must be 1D, got shape {labels.shape}.")
    if np.ma.isMaskedArray(raw):
        is_missing = np.ma.getmaskarray(raw)
    else:
        is_missing = _is_missing(labels)
    if is_missing.any():
        raise ValueError(
            f"{name} is missing in {np.count_nonzero(is_missing)} entries, the first at position "
            f"{np.argmax(is_missing)}: every entry needs a label. Leave these entries out."
        )
    if labels.dtype.kind == "O":
        labels = _convert_objects(labels)
    if labels.dtype.kind == "f" and (np.abs(labels) < _LARGEST_EXACT).all():
        as_integers = labels.astype(np.int64)
        if np.array_equal(as_integers, labels):
            return as_integers
        return labels
    if labels.dtype.kind not in _KINDS:
        return labels.astype(str)  # booleans, bytes, and NumPy's strings of variable width
    return labels


def convert_labels(
    labels: Array, known: Array, name: Hashable, known_name: str = "labels in fit"
) -> Array:
    """Convert labels to the kind of other labels.

    Ids such as 7, "7" and "007" are equal if the others are numbers, or text that includes
    integers.

    Parameters
    ----------
    labels : ndarray of shape (N,)
        Labels as `check_labels` returns them.
    known : ndarray of shape (M,)
        Labels of the kind to convert to.
    name, known_name : str
        Names of ``labels`` and ``known`` in error messages.

    Returns
    -------
    ndarray of shape (N,)
        Converted labels.

    Raises
    ------
    ValueError
        If the labels can't be converted.
    """
    kind = _KINDS[labels.dtype.kind]
    known_kind = _KINDS[known.dtype.kind]
    if kind == known_kind or not labels.size or not known.size:
        return labels
    converted = None
    if (kind, known_kind) == ("text", "numbers"):
        converted = _parse_integers(labels)
    elif (kind, known_kind) == ("numbers", "text"):
        converted = _match_integers(labels, known)
    elif (kind, known_kind) == ("text", "dates"):
        converted = _parse_dates(labels)
    elif (kind, known_kind) == ("dates", "text"):
        converted = _match_dates(labels, known)
    if converted is None:
        raise ValueError(
            f"{name} are {labels.dtype} such as {_example_row(labels)}, but {known_name} were "
            f"{known.dtype} such as {_example_row(known)}."
        )
    return converted


def _parse_integers(labels: Array) -> Array | None:
    """Convert text to integers; None if any label is no integer."""
    integers = [_parse_integer(text) for text in labels.tolist()]
    if None in integers:
        return None
    return np.array(integers, dtype=np.int64)


def _match_integers(labels: Array, known: Array) -> Array | None:
    """Convert numbers to the known text that stands for them; None if no known text does.

    If both "7" and "007" are known, 7 is converted to "7".
    """
    texts = known.tolist()
    distinct = set(texts)
    spellings = {integer: text for text in texts if (integer := _parse_integer(text)) is not None}
    exact = {integer: str(integer) for integer in spellings if str(integer) in distinct}
    spellings.update(exact)
    if not spellings:
        return None
    return np.array([spellings.get(number, str(number)) for number in labels.tolist()])


def _match_dates(labels: Array, known: Array) -> Array | None:
    """Convert dates to the known text that stands for them; None if any known text is no date."""
    dates = _parse_dates(known)
    if dates is None:
        return None
    order = np.argsort(dates)
    index = order[np.searchsorted(dates, labels, sorter=order).clip(max=len(dates) - 1)]
    return np.where(dates[index] == labels, known[index], labels.astype(str))


def _as_array(raw: Any, name: Hashable) -> Array:
    """Convert labels to an array with one element each, even if labels are tuples."""
    if isinstance(raw, list | tuple):
        types = {type(label) for label in raw}
        is_mixed = len(types) > 1 and any(issubclass(kind, str) for kind in types)
        if is_mixed or any(issubclass(kind, tuple) for kind in types):
            return np.fromiter(raw, dtype=object, count=len(raw))
    try:
        return np.asarray(raw)
    except ValueError as error:
        raise ValueError(
            f"{name} of a list of entries must be 1D with one label each, got {short_repr(raw)}."
        ) from error


def _is_missing(labels: Array) -> Array:
    """Mask of None, NaN, NaT and pandas' NA."""
    if labels.dtype.kind != "O":
        return np.asarray(labels != labels)
    return np.array([_is_missing_value(label) for label in labels.tolist()], dtype=bool)


def _is_missing_value(label: Any) -> bool:
    """Whether an object is None, NaN, NaT or pandas' NA."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, float | np.floating | np.datetime64) and bool(label != label)


def _convert_objects(labels: Array) -> Array:
    """Convert Python objects to numbers or text if all are, and otherwise to their text."""
    values = labels.tolist()
    types = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in types):
        return np.array(values, dtype=str)
    is_number = all(
        issubclass(kind, int | float | np.integer | np.floating) and kind is not bool
        for kind in types
    )
    if is_number:
        numbers = np.array(values)
        # It is an array of objects if an integer is too large.
        if numbers.dtype.kind in "iuf":
            return numbers
    return np.array([_to_text(value) for value in values], dtype=str)


def _to_text(label: Any) -> str:
    """Convert a label to text; equal numbers have equal text."""
    label = _to_python(label)
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, tuple):
        label = tuple(_to_python(part) for part in label)
    return str(label)


def _to_python(label: Any) -> Any:
    """Convert a scalar of NumPy to Python's type."""
    if isinstance(label, np.generic):
        return label.item()
    return label


def _parse_integer(text: str) -> int | None:
    """Return the integer that a text stands for, or None."""
    matched = _INTEGER.fullmatch(text)
    return None if matched is None else int(matched[1])


def _parse_dates(texts: Array) -> Array | None:
    """Convert text in ISO format to dates; None if any text is no date."""
    try:
        dates = texts.astype("M8[us]")
    except ValueError:
        return None
    if np.isnat(dates).any():
        return None
    return dates


def _example_row(labels: Array) -> str:
    """Return the first label, for an error message."""
    if labels.dtype.kind in "mM":
        return short_repr(str(labels[0]))
    return short_repr(labels[0].item())


def locate_labels(raw: Any, n_known: int, name: str, known: Array | None) -> tuple[Array, int]:
    """Find the positions of labels among the rows, or the columns, of a fitted matrix.

    Parameters
    ----------
    raw : array-like of shape (N,) or scalar
        Labels, or positions where the matrix has no labels.
    n_known : int
        Number of rows, or of columns, of the matrix.
    name : {"rows", "columns"}
        Name of the argument in error messages.
    known : ndarray of shape (n_known,) or None
        Labels of the matrix; None if its rows are numbered.

    Returns
    -------
    positions : int64 ndarray of shape (N,)
        Unknown labels get the positions that follow the known ones.
    n_unseen : int
        Number of distinct unknown labels.

    Raises
    ------
    ValueError
        If a position lies outside the matrix, or if labels can't be converted to the kind of the
        known ones.
    """
    if np.ndim(raw) == 0:
        raw = [raw]
    if known is None:
        return _check_positions(np.asarray(raw), n_known, name, raw), 0
    labels = convert_labels(check_labels(raw, name), known, name)
    order = np.argsort(known)
    index = np.searchsorted(known, labels, sorter=order).clip(max=len(known) - 1)
    if labels.size:
        positions = order[index]
    else:
        positions = np.zeros(0, dtype=np.int64)
    is_unseen = known[positions] != labels
    unseen, inverse = np.unique(labels[is_unseen], return_inverse=True)
    positions[is_unseen] = n_known + inverse
    return positions.astype(np.int64), len(unseen)


def _check_positions(positions: Array, n_known: int, name: str, raw: Any) -> Array:
    """Check positions of a matrix without labels, which can't name new rows or columns.

    Parameters
    ----------
    positions : ndarray
        Positions of rows or columns.
    n_known : int
        Number of known rows or columns.
    name : str
        Name of the argument, for error messages.
    raw : object
        The argument, for error messages.
    """
    if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
        raise ValueError(f"{name} must be a list of integers, got {short_repr(raw)}.")
    outside = positions[(positions < 0) | (positions >= n_known)]
    if outside.size:
        raise ValueError(
            f"{name} must lie between 0 and {n_known - 1}, because the matrix has {n_known} "
            f"{name}; got {outside[0]}. For new ones use with_new_{name}."
        )
    return positions.astype(np.int64)


def pad_labels(positions: Array, labels: Array | None) -> Array:
    """Return the labels at positions, and a padding value wherever a position is -1.

    The padding is -1 for positions and numbers, "" for text, and NaT for dates and durations.
    """
    if labels is None:
        return positions
    padding = {"U": "", "M": np.datetime64("NaT"), "m": np.timedelta64("NaT")}
    missing = np.array(padding.get(labels.dtype.kind, -1)).astype(labels.dtype)
    return np.where(positions < 0, missing, labels[positions])
