"""Training data as every method takes them: checked, in canonical form, scaled, on the device."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skbayes_sym.base.device import choose_dtype, resolve_device
from skbayes_sym.base.noise_levels import noise_levels
from skbayes_sym.base.rows import (
    Array,
    Rows,
    Scaling,
    canonical_rows,
    numeric_conversion,
    target_scaling,
)
from skbayes_sym.base.scikit_learn import check_sample_weight
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.arguments import check_not_masked, draw_seed
from skbayes_sym.numerics.memory import MemoryAllocation

FULL_BATCH_ROWS = 1000  # batch_size="auto": all rows up to here ...
MINIBATCH_ROWS = 200  # ... and this many beyond

# Of a learned noise, in units of the target's standard deviation.
INITIAL_NOISE = 0.5
NOISE_RANGE = (1e-3, 1e2)
# Of other learned parameters, which have no unit: a dispersion, the weight of the tails.
_SHAPE_RANGE = (1e-4, 1e2)

# Of scaled numbers: products of a few of them stay within the arithmetic's range.
LARGEST = {torch.float32: 1e12, torch.float64: 1e100}


class Targets(NamedTuple):
    """Targets as a method takes them, and what the user's were."""

    values: Array  # (N, T) numbers or (N,) class codes
    ndim: int
    classes: Array | None = None


def check_weight_range(weight: Array, largest: float) -> None:
    """Refuse positive weights beyond ``largest`` or below its inverse."""
    if len(weight) and not 1.0 / largest <= weight.min() <= weight.max() <= largest:
        raise ValueError(
            f"sample_weight lies between {weight.min():.3g} and {weight.max():.3g}: numbers "
            f"from {1.0 / largest:g} to {largest:g} are in this arithmetic's range. Rescale "
            "the weights, or give X as float64."
        )


