"""Checks of arguments, with messages that state name, expectation and received value."""

from collections.abc import Collection, Mapping, Sequence
from math import inf, isnan
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_count(name: str, value: Any, minimum: int = 1, maximum: float = inf) -> int:
    """Return an int within limits, or raise ValueError.

    Parameters
    ----------
    name : str
        Name of the argument, for the error message.
    value : object
        Value of the argument.
    minimum, maximum : int, float
        Limits, both included.
    """
    is_count = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not is_count or not minimum <= value <= maximum:
        has_maximum = maximum < inf
        if has_maximum:
            limit = f"from {minimum} to {maximum:g}"
        else:
            limit = f"of at least {minimum}"
        raise ValueError(f"{name} must be an int {limit}, got {short_repr(value)}.")
    return int(value)


def check_number(name: str, value: Any, low: float = -inf, high: float = inf) -> float:
    """Return a finite number from ``low`` to ``high``, both included, or raise ValueError.

    Parameters
    ----------
    name : str
        Name of the argument, for the error message.
    value : object
        Value of the argument.
    low, high : float
        Limits, both included.
    """
    is_real = is_number(value)
    if not is_real or isnan(value) or abs(value) == inf or not low <= value <= high:
        if (low, high) == (-inf, inf):
            limit = ""
        elif low > -inf and high == inf:
            limit = f" of at least {low:g}"
        else:
            limit = f" from {low:g} to {high:g}"
        raise ValueError(f"{name} must be a finite number{limit}, got {short_repr(value)}.")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether a value is a real number that a float can represent. Booleans aren't."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except OverflowError:  # an int such as 10**400
        return False
    return True


def check_positive(name: str, value: Any, high: float = inf) -> float:
    """Return a finite number above zero and at most ``high``, or raise ValueError.

    Parameters
    ----------
    name : str
        Name of the argument, for the message.
    value : object
        Value to check.
    high : float, default=inf
        Largest value.
    """
    if not is_number(value) or not 0.0 < value <= high or value == inf:
        if high == inf:
            limit = ""
        else:
            limit = f" of at most {high:g}"
        raise ValueError(f"{name} must be a positive number{limit}, got {short_repr(value)}.")
    return float(value)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Return two positive numbers, or raise ValueError."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not is_pair or not all(is_number(v) and 0.0 < v < inf for v in value):
        raise ValueError(f"{name} must be two positive numbers, got {short_repr(value)}.")
    return float(value[0]), float(value[1])


