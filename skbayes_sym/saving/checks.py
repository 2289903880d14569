"""Checks of the objects in a file: types, shapes, ranges and sizes of their fields.

A file can contain anything, so every object is checked when it is built and before anything is
computed with it. Types follow from the annotations of a class, shapes and dtypes from the table
`ARRAYS`, bounds of integers from `COUNTS`, relations between fields from `RULES`, and sizes from
`SIZE_RULES`.
"""

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from math import isnan, prod
from numbers import Integral, Real
from typing import Any, NamedTuple, Union, get_args, get_origin

import numpy as np
import torch

from skbayes_sym.base.rows import Array

# Dtype and shape of every array of a class. The shape has one letter per axis, and equal letters
# stand for equal lengths. Dtypes are f (finite or infinite floats), g (floats that may be NaN), i
# (integers), b (booleans or integers). "?" also allows None or a number, "|" separates alternative
# shapes.
ARRAYS: dict[str, dict[str, str]] = {
    "Columns": {"kept": "b n"},
    "TrainingColumns": {
        "is_binary": "b n", "has_boolean_dtype": "b m?", "boolean_positions": "i k?",
        "constant_positions": "i j?", "constants": "f j?",
    },
    "TrainingRange": {
        "low": "f j", "high": "f j", "position": "i j", "is_date": "b j", "rows": "f nd",
    },
    "FeatureEncoder": {"scaling": "f h?", "directions": "f mr?", "centre": "f h?"},
    "Mode": {"chains": "i m"},
    "ForestPredictor": {"frequency": "f k?"},
    "BoostingPredictor": {"baseline": "f k?"},
    "TreeArrays": {"column": "i n", "threshold": "f s", "leaf": "i l", "values": "f vp"},
    "GaussianProcess": {
        "log_scales": "f p", "x": "f nd", "alpha": "f nt", "cholesky": "f nn", "weight": "f n",
        "target_mean": "f t",
    },
    "LayerSpectrum": {
        "input_basis": "f dd?", "input_values": "f d", "output_basis": "f gg?",
        "output_values": "f g",
    },
    "KroneckerPrecision": {"prior": "f l"},
    "FullPrecision": {"cholesky": "f pp"},
    "RefittedMembers": {"theta": "f mp", "loc": "f mp", "root": "f mpr", "scale": "f mp"},
    "LaplacePosterior": {"loc": "f p", "positions": "i q"},
    "ModeMixture": {"loc": "f rp", "factor": "f rpp", "weight": "f r?"},
    "LayerwiseFamily": {"last_scale": "f s?"},
    "LayerwisePosterior": {"params": "f q", "x": "f nd", "y": "f nt", "weight": "f n"},
    "LowRankGaussian": {
        "loc": "f ck", "scale": "f k", "basis": "f kr?", "covariance": "f ee",
        "prior_variance": "f c?",
    },
    "Calibration": {"frequency": "f k"},
    "NoiseShape": dict.fromkeys(
        ("offset", "slope", "centre", "spread", "lowest", "highest", "mean_square"), "f t"
    ) | {"levels": "f k?"},
    "MeanFieldGaussian": {"loc": "f p", "scale": "f p"},
    "GaussianRows": {"mean": "f nk", "cov": "f nkk"},
    "KroneckerPreconditioner": {"precision": "f l", "likelihood_scale": "f cn"},
    "LayerCurvature": {"input_factor": "f cii", "output_factor": "f coo"},
    "WideLayerCurvature": {"input_root": "f ni", "output_factor": "f coo"},
    "State": {"position": "f cd", "value": "f c", "gradient": "f cd"},
    "DiagonalPreconditioner": {"scale": "f d|f cd"},
    "DensePreconditioner": {"cholesky": "f dd|f cdd"},
    "Block": {"step_size": "f c", "random_state": "i n"},
    "NegativeBinomial": {"log_dispersion": "f t"},
    "Gaussian": {"log_noise": "f t"},
    "StudentT": {"log_noise": "f t", "log_tail": "f u"},
    "Ordinal": {"steps": "f s"},
    "Normal": {"scale": "f p?"},
    "GaussianPrior": {"scale": "f p|f mp"},
    "Units": {"index": "i dp"},
}  # fmt: skip

