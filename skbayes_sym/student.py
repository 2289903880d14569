"""A predictive distribution in a hundred kilobytes: a small network that NumPy evaluates.

Made by `skbayes_sym.distill`. This file needs NumPy and SciPy, and imports neither torch nor
scikit-learn.
"""

import io
import json
import os
import warnings
import zipfile
from collections.abc import Sequence
from math import prod
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

from skbayes_sym.numerics.arguments import check_not_masked, short_repr
from skbayes_sym.numerics.files import replace_file, require_regular
from skbayes_sym.numerics.tables import (
    MISSING,
    UNKNOWN,
    Levels,
    Table,
    check_column_names,
    fill_masked,
    read_table,
    to_float,
)

Array = npt.NDArray[Any]

KINDS = ("tanh", "relu", "identity")  # of hidden units that a student takes over, in this order
MAX_ONE_HOT = 30  # levels with an input of their own
_LEARNED = ("weight", "bias", "unit", "feature")
# Loading takes at most this many times the size of the file, and this many bytes beside.
_MEMORY_FACTOR = 3
_SPARE_BYTES = 1 << 16
# Rounding of an input to float32 that to_onnx warns of, in standard deviations.
_MAX_ROUNDING = 1e-3


def hidden(z: Array, ends: Array) -> Array:
    """Hidden units (N, H) of the three kinds, in place; ``ends``: of the first and the second."""
    np.tanh(z[:, : ends[0]], out=z[:, : ends[0]])
    np.maximum(z[:, ends[0] : ends[1]], 0.0, out=z[:, ends[0] : ends[1]])
    return z


