"""A matrix as its factorisation takes it: checked, centred, scaled, on the device; and a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from skbayes_sym.base.device import choose_device, choose_dtype, resolve_device
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import safe_indexing
from skbayes_sym.base.training import LARGEST
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.factorization.entry_predictor import FactorPredictor
from skbayes_sym.factorization.entry_sites import (
    format_targets,
    is_class_likelihood,
    set_noise_scale,
)
from skbayes_sym.factorization.factor_model import FactorState
from skbayes_sym.factorization.frames import check_columns, select_context_columns
from skbayes_sym.factorization.hyperpriors import RowPrior
from skbayes_sym.factorization.labels import convert_labels
from skbayes_sym.factorization.ratings import (
    ObservedEntries,
    compute_scaling,
    extend_labels,
    extract_entries,
    find_frame_labels,
    is_entry_list,
    parse_entry_list,
    warn_conflicting_values,
)
from skbayes_sym.factorization.side_features import FeatureEncoder, SideFeatures
from skbayes_sym.factorization.sparse_entries import Entries
from skbayes_sym.numerics.arguments import draw_seed

Coded = tuple[FeatureEncoder, Array]  # how features become numbers, and these


@dataclass(frozen=True, eq=False)
class MatrixTrainingData:
    """The entries that a factorisation is fitted to.

    ``mean``, ``scale``: what the entries as given were centred and divided by; of counts and two
    classes ``mean`` is the best constant output. ``device``, ``dtype``: where and in which
    precision it computes. ``features``: of the rows and of the columns; ``context``: how that of
    entries became numbers.
    """

    observed: ObservedEntries  # centred and scaled, or positions in ``classes``
    mean: float
    scale: float
    spread: float  # standard deviation of the observed entries, in scaled units
    seed: int  # the one source of randomness of a fit
    device: torch.device
    dtype: torch.dtype
    callback_arguments: Mapping[str, Any]  # what callbacks are handed, see `FitProgress`
    features: tuple[Coded | None, Coded | None] = (None, None)
    context: FeatureEncoder | None = None
    is_list: bool = False
    classes: Array | None = None  # distinct values in increasing order, of classes only

    @classmethod
    def open(
        cls, estimator: BaseEstimator, X: Any, row_features: Any = None, column_features: Any = None
    ) -> "MatrixTrainingData":
        """Validate everything before the first array is allocated for the fit."""
        likelihood = estimator._entry_likelihood()
        observed, checked = read_entries(estimator, X)
        is_list = is_entry_list(X, estimator.columns)
        described = [
            SideFeatures.read(features, side, estimator.columns)
            for side, features in enumerate((row_features, column_features))
        ]
        for side, features in enumerate(described):
            if is_list and features is not None and features.labels is not None:
                observed = extend_labels(
                    observed, side, features.labels, features.name, is_numbered=features.is_numbered
                )
        context = None
        if estimator.context:
            table = select_context_columns(X, estimator.context, estimator.columns)
            n_entries = len(observed.values)
            weights = np.ones(n_entries) if observed.weights is None else observed.weights
            told = SideFeatures("context", safe_indexing(table, observed.place), None)
            context = FeatureEncoder.of_context(told, weights)
            observed = observed._replace(context=context.encoded(told))
        if is_list:
            warn_conflicting_values(observed)
        labels = observed.row_labels, observed.column_labels
        n_directions = estimator._effort.n_directions(len(observed.values))
        codes = [
            FeatureEncoder.learned(
                None if each is None else each.ordered(names, n),
                entries.rated if estimator.implicit in (True, side) else None,
                n_directions,
            )
            for each, names, n, entries, side in zip(
                described, labels, observed.shape, (observed, observed.transposed),
                ("rows", "columns"), strict=True,
            )
        ]  # fmt: skip
        dtype = choose_dtype(checked)
        k = estimator._n_factors(min(observed.shape))
        data = cls(
            observed=observed, mean=0.0, scale=1.0, spread=1.0,
            seed=draw_seed(estimator.random_state),
            device=choose_device(
                estimator.device,
                resolve_device(estimator.device),
                # Second moments at every entry, and a system of every row and column, about.
                lambda: 2.0 * k**2 * len(observed.values) + k**3 * sum(observed.shape),
            ),
            dtype=dtype,
            # Its target is the matrix itself: scikit-learn's monitor scores nothing without one.
            callback_arguments={"estimator": estimator, "X": X, "y": X, "metadata": None},
            features=(codes[0], codes[1]), context=context, is_list=is_list,
        )  # fmt: skip
        if likelihood.scales_targets:
            data = data._standardized(estimator.standardize)
            _require_range(data.spread, dtype)
            return data
        if is_class_likelihood(likelihood):
            classes, place = np.unique(observed.values, return_inverse=True)
            if likelihood.kind == "ordinal":
                _require_labels(classes)
            observed = observed._replace(values=place.astype(np.float64))
            data = replace(data, observed=observed, classes=classes)
        else:
            wrong = observed.values[(observed.values < 0.0) | (observed.values % 1.0 != 0.0)]
            if likelihood.is_discrete and wrong.size:
                raise ValueError(f"{likelihood=} is of counts, but X holds {wrong[0]:g}.")
        if not len(observed.values):
            return data
        y = format_targets(likelihood, torch.as_tensor(observed.values)).numpy()
        best = likelihood.fit_constant_outputs(y, data.weights)
        known = np.ravel([] if best is None else best)
        return replace(data, mean=float(known[0])) if len(known) else data

    def _standardized(self, standardize: bool | str) -> "MatrixTrainingData":
        values = self.observed.values
        center = standardize in (True, "center")
        mean, scale, spread = compute_scaling(
            values, center, standardize in (True, "scale"), self.observed.weights
        )
        values = (values.astype(np.float64) - mean) / scale
        if center and len(values) and not values.any():
            warn_user(
                "all observed entries of X are equal: there is nothing to learn but that.",
                UserWarning,
            )
        observed = self.observed._replace(values=values)
        return replace(self, observed=observed, mean=mean, scale=scale, spread=spread / scale)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return self.observed.shape

    @cached_property
    def weights(self) -> Array:
        """Weights of the entries, (N,)."""
        weights = self.observed.weights
        return np.ones(len(self.observed.values)) if weights is None else weights

    @cached_property
    def entries(self) -> Entries:
        """Observed entries on the device, in the precision of the sweeps."""
        return self.observed.tensors(self.device, self.dtype)

    @cached_property
    def double_entries(self) -> Entries:
        """The entries by row in float64, for bounds; the places are shared."""
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
        """Entries, each counted by its weight."""
        return float(self.weights.sum())

    @property
    def log_jacobian(self) -> float:
        """Turns a log density of scaled entries into that of the entries as given, nats."""
        return -self.total_weight * float(np.log(self.scale))

    def attributes(self) -> dict[str, Any]:
        """Fitted attributes that depend on the matrix alone."""
        codes = (None if side is None else side[0] for side in self.features)
        named = {
            "row_labels_": self.observed.row_labels,
            "column_labels_": self.observed.column_labels,
            "classes_": self.classes,
        }
        return {
            "mean_": self.mean,
            "scale_": self.scale,
            "n_observed_": len(self.observed.values),
            "device_": str(self.device),
            "dtype_": str(self.dtype).removeprefix("torch."),
            "_is_list_": self.is_list,
            "_encoders_": (*codes, self.context),
            **{name: value for name, value in named.items() if value is not None},
        }


def read_entries(estimator: BaseEstimator, X: Any) -> tuple[ObservedEntries, Any]:
    """The entries of a matrix or a list of entries, and what their precision is read off."""
    check_columns(estimator.columns)
    if is_entry_list(X, estimator.columns):
        observed = parse_entry_list(X, estimator.columns)
        if 0 in observed.shape:
            raise ValueError("a list of entries has 0 sample(s): at least one entry is required.")
        labels = observed.column_labels
        estimator._set_columns(np.arange(observed.shape[1]) if labels is None else labels)
        return observed, observed.values
    rows, columns = find_frame_labels(X)
    checked = estimator._check_matrix(X, reset=True)
    observed = extract_entries(checked)
    return observed._replace(row_labels=rows, column_labels=columns), checked


def _require_labels(classes: Array, most: int = 100) -> None:
    """Refuse ordinal labels that are too many for cut points, or one far away from the others."""
    if len(classes) > most:
        raise ValueError(
            f"likelihood='ordinal' takes at most {most} labels, got {len(classes)} distinct "
            "values: use likelihood='gaussian', or round them."
        )
    with np.errstate(over="ignore"):
        steps = np.diff(classes)
        is_far = len(steps) > 2 and steps.max() / 20.0 > np.median(steps)
    if is_far:
        far = classes[-1] if steps[-1] == steps.max() else classes[0]
        raise ValueError(
            f"likelihood='ordinal' has {far:g}, which lies {steps.max():g} from others in steps of "
            f"{np.median(steps):g}: leave such entries out, or number the labels by their order."
        )


def _require_range(spread: float, dtype: torch.dtype) -> None:
    """Refuse scaled entries whose squares leave the arithmetic's range."""
    largest = LARGEST[dtype]
    if not 1.0 / largest <= spread <= largest:
        raise ValueError(
            f"the observed entries of X spread by {spread:.3g}, which must lie between "
            f"{1.0 / largest:g} and {largest:g} in this arithmetic: use standardize=True, rescale "
            "them, or give X as float64."
        )


