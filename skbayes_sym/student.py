"""A predictive distribution in a hundred kilobytes: a small network that NumPy evaluates.

Made by `skbayes_sym.distill`. This file imports nothing of the package and no torch.
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, ndtr

Array = npt.NDArray[Any]


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

    def __init__(self, arrays: dict[str, Array]) -> None:
        self._arrays = arrays
        self.lost_ = float(arrays.get("lost", np.nan))
        self.classes_ = arrays.get("classes")
        self._words = [names for key, names in sorted(arrays.items()) if key.startswith("words")]

    def __repr__(self) -> str:
        n = sum(a.size for k, a in self._arrays.items() if k.startswith(("weight", "bias")))
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

    def encode(self, X: Any) -> Array:
        """Inputs of the network (N, D): scaled numbers, missing ones marked, and one-hot words."""
        a, columns = self._arrays, np.asarray(X).T
        values = columns[a["numbers"]].astype(np.float64).T
        missing = np.isnan(values)
        scaled = np.where(missing, 0.0, (values - a["mean"]) / a["scale"])
        scaled = scaled / np.sqrt(1.0 + (scaled / 8.0) ** 2)  # far rows stay within reach
        words = [columns[j].astype(str)[:, None] == names
                 for j, names in zip(a["places"], self._words, strict=True)]  # fmt: skip
        return np.hstack([scaled, missing[:, a["marked"]], *words]).astype(np.float32)

    def _outputs(self, X: Any) -> Array:
        a, h = self._arrays, self.encode(X)
        skip = h @ a["weight3"]
        for i in (0, 1):
            h = np.tanh(h @ a[f"weight{i}"] + a[f"bias{i}"])
        return np.asarray(h @ a["weight2"] + a["bias2"] + skip, dtype=np.float64)

    def components(self, X: Any) -> tuple[Array, Array, Array]:
        """Weights, means and standard deviations of every row's normals, each (n_samples, K)."""
        a = self._arrays
        logits, loc, log_scale = np.split(self._outputs(X), 3, axis=1)
        weights = np.exp(logits - logsumexp(logits, axis=1, keepdims=True))
        return weights, a["y_mean"] + a["y_scale"] * loc, a["y_scale"] * np.exp(log_scale)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Mean, and standard deviation of a new target; or the most probable class."""
        if self.classes_ is not None:
            return self.classes_[self._outputs(X).argmax(axis=1)]
        weights, loc, scale = self.components(X)
        mean = (weights * loc).sum(axis=1)
        if not return_std:
            return mean
        return mean, np.sqrt((weights * (scale**2 + (loc - mean[:, None]) ** 2)).sum(axis=1))

    def predict_proba(self, X: Any) -> Array:
        """Class probabilities (n_samples, n_classes)."""
        logits = self._outputs(X)
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
        how: dict[str, dict[str, int]] = {
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
_OF_NORMALS = (
    "Split outputs:logits means logs|Softmax logits:weights|Mul means y_scale:shifted|"
    "Add shifted y_mean:loc|Exp logs:widths|Mul widths y_scale:std"
)
