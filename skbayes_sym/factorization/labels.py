"""Labels of rows and columns: one form of an id, whatever dtype it arrives in.

The same id is an int in one file, a float in a column with missing values, and text in a third
file. Labels are therefore stored as integers, other numbers, words or dates, and the labels of a
later question are converted to the kind that the fit had.
"""

import re
from collections.abc import Hashable
from typing import Any

import numpy as np

from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.arguments import short_repr

_INTEGER = re.compile(r"\s*([+-]?[0-9]{1,18})(\.0*)?\s*")  # also zero-padded, or as a float's text
_LARGEST_EXACT = 2.0**53  # floats beyond aren't all integers
_KINDS = {"i": "numbers", "u": "numbers", "f": "numbers", "U": "words", "M": "dates", "m": "times"}


def check_labels(raw: Any, name: Hashable) -> Array:
    """Convert labels to integers, other numbers, words or dates.

    Parameters
    ----------
    raw : array-like of shape (N,)
        Column of a frame, array or list. Integral floats become integers. Labels that are of
        several types or of none of these, such as tuples, are represented by their text.
    name : str
        What the labels are called in messages.

    Returns
    -------
    ndarray of shape (N,)

    Raises
    ------
    ValueError
        If they aren't 1D or a label is missing.
    """
    labels = _as_array(raw, name)
    if labels.ndim != 1:
        raise ValueError(f"{name} of a list of entries must be 1D, got shape {labels.shape}.")
    is_missing = np.ma.getmaskarray(raw) if np.ma.isMaskedArray(raw) else _is_missing(labels)
    if is_missing.any():
        raise ValueError(
            f"{name} is missing in {np.count_nonzero(is_missing)} entries, the first at position "
            f"{np.argmax(is_missing)}: an entry must say whose it is. Leave these out."
        )
    if labels.dtype.kind == "O":
        labels = _typed(labels)
    if labels.dtype.kind == "f" and (np.abs(labels) < _LARGEST_EXACT).all():
        as_integers = labels.astype(np.int64)
        return as_integers if np.array_equal(as_integers, labels) else labels
    if labels.dtype.kind not in _KINDS:
        return labels.astype(str)  # bools, bytes, NumPy's variable-width strings
    return labels


def convert_labels(
    labels: Array, known: Array, name: Hashable, known_name: str = "labels in fit"
) -> Array:
    """Convert labels to the kind of other labels.

    Ids such as 7, "7" and "007" are the same if the others are numbers, or words some of which are
    integers.

    Parameters
    ----------
    labels, known : ndarray of shape (N,) and (M,)
        As `check_labels` returns them.
    name, known_name : str
        What ``labels`` and ``known`` are called in messages.

    Raises
    ------
    ValueError
        If they can't be converted.
    """
    kind = _KINDS[labels.dtype.kind]
    wanted = _KINDS[known.dtype.kind]
    if kind == wanted or not labels.size or not known.size:
        return labels
    converted = None
    if (kind, wanted) == ("words", "numbers"):
        integers = [_integer(text) for text in labels.tolist()]
        if None not in integers:
            converted = np.array(integers, dtype=np.int64)
    elif (kind, wanted) == ("numbers", "words"):
        texts = known.tolist()
        distinct = set(texts)
        words = {integer: text for text in texts if (integer := _integer(text)) is not None}
        exact = {integer: str(integer) for integer in words if str(integer) in distinct}
        words.update(exact)  # "7" before "007"
        if words:
            converted = np.array([words.get(number, str(number)) for number in labels.tolist()])
    elif (kind, wanted) == ("words", "dates"):
        converted = _parsed_dates(labels)
    elif (kind, wanted) == ("dates", "words"):
        dates = _parsed_dates(known)
        if dates is not None:
            order = np.argsort(dates)
            place = order[np.searchsorted(dates, labels, sorter=order).clip(max=len(dates) - 1)]
            converted = np.where(dates[place] == labels, known[place], labels.astype(str))
    if converted is None:
        raise ValueError(
            f"{name} are {labels.dtype} such as {_example(labels)}, but {known_name} were "
            f"{known.dtype} such as {_example(known)}."
        )
    return converted


def _as_array(raw: Any, name: Hashable) -> Array:
    """An array whose elements are the labels, also where these are tuples."""
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
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, float | np.floating | np.datetime64) and bool(label != label)


def _typed(labels: Array) -> Array:
    """Objects as numbers or words if all are, else as their text."""
    values = labels.tolist()
    types = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in types):
        return np.array(values, dtype=str)
    is_number = all(
        issubclass(kind, int | float | np.integer | np.floating) and kind is not bool
        for kind in types
    )
    if is_number:
        numbers = np.array(values)  # objects if an integer is too large
        if numbers.dtype.kind in "iuf":
            return numbers
    return np.array([_text(value) for value in values], dtype=str)


def _text(label: Any) -> str:
    """The text of a label; numbers are equal in text if they are equal."""
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    if isinstance(label, tuple):
        label = tuple(part.item() if isinstance(part, np.generic) else part for part in label)
    return str(label)


def _integer(text: str) -> int | None:
    """The integer that a word states, or None."""
    matched = _INTEGER.fullmatch(text)
    return None if matched is None else int(matched[1])


def _parsed_dates(words: Array) -> Array | None:
    """Words in ISO format as dates; None if any is none."""
    try:
        dates = words.astype("M8[us]")
    except ValueError:
        return None
    return None if np.isnat(dates).any() else dates


def _example(labels: Array) -> str:
    return short_repr(labels[0].item() if labels.dtype.kind not in "mM" else str(labels[0]))


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
    raw = [raw] if np.ndim(raw) == 0 else raw
    if known is None:
        return _check_positions(np.asarray(raw), n_known, name, raw), 0
    labels = convert_labels(check_labels(raw, name), known, name)
    order = np.argsort(known)
    index = np.searchsorted(known, labels, sorter=order).clip(max=len(known) - 1)
    positions = order[index] if labels.size else np.zeros(0, dtype=np.int64)
    is_unseen = known[positions] != labels
    unseen, inverse = np.unique(labels[is_unseen], return_inverse=True)
    positions[is_unseen] = n_known + inverse
    return positions.astype(np.int64), len(unseen)


def _check_positions(positions: Array, n_known: int, name: str, raw: Any) -> Array:
    """Check positions of a matrix without labels, which can't name new rows or columns."""
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
