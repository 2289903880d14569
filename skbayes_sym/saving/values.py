"""Values as JSON and named arrays, and back.

What JSON has (None, bool, int, str, finite float) stands for itself. Everything else is an object
with a ``kind``: a number or an array by its name among the arrays, a container by its items, one of
this package's nouns by its name and fields. Nothing here imports or calls what a file names: kinds
and nouns are looked up in the two tables below.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.mlp import ACTIVATIONS, Activation
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.saving.classes import class_name, is_ufunc_name, named, rebuilt, state_of

# Nouns a file may hold, by module. Their names and fields are part of the file's format; they are
# imported when a file is written or read.
NOUNS = {
    "estimators._fit.columns": "Column Columns",
    "estimators.factorization.side_features": "FeatureCode",
    "estimators.mcmc.weighing": "Mode",
    "estimators.stacking.parts": "CalibratedPredictor OfEstimator OfGiven OfTrees StackPart Trees",
    "inference.gaussian_process": "GaussianProcess",
    "inference.laplace.curvature": "LayerSpectrum KroneckerPrecision FullPrecision",
    "inference.laplace.member_refit": "RefittedMembers",
    "inference.laplace.laplace_posterior": "LaplacePosterior ModeMixture",
    "inference.gaussian_vi.hidden_layers": "MeanFieldHidden InducingHidden",
    "inference.gaussian_vi.layers": "Layerwise LayerwisePosterior",
    "inference.linear.low_rank": "LowRankGaussian",
    "inference.pooling": "Calibration NoiseShape ShapedPredictor",
    "inference.posteriors": "MeanFieldGaussian GaussianRows MatrixPosterior",
    "inference.sampling.annealing": "Annealing KroneckerPreconditioner LayerCurvature",
    "inference.sampling.kernels": "HMC State DiagonalPreconditioner DensePreconditioner",
    "inference.sampling.chains": "Block",
    "inference.solvers": "VI MAP Gibbs",
    "models.augmentations.augmentation": "Identity Composed InRescaledUnits Invariances Augerino",
    "models.augmentations.images": "Affine AffineBasis Brightness Contrast Hue PixelNoise Blur",
    "models.augmentations.tabular": "Rotation2D ColumnShift LogScale",
    "models.likelihoods.categorical": "Bernoulli Categorical",
    "models.likelihoods.counts": "NegativeBinomial Poisson",
    "models.likelihoods.noise": "Gaussian Heteroscedastic NaturalHeteroscedastic StudentT",
    "models.likelihoods.ordinal": "Ordinal",
    "models.networks.mlp": "MLP",
    "models.networks.network": "Dense Convolution",
    "models.priors": "Normal GaussianPrior ARD LayerScales",
    "numerics.layout": "ParamLayout",
    "symmetry.group": "Product Trivial",
    "symmetry.gaps.unit_gap": "Exact ExactUpTo Importance InfoNCE Soules",
    "symmetry.units": "Units",
}


@cache
def nouns() -> dict[str, Any]:
    """Nouns a file may hold by name, and the one object of scikit-learn's that is no estimator."""
    return named(NOUNS, "skbayes_sym") | named({"compose": "make_column_selector"}, "sklearn")


_NUMBERS = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

# Bytes that values may take beyond the file's arrays: what a small file may, and for a character.
_SPARE, _FOR_A_CHARACTER = 1 << 21, 64
_OF_AN_OUTPUT, _OF_A_PIXEL = 10_000, 100  # bytes of a convolutional network, about

Encoded = Any  # what the json module writes


