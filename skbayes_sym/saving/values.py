"""Values as JSON and named arrays, and back.

What JSON has (None, bool, int, str, finite float) stands for itself. Everything else is an object
with a ``kind``: a number or an array by its name among the arrays, a container by its items, one of
this package's nouns by its name and fields. A file is data: what it names, its kinds, nouns and
classes, is looked up in the tables here and nowhere else.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch

from skbayes_sym.base.columns import TabularInputMixin
from skbayes_sym.base.estimator import BayesianEstimator, RowEstimator, is_fitted_attribute
from skbayes_sym.base.public_names import ESTIMATOR_MODULES, PARAMETER_MODULES
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.base.warnings import collect_warnings
from skbayes_sym.models.likelihoods.registry import registered_classes
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.mlp import ACTIVATIONS, Activation
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.saving.checks import FileContent, check_object

# Nouns a file may hold, by module. Their names and fields are part of the file's format; they are
# imported when a file is written or read.
NOUNS = {
    "base.columns": "Column Columns",
    "factorization.side_features": "FeatureEncoder",
    "mcmc.mode_weights": "Mode",
    "stacking.predictors": (
        "CalibratedPredictor CountsPredictor EstimatorPredictor UserPredictor TreesPredictor "
        "MemberPredictor Trees"
    ),
    "stacking.members.gaussian_process": "GaussianProcess",
    "laplace.curvature": "LayerSpectrum KroneckerPrecision FullPrecision",
    "laplace.class_predictive": "RefittedMembers",
    "laplace.posterior": "LaplacePosterior ModeMixture",
    "variational.hidden_layers": "MeanFieldHidden InducingHidden",
    "variational.layerwise_posterior": "LayerwiseFamily LayerwisePosterior",
    "linear.low_rank": "LowRankGaussian",
    "base.calibration": "Calibration",
    "base.noise_shape": "NoiseShape ShapedPredictor",
    "base.posteriors": "MeanFieldGaussian GaussianRows MatrixPosterior",
    "mcmc.annealing": "Annealing KroneckerPreconditioner LayerCurvature",
    "mcmc.kernels": "HMC State",
    "numerics.preconditioners": "DiagonalPreconditioner DensePreconditioner",
    "mcmc.chains": "Block",
    "factorization.solvers": "VI MAP Gibbs",
    "models.augmentations.augmentation": (
        "Identity Composed RescaledAugmentation Invariances Augerino"
    ),
    "models.augmentations.images": "Affine AffineBasis Brightness Contrast Hue PixelNoise Blur",
    "models.augmentations.tabular": "Rotation2D ColumnShift LogScale",
    "models.networks.mlp": "MLP",
    "models.networks.network": "Dense Convolution",
    "models.priors": "Normal GaussianPrior ARD LayerScales",
    "numerics.layout": "ParamLayout",
    "symmetry.group": "Product Trivial",
    "symmetry.gaps.unit_gap": "Exact ExactUpTo Importance InfoNCE Soules",
    "symmetry.units": "Units",
}


# Modules of scikit-learn, and in them the steps whose fitted state is arrays, numbers, strings and
# one another. Imported when a file names one: most people's don't.
_STEPS = {
    "pipeline": "Pipeline FeatureUnion",
    "compose": "ColumnTransformer TransformedTargetRegressor",
    "preprocessing": (
        "StandardScaler MinMaxScaler MaxAbsScaler RobustScaler Normalizer Binarizer "
        "PowerTransformer QuantileTransformer PolynomialFeatures SplineTransformer "
        "KBinsDiscretizer FunctionTransformer OneHotEncoder OrdinalEncoder TargetEncoder "
        "LabelEncoder"
    ),
    "impute": "SimpleImputer MissingIndicator",
    "decomposition": "PCA TruncatedSVD",
    "feature_selection": "VarianceThreshold",
}


def named(modules: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Objects by name, of a table of modules and the names in each."""
    return {
        name: vars(import_module(f"{prefix}.{module}"))[name]
        for module, names in modules.items()
        for name in names.split()
    }


