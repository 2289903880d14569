"""Files of fitted models: arrays as safetensors, everything else as JSON in the header.

    {"format": 1, "version": "0.1.0", "scikit-learn": "1.9.1", "class": "MCMCRegressor",
     "parameters": {name: value}, "attributes": {name: value}}

is the text under the key ``skbayes_sym`` of the header. `values` describes the form of values. The
format number increases when files of earlier releases can no longer be read. The key
``skbayes_sym_sha256`` has the checksum of this text and of all arrays.
"""

import json
import warnings
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import __version__ as SKLEARN
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.rows import Array
from skbayes_sym.numerics.files import replace_file, require_regular
from skbayes_sym.saving.values import (
    Decoder,
    Encoder,
    class_name,
    estimator_classes,
    fitted_state,
    is_sklearn_class,
    rebuild_estimator,
)

FORMAT = 1
_KEY = "skbayes_sym"
_CHECKSUM = "skbayes_sym_sha256"
_MIN_BYTES = 8  # of any safetensors file; some special files have size 0 and never end
# Memory in CPython of a list or dictionary, of an item, and of a quote (half a name).
_CONTAINER_BYTES = 150
_ITEM_BYTES = 60
_QUOTE_BYTES = 100
_SPARE_BYTES = 1 << 24  # memory that a header may take in addition to the size of the file


def save(estimator: BaseEstimator, path: str | PathLike[str]) -> None:
    """Write a fitted model to one file, without pickle.

    `skbayes_sym.load` reads the file on any machine and never runs code from it. The format is
    safetensors, with everything except arrays as JSON in the header.

    Parameters
    ----------
    estimator : fitted estimator of this package, pipeline or search
        Model to save. A `~sklearn.pipeline.Pipeline` is saved with all its steps: scalers,
        encoders, imputers, `~sklearn.compose.ColumnTransformer`, projections. For a search the best
        estimator is saved.
    path : str or path-like
        File to write. An existing file is replaced atomically: it remains until the new file is on
        the disk, also if the disk is full.

    Raises
    ------
    TypeError
        If a step, parameter or attribute can't be saved in such a file, for example a user-defined
        torch module. The message names it. `joblib.dump` can save such models.
    ValueError
        If ``path`` is not a regular file but a pipe or a device, or if `load` would refuse the
        model, for example after `set_params` with an invalid value.
    ImportError
        If the package safetensors (extra ``io``) isn't installed.

    Notes
    -----
    Parameters and fitted attributes are saved. Settings made by `set_callbacks`, ``set_output`` and
    the ``set_*_request`` methods, and a pipeline's ``memory``, are not.
    """
    check_is_fitted(estimator)
    while (best := fitted_attribute(estimator, "best_estimator_")) is not None:
        estimator = best
    name = class_name(estimator)
    if name is None:
        raise TypeError(
            f"{type(estimator).__name__} is neither a class of this package nor an estimator of "
            "scikit-learn that load supports: use joblib.dump(model, path)."
        )
    write = _safetensors().numpy.save
    encoder = Encoder()
    parameters, attributes = (
        {key: encoder.encode(value, key) for key, value in values.items()}
        for values in (estimator.get_params(deep=False), fitted_state(estimator))
    )
    header = {
        "format": FORMAT, "version": version("skbayes-sym"), "scikit-learn": SKLEARN,
        "class": name, "parameters": parameters, "attributes": attributes,
    }  # fmt: skip
    text = json.dumps(header, allow_nan=False)
    try:
        n_bytes = len(text) + sum(array.nbytes for array in encoder.arrays.values())
        require_affordable(text, n_bytes)
        decoder = Decoder(encoder.arrays, n_bytes)
        rebuild_estimator(name, decoder.by_name(parameters), decoder.by_name(attributes))
    except ValueError as error:
        raise ValueError(
            f"this {name} can't be saved, since `load` would refuse it: it has {error}. Fit it "
            "again, after set_params for example, or use joblib.dump(model, path)."
        ) from error
    metadata = {_KEY: text, _CHECKSUM: checksum(text, encoder.arrays)}
    replace_file(path, write(encoder.arrays, metadata))


