"""Values of ``invariances`` and ``image_shape``, and half-widths learned, as users read them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.requirements import require_attributes
from skbayes_sym.base.rows import Array, Rows, Scaling, column_scaling
from skbayes_sym.base.training import LARGEST, Training
from skbayes_sym.base.warnings import warn_user
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
from skbayes_sym.numerics.random import generator_from, spawn_seeds


def image_shape(dimensions: Any, n_features: int) -> ImageShape | None:
    """``image_shape`` as (C, H, W), checked against the number of columns."""
    if dimensions is None:
        return None
    values = np.asarray(dimensions)
    if values.ndim != 1 or len(values) not in (2, 3) or not np.all(values == values.astype(int)):
        raise ValueError(f"image_shape must be (H, W) or (C, H, W), got {dimensions!r}.")
    shape = tuple(int(s) for s in values)
    if min(shape) < 1 or prod(shape) != n_features:
        raise ValueError(
            f"image_shape={dimensions!r} has {prod(shape)} pixels, but X has {n_features} columns."
        )
    channels, height, width = shape if len(shape) == 3 else (1, *shape)
    return channels, height, width


def check_invariances(value: Any) -> Invariances | None:
    """``invariances`` as an object; families alone are shorthand."""
    return value if value is None or isinstance(value, Invariances) else Invariances(value)


def image_scaling(rows: Rows) -> Scaling:
    """Images as a whole, and without a shift: 0 stays 0 outside."""
    n = rows.X.shape[1]
    largest = float(np.abs(rows.X).max())
    return Scaling(np.zeros(n), np.full(n, largest if largest > 0 else 1.0))


@dataclass(frozen=True)
class TransformationFamilies:
    """Families of transformations whose half-widths may be learned."""

    families: tuple[Augmentation, ...]  # not bound to inputs yet; the first acts first
    image_shape: ImageShape | None  # (C, H, W), if the rows are images
    n_samples: int  # transformations per row in training

    @classmethod
    def from_parameter(
        cls, invariances: Invariances | None, image_shape: ImageShape | None
    ) -> "TransformationFamilies":
        """Families that the constructor's object stands for; TypeError if it is none."""
        if invariances is None:
            return cls((), image_shape, 1)
        value: Any = invariances.families
        if isinstance(value, str) and value == "auto":
            value = () if image_shape is None else (Affine(),)
        several = isinstance(value, Sequence) and not isinstance(value, str)
        families = [
            ModuleAugmentation(item) if isinstance(item, torch.nn.Module) else item
            for item in (value if several else [value])
        ]
        for family in families:
            require_attributes(
                family, ["half_width", "bind", "transform"], parameter="invariances",
                remedy="Give 'auto', None, an augmentation such as Affine() or Rotation2D(), a "
                "torch module with a parameter `eta`, or a list of them.",
            )  # fmt: skip
        return cls(tuple(families), image_shape, invariances.n_augmentations)

    def bind(self, data: Training) -> Augmentation:
        """Bind all families as one that acts on scaled inputs."""
        if not self.families:
            return Identity()
        rows = data.rows
        spread = tuple(column_scaling(rows.X, rows.weight, enabled=True).scale.tolist())
        if max(spread) > LARGEST[torch.float64]:
            raise ValueError(
                f"column {spread.index(max(spread))} of X spreads by {max(spread):.3g}, beyond the "
                f"{LARGEST[torch.float64]:g} whose squares numbers hold: rescale it."
            )
        bound = [family.bind(spread, self.image_shape) for family in self.families]
        for family in bound:
            _warn_if_standardised(family, rows)
        together = bound[0] if len(bound) == 1 else Composed(tuple(bound))
        mean, scale = data.x_scaling
        if self.image_shape is not None or not (np.any(mean) or np.any(scale != 1.0)):
            return together
        return RescaledAugmentation(together, tuple(mean.tolist()), tuple(scale.tolist()))