@cache
def ours() -> dict[str, type]:
    """Estimators, and the objects with parameters that they take, by name."""
    modules = ESTIMATOR_MODULES | PARAMETER_MODULES
    return {
        name: getattr(import_module(f"skbayes_sym.{module}"), name)
        for module, names in modules.items()
        for name in names
    }


@cache
def estimators() -> dict[str, type]:
    """This package's estimators by name."""
    return {name: kind for name, kind in ours().items() if issubclass(kind, BayesianEstimator)}


@cache
def steps() -> dict[str, type]:
    """scikit-learn's steps by name."""
    return named(_STEPS, "sklearn")


def is_foreign(name: str) -> bool:
    """Whether a name is that of a step of scikit-learn's."""
    return any(name in names.split() for names in _STEPS.values())


def class_name(estimator: BaseEstimator) -> str | None:
    """The name by which a file knows the estimator's class; None if it doesn't."""
    kind = type(estimator)
    known = ours().get(kind.__name__) is kind or (
        is_foreign(kind.__name__) and steps()[kind.__name__] is kind
    )
    return kind.__name__ if known else None


def fitted_state(estimator: BaseEstimator) -> dict[str, Any]:
    """Attributes that `fit` has set."""
    if type(estimator).__name__ in estimators():
        return {k: v for k, v in estimator.__getstate__().items() if is_fitted_attribute(k)}
    parameters = estimator.get_params(deep=False)
    return {k: v for k, v in vars(estimator).items() if k not in parameters}