LabelledEntries = tuple[Array, Array, Array, Array]  # rows, columns, values and weights, by label


def merge_entries(old: LabelledEntries | None, new: ObservedEntries) -> LabelledEntries:
    """Rows, columns, values and weights of both, by label; the fields of a list of entries.

    What is new replaces what was there of the same row and column.

    Raises ValueError if labels that were numbers are words now, or the other way round.
    """
    rows, columns = new.entry_labels
    weights = np.ones(len(new.values)) if new.weights is None else new.weights
    parts: tuple[Array, ...] = (rows, columns, new.values, weights)
    if new.row_labels is None and new.column_labels is None:
        # Missing entries say that rows and columns of a matrix are there.
        n, m = new.shape
        i = np.concatenate([np.arange(n), np.zeros(m, dtype=np.int64)])
        j = np.concatenate([np.zeros(n, dtype=np.int64), np.arange(m)])
        missing = (i, j, np.full(n + m, np.nan), np.ones(n + m))
        parts = tuple(np.concatenate(pair) for pair in zip(parts, missing, strict=True))
    if old is None:
        return parts[0], parts[1], parts[2], parts[3]
    parts = (
        convert_labels(parts[0], old[0], "rows of partial_fit", "rows of earlier calls"),
        convert_labels(parts[1], old[1], "columns of partial_fit", "columns of earlier calls"),
        *parts[2:],
    )
    n_old = len(old[0])
    codes = [
        np.unique(np.concatenate(pair), return_inverse=True)[1]
        for pair in zip(old[:2], parts[:2], strict=True)
    ]
    place = codes[0].astype(np.int64) * (codes[1].max(initial=0) + 1) + codes[1]
    is_new = np.concatenate([np.zeros(n_old, dtype=bool), ~np.isnan(parts[2])])
    stays = ~np.isin(place[:n_old], place[is_new])
    first, second, third, fourth = (
        np.concatenate([before[stays], now]) for before, now in zip(old, parts, strict=True)
    )
    return first, second, third, fourth


