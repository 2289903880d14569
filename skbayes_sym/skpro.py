"""Any model that `predictive` takes as a regressor of skpro; this module needs skpro."""

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
from skbayes_sym.models.predictive_mixtures import NormalMixture, invert_cdf


class NormalMixtures(BaseDistribution):
    r"""Mixture of K normals in every row, with its energy in closed form.

    Its continuous ranked probability score is, with the mean
    :math:`A(m, s) = 2 s \phi(m / s) + m (2 \Phi(m / s) - 1)` of :math:`|N(m, s^2)|`,

    .. math:: \sum_k \pi_k A(y - \mu_k, s_k)
              - \tfrac12 \sum_{kl} \pi_k \pi_l A(\mu_k - \mu_l, \sqrt{s_k^2 + s_l^2})

    (Grimit, Gneiting, Berrocal & Johnson 2006, eq. 5), O(K^2) a row.

    ``weights`` (K,): shares of the components, which add up to 1; ``means``, ``scales`` (n_rows,
    K); ``index``, ``columns``: names of the rows, and of the one target.
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

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "NormalMixtures":
        return NormalMixtures(self.weights, self.means[rowidx], self.scales[rowidx])

    def _subset_params(self, rowidx: Any, colidx: Any, coerce_scalar: bool = False) -> Any:
        rows = slice(None) if rowidx is None else rowidx
        return {"weights": self.weights, "means": self.means[rows], "scales": self.scales[rows]}

    def _averaged(self, values: Array) -> Any:
        return (values * self.weights).sum(axis=-1, keepdims=self.ndim > 0)

    def _mean(self) -> Any:
        return self._averaged(self.means)

    def _var(self) -> Any:
        return self._averaged(self.scales**2 + (self.means - self._mean()) ** 2)

    def _log_pdf(self, x: Array) -> Any:
        log_density = norm.logpdf(x, self.means, self.scales)
        return logsumexp(log_density, axis=-1, b=self.weights, keepdims=self.ndim > 0)

    def _pdf(self, x: Array) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Array) -> Any:
        return self._averaged(ndtr((x - self.means) / self.scales))

    @property
    def mixture(self) -> NormalMixture:
        """The same mixture as the package's own, (K, N, 1)."""
        loc, scale = (
            torch.tensor(np.atleast_2d(a).T).unsqueeze(2) for a in (self.means, self.scales)
        )
        log_weights = torch.tensor(np.log(self.weights))
        return NormalMixture(loc, torch.zeros_like(loc), scale.square(), log_weights)

    def _ppf(self, p: Array) -> Any:
        distribution = self.mixture
        probability = torch.tensor(np.reshape(p, (-1, 1)))
        return (
            invert_cdf(distribution.cdf, probability, distribution.mean())
            .numpy()
            .reshape(np.shape(p))
        )

    def _energy_x(self, x: Array) -> Any:
        return _mean_distance(x - self.means, self.scales) @ self.weights

    def _energy_self(self) -> Any:
        means = np.moveaxis(self.means, -1, 0)
        squares = np.moveaxis(self.scales**2, -1, 0)
        return sum(
            weight
            * _mean_distance(m[..., None] - self.means, np.sqrt(s[..., None] + self.scales**2))
            @ self.weights
            for weight, m, s in zip(self.weights, means, squares, strict=True)
        )


def _mean_distance(mean: Array, std: Array) -> Array:
    """Mean of the absolute value of normals."""
    z = mean / std
    return np.asarray(2.0 * std * norm.pdf(z) + mean * (2.0 * ndtr(z) - 1.0))


class Predictions(BaseDistribution):
    """A predictive distribution of one target as one of skpro, with its own density and quantiles.

    Parameters
    ----------
    law : PredictiveDistribution
        Of shape (n_samples,).
    index, columns : Index
        Names of the rows, and of the one target.
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

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "Predictions":
        return type(self)(self.distribution[[rowidx]])

    def _subset_params(self, rowidx: Any, colidx: Any, coerce_scalar: bool = False) -> Any:
        return {"law": self.distribution if rowidx is None else self.distribution[rowidx]}

    def _shaped(self, values: Array) -> Any:
        return np.reshape(values, (-1, 1)) if self.ndim else float(np.reshape(values, -1)[0])

    def _mean(self) -> Any:
        return self._shaped(self.distribution.mean())

    def _var(self) -> Any:
        return self._shaped(self.distribution.var())

    def _log_pdf(self, x: Array) -> Any:
        return self._shaped(self.distribution.log_prob(np.reshape(x, -1)))

    def _pdf(self, x: Array) -> Any:
        return np.exp(self._log_pdf(x))

    def _cdf(self, x: Array) -> Any:
        return self._shaped(self.distribution.cdf(np.reshape(x, -1)))

    def _ppf(self, p: Array) -> Any:
        """Quantiles at a level per row: by the levels that differ."""
        levels, which = np.unique(np.reshape(p, -1), return_inverse=True)
        inside = (levels > 0.0) & (levels < 1.0)
        values = np.where(levels > 0.0, np.inf, -np.inf) + np.zeros((len(self.distribution), 1))
        values[:, inside] = self.distribution.quantile(levels[inside])
        return self._shaped(values[np.arange(len(self.distribution)), which])

    def _energy_self(self) -> Any:
        """E|Y - Y'| = 2 E[Y (2 F(Y) - 1)]."""
        mean = self.distribution.mean()
        values, weights, cdf = Quadrature(self.distribution).nodes(mean[:, None])
        distance = 2.0 * (weights * (2.0 * cdf - 1.0) * (values - mean[:, None])).sum(axis=0)
        return distance[:, 0] if self.ndim else float(distance[0, 0])

    def _energy_x(self, x: Array) -> Any:
        score = self.distribution.crps(np.reshape(x, -1))
        return (score if self.ndim else float(score[0])) + 0.5 * self._energy_self()


class CountPredictions(Predictions):
    """The same of counts, which have probabilities."""

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
    """A model as skpro's, with the whole mixture that it predicts.

    Parameters
    ----------
    estimator : regressor
        Anything of one target that `skbayes_sym.predictive` takes; it is cloned.

    Attributes
    ----------
    estimator_ : regressor
        The fitted clone.

    Notes
    -----
    ``predict_proba`` has exact densities, quantiles and energies, so that skpro's scores are those
    of this package.

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
            kind = CountPredictions if distribution.is_discrete else Predictions
            return kind(distribution, X.index, self._columns)
        mixture: Any = as_targets(distribution)
        weights = mixture.weights.numpy()
        means = mixture.loc.numpy()
        scales = mixture.scales.numpy()
        columns: Index = self._columns
        return NormalMixtures(weights, means[..., 0].T, scales[..., 0].T, X.index, columns)