_MAX_INT = 2**31 - 1
_MAX_STATE_BYTES = 10_000  # of a random generator

# Smallest and largest values of integers, also in tuples. All others lie between 0 and 2**31.
COUNTS: dict[tuple[str, str], tuple[int, int]] = {
    ("InducingHidden", "n_inducing"): (1, _MAX_INT),
    ("HMC", "max_leapfrog"): (1, _MAX_INT),
    ("Gibbs", "n_draws"): (1, _MAX_INT),
    ("MLP", "n_inputs"): (1, _MAX_INT),
    ("MLP", "hidden_layer_sizes"): (1, _MAX_INT),
    ("MLP", "n_outputs"): (1, _MAX_INT),
    ("Convolution", "kernel_size"): (1, 2**15),
    ("Convolution", "stride"): (1, 2**15),
    ("Convolution", "padding"): (0, 2**15),
    ("Convolution", "dilation"): (1, 2**15),
    ("Invariances", "n_augmentations"): (1, _MAX_INT),
    ("Categorical", "n_points"): (2, 10**6),
    ("ExactUpTo", "max_width"): (0, 40),
    ("Importance", "n_permutations"): (1, _MAX_INT),
    ("InfoNCE", "n_permutations"): (1, _MAX_INT),
    ("Product", "_max_sweeps"): (1, 10**6),
    ("Trivial", "_max_sweeps"): (1, 10**6),
} | {
    (name, "image_shape"): (1, 2**15)
    for name in ("Affine", "Brightness", "Contrast", "Hue", "PixelNoise", "Blur")
}

# Fields that are NaN if they aren't defined.
MAY_BE_NAN = {
    ("Mode", "weight"), ("Mode", "log_evidence"), ("Mode", "std_error"),
    ("Mode", "mean_log_posterior"), ("Column", "median"),
}  # fmt: skip

# Fields that must be positive.
POSITIVE = {
    ("UserPredictor", "target_scale"), ("LogPredictor", "target_scale"),
    ("LogPredictor", "log_scale"), ("RescaledAugmentation", "scale"), ("HMC", "path_length"),
    ("HMC", "min_step_factor"), ("HMC", "jitter"), ("Annealing", "energy_error"), ("ARD", "shape"),
    ("ARD", "output_variance"), ("LayerScales", "shape"), ("LayerScales", "output_variance"),
    ("Heteroscedastic", "spread"), ("StudentT", "df"), ("Ordinal", "noise_std"),
    ("Normal", "scale"), ("NoiseShape", "wide_ratio"), ("LowRankGaussian", "prior_variance"),
    ("LowRankGaussian", "scale"), ("MeanFieldGaussian", "scale"), ("GaussianPrior", "scale"),
    ("LayerwisePosterior", "weight"), ("GaussianProcess", "weight"), ("NoiseShape", "spread"),
    ("NoiseShape", "levels"), ("RatePredictor", "target_scale"),
}  # fmt: skip

# Fields that must not be below zero.
NOT_NEGATIVE = {
    ("ForestPredictor", "variance"), ("ForestPredictor", "smoothing"), ("ShapedPredictor", "floor"),
    ("NoiseShape", "wide_weight"), ("NoiseShape", "mean_square"),
    ("Calibration", "frequency_weight"), ("Calibration", "frequency"),
    ("KroneckerPrecision", "total_weight"),
    ("Heteroscedastic", "least"), ("ModeMixture", "weight"), ("Augerino", "reward"),
}  # fmt: skip


class FileContent(NamedTuple):
    """Size of a file's content.

    Attributes
    ----------
    n_numbers : int
        Total number of entries of the file's arrays.
    """

    n_numbers: int


