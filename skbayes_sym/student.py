"""Students: small networks with a predictive distribution, evaluated by NumPy.

`skbayes_sym.distill` makes them; they take about a hundred kilobytes. This file needs NumPy and
SciPy, and imports neither torch nor scikit-learn.
"""

import io
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Sequence
from math import prod
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from skbayes_sym.numerics.arguments import check_not_masked, short_repr
from skbayes_sym.numerics.dates import DateEncoding, encode_calendar, format_days
from skbayes_sym.numerics.files import replace_file, require_regular
from skbayes_sym.numerics.latent_mixtures import LATENT_MIXTURES, LatentMixture
from skbayes_sym.numerics.tables import (
    MISSING,
    UNKNOWN,
    Levels,
    Table,
    check_column_names,
    days_since_reference,
    fill_masked,
    read_table,
    to_float,
)

Array = npt.NDArray[Any]
Loaded = TypeVar("Loaded")

# Activations of hidden units that a student takes over from its teacher, in the order of the units.
FEATURE_ACTIVATIONS = ("tanh", "relu", "identity")
MAX_ONE_HOT = 30  # number of levels with an indicator column
_WEIGHT_PREFIXES = ("weight", "bias", "unit", "feature")
# Memory that loading a file may take: a multiple of the file's size, plus a constant in bytes.
_MEMORY_FACTOR = 3
_SPARE_BYTES = 1 << 16
# Rounding errors of an input in float32 above which to_onnx warns, in standard deviations.
_MAX_ROUNDING = 1e-3
# Scale, in standard deviations, at which standardised inputs saturate.
_INPUT_BOUND = 8.0
# Constants of the ONNX graph that are indices; all others are floating-point numbers.
_ONNX_INDICES = {"numeric", "missing_index", "first_feature"}


def apply_activations(z: Array, ends: Array) -> Array:
    """Apply the three `FEATURE_ACTIVATIONS` to pre-activations (N, H), in place.

    ``ends`` are the ends of the units with the first and with the second activation.
    """
    np.tanh(z[:, : ends[0]], out=z[:, : ends[0]])
    np.maximum(z[:, ends[0] : ends[1]], 0.0, out=z[:, ends[0] : ends[1]])
    return z


def to_text(value: Any) -> Array:
    """Encode names or levels as the bytes of JSON text, which a file holds without padding."""
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def from_text(array: Array) -> Any:
    """Decode the result of `to_text`."""
    return json.loads(array.astype(np.uint8).tobytes())


def write_date_encodings(dates: dict[int, DateEncoding]) -> Array:
    """Encode the encodings of dates, by the position of their column, as text."""
    return to_text([[j, *date] for j, date in dates.items()])


def read_date_encodings(array: Array) -> dict[int, DateEncoding]:
    """Decode the result of `write_date_encodings`."""
    return {
        int(j): DateEncoding(float(reference), bool(day_first), float(offset), tuple(parts))
        for j, reference, day_first, offset, parts in from_text(array)
    }


