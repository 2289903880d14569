"""Values as JSON and import_by_name arrays, and back.

JSON values (None, bool, int, str, finite float) are written as they are. Everything else is an
object with a ``kind``: numbers and arrays refer to an array by name, containers have items, and
objects of this package have a class name and fields. A file is data: all kinds and class names are
looked up in the tables of this module and nowhere else.
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

from skbayes_sym.base.estimator import BayesianEstimator, is_fitted_attribute
from skbayes_sym.base.messages import collect_warnings
from skbayes_sym.base.pipelines import fitted_attribute
from skbayes_sym.base.public_names import ESTIMATOR_MODULES, PARAMETER_MODULES
from skbayes_sym.base.regressor import BayesianRegressorMixin
from skbayes_sym.base.rows import Array
from skbayes_sym.models.likelihoods.registry import registered_classes
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.mlp import ACTIVATIONS, Activation
from skbayes_sym.models.networks.modules import ModuleNetwork
from skbayes_sym.numerics.arguments import short_repr
from skbayes_sym.saving.checks import FileContent, check_object

# Classes of objects that a file may hold, by module. Their names and fields are part of the file's
# format. They are imported when a file is written or read.
SAVED_CLASSES = {
    "base.columns": "Column Columns",
    "numerics.dates": "DateEncoding",
    "base.training_columns": "TrainingColumns",
    "base.extrapolation": "TrainingRange",
    "factorization.side_features": "FeatureEncoder",
    "mcmc.mode_weights": "Mode",
    "stacking.predictors": (
        "CalibratedPredictor CountsPredictor EstimatorPredictor UserPredictor ForestPredictor "
        "BoostingPredictor LogPredictor RatePredictor MemberPredictor"
    ),
    "stacking.tree_arrays": "TreeArrays",
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
    "mcmc.annealing": "Annealing",
    "mcmc.kronecker": "KroneckerPreconditioner LayerCurvature WideLayerCurvature",
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


# Modules of scikit-learn, and their estimators whose fitted state consists of arrays, numbers,
# strings and other estimators of this table. They are imported when a file names one of them.
_SKLEARN_CLASSES = {
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


def import_by_name(modules: Mapping[str, str], prefix: str) -> dict[str, Any]:
    """Import the objects in a table of modules and names, and return them by name."""
    return {
        name: vars(import_module(f"{prefix}.{module}"))[name]
        for module, names in modules.items()
        for name in names.split()
    }


@cache
def package_classes() -> dict[str, type]:
    """Estimators of this package and the objects that are their parameters, by name."""
    modules = ESTIMATOR_MODULES | PARAMETER_MODULES
    return {
        name: getattr(import_module(f"skbayes_sym.{module}"), name)
        for module, names in modules.items()
        for name in names
    }


@cache
def estimator_classes() -> dict[str, type]:
    """Estimators of this package by name."""
    return {
        name: kind
        for name, kind in package_classes().items()
        if issubclass(kind, BayesianEstimator)
    }


@cache
def sklearn_classes() -> dict[str, type]:
    """Estimators of scikit-learn that a file may hold, by name."""
    return import_by_name(_SKLEARN_CLASSES, "sklearn")


def is_sklearn_class(name: str) -> bool:
    """Whether a name is that of a scikit-learn estimator that a file may hold."""
    return any(name in names.split() for names in _SKLEARN_CLASSES.values())


def class_name(estimator: BaseEstimator) -> str | None:
    """Name of the estimator's class in files, or None if files can't hold it."""
    kind = type(estimator)
    known = package_classes().get(kind.__name__) is kind or (
        is_sklearn_class(kind.__name__) and sklearn_classes()[kind.__name__] is kind
    )
    return kind.__name__ if known else None


def fitted_state(estimator: BaseEstimator) -> dict[str, Any]:
    """Attributes that `fit` has set."""
    if type(estimator).__name__ in estimator_classes():
        return {k: v for k, v in estimator.__getstate__().items() if is_fitted_attribute(k)}
    parameters = estimator.get_params(deep=False)
    return {k: v for k, v in vars(estimator).items() if k not in parameters}


def rebuild_estimator(name: str, parameters: dict[str, Any], attributes: dict[str, Any]) -> Any:
    """Make an estimator with the given parameters and fitted state, and check that it predicts.

    A pipeline's ``memory`` is ignored, because it is a path on the computer that wrote the file.

    Parameters
    ----------
    name : str
        Name of the class.
    parameters : dict
        Parameters of the constructor.
    attributes : dict
        Fitted attributes.

    Returns
    -------
    estimator
        Fitted estimator.

    Raises
    ------
    LookupError
        If there is no such class.
    ValueError
        If the class has no such parameters or attributes, or if the state isn't that of a fit.
    """
    kind: Any
    if name in package_classes():
        kind = package_classes()[name]
    else:
        kind = sklearn_classes()[name]
    unknown = sorted(set(parameters) - set(_parameter_names(kind)))
    if name in estimator_classes():
        unknown += [key for key in attributes if not is_fitted_attribute(key)]
    if unknown:
        raise ValueError(f"{', '.join(unknown)} for {name}")
    estimator = kind(**{**parameters, **({"memory": None} if "memory" in parameters else {})})
    # Estimators that only serve as templates have no fitted state.
    is_fit = name in estimator_classes() and bool(attributes)
    if is_fit:
        try:
            estimator._validate_params()  # noqa: SLF001 -- scikit-learn's check
        except ValueError as error:
            raise ValueError(f"an impossible parameter ({error})") from error
        for required in ("n_features_in_", "n_iter_", "stop_reason_", "dtype_", "device_"):
            if required not in attributes:
                raise ValueError(f"no {required}")
    estimator.__dict__.update(attributes)
    if is_fit:
        _check_predictions(estimator)
    return estimator


def _parameter_names(kind: type[BaseEstimator]) -> list[str]:
    """Names of the constructor's parameters."""
    return kind._get_param_names()  # type: ignore[no-any-return]  # noqa: SLF001 -- scikit-learn's


