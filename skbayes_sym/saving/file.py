"""One file for a fitted model: arrays as safetensors, everything else as JSON in its header.

    {"format": 1, "version": "0.1.0", "scikit-learn": "1.9.1", "class": "MCMCRegressor",
     "parameters": {name: value}, "attributes": {name: value}}

stands under the key ``skbayes_sym`` of the header; `values` says how values look. The format
number rises when a file of this release could no longer be read. ``skbayes_sym_sha256`` beside it
is the checksum of that text and of all arrays.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.saving.replace import replace_file, require_regular
from skbayes_sym.saving.values import Encoder, decode

FORMAT = 1
_KEY = "skbayes_sym"
_CHECKSUM = "skbayes_sym_sha256"
_LEAST_BYTES = 8  # of any safetensors file; some of the kernel's say 0 and never end


class FileContent(NamedTuple):
    """What a file holds."""

    class_name: str
    version: str  # of the package that wrote it
    parameters: dict[str, Any]
    attributes: dict[str, Any]
    sklearn: str  # version of scikit-learn that wrote it


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
    text = json.dumps(header, allow_nan=False)
    metadata = {_KEY: text, _CHECKSUM: checksum(text, encoder.arrays)}
    replace_file(path, save(encoder.arrays, metadata))


def checksum(text: str, arrays: Mapping[str, Array]) -> str:
    """SHA-256 of the header's text and of names, dtypes, shapes and bytes of the arrays."""
    digest = sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


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
    if header["format"] != FORMAT:
        raise ValueError(
            f"{fspath(path)!r} has format {header['format']}, written by skbayes_sym "
            f"{header.get('version')}; this version reads format {FORMAT}. "
            "Install that version, or fit again."
        )
    try:
        parts = [
            {str(name): decode(value, arrays) for name, value in header[part].items()}
            for part in ("parameters", "attributes")
        ]
        name, version, sklearn = (str(header[k]) for k in ("class", "version", "scikit-learn"))
        return FileContent(name, version, parts[0], parts[1], sklearn)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error


def _read(path: str | PathLike[str]) -> tuple[Any, Mapping[str, Array]]:
    safetensors = _safetensors()
    require_regular(path)
    if Path(path).stat().st_size < _LEAST_BYTES:  # a missing file is an OSError that names it
        raise _damaged(path)
    Path(path).open("rb").close()  # so is one that may not be read
    try:
        with safetensors.safe_open(fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata.get(_KEY, "null")
        if metadata.get(_CHECKSUM) != checksum(text, arrays):
            raise ValueError("another checksum")
        return json.loads(text), arrays
    # The last two: numbers that NumPy doesn't have, bfloat16 for one.
    except (
        safetensors.SafetensorError, ValueError, RecursionError, TypeError, AttributeError
    ) as error:  # fmt: skip
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
        raise ImportError("save and load need safetensors: pip install safetensors.") from error
    return safetensors
