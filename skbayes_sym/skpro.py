"""Adapter that makes models skpro regressors; importing it requires skpro."""

from typing import Any

import numpy as np
import torch
from pandas import DataFrame, Index
from scipy.special import logsumexp, ndtr
from scipy.stats import norm
from sklearn.base import BaseEstimator, clone
from skpro.distributions.base import BaseDistribution
from skpro.regression.base import BaseProbaRegressor

from skbayes_sym.base.predictive import as_targets, predictive
from skbayes_sym.base.quadrature import Quadrature
from skbayes_sym.base.rows import Array
from skbayes_sym.models.predictive_mixtures import NormalMixture
from skbayes_sym.numerics.bisection import invert_cdf


class NormalMixtures(BaseDistribution):
    r"""Mixture of K normals in every row, with a closed-form energy.

    The continuous ranked probability score is

    .. math:: \sum_k \pi_k A(y - \mu_k, s_k)
              - \tfrac12 \sum_{kl} \pi_k \pi_l A(\mu_k - \mu_l, \sqrt{s_k^2 + s_l^2})

    (Grimit, Gneiting, Berrocal & Johnson 2006, eq. 5), where
    :math:`A(m, s) = 2 s \phi(m / s) + m (2 \Phi(m / s) - 1)` is the mean of :math:`|N(m, s^2)|`. It
    costs O(K^2) per row.

    Parameters
    ----------
    weights : ndarray of shape (K,)
        Weights of the components, with sum 1.
    means, scales : ndarray of shape (n_rows, K)
        Means and standard deviations of the components.
    index, columns : Index
        Names of the rows and of the target.
    """

    _tags = {
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": ["mean", "var", "energy", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
        "broadcast_init": "off",
    }

    def __init__(
        self, weights: Any, means: Any, scales: Any, index: Any = None, columns: Any = None
    ) -> None:
        self.weights = weights
        self.means = means
        self.scales = scales
        super().__init__(index=index, columns=columns)

    def _iat(
        self,
        rowidx: Any = None,
        colidx: Any = None,  # noqa: ARG002 -- there is one target
    ) -> "NormalMixtures":
        return NormalMixtures(self.weights, self.means[rowidx], self.scales[rowidx])

    def _subset_params(
        self,
        rowidx: Any,
        colidx: Any,  # noqa: ARG002 -- there is one target
        coerce_scalar: bool = False,  # noqa: ARG002 -- as in skpro's base class
    ) -> Any:
        rows = slice(None) if rowidx is None else rowidx
        return {"weights": self.weights, "means": self.means[rows], "scales": self.scales[rows]}

    def _average(self, values: Array) -> Any:
        """Average values over the components."""
        return (values * self.weights).sum(axis=-1, keepdims=self.ndim > 0)

    def _mean(self) -> Any:
        return self._average(self.means)

    def _var(self) -> Any:
        return self._average(self.scales**2 + (self.means - self._mean()) ** 2)

    def _log_pdf(self, x: Array) -> Any:
        log_density = norm.logpdf(x, self.means, self.scales)
        return logsumexp(log_density, axis=-1, b=self.weights, keepdims=self.ndim > 0)

    def _pdf(self, x: Array) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Array) -> Any:
        return self._average(ndtr((x - self.means) / self.scales))

    @property
    def mixture(self) -> NormalMixture:
        """The mixture as a distribution of this package, (K, N, 1)."""
        loc, scale = (
            torch.tensor(np.atleast_2d(values).T).unsqueeze(2)
            for values in (self.means, self.scales)
        )
        log_weights = torch.tensor(np.log(self.weights))
        return NormalMixture(loc, torch.zeros_like(loc), scale.square(), log_weights)

    def _ppf(self, p: Array) -> Any:
        distribution = self.mixture
        probability = torch.tensor(np.reshape(p, (-1, 1)))
        quantiles = invert_cdf(distribution.cdf, probability, distribution.mean())
        return quantiles.numpy().reshape(np.shape(p))

    def _energy_x(self, x: Array) -> Any:
        return _mean_absolute_value(x - self.means, self.scales) @ self.weights

    def _energy_self(self) -> Any:
        means = np.moveaxis(self.means, -1, 0)
        squares = np.moveaxis(self.scales**2, -1, 0)
        energy: Any = 0
        for weight, mean, square in zip(self.weights, means, squares, strict=True):
            differences = mean[..., None] - self.means
            scales = np.sqrt(square[..., None] + self.scales**2)
            energy = energy + weight * _mean_absolute_value(differences, scales) @ self.weights
        return energy


def _mean_absolute_value(mean: Array, std: Array) -> Array:
    """Mean of the absolute value of normal variables."""
    z = mean / std
    return np.asarray(2.0 * std * norm.pdf(z) + mean * (2.0 * ndtr(z) - 1.0))