def check_object(value: Any, content: FileContent) -> None:
    """Check all fields of an object that was read from a file.

    Parameters
    ----------
    value : object
        An instance of one of the classes that a file may name.
    content : FileContent
        Size of the file, which bounds the sizes that follow from a field, for example the number of
        weights of a network.

    Raises
    ------
    ValueError
        If a field is invalid. The message names the class and the field.
    """
    name = type(value).__name__
    hints = _field_types(type(value))
    for field, hint in hints.items():
        held = getattr(value, field)
        if not _has_type(held, hint):
            raise ValueError(f"{name}.{field} of a wrong type")
        _check_range(name, field, held)
    _check_shapes(name, value)
    for kind in type(value).__mro__:
        if kind.__name__ in RULES:
            RULES[kind.__name__](value)
        if kind.__name__ in SIZE_RULES:
            SIZE_RULES[kind.__name__](value, content)


def _field_types(kind: type) -> Mapping[str, Any]:
    """Annotations of the fields that a file holds."""
    if is_dataclass(kind):
        return {f.name: f.type for f in fields(kind) if f.init}
    if issubclass(kind, tuple):
        return inspect.get_annotations(kind)
    return {}


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value agrees with an annotation, as far as this can be checked."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if hint is Any or isinstance(hint, str) or type(hint).__name__ == "TypeVar":
        return True
    if hint is None or hint is type(None):
        return value is None
    if origin in (Union, types.UnionType):
        return any(_has_type(value, alternative) for alternative in arguments)
    if hint is bool:
        return isinstance(value, bool | np.bool_)
    if hint is int:
        return isinstance(value, Integral) and not isinstance(value, bool)
    if hint in (float, complex):
        return isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    if hint in (str, bytes):
        return isinstance(value, hint)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        if len(arguments) == 2 and arguments[1] is ...:
            return all(_has_type(item, arguments[0]) for item in value)
        same_length = len(value) == len(arguments)
        return same_length and all(map(_has_type, value, arguments))
    if origin is Sequence:
        return isinstance(value, list | tuple) and all(
            _has_type(item, arguments[0]) for item in value
        )
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _has_type(k, arguments[0]) and _has_type(v, arguments[1]) for k, v in value.items()
        )
    if hint is np.ndarray or origin is np.ndarray:
        return isinstance(value, np.ndarray)
    if hint is torch.Tensor:  # a fitted state keeps tensors as arrays
        return isinstance(value, torch.Tensor | np.ndarray)
    return _is_instance(value, hint if origin is None else origin)


def _is_instance(value: Any, kind: Any) -> bool:
    """Whether a value is an instance of a class; all objects except plain values fit a protocol."""
    plain = (bool, int, float, str, bytes, list, dict, np.ndarray, np.generic, torch.Tensor)
    if kind.__module__.startswith("numpy"):  # parts of ArrayLike
        return isinstance(value, Real | np.ndarray | list | tuple)
    if getattr(kind, "_is_protocol", False):
        is_plain_tuple = type(value) is tuple
        return value is not None and not is_plain_tuple and not isinstance(value, plain)
    return isinstance(value, kind)


def _check_range(name: str, field: str, value: Any) -> None:
    """Check all numbers in a field, also in tuples and arrays."""
    if isinstance(value, np.ndarray | torch.Tensor):
        if isinstance(value, torch.Tensor):
            array = value.detach().numpy()
        else:
            array = value
        if array.dtype.kind not in "fiub" or not array.size:
            return
        low = float(array.min())
    elif isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        for item in value:
            _check_range(name, field, item)
        return
    elif isinstance(value, Integral) and not isinstance(value, bool | np.bool_):
        smallest, largest = COUNTS.get((name, field), (0, _MAX_INT))
        is_count = (name, field) in COUNTS or (name, field) not in POSITIVE | NOT_NEGATIVE
        if is_count and not smallest <= int(value) <= largest:
            raise ValueError(f"{name}.{field} = {str(value)[:20]}")
        low = float(value)
    elif isinstance(value, Real) and not isinstance(value, bool | np.bool_):
        low = float(value)
        if isnan(low) and (name, field) not in MAY_BE_NAN:
            raise ValueError(f"{name}.{field} = nan")
    else:
        return
    if (name, field) in POSITIVE and not low > 0.0:
        raise ValueError(f"{name}.{field} of {low:g}, which isn't positive")
    if (name, field) in NOT_NEGATIVE and not low >= 0.0:
        raise ValueError(f"{name}.{field} of {low:g}, which is negative")