def to_text(value: Any) -> Array:
    """JSON text of names or levels as bytes, which a file holds without padding."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def from_text(array: Array) -> Any:
    """Inverse of `to_text`."""
    return json.loads(array.astype(np.uint8).tobytes())


class Student:
    r"""A mixture density network with two hidden layers (Bishop 1994), or a softmax of classes.

    .. math:: p(y \mid x) = \sum_k \pi_k(x)\, N(y \mid \mu_k(x), \sigma_k(x)^2)

    It takes the columns that its teacher takes, and refuses what its teacher refuses: columns of
    other names or in another order, infinity, and missing values or unknown levels where the
    teacher has no answer for them.

    Parameters
    ----------
    arrays : dict of str to ndarray
        As `load` reads them.

    Attributes
    ----------
    lost_ : float
        Nats per row that it predicts worse than its teacher, on rows that it didn't learn from, by
        the teacher's law.
    classes_ : ndarray of shape (n_classes,) or None
        Labels; None of a regressor's student.
    n_features_in_ : int
        Number of columns of ``X``.

    See Also
    --------
    skbayes_sym.distill : Makes it.
    """

    _n_rows = 512  # at a time, whose hidden units a processor's cache holds

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self.lost_ = float(arrays.get("lost", np.nan))
        self.classes_ = arrays.get("classes")
        self.n_features_in_ = len(arrays["numbers"]) + len(arrays["places"])
        self._names: list[str] | None = None
        if "names" in arrays:
            self._names = [str(name) for name in from_text(arrays["names"])]
        self._levels: list[list[str]] = []
        if "levels" in arrays:
            self._levels = [[str(v) for v in levels] for levels in from_text(arrays["levels"])]

    def __repr__(self) -> str:
        n = sum(a.size for k, a in self._arrays.items() if k.startswith(_LEARNED))
        return f"<student of {n:,} weights, {self.lost_:.3f} nats per row worse than its teacher>"

    def save(self, file: Any) -> None:
        """Write a file of NumPy's (``.npz``), which `load` reads without torch.

        Parameters
        ----------
        file : str, path-like or binary file
            ".npz" is appended to a name without it. An existing file is replaced at once, when the
            new one is on the disk.
        """
        arrays: dict[str, Any] = self._arrays
        content = io.BytesIO()
        np.savez(content, **arrays)
        _write(_with_suffix(file), content.getvalue())

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read what `save` has written.

        Parameters
        ----------
        file : str, path-like or binary file
            ".npz" may be left out, as in `save`.

        Raises
        ------
        ValueError
            If it isn't a student's file or is damaged. Arrays of more than 3 times the size of the
            file plus 64 kB aren't read.
        """
        if not hasattr(file, "read"):
            require_exact = Path(file).exists() or str(fspath(file)).endswith(".npz")
            file = file if require_exact else _with_suffix(file)
            require_regular(file)
        name = "the file" if hasattr(file, "read") else repr(fspath(file))
        try:
            student = cls(_read_arrays(file))
            student._check()
        except (FileNotFoundError, PermissionError, IsADirectoryError):
            raise
        except Exception as error:  # of zip files, compression, headers, or what arrays lack
            raise ValueError(
                f"{name} is not a student saved by `Student.save`, or it is damaged (a truncated "
                f"copy?): {type(error).__name__}: {short_repr(str(error))}"
            ) from error
        return student

    def _check(self) -> None:
        """Predict one row, which fails if arrays don't fit to each other."""
        a = self._arrays
        n = self.n_features_in_
        positions = np.concatenate([a["numbers"], a["places"]])
        if sorted(positions.tolist()) != list(range(n)) or len(self._levels) != len(a["places"]):
            raise ValueError("columns that don't add up")
        if self._names is not None and len(self._names) != n:
            raise ValueError("another number of names than of columns")
        row = np.zeros((1, n), dtype=object)
        row[0, a["numbers"]] = a["mean"]
        for j, levels in zip(a["places"].tolist(), self._levels, strict=True):
            row[0, j] = levels[0] if levels else None
        encoded = self.encode(row)
        outputs = self._outputs(encoded)
        n_outputs = outputs.shape[1]
        n_expected = n_outputs // 3 * 3 if self.classes_ is None else len(self.classes_)
        if not np.isfinite(outputs).all() or n_outputs != n_expected or not n_outputs:
            raise ValueError("a state that predicts nothing")
        if self.classes_ is None:
            weights, loc, scale = self._normals(row)
            if not np.isfinite(weights + loc + scale).all() or (scale <= 0.0).any():
                raise ValueError("a state that predicts nothing")

    def _table(self, X: Any) -> Table:
        """Columns of a question, if they are those of the teacher."""
        X = fill_masked(X)
        if hasattr(X, "toarray"):
            raise TypeError("Sparse data was passed for X: give X.toarray().")
        table = read_table(X)
        if table is None:
            try:
                array = np.asarray(X)
            except RuntimeError as error:  # a tensor that requires gradients, for example
                raise TypeError(f"X can't be converted to an array: {error}") from error
            if array.ndim != 2:
                raise ValueError(
                    f"Expected 2D array, got an array of shape {array.shape} instead: X needs "
                    "rows and columns."
                )
            columns = list(array.T)
            table = Table([f"{j}" for j in range(len(columns))], columns, [False] * len(columns))
        if len(table.names) != self.n_features_in_:
            raise ValueError(
                f"X has {len(table.names)} features, but Student is expecting "
                f"{self.n_features_in_} features as input."
            )
        check_column_names(self._names, X)
        return table if self._names is None else table._replace(names=self._names)

    def columns(self, X: Any) -> Array:
        """Columns (N, D): scaled numbers, missing ones marked, and one-hot levels."""
        a = self._arrays
        table = self._table(X)
        n = len(table.columns[0])
        values = np.empty((n, len(a["numbers"])))
        kinds = np.where(a["booleans"], "boolean", "numeric").tolist()
        for k, (j, kind) in enumerate(zip(a["numbers"].tolist(), kinds, strict=True)):
            values[:, k] = to_float(table.names[j], kind, table.columns[j])
        if np.isinf(values).any():
            j = a["numbers"][np.isinf(values).any(axis=0).argmax()]
            raise ValueError(f"Input X contains infinity, in column {table.names[j]!r}.")
        missing = np.isnan(values)
        refused = missing & ~a["marked"]
        if refused.any():
            row, k = np.argwhere(refused)[0]
            self._refuse(table, a["numbers"][k], row, "a missing value")
        with np.errstate(over="ignore"):  # values too large for a float are clipped
            scaled = (values - a["mean"]) / a["scale"]
        largest = np.finfo(np.float32).max
        scaled = np.where(missing, 0.0, scaled.clip(-largest, largest))
        parts = [scaled, missing[:, a["marked"]]]
        for k, (j, levels) in enumerate(zip(a["places"].tolist(), self._levels, strict=True)):
            codes = Levels(levels).codes(table.columns[j])
            parts.append(codes[:, None] == np.arange(min(len(levels), MAX_ONE_HOT)))
            for code, takes, what in (
                (MISSING, a["takes_missing"], "a missing value"),
                (UNKNOWN, a["takes_unknown"], "an unknown level"),
            ):
                if takes[k]:
                    parts.append((codes == code)[:, None])
                elif (codes == code).any():
                    row = int((codes == code).argmax())
                    self._refuse(table, j, row, what)
        return np.hstack(parts)

    @staticmethod
    def _refuse(table: Table, j: int, row: int, what: str) -> None:
        value = short_repr(table.columns[j][row])
        raise ValueError(
            f"column {table.names[j]!r} of X has {what} ({value}) in row {row}, for which the "
            "student's teacher has no prediction. Leave the row out or fill it."
        )

    def _said(self, columns: Array) -> Array:
        """Mean of the teacher's networks, and how they differ; no column where it has none."""
        a = self._arrays
        if "units" not in a:
            return np.empty((len(columns), 0), np.float32)
        said = []
        for i in range(0, max(len(columns), 1), self._n_rows):
            units = columns[i : i + self._n_rows].astype(np.float32) @ a["units"]
            units += a["unit_bias"]
            said.append(hidden(units, a["ends"]) @ a["features"] + a["feature_bias"])
        return np.concatenate(said)

    def encode(self, X: Any) -> Array:
        """Inputs of the network (N, I): columns, far rows within reach, and the networks'."""
        columns = self.columns(X)
        said = self._said(columns)
        n = len(self._arrays["numbers"])
        columns[:, :n] /= np.sqrt(1.0 + (columns[:, :n] / 8.0) ** 2)
        return np.hstack([columns, said]).astype(np.float32)

    def _outputs(self, inputs: Array) -> Array:
        a = self._arrays
        h = inputs
        for i in (0, 1):
            h = h @ a[f"weight{i}"]
            h += a[f"bias{i}"]
            np.tanh(h, out=h)
        outputs = h @ a["weight2"] + a["bias2"] + inputs @ a["weight3"]
        return np.asarray(outputs, dtype=np.float64)

    def _normals(self, X: Any) -> tuple[Array, Array, Array]:
        """Arrays of `components`, each (K, n_samples)."""
        a = self._arrays
        inputs = self.encode(X)
        logits, loc, log_scale = np.split(np.ascontiguousarray(self._outputs(inputs).T), 3)
        weights = np.exp(logits - logits.max(axis=0))
        weights /= weights.sum(axis=0)
        loc = a["y_mean"] + a["y_scale"] * loc
        if "units" in a:
            loc += a["slope"] * inputs[:, len(a["units"])]
        return weights, loc, a["y_scale"] * np.exp(log_scale)

    def _require(self, is_classifier: bool, method: str) -> None:
        """Refuse a method that the teacher hasn't either."""
        if (self.classes_ is not None) != is_classifier:
            kind, other = (
                ("classifier", "regressor") if is_classifier else ("regressor", "classifier")
            )
            raise AttributeError(
                f"{method} is of a {kind}'s student, but this one's teacher is a {other}."
            )

    def components(self, X: Any) -> tuple[Array, Array, Array]:
        """Weights, means and standard deviations of every row's normals, each (n_samples, K)."""
        self._require(False, "components")
        weights, loc, scale = self._normals(X)
        return weights.T, loc.T, scale.T

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean, and standard deviation of a new target; or the most probable class."""
        if self.classes_ is not None:
            if return_std:
                self._require(False, "return_std")
            return self.classes_[self._outputs(self.encode(X)).argmax(axis=1)]
        weights, loc, scale = self._normals(X)
        mean = (weights * loc).sum(axis=0)
        if not return_std:
            return mean
        return mean, np.sqrt((weights * (scale**2 + (loc - mean) ** 2)).sum(axis=0))

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n_samples, n_classes)."""
        self._require(True, "predict_proba")
        logits = self._outputs(self.encode(X))
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of a new target (n_samples, n_quantiles), by bisection.

        Raises
        ------
        ValueError
            If a level isn't strictly between 0 and 1.
        """
        self._require(False, "predict_quantiles")
        levels = _levels_of_quantiles(quantiles)
        weights, loc, scale = (part[..., None] for part in self.components(X))
        low = (loc - 40.0 * scale).min(axis=1)
        high = (loc + 40.0 * scale).max(axis=1)
        low, high = (end + np.zeros(len(levels)) for end in (low, high))
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = (weights * ndtr((middle[:, None] - loc) / scale)).sum(axis=1) < levels
            low = np.where(below, middle, low)
            high = np.where(below, high, middle)
        return 0.5 * (low + high)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log density of observed targets, or log probability of labels, (n_samples,) nats."""
        check_not_masked("y", y)
        observed = np.asarray(y)
        inputs = self.encode(X)
        if observed.ndim == 2 and observed.shape[1] == 1:
            observed = observed[:, 0]
        if observed.shape != (len(inputs),):
            raise ValueError(
                f"X has {len(inputs)} rows and y has shape {observed.shape}: they must match."
            )
        if self.classes_ is not None:
            if any(v is None or v != v for v in observed.tolist()):
                raise ValueError("Input y contains NaN.")
            hit = np.array([observed == label for label in self.classes_], dtype=bool).T
            logits = self._outputs(inputs)
            log_proba = logits - logsumexp(logits, axis=1, keepdims=True)
            return np.where(hit, log_proba, -np.inf).max(axis=1)
        try:
            observed = observed.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must hold numbers: {error}.") from error
        if not np.isfinite(observed).all():
            raise ValueError("Input y contains NaN or infinity.")
        weights, loc, scale = self.components(X)
        with np.errstate(over="ignore"):  # the density of very distant targets is 0
            z = (observed[:, None] - loc) / scale
            logs = -0.5 * z**2 - np.log(scale) - 0.5 * np.log(2.0 * np.pi)
        return np.asarray(logsumexp(logs, axis=1, b=weights))

    def to_onnx(self, file: Any, double: bool = False) -> None:
        """Write the network for ONNX: inputs ``X`` (n_samples, n_features), all numbers.

        Outputs are ``proba``, or ``weights``, ``loc`` and ``std`` of the normals, as `components`
        has them, in float32. Needs ``pip install onnx``. Missing values and infinity aren't refused
        there.

        Parameters
        ----------
        file : str, path-like or binary file
            Replaced at once, when the new file is on the disk.
        double : bool, default=False
            Whether ``X`` is float64 and is standardised in float64, which columns whose level is
            large against their spread need. float32 otherwise, with a warning of such columns.
        """
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        if self._levels:
            raise ValueError("to_onnx takes tables of numbers: encode words before distilling.")
        self._warn_of_rounding(double)
        steps = _STEPS + "Softmax outputs:proba"
        names = ["proba"]
        a = self._arrays
        if self.classes_ is None:
            steps = _STEPS + _OF_NORMALS
            names = ["weights", "loc", "std"]
        if "units" in a:
            steps = steps.replace(_INPUTS, _OF_NETWORKS).replace(":loc", ":own") + _MOVED
        how: dict[str, dict[str, Any]] = {
            **{kind: {"axis": 1} for kind in ("Gather", "Concat", "Softmax")},
            "Cast": {"to": TensorProto.FLOAT},
        }  # fmt: skip
        how["Split"] = {"axis": 1, "num_outputs": 3}
        nodes = []
        for step in steps.split("|"):
            (kind, *inputs), outputs = (part.split() for part in step.split(":"))
            nodes.append(helper.make_node(kind, inputs, outputs, **how.get(kind, {})))
        places = {"marks": np.flatnonzero(a["marked"]), "numbers": a["numbers"]}
        values = {**a, "zero": np.zeros(()), "one": np.ones(()), "far": np.array(8.0)}
        if "units" in a:
            which = np.searchsorted(a["ends"], np.arange(a["units"].shape[1]), side="right")
            values |= {name: 1.0 * (which == k) for k, name in enumerate(KINDS)}
            places["mean_of_networks"] = np.zeros(1)
        wide = {"mean", "scale"} if double else set()
        arrays = [numpy_helper.from_array(v.astype(np.int64), k) for k, v in places.items()]
        arrays += [
            numpy_helper.from_array(v.astype(np.float64 if k in wide else np.float32), k)
            for k, v in values.items() if k not in places and v.dtype.kind == "f" and k != "classes"
        ]  # fmt: skip
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None])
            for name in ("X", *names)
        ]
        if double:
            ends[0] = helper.make_tensor_value_info("X", TensorProto.DOUBLE, ["n", None])
        graph = helper.make_graph(nodes, "student", ends[:1], ends[1:], arrays)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        onnx.checker.check_model(model)
        _write(file, model.SerializeToString())

    def _warn_of_rounding(self, double: bool) -> None:
        """Warn of columns that float32 rounds by more than a thousandth of their spread."""
        a = self._arrays
        rounding = 2.0**-24 * np.abs(a["mean"]) / a["scale"]
        far = np.flatnonzero(rounding > _MAX_ROUNDING)
        if double or not len(far):
            return
        j = int(a["numbers"][far[0]])
        column = str(j) if self._names is None else repr(self._names[j])
        warnings.warn(
            f"to_onnx: column {column} of X varies around {a['mean'][far[0]]:.3g} by "
            f"{a['scale'][far[0]]:.3g}: float32 rounds it by {rounding[far[0]]:.1g} standard "
            "deviations. Use double=True, or subtract a constant before distilling.",
            UserWarning,
            stacklevel=3,
        )


