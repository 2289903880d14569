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
        All there is to know, as `load` reads it.

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
        a, nodes = self._arrays, []
        given = {
            "mean": a["mean"], "scale": a["scale"], "zero": 0.0, "one": 1.0, "far": 8.0,
            "marks": np.flatnonzero(a["marked"]), "numbers": a["numbers"],
            "y_mean": a.get("y_mean", 0.0), "y_scale": a.get("y_scale", 1.0),
            **{k: v for k, v in a.items() if k.startswith(("weight", "bias"))},
        }  # fmt: skip

        def node(kind: str, inputs: str, outputs: str, **how: Any) -> None:
            nodes.append(helper.make_node(kind, inputs.split(), outputs.split(), **how))

        node("Gather", "X numbers", "values", axis=1)
        node("IsNaN", "values", "missing")
        node("Sub", "values mean", "off")
        node("Div", "off scale", "scaled")
        node("Where", "missing zero scaled", "filled")
        node("Div", "filled far", "reach")
        node("Mul", "reach reach", "square")
        node("Add", "square one", "more")
        node("Sqrt", "more", "root")
        node("Div", "filled root", "squashed")
        node("Cast", "missing", "flags", to=TensorProto.FLOAT)
        node("Gather", "flags marks", "marked", axis=1)
        node("Concat", "squashed marked", "h0", axis=1)
        for i in (0, 1):
            node("Gemm", f"h{i} weight{i} bias{i}", f"sum{i}")
            node("Tanh", f"sum{i}", f"h{i + 1}")
        node("Gemm", "h2 weight2 bias2", "bent")
        node("MatMul", "h0 weight3", "straight")
        node("Add", "bent straight", "outputs")
        if self.classes_ is not None:
            node("Softmax", "outputs", "proba", axis=1)
            names = ["proba"]
        else:
            node("Split", "outputs", "logits means logs", axis=1, num_outputs=3)
            node("Softmax", "logits", "weights", axis=1)
            node("Mul", "means y_scale", "shifted")
            node("Add", "shifted y_mean", "loc")
            node("Exp", "logs", "widths")
            node("Mul", "widths y_scale", "std")
            names = ["weights", "loc", "std"]
        arrays = [
            numpy_helper.from_array(np.asarray(v, np.int64 if k in ("marks", "numbers") else
                                               np.float32), k)
            for k, v in given.items()
        ]  # fmt: skip
        shape = ["n", len(a["numbers"])]
        put = [helper.make_tensor_value_info("X", TensorProto.FLOAT, shape)]
        got = [helper.make_tensor_value_info(k, TensorProto.FLOAT, ["n", None]) for k in names]
        graph = helper.make_graph(nodes, "student", put, got, arrays)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), file)
