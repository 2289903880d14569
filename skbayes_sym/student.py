"""A predictive distribution in a hundred kilobytes: a small network that NumPy evaluates.

Made by `skbayes_sym.distill`. This file imports nothing of the package and no torch.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

Array = npt.NDArray[Any]

KINDS = ("tanh", "relu", "identity")  # of hidden units that a student takes over, in this order
_LEARNED = ("weight", "bias", "unit", "feature")


def hidden(z: Array, ends: Array) -> Array:
    """Hidden units (N, H) of the three kinds, in place; ``ends``: of the first and the second."""
    np.tanh(z[:, : ends[0]], out=z[:, : ends[0]])
    np.maximum(z[:, ends[0] : ends[1]], 0.0, out=z[:, ends[0] : ends[1]])
    return z


def as_numbers(column: Array) -> Array:
    """Values of a column as float64, NaN where None or pandas' NA stands for a missing one."""
    if column.dtype.kind == "O":
        is_given = [v is not None and type(v).__name__ != "NAType" for v in column]
        column = np.where(is_given, column, np.nan)
    return column.astype(np.float64)


class Student:
    r"""A mixture density network with two hidden layers (Bishop 1994), or a softmax of classes.

    .. math:: p(y \mid x) = \sum_k \pi_k(x)\, N(y \mid \mu_k(x), \sigma_k(x)^2)

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

    See Also
    --------
    skbayes_sym.distill : Makes it.
    """

    _n_rows = 512  # at a time, whose hidden units a processor's cache holds

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self.lost_ = float(arrays.get("lost", np.nan))
        self.classes_ = arrays.get("classes")
        self._words = [names for key, names in sorted(arrays.items()) if key.startswith("words")]

    def __repr__(self) -> str:
        n = sum(a.size for k, a in self._arrays.items() if k.startswith(_LEARNED))
        return f"<student of {n:,} weights, {self.lost_:.3f} nats per row worse than its teacher>"

    def save(self, file: Any) -> None:
        """Write a file of NumPy's (``.npz``), which `load` reads without torch."""
        arrays: dict[str, Any] = self._arrays
        np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, file: Any) -> Self:
        """Read what `save` has written."""
        with np.load(file, allow_pickle=False) as arrays:
            return cls(dict(arrays))

    def columns(self, X: Any) -> Array:
        """Columns (N, D): scaled numbers, missing ones marked, and one-hot words."""
        a, columns = self._arrays, np.asarray(X).T
        values = as_numbers(columns[a["numbers"]].ravel()).reshape(len(a["numbers"]), -1).T
        missing = np.isnan(values)
        scaled = np.where(missing, 0.0, (values - a["mean"]) / a["scale"])
        words = [columns[j].astype(str)[:, None] == names
                 for j, names in zip(a["places"], self._words, strict=True)]  # fmt: skip
        return np.hstack([scaled, missing[:, a["marked"]], *words])

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
        said, n = self._said(columns), len(self._arrays["numbers"])
        columns[:, :n] /= np.sqrt(1.0 + (columns[:, :n] / 8.0) ** 2)
        return np.hstack([columns, said]).astype(np.float32)

    def _outputs(self, inputs: Array) -> Array:
        a, h = self._arrays, inputs
        for i in (0, 1):
            h = h @ a[f"weight{i}"]
            h += a[f"bias{i}"]
            np.tanh(h, out=h)
        outputs = h @ a["weight2"] + a["bias2"] + inputs @ a["weight3"]
        return np.asarray(outputs, dtype=np.float64)

    def _normals(self, X: Any) -> tuple[Array, Array, Array]:
        """Arrays of `components`, each (K, n_samples)."""
        a, inputs = self._arrays, self.encode(X)
        logits, loc, log_scale = np.split(np.ascontiguousarray(self._outputs(inputs).T), 3)
        weights = np.exp(logits - logits.max(axis=0))
        weights /= weights.sum(axis=0)
        loc = a["y_mean"] + a["y_scale"] * loc
        if "units" in a:
            loc += a["slope"] * inputs[:, len(a["units"])]
        return weights, loc, a["y_scale"] * np.exp(log_scale)

    def components(self, X: Any) -> tuple[Array, Array, Array]:
        """Weights, means and standard deviations of every row's normals, each (n_samples, K)."""
        weights, loc, scale = self._normals(X)
        return weights.T, loc.T, scale.T

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean, and standard deviation of a new target; or the most probable class."""
        if self.classes_ is not None:
            return self.classes_[self._outputs(self.encode(X)).argmax(axis=1)]
        weights, loc, scale = self._normals(X)
        mean = (weights * loc).sum(axis=0)
        if not return_std:
            return mean
        return mean, np.sqrt((weights * (scale**2 + (loc - mean) ** 2)).sum(axis=0))

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n_samples, n_classes)."""
        logits = self._outputs(self.encode(X))
        return np.asarray(np.exp(logits - logsumexp(logits, axis=1, keepdims=True)))

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of a new target (n_samples, n_quantiles), by bisection."""
        weights, loc, scale = (part[..., None] for part in self.components(X))
        low, high = (loc - 40.0 * scale).min(axis=1), (loc + 40.0 * scale).max(axis=1)
        low, high = (end + np.zeros(len(quantiles)) for end in (low, high))
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = (weights * ndtr((middle[:, None] - loc) / scale)).sum(axis=1) < quantiles
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log density of observed targets, or log probability of labels, (n_samples,) nats."""
        if self.classes_ is not None:
            hit = np.asarray(y)[:, None] == self.classes_
            with np.errstate(divide="ignore"):
                return np.asarray(np.log((self.predict_proba(X) * hit).sum(axis=1)))
        weights, loc, scale = self.components(X)
        z = (np.asarray(y, dtype=float)[:, None] - loc) / scale
        logs = -0.5 * z**2 - np.log(scale) - 0.5 * np.log(2.0 * np.pi)
        return np.asarray(logsumexp(logs, axis=1, b=weights))

    def to_onnx(self, file: Any) -> None:
        """Write the network for ONNX: inputs ``X`` float32 (n_samples, n_features), all numbers.

        Outputs are ``proba``, or ``weights``, ``loc`` and ``std`` of the normals, as `components`
        has them. Needs ``pip install onnx``.
        """
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        if self._words:
            raise ValueError("to_onnx takes tables of numbers: encode words before distilling.")
        steps, names, a = _STEPS + "Softmax outputs:proba", ["proba"], self._arrays
        if self.classes_ is None:
            steps, names = _STEPS + _OF_NORMALS, ["weights", "loc", "std"]
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
        arrays = [numpy_helper.from_array(v.astype(np.int64), k) for k, v in places.items()]
        arrays += [
            numpy_helper.from_array(v.astype(np.float32), k) for k, v in values.items()
            if k not in places and v.dtype.kind == "f" and k != "classes"
        ]  # fmt: skip
        ends = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", None])
            for name in ("X", *names)
        ]
        graph = helper.make_graph(nodes, "student", ends[:1], ends[1:], arrays)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), file)


# Steps of ONNX, inputs and outputs: of `encode` and the network, then of the components.
_STEPS = (
    "Gather X numbers:values|IsNaN values:missing|Sub values mean:off|Div off scale:scaled|"
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
