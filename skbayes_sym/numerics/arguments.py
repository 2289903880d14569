"""Arguments of public functions, checked in one wording: name, what is expected, what was given."""

from collections.abc import Collection, Mapping
from math import inf, isnan
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_count(name: str, value: Any, least: int = 1, most: float = inf) -> int:
    """An int within limits."""
    is_count = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not is_count or not least <= value <= most:
        limit = f"of at least {least}" if most == inf else f"from {least} to {most:g}"
        raise ValueError(f"{name} must be an int {limit}, got {short_repr(value)}.")
    return int(value)


def check_number(name: str, value: Any, low: float = -inf, high: float = inf) -> float:
    """A finite number from ``low`` to ``high``, both included."""
    is_real = is_number(value)
    if not is_real or isnan(value) or abs(value) == inf or not low <= value <= high:
        limit = "" if (low, high) == (-inf, inf) else f" from {low:g} to {high:g}"
        limit = f" of at least {low:g}" if low > -inf and high == inf else limit
        raise ValueError(f"{name} must be a finite number{limit}, got {short_repr(value)}.")
    return float(value)


def is_number(value: Any) -> bool:
    """Whether it is a real number that floating-point arithmetic has; booleans aren't."""
    if not isinstance(value, Real) or isinstance(value, bool | np.bool_):
        return False
    try:
        float(value)
    except OverflowError:  # an int such as 10**400
        return False
    return True


def check_positive(name: str, value: Any, high: float = inf) -> float:
    """A finite number above zero, at most ``high``."""
    if not is_number(value) or not 0.0 < value <= high or value == inf:
        limit = "" if high == inf else f" of at most {high:g}"
        raise ValueError(f"{name} must be a positive number{limit}, got {short_repr(value)}.")
    return float(value)


def check_range(name: str, value: Any) -> tuple[float, float]:
    """Two positive numbers."""
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    if not is_pair or not all(is_number(v) and 0.0 < v < inf for v in value):
        raise ValueError(f"{name} must be two positive numbers, got {short_repr(value)}.")
    return float(value[0]), float(value[1])


def check_vector(name: str, value: Any) -> None:
    """Check that it is a tensor or array with an axis: parameters of a likelihood."""
    # A tensor has both attributes, too: students check arguments where there is no torch.
    if not hasattr(value, "tolist") or getattr(value, "ndim", 0) < 1:
        raise ValueError(f"{name} must be a tensor with an axis, got {short_repr(value)}.")


def check_random_state(value: Any) -> np.random.RandomState:
    """Return the generator that a ``random_state`` stands for.

    None is a new generator with fresh entropy. NumPy's global generator, which scikit-learn takes
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
    """A seed for streams of one's own; see `check_random_state`."""
    return int(check_random_state(random_state).randint(2**31 - 1))


def check_arrays(
    owner: str, shapes: Mapping[str, str | int], **arguments: Any
) -> dict[str, NDArray[Any]]:
    """Arrays of numbers whose axes agree.

    ``owner``: who was given them. ``shapes``: the length of the one axis of an argument, or the
    axes of each, a letter each: ``{"x": "n", "values": "nq"}``. The same letter is the same length,
    a number is that length, and with "?" at the end None is passed over.
    """
    lengths: dict[str, int] = {}
    checked = {}
    for name, value in arguments.items():
        shape = shapes[name]
        axes = [str(shape)] if isinstance(shape, int) else list(shape.removesuffix("?"))
        if value is None and str(shape).endswith("?"):
            continue
        array = _numbers(value)
        named = zip(axes, () if array is None else array.shape, strict=False)
        agrees = array is not None and array.ndim == len(axes) and all(
            size == (int(axis) if axis.isdigit() else lengths.setdefault(axis, size))
            for axis, size in named
        )  # fmt: skip
        if array is None or not agrees:
            wanted = ", ".join(str(lengths.get(axis, axis)) for axis in axes)
            wanted = f"({wanted},)" if len(axes) == 1 else f"({wanted})"
            got = short_repr(value) if array is None else f"shape {array.shape}"
            raise ValueError(f"{owner}: {name} must be numbers of shape {wanted}, got {got}.")
        checked[name] = array
    return checked


def check_names(owner: str, name: str, value: Any, n: int) -> list[str]:
    """Names of ``n`` things, strings."""
    names = list(value) if isinstance(value, Collection) and not isinstance(value, str) else None
    if names is None or len(names) != n or not all(isinstance(one, str) for one in names):
        raise ValueError(f"{owner}: {name} must be {n} strings, got {short_repr(value)}.")
    return names


def check_not_masked(name: str, value: Any) -> None:
    """Refuse a masked array with masked entries, whose data would be used unseen.

    ``name``: of the argument.
    """
    if isinstance(value, list | tuple):
        is_masked = np.array([item is np.ma.masked or np.ma.is_masked(item) for item in value])
    elif np.ma.is_masked(value):
        is_masked = np.ma.getmaskarray(value)
    else:
        return
    if is_masked.any():
        row = int(np.argwhere(is_masked)[0, 0]) if is_masked.ndim else 0
        n = int(is_masked.sum())
        raise ValueError(
            f"{name} has {n} masked entr{'y' if n == 1 else 'ies'}, the first in row {row}: leave "
            "these rows out, or fill them."
        )


def is_frame(X: Any) -> bool:
    """Whether it is a table with named columns, pandas' or another library's."""
    return hasattr(X, "columns") and not isinstance(X, Mapping)


def check_name(owner: str, name: str, value: Any, default: str = "") -> str:
    """A string; ``default`` where None is given."""
    if value is None:
        return default
    if not isinstance(value, str):
        raise ValueError(f"{owner}: {name} must be a string or None, got {short_repr(value)}.")
    return value


def unique_classes(y: NDArray[Any], name: str = "y_true") -> NDArray[Any]:
    """The different labels, sorted."""
    try:
        return np.unique(y)
    except TypeError as error:
        some = short_repr(y.ravel()[:10].tolist())
        raise TypeError(f"{name} must hold labels of one kind, got {some}.") from error


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {short_repr(value)}.")
    return bool(value)


def short_repr(value: Any, most: int = 60) -> str:
    """A value as an error message shows it: in one line, and not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else f"{text[:most]}..."


def _numbers(value: Any) -> NDArray[Any] | None:
    if value is None:
        return None
    if np.ma.is_masked(value):
        return None
    try:
        array = np.asarray(value)
        if array.dtype.kind == "c":
            return None
        return array if array.dtype.kind in "iufb" else np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        return None