def _check_shapes(name: str, value: Any) -> None:
    """Check the arrays of an object against `ARRAYS`."""
    lengths: dict[str, int] = {}
    for field, specification in ARRAYS.get(name, {}).items():
        array = getattr(value, field)
        if specification.endswith("?") and (array is None or isinstance(array, Real)):
            continue
        if isinstance(array, list | tuple):
            array = np.asarray(array, dtype=np.float64)
        alternatives = specification.removesuffix("?").split("|")
        if not any(_matches(array, shape, lengths) for shape in alternatives):
            raise ValueError(f"{name}.{field} of a wrong shape or dtype, or with NaN")


_DTYPES = {"f": "f", "g": "f", "i": "iu", "b": "biu"}


def _matches(array: Any, specification: str, lengths: dict[str, int]) -> bool:
    """Whether an array has a dtype and shape; adds its axes to the known ``lengths``."""
    dtype, axes = specification.split()
    if isinstance(array, torch.Tensor):
        array = array.detach().numpy()
    if not isinstance(array, np.ndarray) or array.dtype.kind not in _DTYPES[dtype]:
        return False
    if array.ndim != len(axes):
        return False
    trial = dict(lengths)
    if any(trial.setdefault(a, n) != n for a, n in zip(axes, array.shape, strict=True)):
        return False
    if dtype == "f" and np.isnan(array).any():
        return False
    lengths.update(trial)
    return True


