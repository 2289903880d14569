"""Files that are written whole or not at all."""

import os
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from secrets import token_hex


def replace_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file, or leave the one that was there as it was.

    The bytes go to a file beside it, which takes its place once they are on the disk: whoever looks
    in the meantime, and whatever happens, sees the old file or the new one.

    ``path``: a link is followed. Raises ValueError if there is something there that is no regular
    file. Raises OSError if it can't be written: no space, no permission.
    """
    require_regular(path)
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:200]}.{token_hex(8)}")
    try:
        # As any new file is: readable by whom the user's mask lets.
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o7777)
        beside.replace(target)
    except BaseException:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def require_regular(path: str | PathLike[str]) -> None:
    """Refuse pipes, devices and the like, which would block or never end.

    Raises TypeError if it is no path. Raises ValueError if there is something else than a file or
    folder at the path.
    """
    if not isinstance(path, str | PathLike) or "\0" in fspath(path):
        raise TypeError(f"path must be a string or a path without a null byte, got {path!r}.")
    place = Path(path)
    if place.exists() and not place.is_file() and not place.is_dir():
        raise ValueError(f"{fspath(path)!r} is not a regular file.")
    if place.is_dir():
        raise IsADirectoryError(f"{fspath(path)!r} is a folder.")