def _example_row(model: Any) -> Any:
    """Mean of the training rows, or a row of levels and medians; a frame if `fit` saw names."""
    row = model.x_mean_[None].astype(model.dtype_)
    encoding = model.column_encoding()
    if encoding is None:
        return row
    if fitted_attribute(model, "columns_in_") is not None:
        values = [column.example for column in encoding.columns]
        row = np.array([values], dtype=object)
    try:
        from pandas import DataFrame
    except ImportError:
        return row
    return DataFrame(row, columns=fitted_attribute(model, "feature_names_in_"))


def _check_predictions(estimator: BaseEstimator) -> None:
    """Make all predictions of a copy with few draws for one row, the mean of the training rows."""
    trial: Any = copy(estimator)
    # The row below has no names.
    trial.__dict__.pop("feature_names_in_", None)
    trial.__dict__.pop("_column_names_in_", None)
    if "n_predict_samples" in trial.get_params(deep=False):
        trial.n_predict_samples = 2
    try:
        with collect_warnings(), np.errstate(all="ignore"):
            if hasattr(trial, "predict_entries"):
                first = (getattr(trial, f"{side}_labels_", [0])[:1] for side in ("row", "column"))
                trial.predict_entries(*first, return_std=True)
                return
            row = _example_row(trial)
            trial.predict_uncertainty(row)
            if isinstance(trial, BayesianRegressorMixin):
                trial.sample_y(row)
            else:
                trial.predict(row)
    except Exception as error:  # an invalid state can raise any exception
        raise ValueError(
            f"a state that can't predict ({type(error).__name__}: {short_repr(str(error))})"
        ) from error


@cache
def _fixed_classes() -> dict[str, Any]:
    """Classes of `SAVED_CLASSES` by name, and one function of scikit-learn."""
    return import_by_name(SAVED_CLASSES, "skbayes_sym") | import_by_name(
        {"compose": "make_column_selector"}, "sklearn"
    )


def saved_classes() -> dict[str, Any]:
    """Classes of objects that a file may hold, including registered likelihoods, by name."""
    return {**registered_classes(), **_fixed_classes()}


_NUMBERS = {"bool", "float16", "float32", "float64"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}

# Memory that strings and networks may take: a constant, and bytes for each byte of the file. A
# string has four bytes per character.
_SPARE_BYTES = 1 << 21
_BYTES_PER_BYTE = 4
_OUTPUT_BYTES = 10_000  # approximate memory of a convolutional network per output
_PIXEL_BYTES = 100  # and per pixel of the input
_LONGEST_EMPTY_AXIS = 1 << 20

