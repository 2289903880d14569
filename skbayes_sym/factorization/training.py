"""Training data of a factorisation: entries in scaled units, features, and streams of entries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import safe_indexing
from skbayes_sym.base.training import LARGEST
from skbayes_sym.factorization.entry_predictor import FactorPredictor
from skbayes_sym.factorization.entry_sites import (
    format_targets,
    is_class_likelihood,
    set_noise_scale,
)
from skbayes_sym.factorization.factor_model import FactorState
from skbayes_sym.factorization.frames import select_context_columns
from skbayes_sym.factorization.hyperpriors import RowPrior
from skbayes_sym.factorization.labels import convert_labels
from skbayes_sym.factorization.ratings import (
    ObservedEntries,
    compute_scaling,
    extend_labels,
)
from skbayes_sym.factorization.side_features import (
    EncodedFeatures,
    FeatureEncoder,
    SideFeatures,
)
from skbayes_sym.factorization.sparse_entries import Entries
from skbayes_sym.models.likelihoods.likelihood import Likelihood


@dataclass(frozen=True, eq=False)
class MatrixTrainingData:
    """Entries that a factorisation is fitted to.

    Parameters
    ----------
    observed : ObservedEntries
        Entries, centred and scaled. Class labels are replaced by their positions in ``classes``.
    seed : int
        Seed of all random numbers of the fit.
    device : torch.device
        Device of the computation.
    dtype : torch.dtype
        Precision of the computation.
    callback_arguments : dict
        Arguments that callbacks are handed, see `FitProgress`.
    mean, scale : float, default=0.0, 1.0
        The given values were centred by ``mean`` and divided by ``scale``. For counts and two
        classes ``mean`` is the best constant output.
    std : float, default=1.0
        Standard deviation of the observed entries, in scaled units.
    features : tuple of EncodedFeatures or None
        Features of the rows and of the columns.
    context_encoder : FeatureEncoder or None
        Encoder of the context of entries.
    is_list : bool, default=False
        Whether the user gave a list of entries.
    classes : ndarray or None
        Distinct values in increasing order, for likelihoods of classes.
    """

    observed: ObservedEntries
    seed: int
    device: torch.device
    dtype: torch.dtype
    callback_arguments: Mapping[str, Any]
    mean: float = 0.0
    scale: float = 1.0
    std: float = 1.0
    features: tuple[EncodedFeatures | None, EncodedFeatures | None] = (None, None)
    context_encoder: FeatureEncoder | None = None
    is_list: bool = False
    classes: Array | None = None

    def transform_values(
        self, likelihood: Likelihood, standardize: bool | str
    ) -> "MatrixTrainingData":
        """Transform the values of the entries as a likelihood takes them.

        Real values are standardised, and class labels are replaced by their positions. Counts stay
        as they are.

        Parameters
        ----------
        likelihood : Likelihood
            Likelihood of the entries.
        standardize : bool or {"center", "scale"}
            Whether to centre and scale real values, or do one of the two.

        Returns
        -------
        MatrixTrainingData
            Data with transformed values.

        Raises
        ------
        ValueError
            If the values don't fit the likelihood or the arithmetic.
        """
        if likelihood.scales_targets:
            data = self._standardise(standardize)
            _require_range(data.std, self.dtype)
            return data

        data = self
        values = self.observed.values
        if is_class_likelihood(likelihood):
            classes, index = np.unique(values, return_inverse=True)
            if likelihood.kind == "ordinal":
                _require_ordinal_classes(classes)
            observed = self.observed._replace(values=index.astype(np.float64))
            data = replace(self, observed=observed, classes=classes)
        else:
            not_counts = values[(values < 0.0) | (values % 1.0 != 0.0)]
            if likelihood.is_discrete and not_counts.size:
                raise ValueError(f"{likelihood=} requires counts, but X holds {not_counts[0]:g}.")

        # Factors explain deviations from the best constant output.
        if not len(values):
            return data
        y = format_targets(likelihood, torch.as_tensor(data.observed.values)).numpy()
        constants = likelihood.fit_constant_outputs(y, data.weights)
        if constants is None or not np.size(constants):
            return data
        return replace(data, mean=float(np.ravel(constants)[0]))

    def _standardise(self, standardize: bool | str) -> "MatrixTrainingData":
        """Centre and scale the values of the entries."""
        values = self.observed.values
        centres = standardize in (True, "center")
        scales = standardize in (True, "scale")
        mean, scale, std = compute_scaling(values, centres, scales, self.observed.weights)
        values = (values.astype(np.float64) - mean) / scale
        if centres and len(values) and not values.any():
            warn_user(
                "all observed entries of X are equal, so every prediction is this value.",
                UserWarning,
            )
        observed = self.observed._replace(values=values)
        return replace(self, observed=observed, mean=mean, scale=scale, std=std / scale)

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns of the matrix."""
        return self.observed.shape

    @cached_property
    def weights(self) -> Array:
        """Weights of the entries, (N,)."""
        if self.observed.weights is None:
            return np.ones(len(self.observed.values))
        return self.observed.weights

    @cached_property
    def entries(self) -> Entries:
        """Observed entries on the device, in the precision of the sweeps."""
        return self.observed.to_tensors(self.device, self.dtype)

    @cached_property
    def double_entries(self) -> Entries:
        """Entries by row in float64, for bounds; indices are shared with `entries`."""
        if self.dtype == torch.float64:
            return self.entries
        by_row = self.entries.by_row
        values = torch.as_tensor(self.observed.values)
        if by_row.weight is not None:
            weight = torch.as_tensor(self.weights, device=self.device).double()
            by_row = by_row._replace(weight=weight)
        if by_row.context is not None:
            context = torch.as_tensor(self.observed.context, device=self.device)
            by_row = by_row._replace(context=context)
        by_row = by_row._replace(value=values.to(self.device, torch.float64))
        return self.entries._replace(by_row=by_row)

    @property
    def total_weight(self) -> float:
        """Number of entries, each counted by its weight."""
        return float(self.weights.sum())

    @property
    def log_jacobian(self) -> float:
        """Log density of the given entries minus that of the scaled ones, nats."""
        return -self.total_weight * float(np.log(self.scale))

    def attributes(self) -> dict[str, Any]:
        """Return the fitted attributes that depend on the data alone."""
        row_encoder, column_encoder = (
            None if features is None else features.encoder for features in self.features
        )
        attributes = {
            "mean_": self.mean,
            "scale_": self.scale,
            "n_observed_": len(self.observed.values),
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
            "_is_list_": self.is_list,
            "_encoders_": (row_encoder, column_encoder, self.context_encoder),
        }
        optional = {
            "row_labels_": self.observed.row_labels,
            "column_labels_": self.observed.column_labels,
            "classes_": self.classes,
        }
        attributes.update({name: x for name, x in optional.items() if x is not None})
        return attributes


