"""Training data in the form that every method fits: checked, canonical, scaled, on the device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from skbayes_sym.base.device import choose_dtype
from skbayes_sym.base.groups import encode_groups, number_by_appearance
from skbayes_sym.base.input_validation import numeric_conversion
from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.noise_levels import (
    MAX_FREEDOMS,
    HalfTPrior,
    known_error_levels,
    noise_levels,
    noise_prior,
    sample_spread,
)
from skbayes_sym.base.rows import (
    Array,
    Rows,
    Scaling,
    canonical_rows,
    drop_rows,
    split_observations,
    target_scaling,
)
from skbayes_sym.base.scikit_learn import check_sample_weight
from skbayes_sym.base.targets import Targets
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.arguments import check_not_masked, draw_seed, select_optional
from skbayes_sym.numerics.memory import MemoryAllocation

# With batch_size="auto" a step uses all rows up to this number, and minibatches for more rows.
FULL_BATCH_ROWS = 1000
MINIBATCH_ROWS = 200

# Initial value and range of a learned noise level, in units of the target's standard deviation.
INITIAL_NOISE = 0.5
NOISE_RANGE = (1e-3, 1e2)
# Range of other learned likelihood parameters, which have no unit, such as a dispersion.
_SHAPE_RANGE = (1e-4, 1e2)

# Largest scaled value, so that products of a few values stay in the range of the precision.
LARGEST = {torch.float32: 1e12, torch.float64: 1e100}
# Largest target in the user's unit, whose square is a number.
LARGEST_TARGET = 1e150
# Largest sample weight; sums of so many repetitions are in the range of float32.
_MAX_WEIGHT = 1e30


def check_weight_range(weight: Array, largest: float) -> None:
    """Raise a ValueError if a positive weight exceeds ``largest`` or 1e30, or is below 1/largest.

    Parameters
    ----------
    weight : ndarray of shape (n,)
        Positive weights.
    largest : float
        Largest number whose products are in the range of the precision.
    """
    smallest = 1.0 / largest
    largest = min(largest, _MAX_WEIGHT)
    if len(weight) and not smallest <= weight.min() <= weight.max() <= largest:
        raise ValueError(
            f"sample_weight lies between {weight.min():.3g} and {weight.max():.3g}: numbers "
            f"from {smallest:g} to {largest:g} are in this arithmetic's range. Rescale "
            "the weights, or give X as float64."
        )


def _check_weights(sample_weight: Any, X: Array) -> Array:
    """Return sample weights as non-negative float64, (n_samples,); ones by default."""
    check_not_masked("sample_weight", sample_weight)
    dtype = getattr(sample_weight, "dtype", None)
    if str(dtype).lower().startswith(("date", "time", "duration", "<m8", "period")):
        raise ValueError(f"sample_weight must hold numbers, got {dtype}.")
    with numeric_conversion("sample_weight"):
        weight: Array = check_sample_weight(
            sample_weight, X, dtype=np.float64, ensure_non_negative=True
        )
    # Sums and averages by weight would overflow beyond this range.
    check_weight_range(weight[weight > 0], LARGEST[torch.float64])
    return weight


@dataclass(frozen=True, eq=False)
class Training:
    """Data that a method fits.

    Parameters
    ----------
    rows : Rows
        Rows in lexicographic order with their weights, in the units of the user. Equal rows are
        merged unless they are separate observations, see `split_observations`.
    inverse_index : ndarray of shape (n_samples,)
        Position among ``rows`` of every row that was passed to ``fit``; -1 if its weight is 0 or it
        is one of ``outliers``.
    x_scaling : Scaling
        Scaling of the inputs.
    y_scaling : Scaling or None
        Scaling of the targets; None for class codes.
    seed : int
        Seed of all random numbers of the fit.
    device : torch.device
        Device on which the method computes.
    dtype : torch.dtype
        Floating-point precision in which the method computes.
    callback_arguments : mapping
        What callbacks receive, see `FitProgress`.
    y_ndim : int, default=2
        Number of axes of ``y`` as the user gave it.
    class_labels : ndarray of shape (n_classes,), optional
        Classes in the order of their codes; None for regression.
    outliers : ndarray of shape (n_outliers,), optional
        Rows that were passed to ``fit`` and are left out because of gross errors in their targets;
        None if these aren't looked for.
    """

    rows: Rows
    inverse_index: Array
    x_scaling: Scaling
    y_scaling: Scaling | None
    seed: int
    device: torch.device
    dtype: torch.dtype
    callback_arguments: Mapping[str, Any]
    y_ndim: int = 2
    class_labels: Array | None = None
    outliers: Array | None = None

    @classmethod
    def from_arrays(
        cls,
        X: Array,
        targets: Targets,
        sample_weight: Any,
        *,
        scale_inputs: Callable[[Rows], Scaling],
        random_state: Any,
        device: torch.device,
        callback_arguments: Mapping[str, Any],
        groups: Any = None,
        row_parameter: Array | None = None,
        describe_input: Callable[[int], str] = "column {} of X".format,
    ) -> "Training":
        """Bring validated rows into canonical form and scale them.

        All checks are made before the fit allocates its first array.

        Parameters
        ----------
        X : ndarray of shape (n_samples, n_features)
            Validated inputs, float32 or float64. Their precision is that of the fit.
        targets : Targets
            Validated targets of the same rows.
        sample_weight : array-like of shape (n_samples,) or None
            Non-negative weights as the user gave them. Rows of weight 0 are removed.
        scale_inputs : callable (Rows) -> Scaling
            Scaling of the inputs of the canonical rows.
        random_state : int, RandomState instance or None
            Source of the seed of the fit.
        device : torch.device
            Device on which the method computes.
        callback_arguments : mapping
            What callbacks receive, see `FitProgress`.
        groups : array-like of shape (n_samples,), optional
            Groups of rows that are left out together.
        row_parameter : ndarray of shape (n_samples, n_targets), optional
            Known parameter of the likelihood of every row, validated.
        describe_input : callable (position) -> str
            Words for a column of ``X`` in error messages.

        Returns
        -------
        Training

        Raises
        ------
        ValueError
            If weights, inputs or targets leave the range of the precision, if the targets have only
            one class, or if all rows are of one group.
        """
        weight = _check_weights(sample_weight, X)

        codes = None
        if groups is not None:
            codes = encode_groups(groups, len(weight))

        # A fit with a row of weight zero equals the fit without the row.
        dtype = choose_dtype(X)
        is_present = weight > 0
        inverse_index = np.full(len(weight), -1)
        all_targets = targets
        if not is_present.all():
            X = X[is_present]
            targets = targets.select(is_present)
            weight = weight[is_present]
            codes = select_optional(codes, is_present)
            row_parameter = select_optional(row_parameter, is_present)
        targets.check()
        rows, inverse_index[is_present] = _canonical_rows(
            X, targets.values, weight, codes, row_parameter
        )

        # Gross errors would determine the scale of the targets, and the noise.
        outliers = None
        is_gross = targets.find_gross_errors(rows)
        if is_gross is not None:
            outliers = np.flatnonzero(np.append(is_gross, False)[inverse_index])
            if len(outliers):
                all_targets.warn_gross_errors(outliers)
                rows, inverse_index = drop_rows(rows, inverse_index, is_gross)
        if codes is None:
            rows, inverse_index = split_observations(rows, inverse_index)

        data = cls(
            rows=rows,
            inverse_index=inverse_index,
            x_scaling=scale_inputs(rows),
            y_scaling=targets.scaling(rows),
            seed=draw_seed(random_state),
            device=device,
            dtype=dtype,
            callback_arguments=callback_arguments,
            y_ndim=targets.ndim,
            class_labels=targets.classes,
            outliers=outliers,
        )
        data._check_rows(describe_input)
        return data

    @property
    def n_rows(self) -> int:
        """Number of rows after equal ones were merged."""
        return len(self.rows.X)

    @property
    def description(self) -> str:
        """Number of rows in words, such as "800 rows (80 after merging equal ones)"."""
        n_samples = int((self.inverse_index >= 0).sum())
        if n_samples <= self.n_rows:
            return f"{n_samples:,} rows"
        return f"{n_samples:,} rows ({self.n_rows:,} after merging equal ones)"

    @property
    def n_features(self) -> int:
        """Number of columns of ``X``."""
        return int(self.rows.X.shape[1])

    @property
    def classes(self) -> Array:
        """Classes in the order of their codes, (n_classes,); only for classification."""
        assert self.class_labels is not None
        return self.class_labels

    @cached_property
    def total_weight(self) -> float:
        """Sum of the sample weights, which is the number of rows if all weights are 1."""
        return float(self.rows.weight.sum())

    def first_original_rows(self) -> Array:
        """Index of the first row of ``X`` that became each row, (n_rows,)."""
        position, index = np.unique(self.inverse_index, return_index=True)
        is_present = position >= 0
        # A row whose weight was split over more rows became all of these, which are neighbours.
        which = np.searchsorted(position[is_present], np.arange(self.n_rows), side="right") - 1
        return index[is_present][which]

    @property
    def rows_allocation(self) -> MemoryAllocation:
        """Memory of the distinct rows of ``X`` in the precision of the fit."""
        n, d = self.rows.X.shape
        size = self.rows.X.size * self.dtype.itemsize
        return MemoryAllocation(f"{n} distinct rows of {d} features", size, "Use fewer of them.")

    @cached_property
    def log_jacobian(self) -> float:
        """Log density of the targets minus that of the scaled targets, nats."""
        if self.y_scaling is None:
            return 0.0
        return -float(self.rows.weight.sum() * np.log(self.y_scaling.scale).sum())

    @cached_property
    def target_std(self) -> Array:
        """Standard deviation of every scaled target, (n_targets,); 1 for a constant target."""
        assert self.y_scaling is not None
        scale = self.y_scaling.scale
        if (scale != 1.0).any():
            # Targets are standardised: the scale is their standard deviation.
            return np.ones_like(scale)
        return target_scaling(self.rows, enabled=True).scale

    @cached_property
    def is_constant(self) -> npt.NDArray[np.bool_]:
        """Whether all values of a target are equal, (n_targets,)."""
        low, high = self.rows.y_range
        return np.asarray(low == high)

    @property
    def noise_prior(self) -> HalfTPrior | None:
        """Prior of the noise levels in scaled units; None if many rows determine them."""
        if self.total_weight > MAX_FREEDOMS and not self.is_constant.any():
            return None
        spread = sample_spread(torch.as_tensor(self.target_std), self.total_weight)
        return noise_prior(spread, self.total_weight)

    def noise_levels(self, squares: Tensor, degrees_of_freedom: Tensor) -> Array | None:
        """Return standard deviations that represent the posterior of the noise level.

        Parameters
        ----------
        squares : Tensor of shape (S, T)
            Weighted residual sums of squares of S models and T targets, in scaled units.
        degrees_of_freedom : Tensor of shape (S, T)
            Total weight of the rows minus the effective number of parameters.

        Returns
        -------
        ndarray of shape (S, K, T) or None
            Noise levels in the units of ``y``. None if there are so many rows that the noise level
            is known.
        """
        assert self.y_scaling is not None
        levels = noise_levels(
            squares.double().cpu(),
            degrees_of_freedom.double().cpu(),
            torch.as_tensor(self.target_std),
            self.total_weight,
            torch.as_tensor(self.is_constant),
        )
        if levels is None:
            return None
        return levels.numpy() * self.y_scaling.scale

    def missing_constant(self, n_effective: Tensor) -> Tensor:
        """Part of a constant that isn't among the effective parameters, between 0 and 1.

        Centred targets have a fitted mean. It is a parameter even if a network whose output is
        nearly 0 has none that the data determine.

        Parameters
        ----------
        n_effective : Tensor of shape (..., T)
            Effective number of parameters of a network.
        """
        assert self.y_scaling is not None
        is_centred = torch.as_tensor(self.y_scaling.mean != 0.0, device=n_effective.device)
        return torch.where(is_centred, (1.0 - n_effective).clamp_min(0.0), 0.0)

    def noise_levels_at_mode(self, squares: Tensor, n_effective: Tensor) -> Array | None:
        """Return noise levels of networks that are linearised at their modes, see `noise_levels`.

        Parameters
        ----------
        squares : Tensor of shape (S, T)
            Weighted residual sums of squares, in scaled units.
        n_effective : Tensor of shape (S, T)
            Effective numbers of parameters.

        Returns
        -------
        ndarray of shape (S, K, T) or None
            They include the variance of the mean of centred targets, so far as the networks don't
            contain it.
        """
        missing = self.missing_constant(n_effective)
        levels = self.noise_levels(squares, self.total_weight - n_effective - missing)
        if levels is None:
            return None
        factor = (1.0 + missing / self.total_weight).sqrt().double().cpu()
        return levels * factor.unsqueeze(1).numpy()

    def known_error_levels(self, squares: Tensor, degrees_of_freedom: Tensor) -> Array | None:
        """Return standard deviations that represent the noise of rows with known errors.

        Parameters
        ----------
        squares : Tensor of shape (n_rows, T)
            Squared residuals of one model and T targets, in scaled units.
        degrees_of_freedom : Tensor of shape (T,)
            Total weight of the rows minus the effective number of parameters.

        Returns
        -------
        ndarray of shape (1, K, T) or None
            Noise levels in the units of ``y``, without the known errors. None if there are so many
            rows that the noise level is known.
        """
        assert self.y_scaling is not None
        assert self.rows.row_parameter is not None
        levels = known_error_levels(
            squares.double().cpu(),
            torch.as_tensor(self.rows.row_parameter / self.y_scaling.scale).square(),
            torch.as_tensor(self.rows.weight),
            degrees_of_freedom.double().cpu(),
            torch.as_tensor(self.target_std),
            torch.as_tensor(self.is_constant),
        )
        if levels is None:
            return None
        return levels.numpy() * self.y_scaling.scale

    @cached_property
    def log_noise_range(self) -> tuple[float, float]:
        """Limits of the logarithm of a learned noise level, scaled units."""
        if self.y_scaling is None:
            return -np.inf, np.inf
        low, high = NOISE_RANGE
        std = self.target_std
        return float(np.log(low * std.min())), float(np.log(high * std.max()))

    def param_range(self, likelihood: Likelihood) -> tuple[float, float]:
        """Limits of the learned parameters of a likelihood, scaled units."""
        low, high = self.log_noise_range
        if likelihood.n_params == likelihood.noise_scale.shape[-1]:
            return low, high
        log_low, log_high = (float(np.log(limit)) for limit in _SHAPE_RANGE)
        if len(likelihood.noise_scale):
            return min(low, log_low), max(high, log_high)
        return log_low, log_high

    @cached_property
    def data(self) -> Data:
        """Scaled rows on the device, in the precision of the fit."""
        return Data(*(self.tensor(array) for array in self.scaled()))

    @cached_property
    def double_data(self) -> Data:
        """Scaled rows on the device in float64, whatever the precision of the fit."""
        arrays = self.scaled(np.float64)
        return Data(
            *(torch.as_tensor(np.ascontiguousarray(array), device=self.device) for array in arrays)
        )

    def scaled(self, dtype: npt.DTypeLike | None = None) -> tuple[Array, Array, Array]:
        """Return scaled inputs, scaled targets and weights of the distinct rows.

        Parameters
        ----------
        dtype : dtype-like, optional
            Precision in which the inputs are scaled; that of ``X`` by default.

        Returns
        -------
        x : ndarray of shape (n_rows, n_features)
            Scaled inputs.
        y : ndarray of shape (n_rows, n_targets) or (n_rows,)
            Scaled targets, or class codes; see `scaled_targets`.
        weight : ndarray of shape (n_rows,)
            Weights of the rows.
        """
        if dtype is None:
            X = self.rows.X
        else:
            X = self.rows.X.astype(dtype)
        return self.x_scaling.apply(X), self.scaled_targets, self.rows.weight

    @property
    def scaled_targets(self) -> Array:
        """Scaled targets (n_rows, n_targets), or class codes (n_rows,).

        If the rows have known parameters of the likelihood, these are ``n_targets`` further
        columns, in the units of the scaled targets.
        """
        if self.y_scaling is None:
            return self.rows.y
        y = self.y_scaling.apply(self.rows.y)
        if self.rows.row_parameter is None:
            return y
        return np.concatenate([y, self.rows.row_parameter / self.y_scaling.scale], axis=1)

    def _check_rows(self, describe_input: Callable[[int], str]) -> None:
        """Warn of a single row, and refuse columns whose squares leave the range of the precision.

        Parameters
        ----------
        describe_input : callable (position) -> str
            Words for a column of ``X``.

        Raises
        ------
        ValueError
            Naming the column.
        """
        if self.n_rows == 1:
            warn_user(
                "X has one distinct row, from which the effect of the columns can't be learned: "
                "predictions elsewhere follow the prior. Give more rows.",
                UserWarning,
            )
        largest = LARGEST[self.dtype]
        check_weight_range(self.rows.weight, largest)
        magnitude = np.abs(self.x_scaling.apply(self.rows.x_range)).max(axis=0)
        remedy = "rescale it, or give X as float64."
        if magnitude.max() > largest:
            column = int(magnitude.argmax())
            raise ValueError(
                f"{describe_input(column)} reaches {magnitude[column]:.3g}, beyond the {largest:g} "
                f"whose squares this arithmetic holds: use standardize=True, {remedy}"
            )
        if self.y_scaling is not None:
            self._check_targets(self.y_scaling, largest)

    def _check_targets(self, y_scaling: Scaling, largest: float) -> None:
        """Refuse targets and their known parameters if squares leave the range of numbers.

        Parameters
        ----------
        y_scaling : Scaling
            Scaling of the targets.
        largest : float
            Largest scaled value.

        Raises
        ------
        ValueError
            Naming the target.
        """
        parameter = self.rows.row_parameter
        if parameter is not None and (parameter / y_scaling.scale).max() > largest:
            raise ValueError(
                f"noise_std or exposure reaches {parameter.max():.3g}, beyond the numbers whose "
                "squares this arithmetic holds: leave out such rows, or give X as float64."
            )

        # Methods compute with scaled targets, and predictions have variances in the user's unit.
        scaled = np.abs(y_scaling.apply(self.rows.y_range)).max(axis=0)
        std = self.target_std
        magnitude = np.abs(self.rows.y_range).max(axis=0)
        for column in range(len(std)):
            name = "y" if len(std) == 1 else f"column {column} of y"
            if scaled[column] > largest or std[column] < 1.0 / largest:
                raise ValueError(
                    f"{name} reaches {scaled[column]:.3g} and spreads by {std[column]:.3g}, which "
                    f"must lie between {1.0 / largest:g} and {largest:g} in this arithmetic: use "
                    "standardize=True, rescale it, or give X as float64."
                )
            is_representable = y_scaling.scale[column] >= 1.0 / LARGEST_TARGET
            if magnitude[column] > LARGEST_TARGET or not is_representable:
                raise ValueError(
                    f"{name} reaches {magnitude[column]:.3g} and spreads by "
                    f"{y_scaling.scale[column]:.3g}, which must lie between "
                    f"{1.0 / LARGEST_TARGET:g} and {LARGEST_TARGET:g}, since the variances of "
                    "predictions are squares: rescale it."
                )

    def tensor(self, values: Array) -> Tensor:
        """Return an array as a tensor on the device, floats in the precision of the fit."""
        tensor = torch.as_tensor(np.ascontiguousarray(values), device=self.device)
        if tensor.is_floating_point():
            return tensor.to(self.dtype)
        return tensor

    def attributes(self) -> dict[str, Any]:
        """Return the fitted attributes of every estimator that follow from its training data."""
        attributes = {
            "x_mean_": self.x_scaling.mean,
            "x_scale_": self.x_scaling.scale,
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
        }
        if self.class_labels is not None:
            attributes["classes_"] = self.class_labels
        if self.y_scaling is not None:
            attributes["y_mean_"] = self.y_scaling.mean
            attributes["y_scale_"] = self.y_scaling.scale
            attributes["_y_ndim_"] = self.y_ndim
        if self.outliers is not None:
            attributes["outliers_"] = self.outliers
        return attributes


def describe_outliers(outliers: Array | None) -> str:
    """Return a clause of a fit's summary about rows that were left out; empty if none were."""
    if outliers is None or not len(outliers):
        return ""
    rows = ", ".join(map(str, outliers[:5]))
    ellipsis = ", ..." if len(outliers) > 5 else ""
    return f"; left out as gross errors: {len(outliers)} rows ({rows}{ellipsis})"