Encoded = Any  # values that the json module can write


class Encoder:
    """Encoder of values as JSON and import_by_name arrays.

    Attributes
    ----------
    arrays : dict of str to ndarray
        Arrays that the JSON refers to, by name.
    """

    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}

    def encode(self, value: Any, name: str) -> Encoded:
        """Encode a value as JSON.

        Parameters
        ----------
        value : object
            Value.
        name : str
            Path of the value, for messages and as the name of its array.

        Returns
        -------
        object
            JSON value.

        Raises
        ------
        TypeError
            If the value contains anything but numbers, strings, arrays, containers, estimators and
            objects of the classes in `saved_classes`.
        """
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            if isfinite(value):
                return value
            return {"kind": "float", "value": repr(value)}
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
            raise _unsupported(value, name)
        parameters, attributes = (
            {k: self.encode(v, f"{name}.{k}") for k, v in values.items()}
            for values in (value.get_params(deep=False), fitted_state(value))
        )
        return {
            "kind": "estimator",
            "name": class_name(value),
            "parameters": parameters,
            "attributes": attributes,
        }

    def _encode_array(self, value: Any, name: str) -> Encoded:
        """Encode an array, NumPy number or tensor."""
        if isinstance(value, torch.Tensor) and value.device.type != "cpu":
            raise _unsupported(value, name)
        array = np.asarray(value)
        if array.dtype.kind in "UO" and all(type(v) is str for v in array.ravel().tolist()):
            return {
                "kind": "strings",
                "dtype": array.dtype.str,
                "shape": list(array.shape),
                "items": array.ravel().tolist(),
            }
        if array.dtype.kind in "mM" and isinstance(value, np.ndarray):
            counts = self._encode_array(array.view(np.int64), name)
            return {"kind": "dates", "dtype": array.dtype.str, "counts": counts}
        if array.dtype.name not in _NUMBERS:
            raise _unsupported(value, name)
        # The memory order is kept, because the last digits of sums depend on it.
        is_fortran = bool(array.flags.f_contiguous and not array.flags.c_contiguous)
        while name in self.arrays:
            name += "'"
        self.arrays[name] = np.asarray(array.T if is_fortran else array, order="C")
        kind = "number"
        if isinstance(value, np.ndarray):
            kind = "array"
        elif isinstance(value, torch.Tensor):
            kind = "tensor"
        return {"kind": kind, "name": name, "is_fortran": is_fortran}

    def _encode_object(self, value: Any, name: str) -> Encoded:
        """Encode any other object of a class that a file may hold."""
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
                "kind": "network",
                "name": value.architecture,
                "input_shape": shape,
                "n_outputs": value.n_outputs,
            }
        if saved_classes().get(kind.__name__) is not kind:
            raise _unsupported(value, name)
        is_tuple = isinstance(value, tuple)  # make_column_selector is neither that nor a dataclass
        held: dict[str, Any] = value._asdict() if is_tuple else vars(value)  # type: ignore[attr-defined]
        if hasattr(value, "file_fields"):  # arrays in place of compiled objects
            held = value.file_fields()
        if is_dataclass(value):
            names = [f.name for f in fields(value) if f.init]
        else:
            names = list(held)
        parts = {n: self.encode(held[n], f"{name}.{n}") for n in names}
        return {"kind": "object", "name": kind.__name__, "fields": parts}


def _unsupported(value: Any, name: str) -> TypeError:
    """Error for a value that a file can't hold."""
    kind = type(value)
    class_text = f"an object of class {kind.__module__}.{kind.__qualname__}"
    return TypeError(
        f"{name} can't be saved without pickle: it holds {class_text}, but such a file holds "
        "only numbers, strings, arrays, classes of this package and common estimators of "
        "scikit-learn. Use joblib.dump(model, path)."
    )