class Encoder:
    """Turns values into JSON; ``arrays`` gathers what goes beside it, by name."""

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def encode(self, value: Any, name: str) -> Encoded:
        """The value as JSON; ``name`` says where it belongs, in messages and among the arrays.

        Raises TypeError if it holds anything but numbers, strings, arrays, containers and `nouns`.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if isfinite(value) else {"kind": "float", "value": repr(value)}
        if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
            return self._encode_array(value, name)
        if type(value) in (list, tuple):
            items = [self.encode(item, f"{name}.{i}") for i, item in enumerate(value)]
            return {"kind": type(value).__name__, "items": items}
        if type(value) in (dict, Bunch):
            items = [
                [self.encode(k, name), self.encode(v, f"{name}.{k}")] for k, v in value.items()
            ]
            return {"kind": type(value).__name__.lower(), "items": items}
        if not isinstance(value, BaseEstimator):
            return self._encode_noun(value, name)
        if class_name(value) is None:
            raise _unfit(value, name)
        parameters, attributes = (
            {k: self.encode(v, f"{name}.{k}") for k, v in part.items()}
            for part in (value.get_params(deep=False), state_of(value))
        )
        return {"kind": "estimator", "name": class_name(value), "parameters": parameters,
                "attributes": attributes}  # fmt: skip

    def _encode_array(self, value: Any, name: str) -> Encoded:
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise _unfit(value, name)
        array = np.asarray(value)
        if array.dtype.kind in "UO" and all(type(v) is str for v in array.ravel().tolist()):
            return {
                "kind": "strings", "dtype": array.dtype.str, "shape": list(array.shape),
                "items": array.ravel().tolist(),
            }  # fmt: skip
        if array.dtype.name not in _NUMBERS:
            raise _unfit(value, name)
        # Sums depend on the order in memory in their last digits: keep it.
        turned = array.flags.f_contiguous and not array.flags.c_contiguous
        while name in self.arrays:
            name += "'"
        self.arrays[name] = np.asarray(array.T if turned else array, order="C")
        kind = "array" if isinstance(value, np.ndarray) else "number"
        kind = "tensor" if isinstance(value, torch.Tensor) else kind
        return {"kind": kind, "name": name, "turned": turned}

    def _encode_noun(self, value: Any, name: str) -> Encoded:
        kind = type(value)
        if kind is Activation:
            return {"kind": "activation", "name": value.name}
        if kind is slice:
            return {"kind": "slice", "items": [value.start, value.stop, value.step]}
        if isinstance(value, np.dtype) and value.kind not in "OV":
            return {"kind": "dtype", "name": value.str}
        if kind is type and issubclass(value, np.generic):
            return {"kind": "scalar_type", "name": value.__name__}
        if kind is np.ufunc and is_ufunc_name(value.__name__):
            return {"kind": "ufunc", "name": value.__name__}
        if kind is np.random.RandomState:
            return {"kind": "random_state", "state": self.encode(value.get_state(), name)}
        if kind is ModuleNetwork and value.architecture:
            shape = list(value.input_shape)
            return {
                "kind": "network", "name": value.architecture, "input_shape": shape,
                "n_outputs": value.n_outputs,
            }  # fmt: skip
        if nouns().get(kind.__name__) is not kind:
            raise _unfit(value, name)
        is_tuple = isinstance(value, tuple)  # make_column_selector is neither that nor a dataclass
        held: dict[str, Any] = value._asdict() if is_tuple else vars(value)  # type: ignore[attr-defined]
        names = [f.name for f in fields(value)] if is_dataclass(value) else list(held)
        parts = {n: self.encode(held[n], f"{name}.{n}") for n in names}
        return {"kind": "noun", "name": kind.__name__, "fields": parts}


def _unfit(value: Any, name: str) -> TypeError:
    kind = type(value)
    what = f"an object of class {kind.__module__}.{kind.__qualname__}"
    return TypeError(
        f"{name} can't be saved without pickle: it holds {what}, but such a file holds "
        "numbers, strings, arrays, this package's own classes and common steps of scikit-learn's "
        "only. Use joblib.dump(model, path)."
    )


class Decoder:
    """Turns what an `Encoder` made back into values.

    An array is there once, as it was encoded, and what else takes memory is in proportion to the
    text: a small file can't take all there is. ``n_characters``: of the text.
    """

    def __init__(self, arrays: Mapping[str, Array], n_characters: int) -> None:
        self._arrays, self._spare = dict(arrays), _SPARE + _FOR_A_CHARACTER * n_characters

    def decode(self, encoded: Encoded) -> Any:
        """The value that was encoded.

        Raises LookupError, TypeError, ValueError if it isn't one.
        """
        if isinstance(encoded, list):
            raise ValueError("a list without a kind")
        return _KINDS[encoded["kind"]](self, encoded) if isinstance(encoded, dict) else encoded

    def by_name(self, encoded: Mapping[str, Encoded]) -> dict[str, Any]:
        """Parameters, attributes or fields."""
        return {str(name): self.decode(value) for name, value in encoded.items()}

    def items(self, e: Encoded) -> list[Any]:
        return [self.decode(item) for item in e["items"]]

    def pairs(self, e: Encoded) -> dict[Any, Any]:
        return {self.decode(k): self.decode(v) for k, v in e["items"]}

    def array(self, e: Encoded) -> Array:
        stored = np.array(self._arrays.pop(e["name"]))
        return stored.T if e["turned"] else stored

    def strings(self, e: Encoded) -> Array:
        dtype, items = np.dtype(e["dtype"]), [str(s) for s in e["items"]]
        if dtype.kind not in "UO":
            raise ValueError(f"strings of dtype {dtype}")
        self._spend(dtype.itemsize * len(items))
        return np.array(items, dtype=dtype).reshape(e["shape"])

    def network(self, e: Encoded) -> ModuleNetwork:
        channels, height, width = map(int, e["input_shape"])
        n_outputs = int(e["n_outputs"])
        pixels = prod((channels, height, width))
        self._spend(_OF_AN_OUTPUT * n_outputs + _OF_A_PIXEL * pixels)
        return ARCHITECTURES[e["name"]]((channels, height, width), n_outputs)

    def scalar_type(self, e: Encoded) -> type[np.generic]:
        found = vars(np)[e["name"]]
        if not (isinstance(found, type) and issubclass(found, np.generic)):
            raise ValueError(f"{e['name']} is no type of numbers")
        return found

    def ufunc(self, e: Encoded) -> np.ufunc:
        if not is_ufunc_name(e["name"]):
            raise ValueError(f"{e['name']} is no function of NumPy's")
        return vars(np)[e["name"]]  # type: ignore[no-any-return]

    def random_state(self, e: Encoded) -> np.random.RandomState:
        state = np.random.RandomState()
        state.set_state(self.decode(e["state"]))
        return state

    def _spend(self, n_bytes: int) -> None:
        self._spare -= n_bytes
        if n_bytes < 0 or self._spare < 0:
            raise ValueError("values that take more memory than such a file is worth")


_KINDS: dict[str, Callable[[Decoder, Encoded], Any]] = {
    "float": lambda d, e: float(e["value"]),
    "array": Decoder.array,
    "number": lambda d, e: d.array(e)[()],
    "tensor": lambda d, e: torch.as_tensor(d.array(e)),
    "strings": Decoder.strings,
    "list": Decoder.items,
    "tuple": lambda d, e: tuple(d.items(e)),
    "dict": Decoder.pairs,
    "bunch": lambda d, e: Bunch(**d.pairs(e)),
    "activation": lambda d, e: ACTIVATIONS[e["name"]],
    "network": Decoder.network,
    "random_state": Decoder.random_state,
    "estimator": lambda d, e: rebuilt(
        e["name"], d.by_name(e["parameters"]), d.by_name(e["attributes"])
    ),
    "slice": lambda d, e: slice(*(None if i is None else int(i) for i in e["items"])),
    "dtype": lambda d, e: np.dtype(e["name"]),
    "scalar_type": Decoder.scalar_type,
    "ufunc": Decoder.ufunc,
    "noun": lambda d, e: nouns()[e["name"]](**d.by_name(e["fields"])),
}
