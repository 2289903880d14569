"""One file for a fitted model: arrays as safetensors, everything else as JSON in its header.

    {"format": 2, "version": "0.1.0", "scikit-learn": "1.9.1", "class": "MCMCRegressor",
     "parameters": {name: value}, "attributes": {name: value}}

stands under the key ``skbayes_sym`` of the header; `values` says how values look. The format
number rises when a file of this release could no longer be read.
"""

import json
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.saving.first_edition import complete, translate
from skbayes_sym.saving.values import Encoder, decode

FORMAT = 2
_KEY = "skbayes_sym"


class FileContent(NamedTuple):
    """What a file holds."""

    class_name: str
    version: str  # of the package that wrote it
    parameters: dict[str, Any]
    attributes: dict[str, Any]
    sklearn: str = ""  # version of scikit-learn that wrote it


def write_model(path: str | PathLike[str], model: FileContent) -> None:
    """Write the file; nothing is written if anything can't be saved.

    Raises
    ------
    TypeError
        Naming the parameter or attribute that such a file can't hold.
    """
    save = _safetensors().numpy.save
    encoder = Encoder()
    header = {
        "format": FORMAT,
        "version": model.version,
        "scikit-learn": model.sklearn,
        "class": model.class_name,
        "parameters": {
            name: encoder.encode(value, name) for name, value in model.parameters.items()
        },
        "attributes": {
            name: encoder.encode(value, name) for name, value in model.attributes.items()
        },
    }
    # By way of bytes: safetensors' own files can be read by their owner only.
    content = save(encoder.arrays, {_KEY: json.dumps(header, allow_nan=False)})
    Path(path).write_bytes(content)


def read_model(path: str | PathLike[str]) -> FileContent:
    """Read what `write_model` wrote. No code in the file is ever run: it holds none.

    Raises
    ------
    OSError
        If there is no such file.
    ValueError
        If it isn't a model of this package, is damaged, or of another format.
    """
    header, arrays = _read(path)
    if not isinstance(header, dict) or "format" not in header:
        raise _damaged(path)
    if header["format"] not in (1, FORMAT):
        raise ValueError(
            f"{fspath(path)!r} has format {header['format']}, written by skbayes_sym "
            f"{header.get('version')}; this version reads formats up to "
            f"{FORMAT}. Install that version, or fit again."
        )
    try:
        parts = [
            {str(name): decode(value, arrays) for name, value in header[part].items()}
            for part in ("parameters", "attributes")
        ]
        name = str(header["class"])
        if header["format"] == 1:
            name = translate(name, *parts)
        complete(name, parts[0])
        sklearn = str(header.get("scikit-learn", ""))
        return FileContent(name, str(header["version"]), parts[0], parts[1], sklearn)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error


def _read(path: str | PathLike[str]) -> tuple[Any, Mapping[str, Array]]:
    safetensors = _safetensors()
    Path(path).open("rb").close()  # a missing file is an OSError that names it
    try:
        with safetensors.safe_open(fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return json.loads(metadata.get(_KEY, "null")), arrays
    except (safetensors.SafetensorError, ValueError, RecursionError) as error:
        raise _damaged(path) from error


def _damaged(path: str | PathLike[str]) -> ValueError:
    return ValueError(
        f"{fspath(path)!r} is not a model saved by skbayes_sym's `save`, or it is damaged "
        "(a truncated copy?)."
    )


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            "save and load need safetensors: pip install 'skbayes_sym[io]'."
        ) from error
    return safetensors