def _with_suffix(file: Any) -> Any:
    """A path that ends with .npz, as NumPy writes it; file objects as they are."""
    if hasattr(file, "write") or not isinstance(file, str | PathLike):
        return file
    path = str(fspath(file))
    return path if path.endswith(".npz") else f"{path}.npz"


def _write(file: Any, content: bytes) -> None:
    if hasattr(file, "write"):
        file.write(content)
    else:
        replace_file(file, content)


def _read_arrays(file: Any) -> dict[str, Array]:
    """Arrays of a file of NumPy's. Raises ValueError before more than a few sizes are allocated."""
    if hasattr(file, "read"):
        content = file.read()
        file = io.BytesIO(content)
        size = len(content)
    else:
        size = os.stat(file).st_size
    arrays = {}
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > _MEMORY_FACTOR * size + _SPARE_BYTES:
            raise ValueError("arrays that take more memory than such a file is worth")
        for entry in entries:
            with archive.open(entry) as stream:
                data = stream.read(entry.file_size)
            stored = io.BytesIO(data)
            version = np.lib.format.read_magic(stored)
            read = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, is_turned, dtype = read(stored)
            start = stored.tell()
            n_bytes = prod(shape) * dtype.itemsize
            if (
                dtype.kind not in "fiubU"
                or n_bytes != len(data) - start
                or min(shape, default=0) < 0
            ):
                raise ValueError(f"an array {entry.filename} of another size than it says")
            values = (
                np.frombuffer(data, dtype, prod(shape), start) if n_bytes else np.zeros(0, dtype)
            )
            arrays[entry.filename.removesuffix(".npy")] = values.reshape(
                shape, order="F" if is_turned else "C"
            )
    return arrays