def load(path: str | PathLike[str]) -> Any:
    """Load a fitted estimator that `save` wrote.

    The file contains numbers and names but no code. Unlike a pickle, a file from an untrusted
    source is safe to load. A model that was fitted on a GPU predicts on the CPU if there is no GPU.

    Parameters
    ----------
    path : str or path-like
        File to read.

    Returns
    -------
    estimator
        Estimator or pipeline of the saved class, with the same parameters, fitted attributes and
        predictions.

    Raises
    ------
    ValueError
        If the file isn't a saved model or not a regular file, if it is damaged (detected by a
        checksum), if its state isn't that of a fit, or if it was written by an incompatible
        version.
    ImportError
        If the package safetensors (extra ``io``) isn't installed.

    Examples
    --------
    >>> import os, tempfile
    >>> import skbayes_sym
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = skbayes_sym.BayesianLinearRegressor().fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     skbayes_sym.save(reg, path)
    ...     same = skbayes_sym.load(path)
    >>> bool((same.predict(X) == reg.predict(X)).all())
    True
    """
    header, arrays, n_bytes = _read(path)
    if not isinstance(header, dict) or "format" not in header:
        raise _damaged(path)
    if header["format"] != FORMAT:
        raise ValueError(
            f"{fspath(path)!r} has format {header['format']}, written by skbayes_sym "
            f"{header.get('version')}; this version reads format {FORMAT}. "
            "Install that version, or fit again."
        )
    try:
        decoder = Decoder(arrays, n_bytes)
        parameters, attributes = map(decoder.by_name, (header["parameters"], header["attributes"]))
        name, written_by, sklearn = (str(header[k]) for k in ("class", "version", "scikit-learn"))
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error
    if name not in estimator_classes() and not is_sklearn_class(name):
        raise ValueError(
            f"{fspath(path)!r} holds a {name}, which this version of skbayes_sym doesn't have; it "
            f"was written by version {written_by}."
        )
    if is_sklearn_class(name) and sklearn != SKLEARN:
        warnings.warn(
            f"{fspath(path)!r} holds steps of scikit-learn {sklearn}; this is {SKLEARN}: "
            "their state may have another form. Check predictions, or fit again.",
            UserWarning,
            stacklevel=2,
        )
    if name in estimator_classes() and not attributes:
        raise ValueError(f"{fspath(path)!r} has no fitted state.")
    try:
        return rebuild_estimator(name, parameters, attributes)
    except ValueError as error:
        raise ValueError(
            f"{fspath(path)!r} has {error}, which this version of skbayes_sym doesn't know; it was "
            f"written by version {written_by}."
        ) from error


def checksum(text: str, arrays: Mapping[str, Array]) -> str:
    """SHA-256 of the header's text and of the names, dtypes, shapes and bytes of the arrays."""
    digest = sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _read(path: str | PathLike[str]) -> tuple[Any, Mapping[str, Array], int]:
    """Read the header, the arrays and the size of a file."""
    safetensors = _safetensors()
    require_regular(path)
    n_bytes = Path(path).stat().st_size  # a missing file is an OSError that names it
    if n_bytes < _MIN_BYTES:
        raise _damaged(path)
    with Path(path).open("rb") as file:  # so is a file that may not be read
        n_header = int.from_bytes(file.read(_MIN_BYTES), "little")
        header = file.read(min(n_header, n_bytes))
    try:
        # Names of arrays are strings of the outer JSON, where quotes of the text are escaped.
        n_quotes = header.count(b'"') - header.count(b'\\"')
        del header
        if _QUOTE_BYTES * n_quotes > _SPARE_BYTES + n_bytes:
            raise ValueError("too many names")
        with safetensors.safe_open(fspath(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = metadata.get(_KEY, "null")
        if metadata.get(_CHECKSUM) != checksum(text, arrays):
            raise ValueError("another checksum")
        require_affordable(text, n_bytes)
        return json.loads(text), arrays, n_bytes
    # The last two: numbers that NumPy doesn't have, bfloat16 for one.
    except (
        safetensors.SafetensorError, ValueError, RecursionError, TypeError, AttributeError
    ) as error:  # fmt: skip
        raise _damaged(path) from error


def require_affordable(text: str, n_bytes: int) -> None:
    """Refuse JSON whose values would take much more memory than the size of the file.

    Parameters
    ----------
    text : str
        The JSON.
    n_bytes : int
        Size of the whole file.

    Raises
    ------
    ValueError
        If containers and items together take more than `_SPARE_BYTES` and the file's size.
    """
    n_containers = text.count("{") + text.count("[")
    n_items = text.count(",") + text.count(":")
    needed = _CONTAINER_BYTES * n_containers + _ITEM_BYTES * n_items
    if needed > _SPARE_BYTES + n_bytes:
        raise ValueError(f"a description that takes {needed:,} bytes")


def _damaged(path: str | PathLike[str]) -> ValueError:
    """Error for a file that isn't a saved model."""
    return ValueError(
        f"{fspath(path)!r} is not a model saved by skbayes_sym's `save`, or it is damaged "
        "(a truncated copy?)."
    )


def _safetensors() -> Any:
    """Import the optional package safetensors."""
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise ImportError("save and load need safetensors: pip install safetensors.") from error
    return safetensors