def _require(condition: Any, message: str) -> None:
    """Raise a ValueError unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _check_indices(array: Array, n: int, message: str) -> None:
    """Check that indices are within an axis of length n."""
    _require(not array.size or (array.min() >= 0 and array.max() < n), message)


def _check_trees(trees: Any) -> None:
    """Check that the nodes form trees."""
    trees.check()


def _check_network(value: Any, content: FileContent) -> None:
    """Check that the file holds at least one number per weight of a network."""
    sizes = (value.n_inputs, *value.hidden_layer_sizes, value.n_outputs)
    n_weights = sum((a + 1) * b for a, b in pairwise(sizes))
    _require(n_weights <= content.n_numbers, "MLP with more weights than the file has numbers")


def _check_layout(layout: Any, content: FileContent) -> None:
    """Check that the file holds at least one number per weight of a layout."""
    sizes = [prod(shape) for shape in layout.shapes.values()]
    lengths = [n for shape in layout.shapes.values() for n in shape]
    _require(all(n >= 1 for n in lengths), "ParamLayout with an axis of no length")
    _require(
        sum(sizes) <= content.n_numbers, "ParamLayout with more weights than the file has numbers"
    )


def _n_covered(precision: Any) -> int:
    """Number of weights and biases of the layers that a precision covers."""
    shapes = precision.layout.shapes
    names = [name for layer in precision.layers for name in (layer.weight, layer.bias)]
    return sum(prod(shapes[name]) for name in names if name is not None)


def _check_layers(precision: Any) -> None:
    """Check that the layers of a precision are in its layout."""
    names = precision.layout.shapes
    for layer in precision.layers:
        _require(layer.weight in names, f"no weights {layer.weight} of a layer")
        _require(layer.bias is None or layer.bias in names, f"no bias {layer.bias} of a layer")
    if hasattr(precision, "cholesky"):
        agrees = len(precision.cholesky) == _n_covered(precision)
        _require(agrees, "FullPrecision.cholesky of other layers")


def _check_kronecker(precision: Any) -> None:
    """Check that a precision has one spectrum and one prior precision per layer."""
    n = len(precision.layers)
    _require(len(precision.spectra) == len(precision.prior) == n, "layers that don't agree")
    _check_layers(precision)


def _check_laplace(value: Any) -> None:
    """Check the positions of the weights and their number."""
    positions = value.positions
    _check_indices(positions, len(value.loc), "LaplacePosterior.positions out of range")
    _require(len(np.unique(positions)) == len(positions), "LaplacePosterior.positions repeated")
    layout = value.precision.layout
    n_layout = sum(prod(shape) for shape in layout.shapes.values())
    # The weights of some layers only, or of all.
    _require(n_layout == len(value.loc), "LaplacePosterior.loc of another length")
    n_covered = _n_covered(value.precision)
    _require(n_covered == len(positions), "LaplacePosterior.positions of another length")


def _check_process(process: Any) -> None:
    """Check the parameters and rows of a Gaussian process."""
    n_scales = process.x.shape[1] + 3
    _require(len(process.log_scales) == n_scales, "GaussianProcess.log_scales of a wrong length")
    _require(len(process.x), "GaussianProcess without rows")


def _check_low_rank(value: Any) -> None:
    """Check the shape of the covariance."""
    n_rows, rank = value.loc.shape
    if value.basis is not None:
        rank = value.basis.shape[1]
    agrees = len(value.covariance) == n_rows * rank
    _require(agrees, "LowRankGaussian.covariance of a wrong shape")


def _check_layerwise(value: Any) -> None:
    """Check the training rows and the number of inducing points."""
    family = value.family
    agrees = value.x.shape[1] == family.network.n_inputs
    _require(agrees, "LayerwisePosterior.x with a wrong number of columns")
    n_inducing = getattr(family.hidden, "n_inducing", 0)
    agrees = n_inducing <= len(value.params)
    _require(agrees, "InducingHidden.n_inducing beyond the number of parameters")


def _check_hidden(hidden: Any) -> None:
    """Check the prior scales of the hidden layers."""
    agrees = len(hidden.prior_scale) == len(hidden.network.hidden_layer_sizes)
    _require(agrees, "prior scales of another number of layers")
    for scale in hidden.prior_scale:
        is_number = isinstance(scale, Real)
        agrees = is_number or _matches(scale, "f s", {})
        _require(agrees, "prior scales of a wrong shape or dtype, or with NaN")


def _check_image_shape(augmentation: Any) -> None:
    """Check the number of pixels."""
    shape = augmentation.image_shape
    _require(shape is None or prod(shape) <= 2**24, "an image of too many pixels")


def _check_moves(kernel: Any) -> None:
    """Check the range of the step size's jitter."""
    _require(kernel.jitter[0] <= kernel.jitter[1], "HMC.jitter that decreases")


def _check_rescaled(augmentation: Any) -> None:
    """Check that mean and scale have one entry per column."""
    agrees = len(augmentation.mean) == len(augmentation.scale)
    _require(agrees, "RescaledAugmentation with units of another number of columns")
    _check_columns(augmentation.part, len(augmentation.mean))


def _check_columns(augmentation: Any, n_columns: int) -> None:
    """Check the columns that an augmentation names, and those of its parts."""
    for part in getattr(augmentation, "parts", ()):
        _check_columns(part, n_columns)
    columns = np.array(getattr(augmentation, "columns", None) or (), dtype=int)
    _check_indices(columns, n_columns, "an augmentation of columns that there aren't")


def _check_shift(augmentation: Any) -> None:
    """Check that there is one unit per column."""
    n_columns = len(augmentation.columns or ())
    agrees = len(augmentation.units) in (0, n_columns)
    _require(agrees, "ColumnShift.units of another number of columns")


def _check_log_noise(value: Any) -> None:
    """Check that there is noise for at least one target."""
    _require(len(value.log_noise), f"{type(value).__name__}.log_noise of no targets")