class Student:
    r"""Mixture density network with two hidden layers (Bishop 1994), or a softmax of classes.

    .. math:: p(z \mid x) = \sum_k \pi_k(x)\, N(z \mid \mu_k(x), \sigma_k(x)^2)

    The target is :math:`y = z` if the teacher predicts real numbers, and :math:`y = e^z` if it
    predicts positive numbers. Counts are at most k if :math:`z \le \sqrt{k + 1/2}`.

    A student takes the columns that its teacher takes. It refuses what its teacher refuses: columns
    with other names or in another order, infinity, and missing values or unknown levels if the
    teacher doesn't predict them.

    Parameters
    ----------
    arrays : dict of str to ndarray
        Contents of a file as `load` reads it.

    Attributes
    ----------
    kl_to_teacher_ : float
        Estimated divergence KL[teacher || student] of the predictive distributions on held-out
        rows: the number of nats per row by which the student predicts worse than its teacher if
        the targets follow the teacher's distribution.
    classes_ : ndarray of shape (n_classes,) or None
        Class labels. None if the teacher is a regressor.
    target_kind_ : {"real", "positive", "count"} or None
        Kind of the targets. None if the teacher is a classifier.
    n_features_in_ : int
        Number of columns of ``X``.

    See Also
    --------
    skbayes_sym.distill : Makes students.
    """

    _block_rows = 512  # rows whose hidden units fit into a processor's cache

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self.kl_to_teacher_ = float(arrays.get("kl_to_teacher", np.nan))
        self.classes_ = arrays.get("classes")
        self.target_kind_: str | None = None
        if self.classes_ is None:
            self.target_kind_ = str(arrays.get("target_kind", "real"))
        self.n_features_in_ = len(arrays["numeric"]) + len(arrays["categorical"])
        self._names: list[str] | None = None
        if "names" in arrays:
            self._names = [str(name) for name in from_text(arrays["names"])]
        self._levels: list[list[str]] = []
        if "levels" in arrays:
            self._levels = [[str(v) for v in levels] for levels in from_text(arrays["levels"])]
        self._dates: dict[int, DateEncoding] = {}
        if "dates" in arrays:
            self._dates = read_date_encodings(arrays["dates"])

    def __repr__(self) -> str:
        n = sum(a.size for k, a in self._arrays.items() if k.startswith(_WEIGHT_PREFIXES))
        kl = self.kl_to_teacher_
        return f"<student of {n:,} weights, {kl:.3f} nats per row worse than its teacher>"

    def save(self, file: Any) -> None:
        """Write an ``.npz`` file, which `load` reads without torch.

        Parameters
        ----------
        file : str, path-like or binary file
            File to write. ".npz" is appended to a name without it. An existing file is replaced
            atomically, once the new one is on the disk.
        """
        arrays: dict[str, Any] = self._arrays
        content = io.BytesIO()
        np.savez(content, **arrays)
        write_file(with_suffix(file), content.getvalue())

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read a file that `save` has written.

        Parameters
        ----------
        file : str, path-like or binary file
            File to read. ".npz" may be omitted, as in `save`.

        Returns
        -------
        Student
            The saved student.

        Raises
        ------
        ValueError
            If the file isn't that of a student or is damaged. Arrays of more than 3 times the size
            of the file plus 64 kB aren't read.
        """
        return load_arrays(file, cls.from_arrays, "Student")

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array]) -> Self:
        """Make a student of the arrays of a file.

        Parameters
        ----------
        arrays : dict of str to ndarray
            Contents of the file.

        Returns
        -------
        Student
            A student that predicts.

        Raises
        ------
        Exception
            Any, if the arrays aren't those of a student.
        """
        if "targets" in arrays:
            raise ValueError("it has several targets: read it by JointStudent.load")
        student = cls(arrays)
        student._check()
        return student

    @property
    def arrays(self) -> dict[str, Array]:
        """Contents of the student's file."""
        return self._arrays

    def _check(self) -> None:
        """Predict one row, which fails if arrays don't have matching shapes."""
        a = self._arrays
        n = self.n_features_in_
        positions = np.concatenate([a["numeric"], a["categorical"]])
        has_all_columns = sorted(positions.tolist()) == list(range(n))
        if not has_all_columns or len(self._levels) != len(a["categorical"]):
            raise ValueError("the columns are inconsistent")
        if self._names is not None and len(self._names) != n:
            raise ValueError("the number of names differs from the number of columns")

        row = np.zeros((1, n), dtype=object)
        row[0, a["numeric"]] = a["mean"]
        for j, date in self._dates.items():
            mean = a["mean"][a["numeric"] == j]
            row[0, j] = format_days(date.reference + float(mean[0]))
        for j, levels in zip(a["categorical"].tolist(), self._levels, strict=True):
            row[0, j] = levels[0] if levels else None
        encoded = self.encode(row)
        outputs = self._outputs(encoded)
        n_outputs = outputs.shape[1]
        if self.classes_ is None:
            n_expected = n_outputs // 3 * 3
        else:
            n_expected = len(self.classes_)
        if not np.isfinite(outputs).all() or n_outputs != n_expected or not n_outputs:
            raise ValueError("the network's outputs are invalid")
        if self.classes_ is None:
            mixture = self._mixture(encoded)
            parameters = mixture.weights + mixture.loc + mixture.scale
            if not np.isfinite(parameters).all() or (mixture.scale <= 0.0).any():
                raise ValueError("the predictive distribution is invalid")

    def _check_table(self, X: Any) -> Table:
        """Columns of ``X``, which must be those of the teacher."""
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
        if self._names is None:
            return table
        return table._replace(names=self._names)

    def encode_columns(self, X: Any) -> Array:
        """Encode the columns of ``X``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, D)
            Standardised numbers with 0 for missing values, indicators of missing numbers, one-hot
            encoded levels, and indicators of missing and of unknown levels.

        Raises
        ------
        ValueError
            If a row has a missing value or an unknown level that the teacher doesn't predict.
        """
        a = self._arrays
        table = self._check_table(X)

        # Standardised numeric columns and indicators of their missing values.
        n = len(table.columns[0])
        values = np.empty((n, len(a["numeric"])))
        kinds = np.where(a["is_boolean"], "boolean", "numeric").tolist()
        for k, (j, kind) in enumerate(zip(a["numeric"].tolist(), kinds, strict=True)):
            if j in self._dates:
                date = self._dates[j]
                values[:, k] = days_since_reference(table.names[j], table.columns[j], date)
            else:
                values[:, k] = to_float(table.names[j], kind, table.columns[j])
        if np.isinf(values).any():
            j = a["numeric"][np.isinf(values).any(axis=0).argmax()]
            raise ValueError(f"Input X contains infinity, in column {table.names[j]!r}.")
        missing = np.isnan(values)
        refused = missing & ~a["missing_indicator"]
        if refused.any():
            row, k = np.argwhere(refused)[0]
            self._refuse(table, a["numeric"][k], row, "a missing value")
        with np.errstate(over="ignore"):  # values too large for a float are clipped
            scaled = (values - a["mean"]) / a["scale"]
        largest = np.finfo(np.float32).max
        scaled = np.where(missing, 0.0, scaled.clip(-largest, largest))
        blocks = [scaled, missing[:, a["missing_indicator"]]]
        for j, date in self._dates.items():
            days = date.reference + values[:, a["numeric"] == j][:, 0]
            blocks += [part[:, None] for part in encode_calendar(days, date.parts)]

        # One-hot encoded categorical columns and indicators of missing and unknown levels.
        categorical = zip(a["categorical"].tolist(), self._levels, strict=True)
        for k, (j, levels) in enumerate(categorical):
            codes = Levels(levels).codes(table.names[j], table.columns[j])
            blocks.append(codes[:, None] == np.arange(min(len(levels), MAX_ONE_HOT)))
            for code, is_allowed, problem in (
                (MISSING, a["takes_missing"], "a missing value"),
                (UNKNOWN, a["takes_unknown"], "an unknown level"),
            ):
                if is_allowed[k]:
                    blocks.append((codes == code)[:, None])
                elif (codes == code).any():
                    row = int((codes == code).argmax())
                    self._refuse(table, j, row, problem)
        return np.hstack(blocks)

    @staticmethod
    def _refuse(table: Table, j: int, row: int, problem: str) -> None:
        """Raise an error for an entry that the teacher doesn't predict.

        Parameters
        ----------
        table : Table
            Columns of ``X``.
        j : int
            Position of the column.
        row : int
            Position of the row.
        problem : str
            Description of the entry.

        Raises
        ------
        ValueError
            Always.
        """
        value = short_repr(table.columns[j][row])
        raise ValueError(
            f"column {table.names[j]!r} of X has {problem} ({value}) in row {row}, for which the "
            "student's teacher has no prediction. Leave the row out or fill it."
        )

    def _network_features(self, columns: Array) -> Array:
        """Features by hidden units of the teacher's networks, (N, F); F = 0 without networks.

        The first is the mean of the networks, the others are directions in which they differ.
        """
        a = self._arrays
        if "units" not in a:
            return np.empty((len(columns), 0), np.float32)
        features = []
        for i in range(0, max(len(columns), 1), self._block_rows):
            z = columns[i : i + self._block_rows].astype(np.float32) @ a["units"]
            z += a["unit_bias"]
            h = apply_activations(z, a["activation_ends"])
            features.append(h @ a["features"] + a["feature_bias"])
        return np.concatenate(features)

    def encode(self, X: Any) -> Array:
        """Inputs of the network (N, I) as float32: encoded columns and features by networks.

        Standardised numbers are squashed to a range of 8 standard deviations.
        """
        columns = self.encode_columns(X)
        features = self._network_features(columns)
        n = len(self._arrays["numeric"])
        columns[:, :n] /= np.sqrt(1.0 + (columns[:, :n] / _INPUT_BOUND) ** 2)
        return np.hstack([columns, features]).astype(np.float32)

    def _outputs(self, inputs: Array) -> Array:
        """Outputs of the network (N, O) for encoded inputs."""
        a = self._arrays
        h = inputs
        for i in (0, 1):
            h = h @ a[f"weight{i}"]
            h += a[f"bias{i}"]
            np.tanh(h, out=h)
        outputs = h @ a["weight2"] + a["bias2"] + inputs @ a["weight3"]
        return np.asarray(outputs, dtype=np.float64)

    def _mixture(self, inputs: Array) -> LatentMixture:
        """Distribution of the targets of a regressor's student for encoded inputs."""
        a = self._arrays
        logits, loc, log_scale = np.split(np.ascontiguousarray(self._outputs(inputs).T), 3)
        weights = np.exp(logits - logits.max(axis=0))
        weights /= weights.sum(axis=0)
        loc = a["y_mean"] + a["y_scale"] * loc
        if "units" in a:
            loc += a["slope"] * inputs[:, len(a["units"])]
        scale = a["y_scale"] * np.exp(log_scale)
        return LATENT_MIXTURES[str(self.target_kind_)](weights, loc, scale)

    def predictive_mixture(self, X: Any) -> LatentMixture:
        """Predictive distribution of the targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        LatentMixture
            Its methods take and return arrays whose last axis is that of the rows.

        Raises
        ------
        AttributeError
            If the teacher is a classifier.
        """
        self._require_kind(False, "predictive_mixture")
        return self._mixture(self.encode(X))

    def _require_kind(self, is_classifier: bool, method: str) -> None:
        """Refuse a method that only students of the other kind of teacher have."""
        if (self.classes_ is not None) == is_classifier:
            return
        if is_classifier:
            required = "classifier"
        else:
            required = "regressor"
        actual = "regressor" if is_classifier else "classifier"
        raise AttributeError(
            f"{method} needs the student of a {required}, but this student's teacher is a {actual}."
        )

    def components(self, X: Any) -> tuple[Array, Array, Array]:
        """Components of the predictive mixture of normals.

        They are those of the targets, of the logarithms of positive targets, and of a latent
        variable that is at most sqrt(k + 1/2) if a count is at most k.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        weights, loc, scale : ndarray of shape (n_samples, K)
            Weights, means and standard deviations.

        Raises
        ------
        AttributeError
            If the teacher is a classifier.
        """
        self._require_kind(False, "components")
        mixture = self._mixture(self.encode(X))
        return mixture.weights.T, mixture.loc.T, mixture.scale.T

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict targets by their mean, or classes by the largest probability.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        return_std : bool, default=False
            Whether to also return the standard deviation of a new target.

        Returns
        -------
        mean : ndarray of shape (n_samples,)
            Predictive means, or the most probable classes.
        std : ndarray of shape (n_samples,)
            Predictive standard deviations. Only if ``return_std``.

        Raises
        ------
        AttributeError
            If ``return_std`` and the teacher is a classifier.
        """
        if self.classes_ is not None:
            if return_std:
                self._require_kind(False, "return_std")
            return self.classes_[self._outputs(self.encode(X)).argmax(axis=1)]
        mixture = self._mixture(self.encode(X))
        if return_std:
            return mixture.moments()
        return mixture.mean()

    def predict_proba(self, X: Any) -> Array:
        """Predict class probabilities.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Probabilities in the order of ``classes_``.

        Raises
        ------
        AttributeError
            If the teacher is a regressor.
        """
        self._require_kind(True, "predict_proba")
        logits = self._outputs(self.encode(X))
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Predict quantiles of a new target, by bisection.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        quantiles : sequence of float, default=(0.05, 0.5, 0.95)
            Levels between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles)
            Quantiles in the units of the targets.

        Raises
        ------
        ValueError
            If a level isn't strictly between 0 and 1.
        AttributeError
            If the teacher is a classifier.
        """
        self._require_kind(False, "predict_quantiles")
        levels = _check_levels(quantiles)
        mixture = self._mixture(self.encode(X))
        return mixture.from_latent(mixture.latent_quantile(levels[:, None])).T

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Predict the central interval that contains a new target with probability ``coverage``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        coverage : float, default=0.9
            Probability, strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, 2)
            Lower and upper end.

        Raises
        ------
        ValueError
            If ``coverage`` isn't strictly between 0 and 1.
        AttributeError
            If the teacher is a classifier.
        """
        self._require_kind(False, "predict_interval")
        if not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must lie strictly between 0 and 1, got {coverage!r}.")
        return self.predict_quantiles(X, (0.5 * (1.0 - coverage), 0.5 * (1.0 + coverage)))

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log density of observed targets, or log probability of observed classes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y : array-like of shape (n_samples,)
            Targets or classes.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log densities in nats, in the units of ``y``, or log probabilities of counts. -inf for
            an unknown class and for values that positive targets or counts can't have.

        Raises
        ------
        ValueError
            If ``y`` has another length than ``X`` or contains NaN.
        """
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
            is_class = np.array([observed == label for label in self.classes_], dtype=bool).T
            logits = self._outputs(inputs)
            log_proba = logits - logsumexp(logits, axis=1, keepdims=True)
            return np.where(is_class, log_proba, -np.inf).max(axis=1)
        if observed.dtype.kind in "cM":
            raise ValueError(f"y must hold numbers: got dtype {observed.dtype}.")
        try:
            observed = observed.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must hold numbers: {error}.") from error
        if not np.isfinite(observed).all():
            raise ValueError("Input y contains NaN or infinity.")
        return self._mixture(inputs).log_prob(observed)

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw new targets, or classes, independently for every row.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Rows.
        n_samples : int, default=1
            Number of draws.
        random_state : int, Generator or None, default=0
            Seed or generator of the draws, as `numpy.random.default_rng` takes it.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples)
            Draws in the units of the targets, or class labels.
        """
        rng = np.random.default_rng(random_state)
        if self.classes_ is not None:
            ends = self.predict_proba(X).cumsum(axis=1)[:, None, :-1]
            draws = rng.random((len(ends), n_samples, 1))
            return np.asarray(self.classes_[(draws > ends).sum(axis=2)])
        mixture = self._mixture(self.encode(X))
        return mixture.from_latent(mixture.latent_sample(n_samples, rng)).T

    def to_onnx(self, file: Any, double: bool = False) -> None:
        """Export the network to ONNX, for tables of numbers.

        The graph has the input ``X`` (n_samples, n_features). Its outputs are ``proba``, or
        ``weights``, ``loc`` and ``std`` of the normals as returned by `components`, in float32. The
        normals are those of a latent variable if targets are positive or counts. The package onnx
        is required. The exported network doesn't refuse missing values or infinity.

        Parameters
        ----------
        file : str, path-like or binary file
            File to write. An existing file is replaced atomically, once the new one is on the disk.
        double : bool, default=False
            Whether ``X`` is float64 and is standardised in float64, which is necessary for columns
            whose mean is large compared to their standard deviation. Otherwise ``X`` is float32,
            and such columns cause a warning.

        Raises
        ------
        ValueError
            If the teacher has categorical columns or dates.
        """
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        if self._levels or self._dates:
            raise ValueError(
                "to_onnx takes tables of numbers: encode words and dates before distilling."
            )
        if not double:
            self._warn_rounding()
        has_networks = "units" in self._arrays

        # Nodes in order of evaluation, and the names of the outputs.
        graph = _OnnxGraph(helper)
        _add_network(graph, has_networks, TensorProto.FLOAT)
        if self.classes_ is None:
            _add_mixture(graph, has_networks)
            output_names = ["weights", "loc", "std"]
        else:
            graph.add("Softmax", "outputs", "proba", axis=1)
            output_names = ["proba"]

        # ONNX Runtime warns of constants that no node uses.
        used = {name for node in graph.nodes for name in node.input}
        double_names = {"mean", "scale"} if double else set()
        tensors = []
        for name, value in self._onnx_constants().items():
            if name not in used:
                continue
            if name in _ONNX_INDICES:
                dtype: Any = np.int64
            elif name in double_names:
                dtype = np.float64
            else:
                dtype = np.float32
            tensors.append(numpy_helper.from_array(value.astype(dtype), name))

        if double:
            x_type = TensorProto.DOUBLE
        else:
            x_type = TensorProto.FLOAT
        x_info = helper.make_tensor_value_info("X", x_type, ["n", None])
        output_info = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None])
            for name in output_names
        ]
        onnx_graph = helper.make_graph(graph.nodes, "student", [x_info], output_info, tensors)
        model = helper.make_model(onnx_graph, opset_imports=[helper.make_opsetid("", 18)])
        onnx.checker.check_model(model)
        write_file(file, model.SerializeToString())

    def _onnx_constants(self) -> dict[str, Array]:
        """Arrays of the student and other constants of its ONNX graph, by name."""
        constants = {
            **self._arrays,
            "missing_index": np.flatnonzero(self._arrays["missing_indicator"]),
            "first_feature": np.zeros(1),
            "zero": np.zeros(()),
            "one": np.ones(()),
            "input_bound": np.array(_INPUT_BOUND),
        }
        if "units" in self._arrays:
            unit = np.arange(self._arrays["units"].shape[1])
            activation = np.searchsorted(self._arrays["activation_ends"], unit, side="right")
            for k, name in enumerate(FEATURE_ACTIVATIONS):
                constants[f"is_{name}"] = 1.0 * (activation == k)
        return constants

    def _warn_rounding(self) -> None:
        """Warn if float32 rounds a column by more than a thousandth of its standard deviation."""
        a = self._arrays
        rounding = 2.0**-24 * np.abs(a["mean"]) / a["scale"]
        inaccurate = np.flatnonzero(rounding > _MAX_ROUNDING)
        if not len(inaccurate):
            return
        k = inaccurate[0]
        j = int(a["numeric"][k])
        if self._names is None:
            column = str(j)
        else:
            column = repr(self._names[j])
        warnings.warn(
            f"to_onnx: column {column} of X varies around {a['mean'][k]:.3g} by "
            f"{a['scale'][k]:.3g}: float32 rounds it by {rounding[k]:.1g} standard "
            "deviations. Use double=True, or subtract a constant before distilling.",
            UserWarning,
            stacklevel=3,
        )


class _OnnxGraph:
    """Nodes of an ONNX graph in order of evaluation."""

    def __init__(self, helper: Any) -> None:
        self.nodes: list[Any] = []
        self._helper = helper

    def add(self, operator: str, inputs: str, outputs: str, **attributes: Any) -> None:
        """Append a node; the names of inputs and outputs are separated by spaces."""
        node = self._helper.make_node(operator, inputs.split(), outputs.split(), **attributes)
        self.nodes.append(node)


def _add_network(graph: _OnnxGraph, has_networks: bool, float_type: int) -> None:
    """Add the nodes of `Student.encode` and of the network, from ``X`` to ``outputs``."""
    # Standardised numbers.
    graph.add("Gather", "X numeric", "values", axis=1)
    graph.add("IsNaN", "values", "missing")
    graph.add("Sub", "values mean", "centred")
    graph.add("Div", "centred scale", "precise_scaled")
    graph.add("Cast", "precise_scaled", "scaled", to=float_type)
    graph.add("Where", "missing zero scaled", "filled")

    # Squashing to the input bound.
    graph.add("Div", "filled input_bound", "ratio")
    graph.add("Mul", "ratio ratio", "square")
    graph.add("Add", "square one", "one_plus_square")
    graph.add("Sqrt", "one_plus_square", "root")
    graph.add("Div", "filled root", "squashed")

    # Indicators of missing values.
    graph.add("Cast", "missing", "flags", to=float_type)
    graph.add("Gather", "flags missing_index", "indicators", axis=1)

    if has_networks:
        # Features by the hidden units of the teacher's networks.
        graph.add("Concat", "filled indicators", "columns", axis=1)
        graph.add("Gemm", "columns units unit_bias", "z")
        graph.add("Tanh", "z", "tanh_z")
        graph.add("Relu", "z", "relu_z")
        graph.add("Mul", "tanh_z is_tanh", "tanh_units")
        graph.add("Mul", "relu_z is_relu", "relu_units")
        graph.add("Mul", "z is_identity", "identity_units")
        graph.add("Add", "tanh_units relu_units", "curved_units")
        graph.add("Add", "curved_units identity_units", "all_units")
        graph.add("Gemm", "all_units features feature_bias", "network_features")
        graph.add("Concat", "squashed indicators network_features", "h0", axis=1)
    else:
        graph.add("Concat", "squashed indicators", "h0", axis=1)

    # Two hidden layers and the linear skip connection.
    graph.add("Gemm", "h0 weight0 bias0", "z1")
    graph.add("Tanh", "z1", "h1")
    graph.add("Gemm", "h1 weight1 bias1", "z2")
    graph.add("Tanh", "z2", "h2")
    graph.add("Gemm", "h2 weight2 bias2", "nonlinear")
    graph.add("MatMul", "h0 weight3", "linear")
    graph.add("Add", "nonlinear linear", "outputs")


def _add_mixture(graph: _OnnxGraph, has_networks: bool) -> None:
    """Add the nodes of `Student.components`, from ``outputs`` to weights, means and scales."""
    graph.add("Split", "outputs", "logits scaled_loc log_scale", axis=1, num_outputs=3)
    graph.add("Softmax", "logits", "weights", axis=1)
    graph.add("Mul", "scaled_loc y_scale", "rescaled_loc")
    loc = "network_loc" if has_networks else "loc"
    graph.add("Add", "rescaled_loc y_mean", loc)
    graph.add("Exp", "log_scale", "scaled_std")
    graph.add("Mul", "scaled_std y_scale", "std")
    if has_networks:
        # Locations are relative to the mean of the networks.
        graph.add("Gather", "network_features first_feature", "network_mean", axis=1)
        graph.add("Mul", "network_mean slope", "shift")
        graph.add("Add", "network_loc shift", "loc")


def with_suffix(file: Any) -> Any:
    """Append ".npz" to a path without it, as NumPy does; file objects are returned unchanged."""
    if hasattr(file, "write") or not isinstance(file, str | PathLike):
        return file
    path = str(fspath(file))
    return path if path.endswith(".npz") else f"{path}.npz"


def write_file(file: Any, content: bytes) -> None:
    """Write to a file object, or replace a file atomically."""
    if hasattr(file, "write"):
        file.write(content)
    else:
        replace_file(file, content)


def load_arrays(file: Any, make: Callable[[dict[str, Array]], Loaded], kind: str) -> Loaded:
    """Read the file of a student.

    Parameters
    ----------
    file : str, path-like or binary file
        File to read. ".npz" may be omitted.
    make : callable
        Makes a student of the arrays of a file, and raises any exception if they are invalid.
    kind : str
        Name of the class for the error message.

    Returns
    -------
    object
        Result of ``make``.

    Raises
    ------
    ValueError
        If the file isn't that of a student or is damaged.
    """
    if not hasattr(file, "read"):
        require_exact = Path(file).exists() or str(fspath(file)).endswith(".npz")
        file = file if require_exact else with_suffix(file)
        require_regular(file)
    if hasattr(file, "read"):
        name = "the file"
    else:
        name = repr(fspath(file))
    try:
        return make(_read_arrays(file))
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # zip files, compression, headers or missing arrays
        raise ValueError(
            f"{name} is not a student saved by `{kind}.save`, or it is damaged (a truncated "
            f"copy?): {type(error).__name__}: {short_repr(str(error))}"
        ) from error


def _read_arrays(file: Any) -> dict[str, Array]:
    """Read the arrays of an ``.npz`` file.

    Raises ValueError before more memory is allocated than a few times the size of the file.
    """
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
            raise ValueError("the arrays are too large for the size of the file")
        for entry in entries:
            with archive.open(entry) as stream:
                data = stream.read(entry.file_size)
            name = entry.filename.removesuffix(".npy")
            arrays[name] = _read_array(data, entry.filename)
    return arrays


def _read_array(data: bytes, name: str) -> Array:
    """Read an array in NumPy's ``.npy`` format, without pickle."""
    stored = io.BytesIO(data)
    version = np.lib.format.read_magic(stored)
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, is_fortran, dtype = read_header(stored)
    start = stored.tell()
    n_bytes = prod(shape) * dtype.itemsize
    has_valid_size = n_bytes == len(data) - start and min(shape, default=0) >= 0
    if dtype.kind not in "fiubU" or not has_valid_size:
        raise ValueError(f"the size of the array {name} differs from that in its header")
    values: Array = np.zeros(0, dtype)
    if n_bytes:
        values = np.frombuffer(data, dtype, prod(shape), start)
    return values.reshape(shape, order="F" if is_fortran else "C")


def _check_levels(quantiles: Any) -> Array:
    """Convert quantile levels to an array; a ValueError unless they are between 0 and 1."""
    try:
        levels = np.asarray(quantiles, dtype=np.float64)
    except (TypeError, ValueError):
        levels = np.zeros(0)
    is_inside = (levels > 0.0) & (levels < 1.0)
    if levels.ndim != 1 or not len(levels) or not is_inside.all():
        raise ValueError(
            f"quantiles must lie strictly between 0 and 1, got {short_repr(quantiles)}."
        )
    return levels
