"""Whether an object of the user's own has what a method asks of it."""

from collections.abc import Sequence


def require_members(given: object, members: Sequence[str], *, parameter: str, remedy: str) -> None:
    """Ask the object, not its type.

    Raises
    ------
    TypeError
        Naming the parameter, the object, what it lacks and the remedy.
    """
    missing = [name for name in members if not hasattr(given, name)]
    if missing:
        raise TypeError(
            f"{parameter}={given!r} has no {' and no '.join(missing)}, which this estimator asks "
            f"of it. {remedy}"
        )