def add_feature_labels(
    observed: ObservedEntries, features: tuple[SideFeatures | None, SideFeatures | None]
) -> ObservedEntries:
    """Add the labels of features that have no entries to the rows and columns of a list."""
    for axis, side in enumerate(features):
        if side is not None and side.labels is not None:
            observed = extend_labels(
                observed, axis, side.labels, side.name, is_numbered=side.is_numbered
            )
    return observed


def encode_features(
    observed: ObservedEntries, features: tuple[SideFeatures | None, SideFeatures | None],
    implicit: bool | str, n_directions: int,
) -> tuple[EncodedFeatures | None, EncodedFeatures | None]:  # fmt: skip
    """Encode the features of rows and of columns.

    Parameters
    ----------
    observed : ObservedEntries
        Entries of the matrix.
    features : tuple of SideFeatures or None
        Given features of rows and of columns.
    implicit : bool or {"rows", "columns"}
        Where to use the pattern of observed entries as features.
    n_directions : int
        Number of implicit features.

    Returns
    -------
    tuple of EncodedFeatures or None
        Features of rows and of columns.
    """
    encoded = []
    for axis, entries in enumerate((observed, observed.transposed)):
        side = features[axis]
        if side is not None:
            side = side.align(entries.row_labels, entries.shape[0])
        indicator = None
        if implicit in (True, ("rows", "columns")[axis]):
            indicator = entries.indicator
        encoded.append(FeatureEncoder.fit(side, indicator, n_directions))
    return encoded[0], encoded[1]


def encode_context(
    observed: ObservedEntries, X: Any, context: Any, columns: Any
) -> tuple[ObservedEntries, FeatureEncoder]:
    """Encode the context of the entries of a frame.

    Parameters
    ----------
    observed : ObservedEntries
        Entries of the frame.
    X : DataFrame
        List of entries.
    context : str or list of str
        Names of the columns that hold the context.
    columns : "auto", tuple or dict
        Parameter ``columns`` of the estimator.

    Returns
    -------
    observed : ObservedEntries
        Entries with their encoded context.
    encoder : FeatureEncoder
        Encoder, for predictions.
    """
    table = select_context_columns(X, context, columns)
    weights = observed.weights
    if weights is None:
        weights = np.ones(len(observed.values))
    features = SideFeatures("context", safe_indexing(table, observed.list_index), None)
    encoder = FeatureEncoder.fit_context(features, weights)
    return observed._replace(context=encoder.encode(features)), encoder


def _require_ordinal_classes(classes: Array, max_classes: int = 100) -> None:
    """Refuse ordinal classes that are too many, or of which one is far away from the others."""
    if len(classes) > max_classes:
        raise ValueError(
            f"likelihood='ordinal' takes at most {max_classes} labels, got {len(classes)} distinct "
            "values: use likelihood='gaussian', or round them."
        )
    with np.errstate(over="ignore"):
        steps = np.diff(classes)
        has_outlier = len(steps) > 2 and steps.max() / 20.0 > np.median(steps)
    if has_outlier:
        if steps[-1] == steps.max():
            outlier = classes[-1]
        else:
            outlier = classes[0]
        raise ValueError(
            f"likelihood='ordinal' has {outlier:g}, which lies {steps.max():g} from others in "
            f"steps of {np.median(steps):g}: leave such entries out, or number the labels by their "
            "order."
        )


