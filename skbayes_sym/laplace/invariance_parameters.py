"""The parameters ``invariances`` and ``image_shape``, and the attributes of learned half-widths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.requirements import require_attributes
from skbayes_sym.base.rows import Array, Rows, Scaling, column_scaling
from skbayes_sym.base.training import LARGEST, Training
from skbayes_sym.laplace.evidence import LaplaceEvidence
from skbayes_sym.models.augmentations.augmentation import (
    Augmentation,
    Composed,
    Identity,
    ImageShape,
    Invariances,
    ModuleAugmentation,
    RescaledAugmentation,
    amplitude,
    sample_stratified_noise,
)
from skbayes_sym.models.augmentations.images import Affine
from skbayes_sym.models.augmentations.tabular import Rotation2D
from skbayes_sym.numerics.arguments import object_array, short_repr
from skbayes_sym.numerics.random import generator_from, spawn_seeds


def image_shape(dimensions: Any, n_features: int) -> ImageShape | None:
    """Return ``image_shape`` as (C, H, W).

    Raises
    ------
    ValueError
        If it isn't the shape of images with as many pixels as there are columns.
    """
    if dimensions is None:
        return None
    values = object_array(dimensions)
    is_numeric = values.dtype.kind in "iuf" and np.isfinite(values).all()
    if values.ndim != 1 or len(values) not in (2, 3) or not is_numeric or np.any(values % 1):
        raise ValueError(f"image_shape must be (H, W) or (C, H, W), got {short_repr(dimensions)}.")
    shape = tuple(int(s) for s in values)
    if min(shape) < 1 or prod(shape) != n_features:
        raise ValueError(
            f"image_shape={dimensions!r} has {prod(shape)} pixels, but X has {n_features} columns."
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return channels, height, width


def resolve_invariances(value: Any) -> Invariances | None:
    """Return ``invariances`` as an object. Families are an abbreviation of one."""
    if value is None or isinstance(value, Invariances):
        return value
    return Invariances(value)


def image_scaling(rows: Rows) -> Scaling:
    """Return the scaling of images by their largest pixel, without a shift.

    A pixel outside the image is 0, and stays 0.
    """
    n = rows.X.shape[1]
    largest = float(np.abs(rows.X).max())
    return Scaling(np.zeros(n), np.full(n, largest if largest > 0 else 1.0))


@dataclass(frozen=True)
class TransformationFamilies:
    """Families of transformations whose half-widths may be learned.

    Attributes
    ----------
    families : tuple of Augmentation
        Families before they are bound to inputs. The first one acts first.
    image_shape : tuple of int or None
        (C, H, W), if the rows are images.
    n_samples : int
        Transformations per row in training.
    """

    families: tuple[Augmentation, ...]
    image_shape: ImageShape | None
    n_samples: int

    @classmethod
    def from_parameter(
        cls, invariances: Invariances | None, image_shape: ImageShape | None
    ) -> "TransformationFamilies":
        """Return the families of the parameter ``invariances``.

        Raises
        ------
        TypeError
            If it isn't a family or a list of them.
        """
        if invariances is None:
            return cls((), image_shape, 1)
        value: Any = invariances.families
        if isinstance(value, str) and value == "auto":
            value = () if image_shape is None else (Affine(),)
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        families = [
            ModuleAugmentation(item) if isinstance(item, torch.nn.Module) else item
            for item in (value if is_list else [value])
        ]
        for family in families:
            require_attributes(
                family,
                ["half_width", "bind", "transform"],
                parameter="invariances",
                remedy="Give 'auto', None, an augmentation such as Affine() or Rotation2D(), a "
                "torch module with a parameter `eta`, or a list of them.",
            )
        return cls(tuple(families), image_shape, invariances.n_augmentations)

    def bind(self, data: Training) -> Augmentation:
        """Bind all families to the data, as one that acts on scaled inputs.

        Raises
        ------
        ValueError
            If the squares of a column over- or underflow.
        """
        if not self.families:
            return Identity()
        rows = data.rows
        std = tuple(column_scaling(rows.X, rows.weight, enabled=True).scale.tolist())
        largest = LARGEST[torch.float64]
        for column, spread in enumerate(std):
            if not 1.0 / largest <= spread <= largest:
                raise ValueError(
                    f"column {column} of X spreads by {spread:.3g}, which must lie between "
                    f"{1.0 / largest:g} and {largest:g}, whose squares are numbers: rescale it."
                )
        bound = [family.bind(std, self.image_shape) for family in self.families]
        for family in bound:
            _warn_if_standardised(family, rows)
        if len(bound) == 1:
            composed = bound[0]
        else:
            composed = Composed(tuple(bound))
        mean, scale = data.x_scaling
        if self.image_shape is not None or not (np.any(mean) or np.any(scale != 1.0)):
            return composed
        return RescaledAugmentation(composed, tuple(mean.tolist()), tuple(scale.tolist()))


def warn_no_invariance() -> None:
    """Warn that ``invariances="auto"`` learns nothing for a table."""
    warn_user(
        "there is nothing to learn: invariances='auto' has transformations of images alone, and "
        "without image_shape X is a table. What is fitted is LaplaceClassifier's or "
        "LaplaceRegressor's network. Give image_shape=(H, W) or (C, H, W) if the rows are images, "
        "invariances=[Rotation2D(columns=...)], [ColumnShift(columns=...)] or [LogScale()] of "
        "skbayes_sym.models for columns, or invariances=None.",
        UserWarning,
    )


def _warn_if_standardised(family: Augmentation, rows: Rows) -> None:
    if not isinstance(family, Rotation2D):
        return
    columns = family.columns
    scaling = column_scaling(rows.X[:, list(columns)], rows.weight, enabled=True)
    deviation = np.stack([scaling.mean, scaling.scale - 1.0])
    if np.all(np.abs(deviation) < 1e-6):
        warn_user(
            f"columns {columns} look standardised one by one: a rotation of the data as "
            "measured is then no rotation of the columns. Give raw coordinates (standardize=True "
            "scales them inside, after rotating).",
            UserWarning,
        )


@dataclass(frozen=True, eq=False)
class LearnedInvariances:
    """A family of transformations with learned half-widths.

    Attributes
    ----------
    augmentation : Augmentation
        Transformations of scaled inputs.
    eta : ndarray of shape (half_width.n_params,)
        Free parameters of the half-widths.
    curve : sequence of ndarray
        ``eta`` after every block of steps.
    is_negligible : bool
        Whether the half-widths are so small that predictions needn't average.
    """

    augmentation: Augmentation
    eta: Array
    curve: Sequence[Array]
    is_negligible: bool

    def attributes(self) -> dict[str, Any]:
        """Return the fitted attributes of the learned invariances."""
        distribution = self.augmentation.half_width
        eta, *curve = (torch.as_tensor(values).double() for values in (self.eta, *self.curve))
        covariance = distribution.covariance(eta).numpy()
        half_widths = amplitude(distribution, eta).numpy()
        amplitudes = [amplitude(distribution, values).numpy() for values in curve]
        curves = np.array(amplitudes).reshape(len(amplitudes), len(distribution.names))
        displacement = np.ones(len(distribution.names))
        if isinstance(self.augmentation, Affine):
            displacement = np.array(self.augmentation.displacement)
        direction_amplitudes, directions = _principal_directions(covariance, displacement)
        scale = np.sqrt(np.diag(covariance))
        # The correlations of negligible half-widths are noise.
        is_relevant = half_widths >= 0.1
        is_relevant_pair = np.outer(is_relevant, is_relevant)
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = covariance / np.outer(scale, scale)
        correlation = np.where(is_relevant_pair, correlation, np.nan)
        return {
            "augmentation_": self.augmentation,
            "eta_": self.eta,
            "_predicts_plainly_": self.is_negligible,
            "invariance_": dict(zip(distribution.names, half_widths.tolist(), strict=True)),
            "invariance_curve_": dict(zip(distribution.names, curves.T, strict=True)),
            "invariance_covariance_": covariance,
            "invariance_correlation_": correlation,
            "invariance_directions_": directions,
            "invariance_direction_amplitudes_": direction_amplitudes,
        }


def _principal_directions(covariance: Array, displacement: Array) -> tuple[Array, Array]:
    """Return root mean squared displacements in falling order, and their directions (rows)."""
    root = np.sqrt(displacement)
    values, vectors = np.linalg.eigh(root[:, None] * covariance * root)
    order = np.argsort(values)[::-1]
    rows = vectors[:, order].T
    if len(rows):
        largest = np.abs(rows).argmax(axis=1)
        rows = rows * np.sign(rows[np.arange(len(rows)), largest])[:, None]
    return np.sqrt(np.clip(values[order], 0.0, None)), rows


EVALUATION_SAMPLES = 32  # transformations per row in the reported evidence and in predictions


class Transformations(NamedTuple):
    """Transformations of scaled inputs with learned half-widths.

    Attributes
    ----------
    augmentation : Augmentation
    eta : Tensor
        Free parameters of the half-widths.
    n : int
        Number of transformations that predictions average over. If it is 1, inputs aren't
        transformed.
    """

    augmentation: Augmentation
    eta: Tensor
    n: int = EVALUATION_SAMPLES

    def noise(self, seed: int) -> Tensor:
        """Draw the noise of the transformations from the seed of predictions, (S, k) on the host.

        It is the same for all rows and devices, so that the prediction of a row doesn't depend on
        other rows.
        """
        seed, _ = spawn_seeds(seed, 2)  # the other one is the seed of draws of the outputs
        k = self.augmentation.half_width.n_noise
        if self.n == 1 or not k:
            return torch.zeros(1, k, dtype=torch.float32)
        on_host = torch.zeros((), dtype=torch.float32)
        generator = generator_from(seed)
        return sample_stratified_noise(1, self.n, k, generator=generator, like=on_host)[0]


def averaging_is_negligible(
    evidence: LaplaceEvidence, theta: Tensor, hyper: Tensor, seed: int
) -> bool:
    """Whether averaging over transformations hardly changes predictions.

    Parameters
    ----------
    evidence : LaplaceEvidence
    theta : Tensor of shape (P,)
        Weights.
    hyper : Tensor
        Flat vector of hyperparameters.
    seed : int
        Seed of predictions.

    Returns
    -------
    bool
        True if no log density of 200 evenly spaced training rows changes by more than 0.001 nats,
        which is the tolerance of training.
    """
    model = evidence.model
    data = evidence.data
    h = model.hyper.unflatten(hyper)
    likelihood = model.likelihood.to(hyper).at(h["likelihood"])
    transformations = Transformations(model.augmentation, h["eta"])

    def log_prob(x: Tensor, y: Tensor, n: int) -> Tensor:
        noise = transformations._replace(n=n).noise(seed).to(hyper)
        averaged = replace(model, n_samples=len(noise))
        outputs = averaged.forward(theta, h["eta"], x, noise.expand(len(x), *noise.shape))
        return likelihood.log_prob(outputs, y)

    n_rows = len(data.x)
    rows = torch.linspace(0, n_rows - 1, min(n_rows, 200), dtype=torch.float32).long()
    for block in rows.to(data.x.device).split(evidence.batch_size):
        x = data.x[block]
        y = data.y[block]
        change = log_prob(x, y, transformations.n) - log_prob(x, y, 1)
        if not float(change.abs().max()) <= 1e-3:  # also if it is nan
            return False
    return True