def _check_kept_columns(columns: Any) -> None:
    """Check the indices of the columns that are kept."""
    if columns.kept.dtype.kind != "b":
        _check_indices(columns.kept, _MAX_INT, "Columns.kept out of range")


def _check_training_columns(columns: Any) -> None:
    """Check the positions of columns, and that there are dtypes of all columns or of none."""
    n_columns = len(columns.is_binary)
    for positions in (columns.boolean_positions, columns.constant_positions):
        if positions is not None:
            _check_indices(positions, n_columns, "TrainingColumns of columns that there aren't")
    if columns.has_boolean_dtype is not None:
        agrees = len(columns.has_boolean_dtype) in (0, n_columns)
        _require(agrees, "TrainingColumns with dtypes of another number of columns")
    agrees = (columns.constant_positions is None) == (columns.constants is None)
    _require(agrees, "TrainingColumns with constants that don't agree")


def _check_training_range(training_range: Any) -> None:
    """Check that every column has a range, a name and a position."""
    n_columns = training_range.rows.shape[1]
    _check_indices(training_range.position, n_columns, "TrainingRange.position out of range")
    is_ordered = bool((training_range.low < training_range.high).all())
    has_names = len(training_range.names) == len(training_range.low)
    _require(is_ordered and has_names, "TrainingRange of columns that don't agree")


def _check_units(units: Any) -> None:
    """Check the indices of the units' parameters."""
    _check_indices(units.index.numpy(), _MAX_INT, "Units.index out of range")


def _check_preconditioner(preconditioner: Any) -> None:
    """Check that there is one precision per layer."""
    agrees = len(preconditioner.layers) == len(preconditioner.precision)
    _require(agrees, "KroneckerPreconditioner with layers that don't agree")


def _check_block(block: Any) -> None:
    """Check the step sizes and the state of the random generator."""
    agrees = len(block.step_size) == len(block.state.value)
    _require(agrees, "Block with a wrong number of step sizes")
    # The length of a generator's state depends on its device: 16 bytes on CUDA, 5056 on the CPU.
    # torch checks the state itself when chains go on.
    random_state = np.asarray(block.random_state)
    is_state = random_state.ndim == 1 and random_state.dtype == np.uint8
    is_state = is_state and 16 <= len(random_state) <= _MAX_STATE_BYTES
    _require(is_state, "Block.random_state")


def _check_mode_chains(mode: Any) -> None:
    _check_indices(mode.chains, _MAX_INT, "Mode.chains below zero")
    _require(len(np.unique(mode.chains)) == len(mode.chains), "Mode.chains repeated")


# Sizes that follow from the fields of a class, which the numbers in the file must suffice for.
SIZE_RULES: dict[str, Callable[[Any, FileContent], None]] = {
    "MLP": _check_network,
    "ParamLayout": _check_layout,
}

# Relations between the fields of a class.
RULES: dict[str, Callable[[Any], None]] = {
    "Columns": _check_kept_columns,
    "TrainingColumns": _check_training_columns,
    "TrainingRange": _check_training_range,
    "TreeArrays": _check_trees,
    "FullPrecision": _check_layers,
    "KroneckerPrecision": _check_kronecker,
    "LaplacePosterior": _check_laplace,
    "GaussianProcess": _check_process,
    "LowRankGaussian": _check_low_rank,
    "LayerwisePosterior": _check_layerwise,
    "MeanFieldHidden": _check_hidden,
    "InducingHidden": _check_hidden,
    "Affine": _check_image_shape,
    "Brightness": _check_image_shape,
    "Contrast": _check_image_shape,
    "Hue": _check_image_shape,
    "PixelNoise": _check_image_shape,
    "Blur": _check_image_shape,
    "HMC": _check_moves,
    "RescaledAugmentation": _check_rescaled,
    "ColumnShift": _check_shift,
    "Gaussian": _check_log_noise,
    "StudentT": _check_log_noise,
    "Units": _check_units,
    "KroneckerPreconditioner": _check_preconditioner,
    "Block": _check_block,
    "Mode": _check_mode_chains,
}