def extend_state(
    fitted: FactorPredictor, data: MatrixTrainingData, labels: tuple[Array, Array], ratio: float
) -> FactorState:
    """The posterior of a fit over the rows and columns there are now; new ones at their prior.

    ``fitted``: of the entries so far, with as many components and the offsets of now; ``data``: of
    all entries; ``labels``: of the rows and columns of ``fitted``; ``ratio``: unit of its entries
    over that of all.
    """
    order = list[Tensor]()
    n_new = list[int]()
    observed = data.observed
    for old, new in zip(labels, (observed.row_labels, observed.column_labels), strict=True):
        assert new is not None  # entries that are added to others have labels
        place = np.full(len(new), -1)
        place[np.searchsorted(new, old)] = np.arange(len(old))
        is_new = place < 0
        place[is_new] = len(old) + np.arange(np.count_nonzero(is_new))
        order.append(torch.as_tensor(place))
        n_new.append(int(np.count_nonzero(is_new)))
    wider = fitted.append_unseen(*n_new)
    sides = [
        [part[places].to(data.device, data.dtype) for part in side]
        for side, places in zip((wider.rows, wider.columns), order, strict=True)
    ]
    mean, cov = (torch.cat(parts) for parts in zip(*sides, strict=True))
    first, second = (
        RowPrior(row_prior.precision.to(data.device), row_prior.coefficients.to(data.device))
        for row_prior in fitted.row_priors
    )
    likelihood = fitted.likelihood
    scale = fitted.likelihood.noise_scale
    if len(scale):
        likelihood = set_noise_scale(likelihood, float(scale[0]) * ratio)
    return FactorState(mean, cov, likelihood, (first, second))
