"""What the LILA estimators decide before the first step: images, invariances, objective."""

from collections.abc import Mapping, Sequence
from math import pi, prod
from typing import Any, NamedTuple

import numpy as np
import torch

from skbayes_sym.estimators._fit.context import FitContext
from skbayes_sym.estimators._fit.model import hidden_layer_sizes
from skbayes_sym.estimators._fit.rows import Array, Rows, Scaling, column_scaling
from skbayes_sym.estimators._fit.training import rows_a_step
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.estimators.laplace.plan import checked_module
from skbayes_sym.estimators.laplace.recipe import Plan
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.models.augmentations.affine import AXIS, SIMILARITY, Affine
from skbayes_sym.models.augmentations.base import Augmentation, Composed, Identity, InRescaledUnits
from skbayes_sym.models.augmentations.half_width import amplitude
from skbayes_sym.models.augmentations.module import ModuleAugmentation
from skbayes_sym.models.augmentations.tabular import Rotation2D
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.networks.activations import ACTIVATIONS
from skbayes_sym.models.networks.convolutional import ARCHITECTURES
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.recording import RecordingNetwork

FULL_BATCH_ROWS = 250  # batch_size="auto" with invariances: all rows up to here ...
MINIBATCH_ROWS = 100  # ... and this many beyond; each is transformed n_augmentations times
_TOTAL_TRAVEL = (
    3.0 * pi
)  # invariance_learning_rate="auto": what a half-width can cover in all updates
_FASTEST = (
    0.2  # ... and in one: half-widths that outrun the weights end beyond what the data support
)
_MEAN_FACTOR = 0.75  # of step sizes that are constant over one half and then fall to 0
_STANDARDISED = 1e-6  # a column whose mean is 0 and standard deviation 1 to this was standardised
_MEANINGFUL = 0.1  # half-widths below it have no meaningful correlations

_BASES = {"similarity": SIMILARITY, "axis": AXIS}