class Decoder:
    """Decoder of the JSON and arrays that an `Encoder` made.

    Every array is decoded once. The memory of everything else is counted before it is allocated.

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
        """Decode a value.

        Raises LookupError, TypeError or ValueError if the JSON isn't that of an `Encoder`.
        """
        if isinstance(encoded, list):
            raise ValueError("a list without a kind")
        if isinstance(encoded, dict):
            return _KINDS[encoded["kind"]](self, encoded)
        return encoded

    def by_name(self, encoded: Mapping[str, Encoded]) -> dict[str, Any]:
        """Decode parameters, attributes or fields by name."""
        return {str(name): self.decode(value) for name, value in encoded.items()}

    def items(self, e: Encoded) -> list[Any]:
        """Decode the items of a list or tuple."""
        return [self.decode(item) for item in e["items"]]

    def pairs(self, e: Encoded) -> dict[Any, Any]:
        """Decode the keys and values of a mapping."""
        return {self.decode(k): self.decode(v) for k, v in e["items"]}

    def array(self, e: Encoded) -> Array:
        """Decode an array."""
        stored = np.array(self._arrays.pop(e["name"]))
        if not stored.size and max(stored.shape, default=0) > _LONGEST_EMPTY_AXIS:
            raise ValueError(f"an array without numbers of shape {stored.shape}")
        return stored.T if e["is_fortran"] else stored

    def strings(self, e: Encoded) -> Array:
        """Decode an array of strings."""
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
        """Decode an array of dates or time differences."""
        dtype = np.dtype(e["dtype"])
        counts = self.decode(e["counts"])
        if dtype.kind not in "mM" or not isinstance(counts, np.ndarray) or counts.dtype != np.int64:
            raise ValueError(f"dates of dtype {dtype}")
        return counts.view(dtype)

    def network(self, e: Encoded) -> ModuleNetwork:
        """Decode a convolutional network by the name of its architecture."""
        channels, height, width = map(int, e["input_shape"])
        n_outputs = int(e["n_outputs"])
        if min(channels, height, width, n_outputs) < 1:
            raise ValueError(f"a network of {n_outputs} outputs and input {e['input_shape']}")
        n_pixels = channels * height * width
        self._spend(_OUTPUT_BYTES * n_outputs + _PIXEL_BYTES * n_pixels)
        return ARCHITECTURES[e["name"]]((channels, height, width), n_outputs)

    def object(self, e: Encoded) -> Any:
        """Decode and check an object of a class in `saved_classes`."""
        value = saved_classes()[e["name"]](**self.by_name(e["fields"]))
        check_object(value, self._content)
        return value

    def scalar_type(self, e: Encoded) -> type[np.generic]:
        """Decode a scalar type of NumPy."""
        candidate = vars(np)[e["name"]]
        if not (isinstance(candidate, type) and issubclass(candidate, np.generic)):
            raise ValueError(f"{e['name']} is not a scalar type of NumPy")
        return candidate

    def ufunc(self, e: Encoded) -> np.ufunc:
        """Decode a universal function of NumPy."""
        if not isinstance(vars(np).get(e["name"]), np.ufunc):
            raise ValueError(f"{e['name']} is not a function of NumPy")
        return vars(np)[e["name"]]  # type: ignore[no-any-return]

    def random_state(self, e: Encoded) -> np.random.RandomState:
        """Decode a random state of NumPy."""
        state = np.random.RandomState()
        state.set_state(self.decode(e["state"]))
        return state

    def _spend(self, n_bytes: int) -> None:
        """Count memory, and refuse more than the file's size allows."""
        self._spare -= n_bytes
        if n_bytes < 0 or self._spare < 0:
            raise ValueError("values that are too large for the size of the file")


_KINDS: dict[str, Callable[[Decoder, Encoded], Any]] = {
    "float": lambda _, e: float(e["value"]),
    "array": Decoder.array,
    "number": lambda d, e: d.array(e)[()],
    "tensor": lambda d, e: torch.as_tensor(d.array(e)),
    "strings": Decoder.strings,
    "dates": Decoder.dates,
    "list": Decoder.items,
    "tuple": lambda d, e: tuple(d.items(e)),
    "dict": Decoder.pairs,
    "bunch": lambda d, e: Bunch(**d.pairs(e)),
    "activation": lambda _, e: ACTIVATIONS[e["name"]],
    "network": Decoder.network,
    "random_state": Decoder.random_state,
    "estimator": lambda d, e: rebuild_estimator(
        e["name"], d.by_name(e["parameters"]), d.by_name(e["attributes"])
    ),
    "slice": lambda _, e: slice(*(None if i is None else int(i) for i in e["items"])),
    "dtype": lambda _, e: np.dtype(e["name"]),
    "scalar_type": Decoder.scalar_type,
    "ufunc": Decoder.ufunc,
    "object": Decoder.object,
}
