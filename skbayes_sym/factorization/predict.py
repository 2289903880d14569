"""Predictions of a fitted factorisation: factors of rows, entries, draws, scores, rankings."""

from copy import copy
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.device import one_thread
from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.posteriors import MatrixPosterior
from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.rows import ENCODE, Array, numeric_conversion
from skbayes_sym.base.scikit_learn import check_array, safe_indexing, validate_data
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.factorization.entry_distribution import EntryPredictive
from skbayes_sym.factorization.entry_predictor import FactorMoments, FactorPredictor, row_prior_cov
from skbayes_sym.factorization.entry_sites import format_targets
from skbayes_sym.factorization.fit import factor_attributes
from skbayes_sym.factorization.frames import find_list_columns
from skbayes_sym.factorization.labels import check_labels, convert_labels
from skbayes_sym.factorization.ratings import (
    extract_entries,
    find_frame_labels,
    is_entry_list,
    mask_to_nan,
    parse_entry_list,
    warn_conflicting_values,
)
from skbayes_sym.factorization.side_features import FeatureEncoder, SideFeatures, encode_new_rows
from skbayes_sym.factorization.sparse_entries import CSREntries
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.arguments import (
    check_arrays,
    check_count,
    draw_seed,
    is_frame,
    short_repr,
)
from skbayes_sym.numerics.random import generator_from


class Recommendations(NamedTuple):
    """Recommended columns of each row, the best first.

    A row that has fewer than n columns left has a shorter list, which is padded at its end. Every
    row's list is therefore the one that the row would have on its own.

    Attributes
    ----------
    columns : ndarray of shape (n_rows, n)
        Labels, or positions where columns have none. The padding is -1 for positions and numbers,
        "" for words, and NaT for dates.
    values : ndarray of shape (n_rows, n)
        Expected entries, probabilities, or one draw of entries. The padding is NaN.
    """

    columns: Array
    values: Array

    @property
    def lengths(self) -> Array:
        """Number of columns that are recommended to each row, (n_rows,)."""
        return np.count_nonzero(~np.isnan(self.values), axis=1)


class SimilarColumns(NamedTuple):
    """Columns like one, the most alike first."""

    columns: Array  # (n,), labels or positions
    mean: Array  # (n,), posterior mean of the correlation
    interval: Array  # (n, 2), ends of a central 90 % interval


class EntryPredictionMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):
    """Turns arrays in and out of a `FactorPredictor`; the estimator fits it."""

    posterior_: MatrixPosterior
    components_: Array
    mean_: float
    scale_: float
    classes_: Array
    row_labels_: Array
    column_labels_: Array
    column_offsets_: Array
    columns: Any
    noise_std_: float
    _rotation_: Array
    _stream_start_: tuple[int, str]  # entries when sweeps last began anew, and the settings then
    _predictor_: dict[str, Any]
    _is_list_: bool
    _observed_index_: tuple[Array, ...]  # rows and columns of the entries
    _encoders_: tuple[FeatureEncoder | None, FeatureEncoder | None, FeatureEncoder | None]

    def _entries_likelihood(self) -> Likelihood:
        """The likelihood of the entries, at any parameters."""
        raise NotImplementedError

    def _labels(self, side: str) -> Array | None:
        """Labels of the rows or the columns; None where they are numbered."""
        labels: Array | None = vars(self).get(f"{side}_labels_")
        return labels

    @property
    def _classes(self) -> Array | None:
        classes: Array | None = vars(self).get("classes_")
        return classes

    def predictor(self) -> FactorPredictor:
        check_is_fitted(self)
        predictor: FactorPredictor = self._cached(
            "predictor",
            lambda: FactorPredictor.from_arrays(self._predictor_, self._entries_likelihood()),
        )
        return predictor

    def _check_matrix(self, X: Any, *, reset: bool) -> Any:
        settings = {"accept_sparse": ("csr", "csc", "coo"), "ensure_all_finite": "allow-nan"}
        with numeric_conversion("X", ENCODE, X):
            return validate_data(self, mask_to_nan(X), reset=reset, dtype=FLOATS, **settings)

    def transform(self, X: Any, return_std: bool = False, *, row_features: Any = None) -> Any:
        """Posterior means of the row factors given the posterior of V; rows may be new.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Missing entries as in `fit`.
        return_std : bool, default=False
            Whether to return their standard deviations too.
        row_features : array-like, optional
            Of these rows, if `fit` was given some.

        Returns
        -------
        mean, std : ndarray of shape (n_rows, n_components)
            ``std`` only if asked for.
        """
        data, labels = self._encode_entries(X)
        rows = self._new_rows(data, labels, row_features)
        k = len(self.components_)
        dtype = self.components_.dtype
        mean = rows.mean[:, :k].numpy().astype(dtype, copy=False)
        if not return_std:
            return mean
        variance = rows.cov.diagonal(dim1=-2, dim2=-1)[:, :k]
        return mean, variance.sqrt().numpy().astype(dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Turn row factors back into rows of the matrix, with the columns' offsets only.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_components)

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            In the units of the matrix.
        """
        check_is_fitted(self)
        with numeric_conversion("X"):
            factors = check_array(X, dtype=FLOATS, input_name="X")
        if factors.shape[1] != len(self.components_):
            raise ValueError(
                f"X has {factors.shape[1]} columns, but the model has {len(self.components_)} "
                "components: pass what transform returns."
            )
        offsets = vars(self).get("column_offsets_", 0.0)
        return factors @ self.components_ * self.scale_ + self.mean_ + offsets

    def reconstruct(self) -> Array:
        """Posterior mean of the whole training matrix, without the noise, dense.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            In the units of the matrix (of counts and classes, of the latent numbers).
        """
        predictor = self.predictor()
        n = len(predictor.rows.mean)
        root_k = np.sqrt(len(self.components_))
        if predictor.draws is not None:
            draws = predictor.draws.numpy()
            product = sum(draw[:n] @ draw[n:].T for draw in draws) / len(draws)
        else:
            product = (predictor.rows.mean @ predictor.columns.mean.T).numpy()
        return product / root_k * self.scale_ + self.mean_

    # Of a matrix it would have to be of its rows.
    @available_if(lambda self: "stop_reason_" in vars(self) and self._is_list_)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict entries, where `fit` was given a list of them, as `predict_entries` does.

        Parameters
        ----------
        X : list of entries
            A frame, as `fit` takes it, or a tuple; values aren't looked at and may be left out.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.
        """
        return self.predict_entries(X, return_std=return_std)

    def predict_entries(self, rows: Any, columns: Any = None, return_std: bool = False) -> Any:
        """Predict single entries.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            Labels, where `row_labels_` and `column_labels_` are set; else positions. New labels get
            a wider deviation. In place of both, a list of entries as `fit` takes it, values or not.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
        std : ndarray of shape (n_entries,)
            Noise included; only if ``return_std``.
        """
        row_prior = self._law(*self._asked(rows, columns))
        return tuple(row_prior.moments()) if return_std else row_prior.mean()

    def with_new_rows(self, X: Any, *, row_features: Any = None) -> Self:
        """Copy of the model with rows that weren't there in `fit`, from the entries they have.

        Parameters
        ----------
        X : list of entries, or array-like or sparse matrix of shape (n_new, n_columns)
            Entries of new rows, whose labels a list or a frame gives; else they are numbered on.
        row_features : array-like or DataFrame, optional
            Of these rows, if `fit` was given some.

        Returns
        -------
        model : object
            Other rows and columns are as they were: given the columns' posterior, a new row is a
            regression.
        """
        return self._with_new(X, row_features, 0)

    def with_new_columns(self, X: Any, *, column_features: Any = None) -> Self:
        """Copy of the model with columns that weren't there in `fit`, as by `with_new_rows`.

        Parameters
        ----------
        X : list of entries
            Entries of new columns, such as the first ratings of a film.
        column_features : array-like or DataFrame, optional
            Of these columns, if `fit` was given some.
        """
        return self._with_new(X, column_features, 1)

    def score(self, X: Any, y: Any = None, *, row_features: Any = None) -> float:
        """Log density of entries: of a list, or of rows with each row's factor integrated out.

        Parameters
        ----------
        X : list of entries, or array-like or sparse matrix of shape (n_rows, n_columns)
            A list has entries of known rows and columns, that `fit` didn't see for an honest score;
            a matrix new rows.
        y : None
            Ignored.
        row_features : array-like, optional
            Of these rows, if `fit` was given some.

        Returns
        -------
        float
            Nats per observed entry, as given: a row's entries under a normal with their mean and
            covariance given the prior of rows and the posterior of V; of likelihoods but "gaussian"
            a lower bound. 0 if nothing is observed.
        """
        check_is_fitted(self)
        if is_entry_list(X, self.columns):
            listed = parse_entry_list(X, self.columns)
            context = self._encode_context(X, listed.place)
            row_prior = self._law(*self._asked(*listed.entry_labels, context))
            of_entries = row_prior.log_prob(listed.values)
            is_empty = len(of_entries) == 0
            return 0.0 if is_empty else float(np.average(of_entries, weights=listed.weights))
        data, labels = self._encode_entries(X)
        with one_thread(), torch.no_grad():
            code = self._encoders_[0]
            features = encode_new_rows(
                row_features, code, labels, self._rated(data), 0, self.columns
            )
            density = self.predictor().row_log_density(data, features)
        total = density - len(data.value) * float(np.log(self.scale_))
        return total / max(len(data.value), 1)

    def recommend(
        self, rows: Any = None, n: int = 10, *, exclude_seen: bool = True, by: str = "mean",
        n_draws: int = 200, random_state: Any = None,
    ) -> Recommendations:  # fmt: skip
        """Recommend the best columns for rows.

        Parameters
        ----------
        rows : array-like of shape (n_rows,), optional
            Labels, or positions where rows have none; all rows by default. Unknown ones get what is
            best on average.
        n : int, default=10
            Number of columns for each row, at most all columns. A row with fewer columns left has a
            shorter list, which is padded.
        exclude_seen : bool, default=True
            Whether columns that the row has an entry of are left out.
        by : {"mean", "probability_best", "thompson"}, default="mean"
            By the expected entry; by the share of ``n_draws`` joint draws in which the column is
            best; or by the order of a single draw, which explores.
        n_draws : int, default=200
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        Recommendations
            ``columns`` and ``values``, of shape (n_rows, n) each, where n is at most the number of
            columns. Lists that are shorter end in -1 (positions and numbers), "" (words) or NaT
            (dates) with the value NaN. ``lengths`` are the numbers of columns without the padding.
            Columns of equal value are in the order of `column_labels_`.
        """
        check_is_fitted(self)
        if by not in ("mean", "probability_best", "thompson"):
            raise ValueError(f"by must be 'mean', 'probability_best' or 'thompson', got {by!r}.")
        check_count("n", n)
        check_count("n_draws", n_draws)
        n_known = len(self.posterior_.rows.mean)
        labels = self._labels("row")
        if rows is None:
            asked = np.arange(n_known)
            n_unknown = 0
        else:
            asked, n_unknown = places(rows, n_known, "rows", labels)
        predictor = self.predictor()
        predictor = predictor.append_unseen(n_unknown, 0) if n_unknown else predictor
        generator = generator_from(draw_seed(random_state), torch.device("cpu"))
        m = len(self.posterior_.columns.mean)
        (i, j) = self._observed_index_
        marks = np.ones(len(i), dtype=bool)
        seen = self._cached("seen", lambda: sp.csr_array((marks, (i, j)), shape=(n_known, m)))
        chosen = list[Array]()
        values = list[Array]()
        at_once = n_draws if by == "probability_best" else 1
        for block in np.array_split(asked, max(1, len(asked) * m * at_once // (1 << 22))):
            x = torch.cartesian_prod(torch.as_tensor(block), torch.arange(m)).view(-1, 2)
            scores: Array
            if by == "mean":
                scores = self._law(predictor, x).mean().reshape(-1, m)
            else:
                with one_thread(), torch.no_grad():
                    drawn = predictor.outputs(x, at_once, generator=generator)[..., 0]
                scores = drawn.numpy().reshape(at_once, -1, m)
            out = np.zeros((len(block), m), dtype=bool)
            if exclude_seen:
                out[block < n_known] = seen[block[block < n_known]].toarray()
            scores = np.where(out, -np.inf, scores)
            if by == "probability_best":
                best = scores.argmax(axis=2)
                scores = np.stack([np.bincount(b, minlength=m) for b in best.T]) / at_once
                scores = np.where(out, -np.inf, scores)
            scores = scores.reshape(-1, m)
            if by == "thompson" and predictor.likelihood.scales_targets:
                scores = scores * self.scale_ + self.mean_
            order = np.argsort(-scores, axis=1, kind="stable")[:, :n]
            # Columns that the row has seen come last. They are padding, of this row alone.
            is_padding = np.take_along_axis(out, order, axis=1)
            chosen.append(np.where(is_padding, -1, order))
            ordered = np.take_along_axis(scores, order, axis=1)
            values.append(np.where(is_padding, np.nan, ordered))
        columns = np.concatenate(chosen)
        return Recommendations(pad_labels(columns, self._labels("column")), np.concatenate(values))

    def similar_columns(
        self, column: Any, n: int = 10, *, n_draws: int = 200, random_state: Any = None
    ) -> SimilarColumns:
        """Find the columns that rows take to as they do to one: by correlation over rows.

        Parameters
        ----------
        column : label or int
            Label or position.
        n, n_draws : int, default=10, 200
            Columns to find, and draws of the factors' posterior.
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        SimilarColumns
            ``columns``, ``mean`` and ``interval`` of the correlation between the expected entries
            of two columns, over rows of the prior; the highest mean first.
        """
        check_is_fitted(self)
        check_count("n", n)
        check_count("n_draws", n_draws)
        predictor = self.predictor()
        labels = self._labels("column")
        (place,), n_unknown = places([column], len(predictor.columns.mean), "columns", labels)
        if n_unknown:
            raise ValueError(f"column {column!r} was not there in fit, so nothing is like it.")
        # Rows t ~ N(m, C), their offset included, have entries t' v: two columns of them are
        # correlated as v' C w says.
        free = list(predictor.network.sides[0].free)
        root = torch.linalg.cholesky(row_prior_cov(predictor.row_priors[0])).numpy()
        loc = predictor.columns.mean[:, free].numpy()
        values, vectors = np.linalg.eigh(predictor.columns.cov[:, free][:, :, free].numpy())
        spread = vectors * np.sqrt(values.clip(min=0.0))[:, None, :]
        rng = np.random.default_rng(draw_seed(random_state))
        cosines = []
        for _ in range(n_draws):
            noise = rng.standard_normal((*loc.shape, 1))
            drawn = (loc + (spread @ noise)[..., 0]) @ root
            drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
            cosines.append(drawn @ drawn[place])
        mean = np.mean(cosines, axis=0)
        order = np.argsort(-np.where(np.arange(len(mean)) == place, -np.inf, mean))[:n]
        order = order[order != place]
        ends = np.quantile(cosines, [0.05, 0.95], axis=0)
        return SimilarColumns(
            order if labels is None else labels[order], mean[order], ends[:, order].T
        )

    def _encode_context(self, X: Any, place: Array | None) -> Array | None:
        """Context of entries of a frame in this order, coded, (E, c); None where there is none."""
        code = self._encoders_[2]
        if code is None or not is_frame(X):
            return None
        return code.encoded(
            SideFeatures("context", X if place is None else safe_indexing(X, place), None)
        )

    def _asked(
        self, rows: Any, columns: Any, context: Array | None = None
    ) -> tuple[FactorPredictor, Tensor]:
        """Places and context of entries, and a predictor that has unknown ones at the end."""
        check_is_fitted(self)
        if columns is None:
            named = find_list_columns(rows, self.columns, valued=False)
            if named is not None:
                context = self._encode_context(rows, None)
                rows, columns = (rows[name] for name in named)
            elif isinstance(rows, tuple) and len(rows) >= 2:
                rows, columns = rows[:2]
            else:
                raise ValueError(
                    "give rows and columns, or a list of entries: a tuple (rows, columns) or a "
                    f"frame whose columns say so; got {short_repr(rows)} and no columns."
                )
        sizes = (len(side.mean) for side in self.posterior_)
        (i, n_rows), (j, n_columns) = (
            places(raw, size, f"{side}s", self._labels(side))
            for raw, size, side in zip((rows, columns), sizes, ("row", "column"), strict=True)
        )
        if len(i) != len(j):
            raise ValueError(f"rows has {len(i)} positions and columns {len(j)}: they must match.")
        predictor = self.predictor()
        if n_rows or n_columns:
            predictor = predictor.append_unseen(n_rows, n_columns)
        x = np.stack([i, j], axis=1)
        x = x if context is None else np.column_stack([x, context])
        return predictor, torch.as_tensor(x)

    def _encode_entries(self, X: Any, side: int = 0) -> tuple[CSREntries, Array | None]:
        """Entries of new rows, or columns, as the model has them, by row, and their labels."""
        check_is_fitted(self)
        if is_entry_list(X, self.columns):
            observed = parse_entry_list(X, self.columns)
            other = ("column", "row")[side]
            warn_conflicting_values(observed)
            observed = observed.transposed if side else observed
            n_other = len(self.posterior_[1 - side].mean)
            labels = observed.row_labels
            assert observed.column_labels is not None
            j, n_unknown = places(observed.column_labels, n_other, f"{other}s", self._labels(other))
            if n_unknown:
                warn_user(
                    f"{n_unknown} {other}s were not there in fit: their entries tell nothing.",
                    UserWarning,
                )
            observed = observed.part(j[observed.columns] < n_other)
            columns = j[observed.columns].astype(np.int32)
            shape = (observed.shape[0], n_other)
            observed = observed._replace(columns=columns, shape=shape)
        else:
            observed = extract_entries(self._check_matrix(X, reset=False))
            labels = find_frame_labels(X)[0]
        observed = observed._replace(values=self._as_fitted(observed.values))
        if observed.place is not None:
            observed = observed._replace(context=self._encode_context(X, observed.place))
        return observed.tensors(torch.device("cpu"), torch.float64).by_row, labels

    def _new_rows(
        self, data: CSREntries, labels: Array | None, features: Any, side: int = 0
    ) -> FactorMoments:
        """Posterior of new rows, or of new columns as rows of the transposed matrix."""
        predictor = self.predictor()
        predictor = predictor.transposed if side else predictor
        with one_thread(), torch.no_grad():
            code = self._encoders_[side]
            known = encode_new_rows(
                features, code, labels, self._rated(data, side), side, self.columns
            )
            return predictor.row_posterior(data, predictor.prior_means(known))

    def _with_new(self, X: Any, features: Any, side: int) -> Self:
        data, labels = self._encode_entries(X, side)
        name = ("row", "column")[side]
        n = len(self.posterior_[side].mean)
        old = self._labels(name)
        predictor = self.predictor()
        model = copy(self)
        predictor = predictor.transposed if side else predictor
        predictor = predictor.append_rows(self._new_rows(data, labels, features, side))
        model.__dict__.update(
            factor_attributes(predictor.transposed if side else predictor, self.scale_)
        )
        if old is not None:
            labels = None if labels is None else convert_labels(labels, old, f"{name}s")
            if labels is None or len(np.intersect1d(old, labels)):
                raise ValueError(
                    f"{name}s that are new need labels of their own, got {short_repr(labels)}: "
                    "give a list of entries, and more entries of what was there to partial_fit."
                )
            setattr(model, f"{name}_labels_", np.concatenate([old, labels]))
        new = (n + data.row.numpy().astype(np.int32), data.other.numpy())
        pairs = zip(self._observed_index_, new[::-1] if side else new, strict=True)
        model._observed_index_ = tuple(np.concatenate(pair) for pair in pairs)
        model._cache = {}
        return model

    def _rated(self, data: CSREntries, side: int = 0) -> sp.csr_array:
        """Ones where new rows, or columns, have entries."""
        shape = data.n_rows, len(self.posterior_[1 - side].mean)
        places = np.ones(len(data.other)), data.other.numpy(), data.start.numpy()
        return sp.csr_array(places, shape=shape)

    def _as_fitted(self, values: Array) -> Array:
        """Values as the model has them: scaled, or positions among the classes that were seen."""
        if self._classes is None:
            counts = not self._entries_likelihood().scales_targets
            values = np.asarray(values, dtype=np.float64)
            return values if counts else (values - self.mean_) / self.scale_
        place = np.searchsorted(self._classes, values).clip(max=len(self._classes) - 1)
        unknown = np.asarray(values)[self._classes[place] != values]
        if unknown.size:
            raise ValueError(f"{unknown[0]!r} is none of the labels {self._classes.tolist()}.")
        return place.astype(np.float64)

    def _law(self, predictor: FactorPredictor, x: Tensor) -> EntryPredictive:
        """Distribution of new observations of entries, in the units of the matrix."""
        is_scaled = predictor.likelihood.scales_targets
        units = (self.mean_, self.scale_) if is_scaled else (0.0, 1.0)

        def log_density(x: Tensor, values: Any) -> Array:
            values = mask_to_nan(values)
            checked = check_arrays("entries", {"values": len(x)}, values=values)["values"]
            if np.isnan(checked).any():
                raise ValueError("values holds NaN: leave out the entries that aren't observed.")
            y = torch.tensor(self._as_fitted(checked), dtype=torch.float64)
            with one_thread(), torch.no_grad():
                density = predictor.log_density(x, format_targets(predictor.likelihood, y))
            return (density - np.log(units[1])).numpy()

        return EntryPredictive(predictor, x, *units, self._classes, log_density)

    def _predictive(self, X: Any) -> EntryPredictive:
        return self._law(*self._asked(X, None))


def pad_labels(positions: Array, labels: Array | None) -> Array:
    """Labels at positions, and the padding where a position is -1."""
    if labels is None:
        return positions
    padding = {"U": "", "M": np.datetime64("NaT"), "m": np.timedelta64("NaT")}
    missing = np.array(padding.get(labels.dtype.kind, -1)).astype(labels.dtype)
    return np.where(positions < 0, missing, labels[positions])


def places(raw: Any, n: int, name: str, labels: Array | None) -> tuple[Array, int]:
    """Positions in a side of length ``n``, and how many distinct new labels follow after it.

    Raises ValueError of positions outside, and of words where labels are numbers.
    """
    raw = [raw] if np.ndim(raw) == 0 else raw
    if labels is None:
        array = np.asarray(raw)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ValueError(f"{name} must be a list of integers, got {short_repr(raw)}.")
        outside = array[(array < 0) | (array >= n)]
        if outside.size:
            raise ValueError(
                f"{name} must lie between 0 and {n - 1}, the matrix has {n} {name}; got "
                f"{outside[0]}. For new ones use with_new_{name}."
            )
        return array.astype(np.int64), 0
    array = convert_labels(check_labels(raw, name), labels, name)
    order = np.argsort(labels)
    place = np.searchsorted(labels, array, sorter=order).clip(max=len(labels) - 1)
    chosen = order[place] if array.size else np.zeros(0, dtype=np.int64)
    is_new = labels[chosen] != array
    new, which = np.unique(array[is_new], return_inverse=True)
    chosen[is_new] = n + which
    return chosen.astype(np.int64), len(new)