def warn_no_invariance() -> None:
    """Say what ``invariances="auto"`` is on a table."""
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
    away = np.stack([scaling.mean, scaling.scale - 1.0])
    if np.all(np.abs(away) < 1e-6):
        warn_user(
            f"columns {columns} look standardised one by one: a rotation of the data as "
            "measured is then no rotation of the columns. Give raw coordinates (standardize=True "
            "scales them inside, after rotating).",
            UserWarning,
        )


@dataclass(frozen=True, eq=False)
class LearnedInvariances:
    """A family with the half-widths that were found."""

    augmentation: Augmentation  # of scaled inputs
    eta: Array  # (half_width.n_params,)
    curve: Sequence[Array]  # eta after every block of steps
    predicts_plainly: bool  # whether they are too small for predictions to be averages

    def attributes(self) -> dict[str, Any]:
        """The learned invariances as users read them."""
        distribution = self.augmentation.half_width
        eta, *curve = (torch.as_tensor(one).double() for one in (self.eta, *self.curve))
        covariance = distribution.covariance(eta).numpy()
        reach = amplitude(distribution, eta).numpy()
        amplitudes = [amplitude(distribution, one).numpy() for one in curve]
        curves = np.array(amplitudes).reshape(len(amplitudes), len(distribution.names))
        displacement = np.ones(len(distribution.names))
        if isinstance(self.augmentation, Affine):
            displacement = np.array(self.augmentation.displacement)
        moved, directions = _directions(covariance, displacement)
        scale = np.sqrt(np.diag(covariance))
        meaningful = reach >= 0.1
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = covariance / np.outer(scale, scale)
        return {
            "augmentation_": self.augmentation,
            "eta_": self.eta,
            "_predicts_plainly_": self.predicts_plainly,
            "invariance_": dict(zip(distribution.names, reach.tolist(), strict=True)),
            "invariance_curve_": dict(zip(distribution.names, curves.T, strict=True)),
            "invariance_covariance_": covariance,
            "invariance_correlation_": np.where(
                np.outer(meaningful, meaningful), correlation, np.nan
            ),
            "invariance_directions_": directions,
            "invariance_direction_amplitudes_": moved,
        }


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


EVALUATION_SAMPLES = 32  # transformations a row of the reported evidence and of predictions


class Transformations(NamedTuple):
    """A family of transformations of scaled inputs, as learned."""

    augmentation: Augmentation
    eta: Tensor
    n: int = EVALUATION_SAMPLES  # that predictions average over; 1: inputs as they are

    def noise(self, seed: int) -> Tensor:
        """Noise that the transformations are made of, (S, k) on the host: equal for all rows.

        Equal on every device, too: a prediction depends on its own row alone. ``seed``: of
        predictions.
        """
        seed, _ = spawn_seeds(seed, 2)  # the other one is of draws of the outputs
        k = self.augmentation.half_width.n_noise
        if self.n == 1 or not k:
            return torch.zeros(1, k, dtype=torch.float32)
        on_host = torch.zeros((), dtype=torch.float32)
        generator = generator_from(seed)
        return sample_stratified_noise(1, self.n, k, generator=generator, like=on_host)[0]


def averaging_is_negligible(
    evidence: LaplaceEvidence, theta: Tensor, hyper: Tensor, seed: int
) -> bool:
    """Whether inputs as they are predict what averages over transformations do.

    They do if no log density of 200 training rows, evenly spread, changes by more than .001 nats:
    what training takes for converged. ``seed``: of predictions.
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
    rows = (
        torch.linspace(0, n_rows - 1, min(n_rows, 200), dtype=torch.float32)
        .long()
        .to(data.x.device)
    )
    blocks = ((data.x[some], data.y[some]) for some in rows.split(evidence.batch_size))
    changes = (log_prob(x, y, transformations.n) - log_prob(x, y, 1) for x, y in blocks)
    return all(float(change.abs().max()) <= 1e-3 for change in changes)