def _require_range(std: float, dtype: torch.dtype) -> None:
    """Refuse scaled entries whose squares leave the range of the arithmetic."""
    largest = LARGEST[dtype]
    if not 1.0 / largest <= std <= largest:
        raise ValueError(
            f"the observed entries of X have the standard deviation {std:.3g}, which must lie "
            f"between {1.0 / largest:g} and {largest:g} in this arithmetic: use standardize=True, "
            "rescale them, or give X as float64."
        )


# Rows, columns, values and weights of the entries of a stream, (N,) each. Rows and columns are
# labels, and NaN is a missing value.
LabelledEntries = tuple[Array, Array, Array, Array]


def merge_entries(old: LabelledEntries | None, new: ObservedEntries) -> LabelledEntries:
    """Add entries to those of earlier calls; a new entry replaces an old one of the same labels.

    Parameters
    ----------
    old : LabelledEntries or None
        Entries of earlier calls.
    new : ObservedEntries
        Entries of this call.

    Returns
    -------
    LabelledEntries
        All entries, the old ones first.

    Raises
    ------
    ValueError
        If labels that were numbers are text now, or the other way round.
    """
    rows, columns = new.entry_labels
    values = new.values
    weights = new.weights
    if weights is None:
        weights = np.ones(len(values))
    if new.row_labels is None and new.column_labels is None:
        # Missing entries represent the rows and columns of a matrix that have no entries.
        n, m = new.shape
        rows = np.concatenate([rows, np.arange(n), np.zeros(m, dtype=np.int64)])
        columns = np.concatenate([columns, np.zeros(n, dtype=np.int64), np.arange(m)])
        values = np.concatenate([values, np.full(n + m, np.nan)])
        weights = np.concatenate([weights, np.ones(n + m)])
    if old is None:
        return rows, columns, values, weights

    old_rows, old_columns, old_values, old_weights = old
    rows = convert_labels(rows, old_rows, "rows of partial_fit", "rows of earlier calls")
    columns = convert_labels(
        columns, old_columns, "columns of partial_fit", "columns of earlier calls"
    )
    rows = np.concatenate([old_rows, rows])
    columns = np.concatenate([old_columns, columns])

    # Entries are compared by the number of their pair of labels.
    row_codes = np.unique(rows, return_inverse=True)[1].astype(np.int64)
    column_codes = np.unique(columns, return_inverse=True)[1]
    pairs = row_codes * (column_codes.max(initial=0) + 1) + column_codes
    n_old = len(old_rows)
    new_pairs = pairs[n_old:][~np.isnan(values)]
    is_kept = np.ones(len(pairs), dtype=bool)
    is_kept[:n_old] = ~np.isin(pairs[:n_old], new_pairs)
    values = np.concatenate([old_values, values])
    weights = np.concatenate([old_weights, weights])
    return rows[is_kept], columns[is_kept], values[is_kept], weights[is_kept]


def extend_state(
    fitted: FactorPredictor, data: MatrixTrainingData, labels: tuple[Array, Array], ratio: float
) -> FactorState:
    """Extend the posterior of a fit to the rows and columns of more data.

    Parameters
    ----------
    fitted : FactorPredictor
        Posterior given the earlier entries, with the same components and offsets.
    data : MatrixTrainingData
        All entries.
    labels : tuple of ndarray
        Labels of the rows and of the columns of ``fitted``.
    ratio : float
        Unit of the earlier scaled entries, divided by the unit of ``data``.

    Returns
    -------
    FactorState
        Initial state of further sweeps. New rows and columns are at their prior.
    """
    row_index, n_new_rows = _index_labels(labels[0], data.observed.row_labels)
    column_index, n_new_columns = _index_labels(labels[1], data.observed.column_labels)
    extended = fitted.append_unseen(n_new_rows, n_new_columns)

    def gather(rows: Tensor, columns: Tensor) -> Tensor:
        parts = [
            part[index].to(data.device, data.dtype)
            for part, index in ((rows, row_index), (columns, column_index))
        ]
        return torch.cat(parts)

    rows_prior, columns_prior = (
        RowPrior(prior.precision.to(data.device), prior.coefficients.to(data.device))
        for prior in fitted.row_priors
    )
    likelihood = fitted.likelihood
    noise_scale = likelihood.noise_scale
    if len(noise_scale):
        likelihood = set_noise_scale(likelihood, float(noise_scale[0]) * ratio)
    return FactorState(
        gather(extended.rows.mean, extended.columns.mean),
        gather(extended.rows.cov, extended.columns.cov),
        likelihood,
        (rows_prior, columns_prior),
    )


def _index_labels(old: Array, new: Array | None) -> tuple[Tensor, int]:
    """Return the positions of sorted labels among old ones, and the number of labels not there.

    Labels that aren't among the old ones have the positions after them.
    """
    assert new is not None  # entries of a stream have labels
    index = np.full(len(new), -1)
    index[np.searchsorted(new, old)] = np.arange(len(old))
    is_new = index < 0
    n_new = int(np.count_nonzero(is_new))
    index[is_new] = len(old) + np.arange(n_new)
    return torch.as_tensor(index), n_new