def _canonical_rows(
    X: Array, y: Array, weight: Array, groups: Array | None, row_parameter: Array | None
) -> tuple[Rows, Array]:
    """Bring rows into canonical form, and number their groups in the order of these rows.

    Groups of a single distinct row each are no groups: leaving out a row leaves out all of its
    repetitions.

    Parameters
    ----------
    X : ndarray of shape (n_samples, n_features)
        Inputs.
    y : ndarray of shape (n_samples, n_targets) or (n_samples,)
        Targets.
    weight : ndarray of shape (n_samples,)
        Positive weights.
    groups : ndarray of int of shape (n_samples,) or None
        Groups of the rows.
    row_parameter : ndarray of shape (n_samples, n_targets) or None
        Known parameters of the likelihood.

    Returns
    -------
    rows : Rows
        Distinct rows with their total weights.
    inverse_index : ndarray of int of shape (n_samples,)
        Position among the distinct rows of every row.
    """
    if groups is None:
        return canonical_rows(X, y, weight, None, row_parameter)
    rows, inverse_index = canonical_rows(X, y, weight, groups, row_parameter)
    assert rows.groups is not None
    numbered = number_by_appearance(rows.groups)
    n_groups = int(numbered.max()) + 1
    if n_groups == 1:
        raise ValueError(
            "groups has a single group, and leaving it out leaves no rows. Pass at least two "
            "groups, or fit without groups."
        )
    if n_groups == len(numbered):
        return canonical_rows(X, y, weight, None, row_parameter)
    return replace(rows, groups=numbered), inverse_index


