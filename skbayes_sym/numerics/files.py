"""Files that are written completely or not at all."""

import os
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from secrets import token_hex


def replace_file(path: str | PathLike[str], content: bytes) -> None:
    """Write a file atomically.

    The content goes to a temporary file in the same folder, which replaces the target once it is on
    the disk. At any time, the old or the new file is there.

    Parameters
    ----------
    path : str or path
        The target. Links are followed.
    content : bytes
        Content of the file.

    Raises
    ------
    ValueError
        If the path exists and isn't a regular file.
    OSError
        If the file can't be written, for lack of space or permission.
    """
    require_regular(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name[:200]}.{token_hex(8)}")
    try:
        # The file gets the permissions of a new file, by the user's mask.
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def require_regular(path: str | PathLike[str]) -> None:
    """Refuse pipes, devices and the like, which would block or never end.

    Raises TypeError if ``path`` isn't a path, and ValueError if it exists and is neither a file nor
    a folder.
    """
    if not isinstance(path, str | PathLike) or "\0" in fspath(path):
        raise TypeError(f"path must be a string or a path without a null byte, got {path!r}.")
    target = Path(path)
    if target.exists() and not target.is_file() and not target.is_dir():
        raise ValueError(f"{fspath(path)!r} is not a regular file.")
    if target.is_dir():
        raise IsADirectoryError(f"{fspath(path)!r} is a folder.")