def image_shape(estimator: Any, n_features: int) -> tuple[int, int, int] | None:
    """``image_shape`` as (C, H, W), checked against the number of columns."""
    if estimator.image_shape is None:
        return None
    given = np.asarray(estimator.image_shape)
    if given.ndim != 1 or len(given) not in (2, 3) or not np.all(given == given.astype(int)):
        raise ValueError(f"image_shape must be (H, W) or (C, H, W), got {estimator.image_shape!r}.")
    shape = tuple(int(s) for s in given)
    if min(shape) < 1 or prod(shape) != n_features:
        raise ValueError(
            f"image_shape={estimator.image_shape!r} has {prod(shape)} pixels, but X has "
            f"{n_features} columns."
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return channels, height, width


def input_scaling(estimator: Any, rows: Rows) -> Scaling:
    """Columns of tables one by one; images as a whole, and without a shift: 0 stays 0 outside."""
    if estimator.image_shape is None or not estimator.standardize:
        return column_scaling(rows.X, rows.weight, enabled=estimator.standardize)
    n = rows.X.shape[1]
    largest = float(np.abs(rows.X).max())
    return Scaling(np.zeros(n), np.full(n, largest if largest > 0 else 1.0))


def image_network(
    estimator: Any, shape: tuple[int, int, int] | None, n_features: int, n_outputs: int
) -> RecordingNetwork:
    """The network, for images or for rows of a table."""
    network = estimator.network
    if isinstance(network, torch.nn.Module):
        return checked_module(network, shape or (n_features,), n_outputs)
    if network == "mlp":
        activation = ACTIVATIONS[estimator.activation]
        return MLP(n_features, hidden_layer_sizes(estimator), n_outputs, activation)
    if shape is None:
        raise ValueError(
            f"network={network!r} takes images: give image_shape=(H, W) or (C, H, W), or use "
            "network='mlp'."
        )
    return ARCHITECTURES[network](shape, n_outputs)


def bound_augmentation(
    estimator: Any, context: FitContext, shape: tuple[int, int, int] | None
) -> Augmentation:
    """``invariances`` as one family that acts on scaled inputs."""
    parts = _parts(estimator, shape)
    if not parts:
        return Identity()
    rows = context.rows
    spread = column_scaling(rows.X, rows.weight, enabled=True)
    bound = [part.bind(tuple(spread.scale.tolist())) for part in parts]
    for part in bound:
        if isinstance(part, Rotation2D):
            _warn_if_standardised(part, rows)
    family = bound[0] if len(bound) == 1 else Composed(tuple(bound))
    if shape is not None or not estimator.standardize:
        return family
    mean, scale = (tuple(a.tolist()) for a in context.x_scaling)
    return InRescaledUnits(family, mean, scale)


def _parts(estimator: Any, shape: tuple[int, int, int] | None) -> list[Augmentation]:
    given = estimator.invariances
    if given is None or (isinstance(given, str) and given == "auto" and shape is None):
        return []
    if isinstance(given, str) and given in {"auto", "affine"}:
        if shape is None:
            raise ValueError(
                "invariances='affine' moves pixels: give image_shape=(H, W) or (C, H, W)."
            )
        return [Affine(shape, _BASES[estimator.basis], estimator.correlated)]
    several = isinstance(given, Sequence) and not isinstance(given, str)
    items = given if several else [given]
    parts = [ModuleAugmentation(i) if isinstance(i, torch.nn.Module) else i for i in items]
    for part in parts:
        if not (hasattr(part, "transform") and hasattr(part, "bind")):
            raise ValueError(
                "invariances must be 'auto', 'affine', None, or a list of augmentations such as "
                f"Rotation2D() or of torch modules with a parameter `eta`, got {part!r}."
            )
    return parts


def _warn_if_standardised(part: Rotation2D, rows: Rows) -> None:
    scaling = column_scaling(rows.X[:, list(part.columns)], rows.weight, enabled=True)
    if np.all(np.abs(scaling.mean) < _STANDARDISED) and np.all(
        np.abs(scaling.scale - 1.0) < _STANDARDISED
    ):
        warn_user(
            f"columns {part.columns} look standardised one by one: a rotation of the data as "
            "measured is then no rotation of the columns. Give raw coordinates (standardize=True "
            "scales them inside, after rotating).",
            UserWarning,
        )


def lila_plan(
    estimator: Any,
    context: FitContext,
    n_outputs: int,
    likelihood: Likelihood,
    baseline: float,
) -> Plan:
    """Network, invariances and objective."""
    n_rows, n_features = context.rows.X.shape
    shape = image_shape(estimator, n_features)
    network = image_network(estimator, shape, n_features, n_outputs)
    augmentation = bound_augmentation(estimator, context, shape)
    if estimator.objective == "map":
        augmentation = Identity()
    half_width = augmentation.half_width
    n_samples = estimator.n_augmentations if half_width.n_params else 1
    auto = n_rows if n_rows <= FULL_BATCH_ROWS else MINIBATCH_ROWS
    return Plan(
        AveragedNetwork(network, augmentation, likelihood, n_samples),
        rows_a_step(estimator, n_rows, auto),
        online=estimator.hyper == "online",
        learn_precision=estimator.learn_prior and estimator.objective == "evidence",
        half_width_rate=_half_width_rate(estimator) if half_width.n_params else 0.0,
        reward=estimator.augerino_reward if estimator.objective == "augerino" else None,
        eta=half_width.start(),
        baseline=baseline,
    )


def _half_width_rate(estimator: Any) -> float:
    if estimator.invariance_learning_rate != "auto":
        return float(estimator.invariance_learning_rate)
    if estimator.objective == "augerino":
        return float(estimator.learning_rate)
    n_updates = max(1.0, (1.0 - estimator.burn_in) * estimator.n_hyper_updates)
    return min(_FASTEST, _TOTAL_TRAVEL / (_MEAN_FACTOR * n_updates))


class _Reach(NamedTuple):
    """Names and laws of a family, as numbers."""

    names: tuple[str, ...]
    amplitude: Array
    covariance: Array


def _reach(augmentation: Augmentation, eta: Array) -> _Reach:
    at = torch.as_tensor(eta).double()
    half_width = augmentation.half_width
    return _Reach(
        half_width.names, amplitude(half_width, at).numpy(), half_width.covariance(at).numpy()
    )


def invariance_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """The learned invariances as users read them."""
    augmentation = attributes["_augmentation_"]
    reach = _reach(augmentation, attributes["_eta_"])
    history = [_reach(augmentation, eta).amplitude for eta in attributes["_eta_history_"]]
    curves = np.array(history).reshape(len(history), len(reach.names))
    part = augmentation.part if isinstance(augmentation, InRescaledUnits) else augmentation
    displacement = np.ones(len(reach.names))
    if isinstance(part, Affine):
        displacement = np.array(part.basis.displacement)
    amplitudes, directions = _directions(reach.covariance, displacement)
    return {
        "invariance_": dict(zip(reach.names, reach.amplitude.tolist(), strict=True)),
        "invariance_history_": dict(zip(reach.names, curves.T, strict=True)),
        "invariance_covariance_": reach.covariance,
        "invariance_correlation_": _correlation(reach),
        "invariance_directions_": directions,
        "invariance_direction_amplitudes_": amplitudes,
    }


def _correlation(reach: _Reach) -> Array:
    scale = np.sqrt(np.diag(reach.covariance))
    meaningful = reach.amplitude >= _MEANINGFUL
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = reach.covariance / np.outer(scale, scale)
    return np.where(np.outer(meaningful, meaningful), correlation, np.nan)


def _directions(covariance: Array, displacement: Array) -> tuple[Array, Array]:
    """Root mean squared displacements, largest first, and what moves: rows over the names."""
    root = np.sqrt(displacement)
    values, vectors = np.linalg.eigh(root[:, None] * covariance * root)
    order = np.argsort(values)[::-1]
    rows = vectors[:, order].T
    if len(rows):
        largest = np.abs(rows).argmax(axis=1)
        rows = rows * np.sign(rows[np.arange(len(rows)), largest])[:, None]
    return np.sqrt(np.clip(values[order], 0.0, None)), rows
