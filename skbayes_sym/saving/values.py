"""Values as JSON and named arrays, and back.

What JSON has (None, bool, int, str, finite float) stands for itself. Everything else is an object
with a ``kind``: a number or an array by its name among the arrays, a container by its items, one of
this package's nouns by its name and fields. Nothing here imports or calls what a file names: kinds
and nouns are looked up in the two tables below.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.models.networks.activations import ACTIVATIONS, Activation
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.saving.classes import (
    class_name,
    is_ufunc_name,
    named,
    plain_parts,
    rebuilt,
    state_of,
)

# Nouns a file may hold, by module. Their names and fields are part of the file's format; they are
# imported when a file is written or read.
NOUNS = {
    "estimators.mcmc.allocate": "Mode",
    "inference.laplace.member_refit": "RefittedMembers",
    "inference.laplace.mode_mixture": "ModeMixture",
    "inference.laplace.laplace_posterior": "LaplacePosterior",
    "inference.laplace.precision": (
        "LayerSpectrum KroneckerPrecision DiagonalPrecision FullPrecision"
    ),
    "inference.gaussian_vi.layers": "Layerwise",
    "inference.gaussian_vi.collapsed": "MeanFieldHidden CollapsedLast",
    "inference.gaussian_vi.global_inducing": "InducingHidden InducingLast",
    "inference.gaussian_vi.layerwise_posterior": "LayerwisePosterior",
    "inference.linear.low_rank": "LowRankGaussian",
    "inference.pooling.noise_shape": "NoiseShape",
    "inference.posteriors": "MeanFieldGaussian GaussianRows MatrixPosterior",
    "inference.sampling.annealing": "Annealing",
    "inference.sampling.kernels.hmc": "HMC",
    "inference.sampling.kernels.nuts": "NUTS",
    "inference.sampling.blocks": "Block",
    "inference.sampling.kernels.kernel": "State DiagonalPreconditioner DensePreconditioner",
    "inference.sampling.kronecker": "KroneckerPreconditioner LayerCurvature",
    "inference.solvers": "VI MAP Gibbs",
    "models.augmentations.affine": "Affine AffineBasis",
    "models.augmentations.augmentation": "Identity Composed InRescaledUnits",
    "models.augmentations.invariances": "Invariances Augerino",
    "models.augmentations.pixels": "Brightness Contrast Hue PixelNoise Blur",
    "models.augmentations.tabular": "Rotation2D ColumnShift LogScale",
    "models.learned_scales": "ARD LayerScales",
    "models.likelihoods.categorical": "Bernoulli Categorical",
    "models.likelihoods.counts": "NegativeBinomial Poisson",
    "models.likelihoods.normal_noise": "Gaussian",
    "models.likelihoods.heteroscedastic": "Heteroscedastic NaturalHeteroscedastic",
    "models.likelihoods.ordinal": "Ordinal",
    "models.likelihoods.student_t": "StudentT",
    "models.networks.mlp": "MLP",
    "models.networks.recording": "Dense Convolution",
    "models.priors": "Normal GaussianPrior",
    "numerics.layout": "ParamLayout",
    "symmetry.group": "Product Trivial",
    "symmetry.gaps.permanent_estimates": "Exact ExactUpTo Importance InfoNCE Soules",
    "symmetry.units": "Units",
}


@cache
def nouns() -> dict[str, Any]:
    """Nouns a file may hold by name."""
    return named(NOUNS, "skbayes_sym")


_NUMBERS = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

_SPARE_CHARACTERS = 1000  # by which an array of strings may be wider than the longest of them

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
        if isinstance(value, BaseEstimator):
            return self._encode_estimator(value, name)
        return self._encode_noun(value, name)

    def _encode_estimator(self, value: BaseEstimator, name: str) -> Encoded:
        known = class_name(value)
        if known is None:
            raise _unfit(value, name)
        parameters, attributes = value.get_params(deep=False), state_of(value)
        return {
            "kind": "estimator",
            "name": known,
            "parameters": {k: self.encode(v, f"{name}.{k}") for k, v in parameters.items()},
            "attributes": {k: self.encode(v, f"{name}.{k}") for k, v in attributes.items()},
        }

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
        if kind.__name__ in plain_parts() and plain_parts()[kind.__name__] is kind:
            encoded = {k: self.encode(v, f"{name}.{k}") for k, v in vars(value).items()}
            return {"kind": "part", "name": kind.__name__, "fields": encoded}
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
        held = {f.name: vars(value)[f.name] for f in fields(value)} if is_dataclass(value) else (
            value._asdict()
        )  # fmt: skip
        parts = {n: self.encode(part, f"{name}.{n}") for n, part in held.items()}
        return {"kind": "noun", "name": kind.__name__, "fields": parts}


def _unfit(value: Any, name: str) -> TypeError:
    kind = type(value)
    what = f"an object of class {kind.__module__}.{kind.__qualname__}"
    return TypeError(
        f"{name} can't be saved without pickle: it holds {what}, but such a file holds "
        "numbers, strings, arrays, this package's own classes and common steps of scikit-learn's "
        "only. Use joblib.dump(model, path)."
    )


def decode(encoded: Encoded, arrays: Mapping[str, Array]) -> Any:
    """The value that `Encoder.encode` turned into JSON.

    Raises LookupError, TypeError, ValueError if it isn't one.
    """
    if not isinstance(encoded, dict):
        if isinstance(encoded, list):
            raise ValueError("a list without a kind")
        return encoded
    return _KINDS[encoded["kind"]](encoded, arrays)


def _items(e: Encoded, arrays: Mapping[str, Array]) -> list[Any]:
    return [decode(item, arrays) for item in e["items"]]


def _pairs(e: Encoded, arrays: Mapping[str, Array]) -> dict[Any, Any]:
    return {decode(k, arrays): decode(v, arrays) for k, v in e["items"]}


def _array(e: Encoded, arrays: Mapping[str, Array]) -> Array:
    stored = np.array(arrays[e["name"]])
    return stored.T if e["turned"] else stored


def _strings(e: Encoded, arrays: Mapping[str, Array]) -> Array:
    dtype = np.dtype(e["dtype"])
    if dtype.kind not in "UO":
        raise ValueError(f"strings of dtype {dtype}")
    items = [str(s) for s in e["items"]]
    if dtype.itemsize > 4 * (_SPARE_CHARACTERS + max(map(len, items), default=0)):
        raise ValueError(f"{dtype} is too wide for its strings")  # would take memory for nothing
    return np.array(items, dtype=dtype).reshape(e["shape"])


def _estimator(e: Encoded, arrays: Mapping[str, Array]) -> BaseEstimator:
    parts = (
        {str(k): decode(v, arrays) for k, v in e[part].items()}
        for part in ("parameters", "attributes")
    )
    estimator: BaseEstimator = rebuilt(e["name"], *parts)
    return estimator


def _part(e: Encoded, arrays: Mapping[str, Array]) -> Any:
    part: Any = object.__new__(plain_parts()[e["name"]])
    part.__dict__.update({k: decode(v, arrays) for k, v in e["fields"].items()})
    return part


def _scalar_type(e: Encoded, arrays: Mapping[str, Array]) -> type[np.generic]:
    scalar_type = vars(np)[e["name"]]
    if not (isinstance(scalar_type, type) and issubclass(scalar_type, np.generic)):
        raise ValueError(f"{e['name']} is no type of numbers")
    return scalar_type


def _ufunc(e: Encoded, arrays: Mapping[str, Array]) -> np.ufunc:
    if not is_ufunc_name(e["name"]):
        raise ValueError(f"{e['name']} is no function of NumPy's")
    function: np.ufunc = vars(np)[e["name"]]
    return function


def _random_state(e: Encoded, arrays: Mapping[str, Array]) -> np.random.RandomState:
    state = np.random.RandomState()
    state.set_state(decode(e["state"], arrays))
    return state


_KINDS: dict[str, Callable[[Encoded, Mapping[str, Array]], Any]] = {
    "float": lambda e, arrays: float(e["value"]),
    "array": _array,
    "number": lambda e, arrays: _array(e, arrays)[()],
    "tensor": lambda e, arrays: torch.as_tensor(_array(e, arrays)),
    "strings": _strings,
    "list": _items,
    "tuple": lambda e, arrays: tuple(_items(e, arrays)),
    "dict": _pairs,
    "bunch": lambda e, arrays: Bunch(**_pairs(e, arrays)),
    "activation": lambda e, arrays: ACTIVATIONS[e["name"]],
    "network": lambda e, arrays: ARCHITECTURES[e["name"]](tuple(e["input_shape"]), e["n_outputs"]),
    "random_state": _random_state,
    "estimator": _estimator,
    "part": _part,
    "slice": lambda e, arrays: slice(*(None if i is None else int(i) for i in e["items"])),
    "dtype": lambda e, arrays: np.dtype(e["name"]),
    "scalar_type": _scalar_type,
    "ufunc": _ufunc,
    "noun": lambda e, arrays: nouns()[e["name"]](
        **{n: decode(v, arrays) for n, v in e["fields"].items()}
    ),
}
