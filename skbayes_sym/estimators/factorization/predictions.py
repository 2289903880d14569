"""What a fitted factorisation answers: factors of rows, entries, draws, scores."""

from typing import Any

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.rows import ENCODE, Array, numbers_due
from skbayes_sym.estimators._fit.run import FLOATS
from skbayes_sym.estimators.base import BayesianEstimator
from skbayes_sym.estimators.factorization.entries import observed_entries, positions
from skbayes_sym.estimators.factorization.fitted import FittedFactors, Units
from skbayes_sym.estimators.factorization.side_features import scaled
from skbayes_sym.inference.factorization.coordinates import Coordinates
from skbayes_sym.inference.factorization.data import Incidence
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.likelihoods import EntryLikelihood, NoiseState
from skbayes_sym.inference.factorization.predictive import Rows
from skbayes_sym.inference.posteriors import MatrixPosterior
from skbayes_sym.numerics.arguments import check_arrays, check_count, seed_of
from skbayes_sym.numerics.memory import Part, require_memory


class PredictsEntries(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):
    """Predictions from a posterior of rows and columns; the estimator fits it."""

    prior_scale: str | float

    posterior_: MatrixPosterior
    components_: Array
    noise_std_: float
    mean_: float
    scale_: float

    def _likelihood(self, classes: Array | None) -> EntryLikelihood:
        """Of entries; ``classes`` are the labels of ordinal ones."""
        raise NotImplementedError

    def _check_matrix(self, X: Any, *, reset: bool) -> Any:
        settings = {"accept_sparse": ("csr", "csc", "coo"), "ensure_all_finite": "allow-nan"}
        with numbers_due("X", ENCODE):
            return validate_data(self, X, reset=reset, dtype=FLOATS, **settings)

    def transform(self, X: Any, return_std: bool = False, *, row_features: Any = None) -> Any:
        """Posterior means of the row factors; rows may be new.

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
        mean : ndarray of shape (n_rows, n_components)
            Given the posterior of V; the prior mean for a row with nothing observed.
        std : ndarray of shape (n_rows, n_components)
            Only if ``return_std``.
        """
        check_is_fitted(self)
        rows, _, dtype = self._new_rows(X, row_features)
        k = len(self.components_)
        mean = rows.mean[:, :k].numpy().astype(dtype, copy=False)
        if not return_std:
            return mean
        variance = rows.cov.diagonal(dim1=-2, dim2=-1)[:, :k]
        return mean, variance.sqrt().numpy().astype(dtype, copy=False)

    def inverse_transform(self, X: Any) -> Array:
        """Row factors back to rows of the matrix, column offsets included.

        Parameters
        ----------
        X : array-like of shape (n_rows, n_components)

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            In the units of the matrix. The rows' own offsets, which the factors don't hold, are
            left out: `predict_new_rows` has them.
        """
        check_is_fitted(self)
        with numbers_due("X"):
            factors = check_array(X, dtype=FLOATS, input_name="X")
        if factors.shape[1] != len(self.components_):
            raise ValueError(
                f"X has {factors.shape[1]} columns, but the model has {len(self.components_)} "
                "components: pass what transform returns."
            )
        offsets = getattr(self, "column_offsets_", 0.0)
        return factors @ self.components_ * self.scale_ + self.mean_ + offsets

    def reconstruct(self) -> Array:
        """Posterior mean of the whole training matrix, without the noise.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Dense, in the units of the matrix (of ordinal entries, of the latent numbers);
            `predict_entries` for matrices too large for it.
        """
        check_is_fitted(self)
        k, n = len(self.components_), len(self.posterior_.rows.mean)
        samples = getattr(self, "_whole_samples_", getattr(self, "samples_", None))
        if samples is not None:
            product = sum(draw[:n] @ draw[n:].T for draw in samples) / len(samples)
        else:
            rows, columns = getattr(self, "_whole_", self.posterior_)
            product = rows.mean @ columns.mean.T
        return product / np.sqrt(k) * self.scale_ + self.mean_

    def predict_entries(self, rows: Any, columns: Any, return_std: bool = False) -> Any:
        """Predict single entries of the training matrix.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            Labels, where `row_labels_` and `column_labels_` are set; else positions, counted from
            0.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
        std : ndarray of shape (n_entries,)
            Noise included; only if ``return_std``.
        """
        i, j = self._positions(rows, columns)
        with one_thread(), torch.no_grad():
            fitted = self._fitted()
            if not return_std:
                return fitted.mean_as_given(i, j)
            return fitted.as_given(fitted.moments(i, j))

    def entry_log_density(self, rows: Any, columns: Any, values: Any) -> Array:
        """Log density of new observations of entries, as given.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            As in `predict_entries`.
        values : array-like of shape (n_entries,)

        Returns
        -------
        ndarray of shape (n_entries,)
            Nats; of ordinal entries the log probability of the label.
        """
        i, j = self._positions(rows, columns)
        with one_thread(), torch.no_grad():
            fitted = self._fitted()
            given = check_arrays("entry_log_density", {"values": len(i)}, values=values)
            if np.isnan(given["values"]).any():
                raise ValueError("values holds NaN: leave out the entries that aren't observed.")
            return fitted.log_densities(fitted.moments(i, j), given["values"])

    def predict_entry_proba(self, rows: Any, columns: Any) -> Array:
        """Probabilities of the labels of ordinal entries.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            As in `predict_entries`.

        Returns
        -------
        ndarray of shape (n_entries, n_classes)
            In the order of `classes_`.

        Raises
        ------
        ValueError
            If the likelihood isn't "ordinal".
        """
        i, j = self._positions(rows, columns)
        fitted = self._fitted()
        probabilities = getattr(fitted.likelihood, "probabilities", None)
        if probabilities is None:
            raise ValueError("labels have probabilities with likelihood='ordinal' only.")
        with one_thread(), torch.no_grad():
            return np.asarray(probabilities(*fitted.moments(i, j), fitted.noise))

    def sample_entries(
        self, rows: Any, columns: Any, n_draws: int = 100, random_state: Any = None
    ) -> Array:
        """Draws of entries of the training matrix, without their noise.

        Factors are drawn once a draw, so entries that share a row or a column are dependent as they
        are in the posterior: what Thompson sampling and the probability of being best need.

        Parameters
        ----------
        rows, columns : array-like of shape (n_entries,)
            As in `predict_entries`.
        n_draws : int, default=100
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n_draws, n_entries)
            In the units of the matrix; of ordinal entries the latent numbers.
        """
        i, j = self._positions(rows, columns)
        return self._draws(i, j, None, n_draws, random_state)

    def predict_new_rows(
        self, X: Any, entries: Any, return_std: bool = False, *, row_features: Any = None
    ) -> Any:
        """Predict entries of rows that weren't there in `fit`, from those they have.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            New rows, NaN where missing.
        entries : (rows, columns)
            Positions in ``X`` and labels or positions of the columns.
        return_std : bool, default=False
            Whether to return the standard deviation of a new observation too: the noise, and what
            isn't known of the row and the column.
        row_features : array-like, optional
            Of these rows, if `fit` was given some.

        Returns
        -------
        mean : ndarray of shape (n_entries,)
        std : ndarray of shape (n_entries,)
            Only if ``return_std``.
        """
        rows, i, j = self._asked_of_new(X, entries, row_features)
        with one_thread(), torch.no_grad():
            fitted = self._fitted()
            mean, std = fitted.as_given(fitted.moments(i, j, rows))
        return (mean, std) if return_std else mean

    def sample_new_rows(
        self, X: Any, entries: Any, n_draws: int = 100, random_state: Any = None,
        *, row_features: Any = None,
    ) -> Array:  # fmt: skip
        """Draws of entries of new rows, as `sample_entries` draws those of the training matrix.

        Parameters
        ----------
        X, entries, row_features
            As in `predict_new_rows`.
        n_draws : int, default=100
        random_state : int, RandomState instance or None, default=None

        Returns
        -------
        ndarray of shape (n_draws, n_entries)
        """
        rows, i, j = self._asked_of_new(X, entries, row_features)
        return self._draws(i, j, rows, n_draws, random_state)

    def score(self, X: Any, y: Any = None, *, row_features: Any = None) -> float:
        """Log density of the observed entries of rows, each row's factor integrated out.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_rows, n_columns)
            Rows, new ones for an honest score.
        y : None
            Ignored.
        row_features : array-like, optional
            Of these rows, if `fit` was given some.

        Returns
        -------
        float
            Nats per observed entry, of the entries as given: the entries of a row under a normal
            with the mean and covariance they have given the prior of rows and the posterior of V;
            of likelihoods but "gaussian" a lower bound. 0 if nothing is observed.
        """
        check_is_fitted(self)
        data, _ = self._entries_of(X)
        fitted = self._fitted()
        with one_thread(), torch.no_grad():
            features = scaled(row_features, self._feature_scaling(), data.n_rows, "row_features")
            density = fitted.row_log_density(data, features)
        n_observed = len(data.value)
        total = density - n_observed * float(np.log(self.scale_))
        return total / max(n_observed, 1)

    def _positions(self, rows: Any, columns: Any) -> tuple[Tensor, Tensor]:
        """Of entries of the training matrix."""
        check_is_fitted(self)
        posterior = self.posterior_
        row_labels, column_labels = (
            getattr(self, f"{side}_labels_", None) for side in ("row", "column")
        )
        i = positions(rows, len(posterior.rows.mean), "rows", row_labels)
        j = positions(columns, len(posterior.columns.mean), "columns", column_labels)
        return _matched(i, j)

    def _fitted(self) -> FittedFactors:
        """What was fitted, as predictions need it; of the first edition's files too."""
        k, classes = len(self.components_), getattr(self, "classes_", None)
        whole = getattr(self, "_whole_", self.posterior_)
        cuts = getattr(self, "cut_points_", None)
        noise = NoiseState(
            (self.noise_std_ / self.scale_) ** 2, None if cuts is None else torch.as_tensor(cuts)
        )
        samples = getattr(self, "_whole_samples_", getattr(self, "samples_", None))
        return FittedFactors(
            whole,
            Coordinates(k, *getattr(self, "_offsets_", (False, False))),
            self._law(),
            self._likelihood(classes),
            noise,
            Units(self.mean_, self.scale_, classes),
            samples,
        )

    def _law(self) -> RowLaw:
        """The prior of rows."""
        laws = getattr(self, "_laws_", None)
        if laws is None:
            k = len(self.components_)
            precision = torch.eye(k, dtype=torch.float64) / float(self.prior_scale) ** 2
            return RowLaw(precision, precision.new_zeros(0, k))
        precision, coefficients = (torch.as_tensor(part) for part in laws[0])
        return RowLaw(precision, coefficients)

    def _feature_scaling(self) -> Array | None:
        return getattr(self, "_feature_scaling_", (None, None))[0]

    def _entries_of(self, X: Any) -> tuple[Incidence, np.dtype[Any]]:
        """Entries of new rows as the model has them, float64, and the precision of X."""
        checked = self._check_matrix(X, reset=False)
        observed = observed_entries(checked)
        values = self._fitted().scaled(observed.values)
        observed = observed._replace(values=values)
        return observed.tensors(torch.device("cpu"), torch.float64).by_row, checked.dtype

    def _new_rows(self, X: Any, row_features: Any) -> tuple[Rows, int, np.dtype[Any]]:
        data, dtype = self._entries_of(X)
        with one_thread(), torch.no_grad():
            features = scaled(row_features, self._feature_scaling(), data.n_rows, "row_features")
            return self._fitted().new_rows(data, features), data.n_rows, dtype

    def _asked_of_new(self, X: Any, entries: Any, row_features: Any) -> tuple[Rows, Tensor, Tensor]:
        check_is_fitted(self)
        if not isinstance(entries, tuple | list) or len(entries) != 2:
            raise ValueError(
                f"entries must be a pair (rows, columns) of equally many places, got {entries!r}."
            )
        rows, n, _ = self._new_rows(X, row_features)
        asked_rows, asked_columns = entries
        i = positions(asked_rows, n, "rows")
        labels = getattr(self, "column_labels_", None)
        j = positions(asked_columns, len(self.posterior_.columns.mean), "columns", labels)
        return rows, *_matched(i, j)

    def _draws(
        self, i: Tensor, j: Tensor, rows: Rows | None, n_draws: int, random_state: Any
    ) -> Array:
        check_count("n_draws", n_draws)
        what = f"{n_draws:,} draws of {len(i):,} entries"
        remedy = "Lower n_draws, or ask for fewer entries at once."
        part = Part(what, 3 * 8 * n_draws * (len(i) + 1), remedy, on_host=True)
        require_memory([part], torch.device("cpu"), task="draws of entries")
        rng = np.random.default_rng(seed_of(random_state))
        return self._fitted().draws_of(i, j, rows, n_draws, rng)


def _matched(i: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
    if len(i) != len(j):
        raise ValueError(f"rows has {len(i)} positions and columns {len(j)}: they must match.")
    return i, j