def rebuilt(name: str, parameters: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """An estimator with these parameters and this state, which can predict.

    A pipeline's ``memory`` is left out: it is a place on the disk of whoever wrote the file.

    Raises LookupError if there is no such class. Raises ValueError if it has no such parameters or
    attributes, or no fit leaves them like this.
    """
    kind: Any = ours()[name] if name in ours() else steps()[name]
    unknown = sorted(set(parameters) - set(kind._get_param_names()))
    if name in estimators():
        unknown += [k for k in attributes if not is_fitted_attribute(k)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**{**parameters, **({"memory": None} if "memory" in parameters else {})})
    is_fit = name in estimators() and bool(attributes)  # what others fit copies of has none
    if is_fit:
        try:
            estimator._validate_params()
        except ValueError as error:
            raise ValueError(f"an impossible parameter ({error})") from error
        for needed in ("n_features_in_", "n_iter_", "stop_reason_", "dtype_", "device_"):
            if needed not in attributes:
                raise ValueError(f"no {needed}")
    estimator.__dict__.update(attributes)
    if is_fit:
        _check_predictions(estimator)
    return estimator


def _check_predictions(estimator: BaseEstimator) -> None:
    """Ask a copy, of few draws, for all that it says of one row: the mean of the training rows."""
    trial: Any = copy(estimator)
    trial.__dict__.pop("feature_names_in_", None)  # the row below has no names
    if "n_predict_samples" in trial.get_params(deep=False):
        trial.n_predict_samples = 2
    try:
        with collect_warnings(), np.errstate(all="ignore"):
            if not isinstance(trial, RowEstimator):
                first = (getattr(trial, f"{side}_labels_", [0])[:1] for side in ("row", "column"))
                trial.predict_entries(*first, return_std=True)
                return
            is_table = isinstance(trial, TabularInputMixin)
            row = trial._example_row() if is_table else trial.x_mean_[None].astype(trial.dtype_)
            trial.predict_uncertainty(row)
            if isinstance(trial, BayesianRegressorMixin):
                trial.sample_y(row)
            else:
                trial.predict(row)
    except Exception as error:  # whatever a state that is none makes of it
        raise ValueError(
            f"a state that predicts nothing ({type(error).__name__}: {short_repr(str(error))})"
        ) from error


@cache
def _fixed_nouns() -> dict[str, Any]:
    """Nouns of `NOUNS` by name, and one function of scikit-learn."""
    return named(NOUNS, "skbayes_sym") | named({"compose": "make_column_selector"}, "sklearn")


def nouns() -> dict[str, Any]:
    """Classes that a file may hold, by name: those of `NOUNS` and registered likelihoods."""
    return {**registered_classes(), **_fixed_nouns()}


_NUMBERS = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

# Bytes that strings and networks may take: in any file, and for each of the file's bytes. A string
# has four bytes per character.
_SPARE_BYTES = 1 << 21
_BYTES_PER_BYTE = 4
_OUTPUT_BYTES = 10_000  # of a convolutional network, about
_PIXEL_BYTES = 100
_LONGEST_EMPTY_AXIS = 1 << 20

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
            return self._encode_object(value, name)
        if class_name(value) is None:
            raise _unfit(value, name)
        parameters, attributes = (
            {k: self.encode(v, f"{name}.{k}") for k, v in part.items()}
            for part in (value.get_params(deep=False), fitted_state(value))
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
        if array.dtype.kind in "mM" and isinstance(value, np.ndarray):
            counts = self._encode_array(array.view(np.int64), name)
            return {"kind": "dates", "dtype": array.dtype.str, "counts": counts}
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

    def _encode_object(self, value: Any, name: str) -> Encoded:
        kind = type(value)
        if kind is Activation:
            return {"kind": "activation", "name": value.name}
        if kind is slice:
            return {"kind": "slice", "items": [value.start, value.stop, value.step]}
        if isinstance(value, np.dtype) and value.kind not in "OV":
            return {"kind": "dtype", "name": value.str}
        if kind is type and issubclass(value, np.generic):
            return {"kind": "scalar_type", "name": value.__name__}
        if kind is np.ufunc and isinstance(vars(np).get(value.__name__), np.ufunc):
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
        names = [f.name for f in fields(value) if f.init] if is_dataclass(value) else list(held)
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

    Every array is decoded once, and everything else is charged before it is allocated.

    Parameters
    ----------
    arrays : mapping of str to array
        Arrays of the file, by name.
    n_bytes : int
        Size of the file.
    """

    def __init__(self, arrays: Mapping[str, Array], n_bytes: int) -> None:
        self._arrays = dict(arrays)
        self._spare = _SPARE_BYTES + _BYTES_PER_BYTE * n_bytes
        self._content = FileContent(sum(array.size for array in arrays.values()))

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
        if not stored.size and max(stored.shape, default=0) > _LONGEST_EMPTY_AXIS:
            raise ValueError(f"an array without numbers of shape {stored.shape}")
        return stored.T if e["turned"] else stored

    def strings(self, e: Encoded) -> Array:
        dtype = np.dtype(e["dtype"])
        items = [str(s) for s in e["items"]]
        if dtype.kind not in "UO":
            raise ValueError(f"strings of dtype {dtype}")
        shape = tuple(e["shape"])
        is_shape = all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or prod(shape) != len(items):
            raise ValueError(f"{len(items)} strings of shape {shape}")
        self._spend(dtype.itemsize * len(items))
        return np.array(items, dtype=dtype).reshape(shape)

    def dates(self, e: Encoded) -> Array:
        dtype = np.dtype(e["dtype"])
        counts = self.decode(e["counts"])
        if dtype.kind not in "mM" or not isinstance(counts, np.ndarray) or counts.dtype != np.int64:
            raise ValueError(f"dates of dtype {dtype}")
        return counts.view(dtype)

    def network(self, e: Encoded) -> ModuleNetwork:
        channels, height, width = map(int, e["input_shape"])
        n_outputs = int(e["n_outputs"])
        if min(channels, height, width, n_outputs) < 1:
            raise ValueError(f"a network of {n_outputs} outputs and input {e['input_shape']}")
        n_pixels = channels * height * width
        self._spend(_OUTPUT_BYTES * n_outputs + _PIXEL_BYTES * n_pixels)
        return ARCHITECTURES[e["name"]]((channels, height, width), n_outputs)

    def noun(self, e: Encoded) -> Any:
        value = nouns()[e["name"]](**self.by_name(e["fields"]))
        check_object(value, self._content)
        return value

    def scalar_type(self, e: Encoded) -> type[np.generic]:
        candidate = vars(np)[e["name"]]
        if not (isinstance(candidate, type) and issubclass(candidate, np.generic)):
            raise ValueError(f"{e['name']} is no type of numbers")
        return candidate

    def ufunc(self, e: Encoded) -> np.ufunc:
        if not isinstance(vars(np).get(e["name"]), np.ufunc):
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
    "dates": Decoder.dates,
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
    "noun": Decoder.noun,
}