def check_vector(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a tensor with at least one axis."""
    # An attribute instead of the type, since students check arguments without torch.
    if not hasattr(value, "requires_grad") or value.ndim < 1:
        raise ValueError(
            f"{name} must be a tensor with an axis, such as torch.zeros(1), got "
            f"{short_repr(value)}."
        )


def check_random_state(value: Any) -> np.random.RandomState:
    """Return the generator that a ``random_state`` stands for.

    None gives a new generator with fresh entropy. NumPy's global generator, which scikit-learn uses
    for None, is neither used nor advanced.
    """
    if value is None:
        return np.random.RandomState(np.random.MT19937())
    if value is np.random:
        return np.random.mtrand._rand  # type: ignore[no-any-return]  # noqa: SLF001
    if isinstance(value, np.random.RandomState):
        return value
    is_int = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if is_int and 0 <= value < 2**32:
        return np.random.RandomState(int(value))
    raise ValueError(
        "random_state must be an int from 0 to 2**32 - 1 (a seed), a numpy.random.RandomState or "
        f"None, got {short_repr(value)}."
    )


def draw_seed(random_state: Any) -> int:
    """Return a seed from a ``random_state``, see `check_random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_arrays(
    owner: str, shapes: Mapping[str, str | int], **arguments: Any
) -> dict[str, NDArray[Any]]:
    """Return numeric arrays, after checking that their shapes agree.

    Parameters
    ----------
    owner : str
        Name of the object whose arguments they are, for error messages.
    shapes : mapping of str to str or int
        Shape of each argument. A string has a letter per axis, as in ``{"x": "n", "values":
        "nq"}``. Equal letters stand for equal lengths, and digits for that length. An int is the
        length of a single axis. With "?" at the end the argument can be None.
    **arguments : array-like
        The arguments.

    Returns
    -------
    dict of str to ndarray
        The arguments that aren't None.

    Raises
    ------
    ValueError
        If an argument isn't numeric or has another shape.
    """
    lengths: dict[str, int] = {}
    checked = {}
    for name, value in arguments.items():
        shape = shapes[name]
        if isinstance(shape, int):
            axes = [str(shape)]
        else:
            axes = list(shape.removesuffix("?"))
        if value is None and str(shape).endswith("?"):
            continue
        array = _as_numeric(value)
        sizes = () if array is None else array.shape
        agrees = array is not None and array.ndim == len(axes) and all(
            size == (int(axis) if axis.isdigit() else lengths.setdefault(axis, size))
            for axis, size in zip(axes, sizes, strict=False)
        )  # fmt: skip
        if array is None or not agrees:
            expected = ", ".join(str(lengths.get(axis, axis)) for axis in axes)
            if len(axes) == 1:
                expected = f"({expected},)"
            else:
                expected = f"({expected})"
            if array is None:
                got = short_repr(value)
            else:
                got = f"shape {array.shape}"
            raise ValueError(f"{owner}: {name} must be numbers of shape {expected}, got {got}.")
        checked[name] = array
    return checked


def check_ints(owner: str, name: str, value: Any, minimum: int | None = 0) -> tuple[int, ...]:
    """Return a sequence of ints as a tuple, or raise TypeError.

    Parameters
    ----------
    owner, name : str
        Names of the object and of the argument, for the error message.
    value : sequence of int
        The argument.
    minimum : int or None
        Smallest int; None for any.
    """
    if minimum is None:
        limit = ""
        low = -inf
    else:
        limit = f" of at least {minimum}"
        low = minimum
    is_sequence = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    values = list(value) if is_sequence and getattr(value, "ndim", 1) == 1 else None
    is_int = [
        isinstance(item, Integral) and not isinstance(item, bool | np.bool_) and int(item) >= low
        for item in values or ()
    ]
    if values is None or not all(is_int):
        raise TypeError(
            f"{name} of {owner} must be a sequence of int{limit}, got {short_repr(value)}."
        )
    return tuple(int(item) for item in values)


def check_tensor(owner: str, name: str, value: Any, ndim: int, *, is_index: bool = False) -> None:
    """Raise TypeError unless the value is a tensor with this number of axes.

    Parameters
    ----------
    owner, name : str
        Names of the object and of the argument, for the error message.
    value : Tensor
        The argument.
    ndim : int
        Number of axes.
    is_index : bool
        Whether it must hold positions, which are int64 and at least 0.
    """
    # An attribute instead of the type, since students check arguments without torch.
    is_tensor = hasattr(value, "requires_grad") and value.ndim == ndim
    if is_tensor and is_index:
        is_tensor = str(value.dtype) == "torch.int64"
        is_tensor = is_tensor and (not value.numel() or bool((value >= 0).all()))
    elif is_tensor:
        is_tensor = value.is_floating_point()
    if not is_tensor:
        kind = "positions (int64, at least 0)" if is_index else "floating-point numbers"
        raise TypeError(
            f"{name} of {owner} must be a tensor of {kind} with {ndim} axes, got "
            f"{short_repr(value)}."
        )


def check_parts(
    owner: str, name: str, value: Any, attributes: Collection[str], example: str
) -> None:
    """Raise TypeError unless the value is a tuple of objects with these attributes.

    Parameters
    ----------
    owner, name : str
        Names of the object and of the argument, for the error message.
    value : tuple
        The argument.
    attributes : collection of str
        Attributes that every object must have.
    example : str
        What the objects are, for the error message.
    """
    is_tuple = isinstance(value, tuple)
    if not is_tuple or not all(hasattr(part, a) for part in value for a in attributes):
        raise TypeError(f"{name} of {owner} must be a tuple of {example}, got {short_repr(value)}.")


def check_names(owner: str, name: str, value: Any, n: int) -> list[str]:
    """Return ``n`` strings, or raise ValueError.

    Parameters
    ----------
    owner, name : str
        Names of the object and of the argument, for the error message.
    value : collection of str
        The argument.
    n : int
        Expected number of strings.
    """
    if isinstance(value, Collection) and not isinstance(value, str):
        names = list(value)
    else:
        names = None
    if names is None or len(names) != n or not all(isinstance(text, str) for text in names):
        raise ValueError(f"{owner}: {name} must be {n} strings, got {short_repr(value)}.")
    return names


def check_not_masked(name: str, value: Any) -> None:
    """Raise ValueError if an array has masked entries, whose data would be used inadvertently."""
    if isinstance(value, list | tuple):
        is_masked = np.array([item is np.ma.masked or np.ma.is_masked(item) for item in value])
    elif np.ma.is_masked(value):
        is_masked = np.ma.getmaskarray(value)
    else:
        return
    if is_masked.any():
        if is_masked.ndim:
            row = int(np.argwhere(is_masked)[0, 0])
        else:
            row = 0
        n = int(is_masked.sum())
        raise ValueError(
            f"{name} has {n} masked entr{'y' if n == 1 else 'ies'}, the first in row {row}: leave "
            "these rows out, or fill them."
        )


def is_frame(X: Any) -> bool:
    """Whether a value is a table with named columns, of pandas or another library."""
    return hasattr(X, "columns") and not isinstance(X, Mapping)


def check_name(owner: str, name: str, value: Any, default: str = "") -> str:
    """Return a string, or ``default`` for None.

    Parameters
    ----------
    owner, name : str
        Names of the object and of the argument, for the error message.
    value : str or None
        The argument.
    default : str
        Value for None.
    """
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{owner}: {name} must be a string or None, got {short_repr(value)}.")
    return value


def unique_classes(y: NDArray[Any], name: str = "y_true") -> NDArray[Any]:
    """Return the distinct classes in sorted order."""
    try:
        return np.unique(y)
    except TypeError as error:
        values = short_repr(y.ravel()[:10].tolist())
        raise TypeError(f"{name} must hold labels of one kind, got {values}.") from error


def check_flag(name: str, value: Any) -> bool:
    """Return a bool, or raise ValueError."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {short_repr(value)}.")
    return bool(value)


def short_repr(value: Any, max_length: int = 60) -> str:
    """Return the representation of a value, in one line of limited length."""
    if isinstance(value, np.number | np.bool_ | np.str_):
        value = value.item()  # 3 instead of np.int64(3)
    text = " ".join(repr(value).split())
    if len(text) <= max_length:
        return text
    return f"{text[:max_length]}..."


def _as_numeric(value: Any) -> NDArray[Any] | None:
    """Return a real numeric array, or None if the value isn't one."""
    if value is None:
        return None
    if np.ma.is_masked(value):
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind == "c":
            return None
        if array.dtype.kind in "iufb":
            return array
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        return None


def object_array(value: Any) -> NDArray[Any]:
    """Return an array, or one of objects without axes if the value is ragged or no array."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.empty((), dtype=object)
        array[()] = value
        return array


def select_optional(values: Any, index: Any) -> Any:
    """Index an array or a tensor that may be None."""
    if values is None:
        return None
    return values[index]