def _levels_of_quantiles(quantiles: Any) -> Array:
    try:
        levels = np.asarray(quantiles, dtype=np.float64)
    except (TypeError, ValueError):
        levels = np.zeros(0)
    inside = (levels > 0.0) & (levels < 1.0)
    if levels.ndim != 1 or not len(levels) or not inside.all():
        raise ValueError(
            f"quantiles must lie strictly between 0 and 1, got {short_repr(quantiles)}."
        )
    return levels


# Steps of ONNX, inputs and outputs: of `encode` and the network, then of the components.
_STEPS = (
    "Gather X numbers:values|IsNaN values:missing|Sub values mean:off|Div off scale:wide_scaled|"
    "Cast wide_scaled:scaled|"
    "Where missing zero scaled:filled|Div filled far:reach|Mul reach reach:square|"
    "Add square one:more|Sqrt more:root|Div filled root:squashed|Cast missing:flags|"
    "Gather flags marks:marks_of|Concat squashed marks_of:h0|"
    "Gemm h0 weight0 bias0:sum0|Tanh sum0:h1|Gemm h1 weight1 bias1:sum1|Tanh sum1:h2|"
    "Gemm h2 weight2 bias2:bent|MatMul h0 weight3:straight|Add bent straight:outputs|"
)
_INPUTS = "Concat squashed marks_of:h0|"
_OF_NETWORKS = (
    "Concat filled marks_of:plain|Gemm plain units unit_bias:z|Tanh z:bounded|Relu z:rising|"
    "Mul bounded tanh:z0|Mul rising relu:z1|Mul z identity:z2|Add z0 z1:z01|Add z01 z2:z012|"
    "Gemm z012 features feature_bias:said|Concat squashed marks_of said:h0|"
)
_MOVED = "|Gather said mean_of_networks:mean_said|Mul mean_said slope:shift|Add own shift:loc"
_OF_NORMALS = (
    "Split outputs:logits means logs|Softmax logits:weights|Mul means y_scale:shifted|"
    "Add shifted y_mean:loc|Exp logs:widths|Mul widths y_scale:std"
)