class Predictions(BaseDistribution):
    """Predictive distribution of one target as a skpro distribution.

    Parameters
    ----------
    distribution : PredictiveDistribution
        Distribution of shape (n_samples,).
    index, columns : Index
        Names of the rows and of the target.
    """

    _tags = {
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": ["mean", "var", "energy", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "nonparametric",
        "broadcast_init": "off",
    }

    def __init__(self, distribution: Any, index: Any = None, columns: Any = None) -> None:
        self.distribution = distribution
        super().__init__(index=index, columns=columns)

    def _iat(
        self,
        rowidx: Any = None,
        colidx: Any = None,  # noqa: ARG002 -- there is one target
    ) -> "Predictions":
        return type(self)(self.distribution[[rowidx]])

    def _subset_params(
        self,
        rowidx: Any,
        colidx: Any,  # noqa: ARG002 -- there is one target
        coerce_scalar: bool = False,  # noqa: ARG002 -- as in skpro's base class
    ) -> Any:
        rows = slice(None) if rowidx is None else rowidx
        return {"distribution": self.distribution[rows]}

    def _reshape(self, values: Array) -> Any:
        """Reshape values to those of a column, or to a float for a single row."""
        if self.ndim:
            return np.reshape(values, (-1, 1))
        return float(np.reshape(values, -1)[0])

    def _mean(self) -> Any:
        return self._reshape(self.distribution.mean())

    def _var(self) -> Any:
        return self._reshape(self.distribution.var())

    def _log_pdf(self, x: Array) -> Any:
        return self._reshape(self.distribution.log_prob(np.reshape(x, -1)))

    def _pdf(self, x: Array) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Array) -> Any:
        return self._reshape(self.distribution.cdf(np.reshape(x, -1)))

    def _ppf(self, p: Array) -> Any:
        """Quantiles at one level per row; equal levels are evaluated together."""
        levels, level_index = np.unique(np.reshape(p, -1), return_inverse=True)
        is_inside = (levels > 0.0) & (levels < 1.0)
        values = np.where(levels > 0.0, np.inf, -np.inf) + np.zeros((len(self.distribution), 1))
        values[:, is_inside] = self.distribution.quantile(levels[is_inside])
        return self._reshape(values[np.arange(len(self.distribution)), level_index])

    def _energy_self(self) -> Any:
        """Mean distance ``E|Y - Y'| = 2 E[Y (2 F(Y) - 1)]``."""
        mean = self.distribution.mean()
        values, weights, cdf = Quadrature(self.distribution).nodes(mean[:, None])
        distance = 2.0 * (weights * (2.0 * cdf - 1.0) * (values - mean[:, None])).sum(axis=0)
        if self.ndim:
            return distance[:, 0]
        return float(distance[0, 0])

    def _energy_x(self, x: Array) -> Any:
        score = self.distribution.crps(np.reshape(x, -1))
        if not self.ndim:
            score = float(score[0])
        return score + 0.5 * self._energy_self()


class CountPredictions(Predictions):
    """Predictive distribution of counts, which has probabilities in place of densities."""

    _tags = {
        "capabilities:exact": ["mean", "var", "energy", "pmf", "log_pmf", "cdf", "ppf"],
        "distr:measuretype": "discrete",
    }

    def _log_pmf(self, x: Array) -> Any:
        return super()._log_pdf(x)

    def _pmf(self, x: Array) -> Any:
        return np.exp(self._log_pmf(x))

    def _log_pdf(self, x: Array) -> Any:
        return np.full(np.shape(x), -np.inf)

    def _pdf(self, x: Array) -> Any:
        return np.zeros(np.shape(x))


class BayesianSkpro(BaseProbaRegressor):
    """skpro regressor that predicts with a model of this package or of scikit-learn.

    Parameters
    ----------
    estimator : regressor
        Regressor with one target that `skbayes_sym.predictive` accepts. It is cloned.

    Attributes
    ----------
    estimator_ : regressor
        The fitted clone.

    Notes
    -----
    ``predict_proba`` returns exact densities, quantiles and energies, so that scores by skpro agree
    with those of this package.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.skpro import BayesianSkpro  # doctest: +SKIP
    >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
    >>> proba = BayesianSkpro(BayesianLinearRegressor()).fit(X, y.to_frame())  # doctest: +SKIP
    >>> proba.predict_proba(X[:2]).log_pdf(y.to_frame()[:2])  # doctest: +SKIP
    """

    _tags = {"capability:multioutput": False, "capability:missing": True}

    def __init__(self, estimator: BaseEstimator) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: DataFrame, y: DataFrame) -> "BayesianSkpro":
        self._columns = y.columns
        self.estimator_ = clone(self.estimator).fit(X, y.iloc[:, 0])
        return self

    def _predict(self, X: DataFrame) -> DataFrame:
        return DataFrame(self.estimator_.predict(X), index=X.index, columns=self._columns)

    def _predict_proba(self, X: DataFrame) -> "NormalMixtures | Predictions":
        distribution = predictive(self.estimator_, X)
        if not distribution.has_normal_components:
            if distribution.is_discrete:
                kind = CountPredictions
            else:
                kind = Predictions
            return kind(distribution, X.index, self._columns)
        mixture: Any = as_targets(distribution)
        weights = mixture.weights.numpy()
        means = mixture.loc.numpy()
        scales = mixture.scales.numpy()
        columns: Index = self._columns
        return NormalMixtures(weights, means[..., 0].T, scales[..., 0].T, X.index, columns)