@dataclass(frozen=True, eq=False)
class Training:
    """Data that a method fits.

    ``device``, ``dtype``: where and in which precision it computes.
    """

    rows: Rows  # distinct rows, sorted, each with the weight it carries; as given, not scaled
    inverse_index: Array  # place among ``rows`` of every row given; -1 where its weight is 0
    x_scaling: Scaling
    y_scaling: Scaling | None  # none where targets are taken as they are: class codes
    seed: int  # the one source of randomness of a fit
    device: torch.device
    dtype: torch.dtype
    callback_arguments: Mapping[str, Any]  # what callbacks are handed, see `FitProgress`
    y_ndim: int = 2  # of the targets as given
    labels: Array | None = None  # (n_classes,); the classes, in the order of their codes

    @classmethod
    def open(cls, estimator: BaseEstimator, X: Any, y: Any, sample_weight: Any) -> "Training":
        """Validate everything before the first array is allocated for the fit."""
        device = resolve_device(estimator.device)
        X_checked, y_checked = estimator._check_targets(X, y)
        check_not_masked("sample_weight", sample_weight)
        with numeric_conversion("sample_weight"):
            weight = check_sample_weight(
                sample_weight, X_checked, dtype=np.float64, ensure_non_negative=True
            )
        # Before anything is summed or averaged by weight, which would overflow.
        check_weight_range(weight[weight > 0], LARGEST[torch.float64])
        present = weight > 0  # a row of zero weight is a row that isn't there
        X_present = X_checked
        y_present = y_checked
        positive = weight
        if not present.all():
            X_present = X_checked[present]
            y_present = y_checked[present]
            positive = weight[present]
        inverse_index = np.full(len(weight), -1)
        targets = estimator._encode_targets(y_present)
        rows, inverse_index[present] = canonical_rows(X_present, targets.values, positive)
        if len(rows.X) == 1:
            warn_user(
                "X has one distinct row: nothing can be learned of how targets depend on it, and "
                "predictions elsewhere are the prior's. Give more rows.",
                UserWarning,
            )
        x_scaling = estimator._scale_inputs(rows)
        y_scaling = estimator._scale_targets(rows)
        dtype = choose_dtype(X_checked)
        metadata = None if sample_weight is None else {"sample_weight": sample_weight}
        data = cls(
            rows=rows,
            inverse_index=inverse_index,
            x_scaling=x_scaling,
            y_scaling=y_scaling,
            seed=draw_seed(estimator.random_state),
            device=device,
            dtype=dtype,
            callback_arguments={"estimator": estimator, "X": X, "y": y, "metadata": metadata},
            y_ndim=targets.ndim,
            labels=targets.classes,
        )
        data._require_range()
        return data

    @property
    def n_rows(self) -> int:
        """Number of distinct rows."""
        return len(self.rows.X)

    @property
    def classes(self) -> Array:
        """The classes of labels, (n_classes,)."""
        assert self.labels is not None
        return self.labels

    @property
    def n_features(self) -> int:
        """Number of columns of ``X``."""
        return int(self.rows.X.shape[1])

    @cached_property
    def total_weight(self) -> float:
        """Number of rows as given, counted with their weights."""
        return float(self.rows.weight.sum())

    @property
    def rows_allocation(self) -> MemoryAllocation:
        """Memory of the distinct rows of ``X``, in the precision of the fit."""
        n, d = self.rows.X.shape
        size = self.rows.X.size * self.dtype.itemsize
        return MemoryAllocation(f"{n} distinct rows of {d} features", size, "Use fewer of them.")

    @cached_property
    def log_jacobian(self) -> float:
        """Turns the log density of scaled targets into that of the targets as given, nats."""
        if self.y_scaling is None:
            return 0.0
        return -float(self.rows.weight.sum() * np.log(self.y_scaling.scale).sum())

    @cached_property
    def target_std(self) -> Array:
        """Standard deviation of every scaled target, (n_targets,); 1 where it is constant."""
        assert self.y_scaling is not None
        unit = self.y_scaling.scale
        if (unit != 1.0).any():  # this very spread: scaling is on
            return np.ones_like(unit)
        return target_scaling(self.rows, enabled=True).scale

    @cached_property
    def is_constant(self) -> npt.NDArray[np.bool_]:
        """Whether all values of a target are equal, (n_targets,)."""
        low, high = self.rows.y_range
        return np.asarray(low == high)

    def noise_levels(self, squares: Tensor, freedoms: Tensor) -> Array | None:
        """Standard deviations that stand for the posterior of the noise, in the units of ``y``.

        Parameters
        ----------
        squares : Tensor of shape (S, T)
            Weighted residual sums of squares of S models, in scaled units.
        freedoms : Tensor of shape (S, T)
            Total weight of the rows less the effective number of parameters.

        Returns
        -------
        ndarray of shape (S, K, T) or None
            None where the rows determine the noise.
        """
        assert self.y_scaling is not None
        levels = noise_levels(
            squares.double().cpu(),
            freedoms.double().cpu(),
            torch.as_tensor(self.target_std),
            self.total_weight,
            torch.as_tensor(self.is_constant),
        )
        return None if levels is None else levels.numpy() * self.y_scaling.scale

    @cached_property
    def log_noise_range(self) -> tuple[float, float]:
        """Between what ends the logarithm of a learned noise stays, scaled units."""
        if self.y_scaling is None:
            return -np.inf, np.inf
        low, high = NOISE_RANGE
        spread = self.target_std
        return float(np.log(low * spread.min())), float(np.log(high * spread.max()))

    def param_range(self, likelihood: Likelihood) -> tuple[float, float]:
        """Between what ends a likelihood's learned parameters stay, scaled units."""
        low, high = self.log_noise_range
        if likelihood.n_params == likelihood.noise_scale.shape[-1]:
            return low, high
        ends = float(np.log(_SHAPE_RANGE[0])), float(np.log(_SHAPE_RANGE[1]))
        return (min(low, ends[0]), max(high, ends[1])) if len(likelihood.noise_scale) else ends

    @cached_property
    def data(self) -> Data:
        """Scaled rows on the device, in the working precision."""
        return Data(*(self.tensor(a) for a in self._scaled(self.rows.X)))

    @cached_property
    def double_data(self) -> Data:
        """The same in float64, whatever the working precision."""
        arrays = self._scaled(self.rows.X.astype(np.float64))
        return Data(*(torch.as_tensor(np.ascontiguousarray(a), device=self.device) for a in arrays))

    def _scaled(self, X: Array) -> tuple[Array, Array, Array]:
        y = self.rows.y if self.y_scaling is None else self.y_scaling.apply(self.rows.y)
        return self.x_scaling.apply(X), y, self.rows.weight

    def _require_range(self) -> None:
        """Refuse numbers whose squares leave the arithmetic's range."""
        largest = LARGEST[self.dtype]
        weight = self.rows.weight
        check_weight_range(weight, largest)
        wide = np.abs(self.x_scaling.apply(self.rows.x_range)).max(axis=0)
        remedy = "rescale it, or give X as float64."
        if wide.max() > largest:
            place = int(wide.argmax())
            raise ValueError(
                f"column {place} of X reaches {wide[place]:.3g}, beyond the {largest:g} whose "
                f"squares this arithmetic holds: use standardize=True, {remedy}"
            )
        if self.y_scaling is None:
            return
        wide = np.abs(self.y_scaling.apply(self.rows.y_range)).max(axis=0)
        spread = self.target_std
        wrong = (wide > largest) | (spread < 1.0 / largest)
        if wrong.any():
            place = int(wrong.argmax())
            raise ValueError(
                f"column {place} of y reaches {wide[place]:.3g} and spreads by "
                f"{spread[place]:.3g}, which must lie between {1.0 / largest:g} and {largest:g} "
                f"in this arithmetic: use standardize=True, {remedy}"
            )

    def tensor(self, values: Array) -> Tensor:
        """Values on the device, floats in the working precision."""
        tensor = torch.as_tensor(np.ascontiguousarray(values), device=self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def attributes(self) -> dict[str, Any]:
        """Fitted attributes that every estimator takes from its data."""
        attributes = {
            "x_mean_": self.x_scaling.mean,
            "x_scale_": self.x_scaling.scale,
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
        }
        if self.labels is not None:
            attributes["classes_"] = self.labels
        if self.y_scaling is not None:
            attributes["y_mean_"], attributes["y_scale_"] = self.y_scaling
            attributes["_y_ndim_"] = self.y_ndim
        return attributes


def default_batch_size(n_rows: int) -> int:
    """Rows of a minibatch for ``batch_size="auto"``."""
    return n_rows if n_rows <= FULL_BATCH_ROWS else MINIBATCH_ROWS


def resolve_batch_size(batch_size: int | str, n_rows: int, auto: int | None = None) -> int:
    """``batch_size``, with ``auto`` rows by default; never more than there are."""
    if isinstance(batch_size, str):
        return min(default_batch_size(n_rows) if auto is None else auto, n_rows)
    if batch_size > n_rows:
        warn_user(
            f"batch_size={batch_size} exceeds the {n_rows} distinct training rows: every step "
            "uses all of them.",
            UserWarning,
        )
    return min(int(batch_size), n_rows)