def evenly_spaced_rows(n_rows: int, max_rows: int = 4096) -> Tensor:
    """Return the indices of at most ``max_rows`` evenly spaced rows, int64 (n,)."""
    return torch.linspace(0, n_rows - 1, min(n_rows, max_rows), dtype=torch.float64).round().long()


def default_batch_size(n_rows: int) -> int:
    """Return the number of rows per step for ``batch_size="auto"``."""
    if n_rows <= FULL_BATCH_ROWS:
        return n_rows
    return MINIBATCH_ROWS


def resolve_batch_size(batch_size: int | str, n_rows: int, auto: int | None = None) -> int:
    """Return the number of rows per step, which is at most the number of rows.

    Parameters
    ----------
    batch_size : int or "auto"
        The user's parameter. A warning is given if it exceeds the number of rows.
    n_rows : int
        Number of distinct training rows.
    auto : int, optional
        Meaning of "auto"; `default_batch_size` by default.

    Returns
    -------
    int
    """
    if isinstance(batch_size, str):
        if auto is None:
            auto = default_batch_size(n_rows)
        return min(auto, n_rows)
    if batch_size > n_rows:
        warn_user(
            f"batch_size={batch_size} exceeds the {n_rows} distinct training rows: every step "
            "uses all of them.",
            UserWarning,
        )
    return min(int(batch_size), n_rows)
