"""Predictions of a fitted factorisation: the methods that its estimator offers to users."""

from copy import copy
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.estimator import BayesianEstimator
from skbayes_sym.base.input_validation import ENCODE, numeric_conversion
from skbayes_sym.base.posteriors import MatrixPosterior
from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import check_array, validate_data
from skbayes_sym.factorization.entry_distribution import EntryPredictive
from skbayes_sym.factorization.entry_encoder import AXIS_NAMES, EntryEncoder, EntryInputs
from skbayes_sym.factorization.entry_predictor import FactorMoments, FactorPredictor
from skbayes_sym.factorization.entry_sites import format_targets
from skbayes_sym.factorization.fit import factor_attributes
from skbayes_sym.factorization.labels import convert_labels, pad_labels
from skbayes_sym.factorization.ratings import (
    extract_entries,
    find_frame_labels,
    is_entry_list,
    mask_to_nan,
    parse_entry_list,
)
from skbayes_sym.factorization.recommend import (
    RANKINGS,
    Recommendations,
    SimilarColumns,
    find_similar_columns,
    rank_columns,
    score_columns,
)
from skbayes_sym.factorization.side_features import FeatureEncoder
from skbayes_sym.factorization.sparse_entries import CSREntries
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.numerics.arguments import check_arrays, check_count, draw_seed, short_repr
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import one_thread

# Scores that a block of rows may hold at once in a ranking, for all draws together.
_SCORES_PER_BLOCK = 1 << 22


