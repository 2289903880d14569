"""Predictions of a fitted factorisation: factors of rows, entries, draws, scores."""

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
from skbayes_sym.estimators.factorization.side_features import scaled
from skbayes_sym.inference.factorization.entry_predictor import FactorPredictor
from skbayes_sym.inference.factorization.entry_sites import as_targets
from skbayes_sym.inference.factorization.incidence import Incidence
from skbayes_sym.inference.posteriors import MatrixPosterior
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.predictive_mixtures import CategoricalMixture
from skbayes_sym.numerics.arguments import check_arrays, check_count, seed_of
from skbayes_sym.numerics.memory import Part, require_memory
from skbayes_sym.numerics.random import generator_from

_AT_ONCE = 1 << 14  # entries whose distributions are held


class PredictsEntries(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BayesianEstimator):
    """Turns arrays in and out of a `FactorPredictor`; the estimator fits it."""

    posterior_: MatrixPosterior
    components_: Array
    mean_: float
    scale_: float
    classes_: Array
    row_labels_: Array
    column_labels_: Array
    column_offsets_: Array
    _predictor_: dict[str, Any]
    _feature_scaling_: tuple[Array | None, Array | None]

    def _fitted_likelihood(self) -> Likelihood:
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

    def _predictor(self) -> FactorPredictor:
        check_is_fitted(self)
        predictor: FactorPredictor = self._cached(
            "predictor",
            lambda: FactorPredictor.from_arrays(self._predictor_, self._fitted_likelihood()),
        )
        return predictor

    def _check_matrix(self, X: Any, *, reset: bool) -> Any:
        settings = {"accept_sparse": ("csr", "csc", "coo"), "ensure_all_finite": "allow-nan"}
        with numbers_due("X", ENCODE, X):
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
        data, dtype = self._entries_of(X)
        rows = self._of_new_rows(data, row_features).rows
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
        offsets = vars(self).get("column_offsets_", 0.0)
        return factors @ self.components_ * self.scale_ + self.mean_ + offsets

    def reconstruct(self) -> Array:
        """Posterior mean of the whole training matrix, without the noise.

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Dense, in the units of the matrix (of counts and classes, of the latent numbers);
            `predict_entries` for matrices too large for it.
        """
        predictor = self._predictor()
        n, root_k = len(predictor.rows.mean), np.sqrt(len(self.components_))
        if predictor.draws is not None:
            draws = predictor.draws.numpy()
            product = sum(draw[:n] @ draw[n:].T for draw in draws) / len(draws)
        else:
            product = (predictor.rows.mean @ predictor.columns.mean.T).numpy()
        return product / root_k * self.scale_ + self.mean_

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
        return self._moments(self._predictor(), self._places(rows, columns), return_std)

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
        x = self._places(rows, columns)
        checked = check_arrays("entry_log_density", {"values": len(x)}, values=values)["values"]
        if np.isnan(checked).any():
            raise ValueError("values holds NaN: leave out the entries that aren't observed.")
        predictor, y = self._predictor(), torch.as_tensor(self._as_fitted(checked)).double()
        with one_thread(), torch.no_grad():
            density = predictor.log_density(x, as_targets(predictor.likelihood, y))
        return (density - np.log(self.scale_)).numpy()

    def predict_entry_proba(self, rows: Any, columns: Any) -> Array:
        """Probabilities of the labels of ordinal entries, or of two classes.

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
            If the likelihood is of numbers.
        """
        x, predictor = self._places(rows, columns), self._predictor()
        if self._classes is None:
            raise ValueError("labels have probabilities with likelihood='ordinal' only.")
        with one_thread(), torch.no_grad():
            laws = [predictor.law(places).mean() for places in x.split(_AT_ONCE)]
        return torch.cat(laws).numpy()

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
            In the units of the matrix; of counts their means, of classes the latent numbers.
        """
        return self._draws(self._predictor(), self._places(rows, columns), n_draws, random_state)

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
        predictor, x = self._asked_of_new(X, entries, row_features)
        return self._moments(predictor, x, return_std)

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
        predictor, x = self._asked_of_new(X, entries, row_features)
        return self._draws(predictor, x, n_draws, random_state)

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
        with one_thread(), torch.no_grad():
            features = self._features(row_features, data.n_rows)
            density = self._predictor().log_density_of_rows(data, features)
        total = density - len(data.value) * float(np.log(self.scale_))
        return total / max(len(data.value), 1)

    def _places(self, rows: Any, columns: Any) -> Tensor:
        """Places of entries of the training matrix, (E, 2)."""
        check_is_fitted(self)
        sizes = (len(side.mean) for side in self.posterior_)
        i = positions(rows, next(sizes), "rows", self._labels("row"))
        return _matched(i, positions(columns, next(sizes), "columns", self._labels("column")))

    def _asked_of_new(
        self, X: Any, entries: Any, row_features: Any
    ) -> tuple[FactorPredictor, Tensor]:
        check_is_fitted(self)
        if not isinstance(entries, tuple | list) or len(entries) != 2:
            raise ValueError(
                f"entries must be a pair (rows, columns) of equally many places, got {entries!r}."
            )
        data, _ = self._entries_of(X)
        n_columns, labels = len(self.posterior_.columns.mean), self._labels("column")
        j = positions(entries[1], n_columns, "columns", labels)
        x = _matched(positions(entries[0], data.n_rows, "rows"), j)
        return self._of_new_rows(data, row_features), x

    def _entries_of(self, X: Any) -> tuple[Incidence, np.dtype[Any]]:
        """Entries of new rows as the model has them, float64, and the precision of X."""
        check_is_fitted(self)
        checked = self._check_matrix(X, reset=False)
        observed = observed_entries(checked)
        observed = observed._replace(values=self._as_fitted(observed.values))
        return observed.tensors(torch.device("cpu"), torch.float64).by_row, checked.dtype

    def _of_new_rows(self, data: Incidence, row_features: Any) -> FactorPredictor:
        with one_thread(), torch.no_grad():
            features = self._features(row_features, data.n_rows)
            return self._predictor().of_new_rows(data, features)

    def _features(self, row_features: Any, n: int) -> Tensor:
        return scaled(row_features, self._feature_scaling_[0], n, "row_features")

    def _as_fitted(self, values: Array) -> Array:
        """Values as the model has them: scaled, or positions among the classes.

        Raises
        ------
        ValueError
            If a value is no class that was seen.
        """
        if self._classes is None:
            counts = not self._fitted_likelihood().scales_targets
            values = np.asarray(values, dtype=np.float64)
            return values if counts else (values - self.mean_) / self.scale_
        place = np.searchsorted(self._classes, values).clip(max=len(self._classes) - 1)
        unknown = np.asarray(values)[self._classes[place] != values]
        if unknown.size:
            raise ValueError(f"{unknown[0]!r} is none of the labels {self._classes.tolist()}.")
        return place.astype(np.float64)

    def _moments(self, predictor: FactorPredictor, x: Tensor, return_std: bool) -> Any:
        """Means of new observations in the units of the matrix, and standard deviations."""
        is_scaled = predictor.likelihood.scales_targets
        location, scale = (self.mean_, self.scale_) if is_scaled else (0.0, 1.0)
        means, deviations = list[Tensor](), list[Tensor]()
        with one_thread(), torch.no_grad():
            if is_scaled and not return_std:
                return (predictor.mean(x)[:, 0] * scale + location).numpy()
            for law in map(predictor.law, x.split(_AT_ONCE)):
                if isinstance(law, CategoricalMixture):
                    labels = torch.as_tensor(np.asarray(self._classes, dtype=np.float64))
                    mean, square = law.mean() @ labels, law.mean() @ labels.square()
                    variance = (square - mean.square()).clamp(min=0.0)
                else:
                    mean, variance = law.mean()[:, 0], law.uncertainty().total[:, 0]
                means.append(mean * scale + location)
                deviations.append(variance.sqrt() * scale)
        mean_of_all, std = torch.cat(means).numpy(), torch.cat(deviations).numpy()
        return (mean_of_all, std) if return_std else mean_of_all

    def _draws(
        self, predictor: FactorPredictor, x: Tensor, n_draws: int, random_state: Any
    ) -> Array:
        check_count("n_draws", n_draws)
        what = f"{n_draws:,} draws of {len(x):,} entries"
        remedy = "Lower n_draws, or ask for fewer entries at once."
        part = Part(what, 3 * 8 * n_draws * (len(x) + 1), remedy, on_host=True)
        require_memory([part], torch.device("cpu"), task="draws of entries")
        generator = generator_from(seed_of(random_state), torch.device("cpu"))
        if self._classes is not None:
            return predictor.outputs(x, n_draws, generator=generator)[..., 0].numpy()
        draws = predictor.functions(x, n_draws, generator=generator)[..., 0].numpy()
        is_scaled = predictor.likelihood.scales_targets
        return np.asarray(draws * self.scale_ + self.mean_ if is_scaled else draws)


def _matched(i: Tensor, j: Tensor) -> Tensor:
    if len(i) != len(j):
        raise ValueError(f"rows has {len(i)} positions and columns {len(j)}: they must match.")
    return torch.stack([i, j], dim=1)