class EntryPredictionMixin(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):
    """Predicts entries, ranks columns and adds rows by means of a `FactorPredictor`.

    The estimator that inherits it fits the predictor.
    """

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
    _rotation_: Array  # (k, k), canonical axes of the factors
    _stream_start_: tuple[int, str]  # entries and parameters when a stream was last fitted anew
    _predictor_: dict[str, Any]  # arrays of the `FactorPredictor`
    _is_list_: bool  # whether `fit` was given a list of entries
    _observed_index_: tuple[Array, ...]  # rows and columns of the observed entries
    _encoders_: tuple[FeatureEncoder | None, FeatureEncoder | None, FeatureEncoder | None]

    def _template_likelihood(self) -> Likelihood:
        """Return the likelihood of the entries, at any parameters."""
        raise NotImplementedError

    def predictor(self, like: Tensor | None = None) -> FactorPredictor:  # noqa: ARG002
        """Return the predictor of entries on the CPU, which is restored from its arrays once."""
        check_is_fitted(self)
        predictor: FactorPredictor = self._cached(
            "predictor",
            lambda: FactorPredictor.from_arrays(self._predictor_, self._template_likelihood()),
        )
        return predictor

    def _entry_encoder(self) -> EntryEncoder:
        """Return the conversion of users' entries to the representation of the model."""
        check_is_fitted(self)
        return EntryEncoder(
            shape=(len(self.posterior_.rows.mean), len(self.posterior_.columns.mean)),
            labels=(getattr(self, "row_labels_", None), getattr(self, "column_labels_", None)),
            column_roles=self.columns,
            encoders=self._encoders_,
            mean=self.mean_,
            scale=self.scale_,
            classes=getattr(self, "classes_", None),
            is_standardized=self._template_likelihood().scales_targets,
        )

    def check_inputs(self, X: Any) -> Any:
        """Validate a matrix with the columns of the fit, in which NaN is missing."""
        check_is_fitted(self)
        return self._check_matrix(X, reset=False)

    def _check_matrix(self, X: Any, *, reset: bool) -> Any:
        """Validate a matrix in which NaN is missing."""
        with numeric_conversion("X", ENCODE, X):
            return validate_data(
                self,
                mask_to_nan(X),
                reset=reset,
                dtype=FLOATS,
                accept_sparse=("csr", "csc", "coo"),
                ensure_all_finite="allow-nan",
            )

    def transform(self, X: Any, return_std: bool = False, *, row_features: Any = None) -> Any:
        """Posterior means of the row factors given the posterior of V; rows may be new.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Rows of entries, with missing ones as in `fit`.
        return_std : bool, default=False
            Whether to return their standard deviations too.
        row_features : array-like, optional
            Features of these rows, if `fit` was given features of rows.

        Returns
        -------
        mean : ndarray of shape (n_rows, n_components)
            Posterior means of the row factors.
        std : ndarray of shape (n_rows, n_components)
            Posterior standard deviations, only if ``return_std``.
        """
        entries, labels = self._encode_new_entries(X)
        rows = self._infer_new_rows(entries, labels, row_features)
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
            Row factors.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Expected entries in the units of the matrix.
        """
        check_is_fitted(self)
        with numeric_conversion("X"):
            factors = check_array(X, dtype=FLOATS, input_name="X")
        if factors.shape[1] != len(self.components_):
            raise ValueError(
                f"X has {factors.shape[1]} columns, but the model has {len(self.components_)} "
                "components: pass the result of transform."
            )
        offsets = getattr(self, "column_offsets_", 0.0)
        with one_thread():
            components = torch.as_tensor(self.components_)
            product = torch.as_tensor(factors).to(components) @ components
        return product.numpy() * self.scale_ + self.mean_ + offsets

    def reconstruct(self) -> Array:
        """Posterior mean of the whole training matrix, without the noise, dense.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            In the units of the matrix. For counts and classes it is the mean of the latent
            outputs.
        """
        predictor = self.predictor()
        n = len(predictor.rows.mean)
        root_k = np.sqrt(len(self.components_))
        # A matrix product in several threads rounds differently.
        with one_thread():
            if predictor.draws is None:
                product = predictor.rows.mean @ predictor.columns.mean.mT
            else:
                products = (draw[:n] @ draw[n:].mT for draw in predictor.draws)
                product = sum(products, predictor.draws.new_zeros(())) / len(predictor.draws)
        return product.numpy() / root_k * self.scale_ + self.mean_

    def _require_entry_list(self) -> bool:
        """Raise an error unless `fit` was given a list of entries.

        A matrix has no `predict`, which scikit-learn would expect to return one value per row.
        """
        if not self.__sklearn_is_fitted__():
            raise AttributeError("predict exists after fit with a list of entries.")
        if not self._is_list_:
            raise AttributeError(
                "the model was fitted to a matrix: use predict_entries(rows, columns), or fit it "
                "to a list of entries, a frame with one column each for rows, columns and values."
            )
        return True

    @available_if(_require_entry_list)
    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Predict entries as `predict_entries` does, if `fit` was given a list of entries.

        Parameters
        ----------
        X : list of entries
            A frame, as `fit` takes it, or a tuple. Values are ignored and may be left out.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
            Expected entries in the units of the matrix.
        std : ndarray of shape (n_entries,)
            Standard deviations with the noise included, only if ``return_std``.
        """
        return self.predict_entries(X, return_std=return_std)

    def predict_entries(self, rows: Any, columns: Any = None, return_std: bool = False) -> Any:
        """Predict single entries.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            Labels if the model has `row_labels_` and `column_labels_`, otherwise positions. New
            labels have a larger standard deviation. In place of both, a list of entries as `fit`
            takes it, with or without values.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
            Expected entries in the units of the matrix.
        std : ndarray of shape (n_entries,)
            Standard deviations with the noise included, only if ``return_std``.
        """
        encoder = self._entry_encoder()
        distribution = self._predict_distribution(encoder, encoder.encode_pairs(rows, columns))
        if return_std:
            return tuple(distribution.moments())
        return distribution.mean()

    def with_new_rows(self, X: Any, *, row_features: Any = None) -> Self:
        """Copy of the model with further rows, whose factors are inferred from their entries.

        Parameters
        ----------
        X : list of entries, or array-like or sparse matrix of shape (n_new, n_columns)
            Entries of new rows. A list or a frame gives their labels, otherwise the positions
            after the known rows are theirs.
        row_features : array-like or DataFrame, optional
            Features of these rows, if `fit` was given features of rows.

        Returns
        -------
        model : object
            The factors of other rows and of columns don't change. Given the posterior of the
            columns, the factor of a new row is the solution of a linear regression.
        """
        return self._append(X, row_features, 0)

    def with_new_columns(self, X: Any, *, column_features: Any = None) -> Self:
        """Copy of the model with further columns, whose factors are inferred from their entries.

        Parameters
        ----------
        X : list of entries
            Entries of new columns, such as the first ratings of a film.
        column_features : array-like or DataFrame, optional
            Features of these columns, if `fit` was given features of columns.

        Returns
        -------
        model : object
            The factors of rows and of other columns don't change.
        """
        return self._append(X, column_features, 1)

    def score(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002 (scikit-learn passes targets)
        *,
        row_features: Any = None,
    ) -> float:
        """Mean log density of entries.

        Parameters
        ----------
        X : list of entries, or array-like or sparse matrix of shape (n_rows, n_columns)
            A list has entries of known rows and columns. For an honest score they aren't among
            those of `fit`. A matrix has new rows.
        y : None
            Ignored.
        row_features : array-like, optional
            Features of these rows, if `fit` was given features of rows.

        Returns
        -------
        float
            Nats per observed entry, in the units of the matrix; 0 if nothing is observed. The
            factor of a new row is integrated out: its entries have a joint normal density, with
            their mean and covariance under the prior of rows and the posterior of V. For
            likelihoods other than "gaussian" that is a lower bound.
        """
        encoder = self._entry_encoder()
        if is_entry_list(X, self.columns):
            observed = parse_entry_list(X, self.columns)
            context = encoder.encode_context(X, observed.list_index)
            inputs = encoder.encode_pairs(*observed.entry_labels, context)
            log_density = self._predict_distribution(encoder, inputs).log_prob(observed.values)
            if len(log_density) == 0:
                return 0.0
            return float(np.average(log_density, weights=observed.weights))

        entries, labels = self._encode_new_entries(X)
        with one_thread(), torch.no_grad():
            features = encoder.encode_features(row_features, entries, labels, 0)
            density = self.predictor().row_log_density(entries, features)
        n_entries = len(entries.value)
        total = density - n_entries * float(np.log(self.scale_))
        return total / max(n_entries, 1)

    def recommend(
        self, rows: Any = None, n: int = 10, *, exclude_seen: bool = True, by: str = "mean",
        n_draws: int = 200, random_state: Any = None,
    ) -> Recommendations:  # fmt: skip
        """Recommend the best columns for rows.

        Parameters
        ----------
        rows : array-like of shape (n_rows,), optional
            Labels, or positions if rows have no labels; all rows by default. Unknown rows get the
            columns that are best on average.
        n : int, default=10
            Number of columns for each row, at most all columns. A row with fewer columns left has a
            shorter list, which is padded.
        exclude_seen : bool, default=True
            Whether to leave out the columns in which the row has an entry.
        by : {"mean", "probability_best", "thompson"}, default="mean"
            Order of the columns: by the expected entry; by the proportion of ``n_draws`` joint
            draws in which the column is the best one; or by a single draw, which explores.
        n_draws : int, default=200
            Number of draws for ``by="probability_best"``.
        random_state : int, RandomState instance or None, default=None
            Seed or generator of the draws.

        Returns
        -------
        Recommendations
            ``columns`` and ``values``, of shape (n_rows, n) each, where n is at most the number of
            columns. Shorter lists end in -1 (positions and numbers), "" (text) or NaT (dates) with
            the value NaN. ``lengths`` are the numbers of columns without the padding. Columns of
            equal value are in the order of `column_labels_`.
        """
        encoder = self._entry_encoder()
        if by not in RANKINGS:
            raise ValueError(f"by must be 'mean', 'probability_best' or 'thompson', got {by!r}.")
        check_count("n", n)
        check_count("n_draws", n_draws)
        n_known, n_columns = encoder.shape
        n_unseen = 0
        row_index = np.arange(n_known)
        if rows is not None:
            row_index, n_unseen = encoder.locate(rows, 0)
        predictor = self.predictor()
        if n_unseen:
            predictor = predictor.append_unseen(n_unseen, 0)
        generator = generator_from(draw_seed(random_state), torch.device("cpu"))

        # Rows are ranked in blocks, because there is a score for every column and draw.
        scores_per_row = n_columns
        if by == "probability_best":
            scores_per_row = n_columns * n_draws
        n_blocks = max(1, len(row_index) * scores_per_row // _SCORES_PER_BLOCK)
        columns = list[Array]()
        values = list[Array]()
        for block in np.array_split(row_index, n_blocks):
            is_excluded = np.zeros((len(block), n_columns), dtype=bool)
            if exclude_seen:
                is_known = block < n_known
                is_excluded[is_known] = self._observed_mask()[block[is_known]].toarray()
            pairs = torch.cartesian_prod(torch.as_tensor(block), torch.arange(n_columns))
            distribution = self._make_distribution(encoder, predictor, pairs.view(-1, 2))
            scores = score_columns(distribution, is_excluded, by, n_draws, generator)
            best_columns, best_values = rank_columns(scores, is_excluded, n)
            columns.append(best_columns)
            values.append(best_values)
        labels = pad_labels(np.concatenate(columns), encoder.labels[1])
        return Recommendations(labels, np.concatenate(values))

    def similar_columns(
        self, column: Any, n: int = 10, *, n_draws: int = 200, random_state: Any = None
    ) -> SimilarColumns:
        """Find the columns most correlated with a given one.

        Parameters
        ----------
        column : label or int
            Label, or position if columns have no labels.
        n : int, default=10
            Number of columns to find.
        n_draws : int, default=200
            Number of draws from the posterior of the factors.
        random_state : int, RandomState instance or None, default=None
            Seed or generator of the draws.

        Returns
        -------
        SimilarColumns
            ``columns``, and ``mean`` and ``interval`` of the correlation between the expected
            entries of two columns, over rows of the prior; the highest mean first.
        """
        encoder = self._entry_encoder()
        check_count("n", n)
        check_count("n_draws", n_draws)
        (position,), n_unseen = encoder.locate([column], 1)
        if n_unseen:
            raise ValueError(
                f"column {column!r} wasn't in the training data, so similar columns aren't known."
            )
        rng = np.random.default_rng(draw_seed(random_state))
        similar = find_similar_columns(self.predictor(), position, n, n_draws, rng)
        labels = encoder.labels[1]
        if labels is None:
            return similar
        return similar._replace(columns=labels[similar.columns])

    def _observed_mask(self) -> sp.csr_array:
        """Return a sparse mask of the entries that the model was fitted to, (n_rows, n_columns)."""
        shape = (len(self.posterior_.rows.mean), len(self.posterior_.columns.mean))
        rows, columns = self._observed_index_
        is_observed = np.ones(len(rows), dtype=bool)
        return self._cached(
            "observed_mask", lambda: sp.csr_array((is_observed, (rows, columns)), shape=shape)
        )

    def _encode_new_entries(self, X: Any, axis: int = 0) -> tuple[CSREntries, Array | None]:
        """Encode entries of new rows, or columns, row by row; return them and their labels."""
        encoder = self._entry_encoder()
        if is_entry_list(X, self.columns):
            return encoder.encode_list(X, axis)
        observed = extract_entries(self._check_matrix(X, reset=False))
        return encoder.encode_matrix(observed), find_frame_labels(X)[0]

    def _infer_new_rows(
        self, entries: CSREntries, labels: Array | None, features: Any, axis: int = 0
    ) -> FactorMoments:
        """Infer the posterior of new rows or, for axis 1, of new columns.

        Parameters
        ----------
        entries : CSREntries
            Their entries; for axis 1 those of the transposed matrix.
        labels : ndarray or None
            Their labels.
        features : array-like, DataFrame or None
            Their features.
        axis : {0, 1}, default=0
            0 for rows, 1 for columns.

        Returns
        -------
        FactorMoments
            Means and covariances.
        """
        predictor = self.predictor()
        if axis == 1:
            predictor = predictor.transposed
        with one_thread(), torch.no_grad():
            encoded = self._entry_encoder().encode_features(features, entries, labels, axis)
            return predictor.row_posterior(entries, predictor.prior_means(encoded))

    def _append(self, X: Any, features: Any, axis: int) -> Self:
        """Return a copy of the model with further rows (axis 0) or columns (axis 1)."""
        name = AXIS_NAMES[axis]
        encoder = self._entry_encoder()
        entries, labels = self._encode_new_entries(X, axis)
        new_rows = self._infer_new_rows(entries, labels, features, axis)

        # Columns are appended as rows of the transposed matrix.
        predictor = self.predictor()
        if axis == 0:
            predictor = predictor.append_rows(new_rows)
        else:
            predictor = predictor.transposed.append_rows(new_rows).transposed
        attributes = factor_attributes(predictor, self.scale_)

        old_labels = encoder.labels[axis]
        if old_labels is not None:
            if labels is not None:
                labels = convert_labels(labels, old_labels, f"{name}s")
            if labels is None or len(np.intersect1d(old_labels, labels)):
                raise ValueError(
                    f"the labels of new {name}s must differ from the known labels, got "
                    f"{short_repr(labels)}: pass a list of entries with new labels, and further "
                    f"entries of known {name}s to partial_fit."
                )
            attributes[f"{name}_labels_"] = np.concatenate([old_labels, labels])

        # The new entries count as observed in recommendations.
        new_index = encoder.shape[axis] + entries.row_index.numpy().astype(np.int32)
        other_index = entries.indices.numpy()
        if axis == 0:
            pairs = (new_index, other_index)
        else:
            pairs = (other_index, new_index)
        attributes["_observed_index_"] = tuple(
            np.concatenate([old, new])
            for old, new in zip(self._observed_index_, pairs, strict=True)
        )
        model = copy(self)
        model.__dict__.update({**attributes, "_cache": {}})
        return model

    def _predict_distribution(self, encoder: EntryEncoder, inputs: EntryInputs) -> EntryPredictive:
        """Return the distribution of new observations of entries, in the units of the matrix."""
        predictor = self.predictor()
        if inputs.n_unseen_rows or inputs.n_unseen_columns:
            predictor = predictor.append_unseen(inputs.n_unseen_rows, inputs.n_unseen_columns)
        return self._make_distribution(encoder, predictor, inputs.x)

    def _make_distribution(
        self, encoder: EntryEncoder, predictor: FactorPredictor, x: Tensor
    ) -> EntryPredictive:
        """Return the distribution of entries under a predictor, in the units of the matrix."""
        location = 0.0
        scale = 1.0
        if predictor.likelihood.scales_targets:
            location = self.mean_
            scale = self.scale_

        def log_density(x: Tensor, values: Any) -> Array:
            values = mask_to_nan(values)
            checked = check_arrays("entries", {"values": len(x)}, values=values)["values"]
            if np.isnan(checked).any():
                raise ValueError("values holds NaN: leave out the entries that aren't observed.")
            y = torch.tensor(encoder.encode_values(checked), dtype=torch.float64)
            with one_thread(), torch.no_grad():
                density = predictor.log_density(x, format_targets(predictor.likelihood, y))
            return (density - np.log(scale)).numpy()

        return EntryPredictive(predictor, x, location, scale, encoder.classes, log_density)

    def _predictive(self, X: Any) -> EntryPredictive:
        encoder = self._entry_encoder()
        return self._predict_distribution(encoder, encoder.encode_pairs(X, None))
