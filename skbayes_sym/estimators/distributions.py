"""Predictive distributions of targets and of classes, as one object each."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr
from scipy.stats import norm
from sklearn.utils import Bunch
from torch import Tensor

from skbayes_sym.estimators._fit.rows import Array
from skbayes_sym.estimators._fit.scikit_learn import num_samples
from skbayes_sym.estimators.classifier import BayesianClassifierMixin
from skbayes_sym.estimators.regressor import BayesianRegressorMixin, checked_levels
from skbayes_sym.models.predictive_mixtures import crps
from skbayes_sym.numerics.arguments import check_random_state

_LEVELS = (np.arange(1000) + 0.5) / 1000.0  # of the quantiles that moments are averages of


class PredictiveDistribution:
    """Distribution of a new target at every row, in the units of ``y``.

    Shapes are those of scikit-learn: ``(n_samples,)``, or ``(n_samples, n_targets)`` where the
    model was fitted to a two-dimensional ``y``; what is asked for several times comes last.

    ``has_normal_components``: whether it is a mixture of the normals that `components` gives.
    """

    has_normal_components = False

    def mean(self) -> Array:
        """Expected target."""
        raise NotImplementedError

    def std(self) -> Array:
        """Standard deviation, observation noise included."""
        raise NotImplementedError

    def var(self) -> Array:
        """Variances, the squares of `std`."""
        return np.asarray(self.std() ** 2)

    def quantile(self, q: Any) -> Array:
        """Quantiles: one axis more if ``q`` is a sequence."""
        raise NotImplementedError

    def interval(self, coverage: float = 0.9) -> Array:
        """Ends of the central interval that holds a new target with probability ``coverage``."""
        if not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must lie strictly between 0 and 1, got {coverage!r}.")
        return self.quantile([0.5 * (1.0 - coverage), 0.5 * (1.0 + coverage)])

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        """Draws, ``(n_samples, n)`` or ``(n_samples, n_targets, n)``."""
        raise NotImplementedError

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Noise-free draws, joint over rows: shaped as those of `sample`.

        The same functions for other rows and the same seed.
        """
        raise TypeError(
            f"{self!r} doesn't say how rows vary together: functions() takes models of this "
            "package."
        )

    def log_prob(self, y: Any) -> Array:
        """Log density of observed targets, ``(n_samples,)`` nats, joint over a row's targets."""
        raise NotImplementedError

    def logpdf(self, y: Any) -> Array:
        """`log_prob`, by the name that scipy has for it."""
        return self.log_prob(y)

    def pdf(self, y: Any) -> Array:
        """Density of observed targets."""
        return np.asarray(np.exp(self.log_prob(y)))

    def ppf(self, q: Any) -> Array:
        """`quantile`, by the name that scipy has for it."""
        return self.quantile(q)

    def cdf(self, y: Any) -> Array:
        """Probability of a target at or below the observed one, each by itself."""
        raise NotImplementedError

    def crps(self, y: Any) -> Array:
        """Continuous ranked probability score, in target units; less is better.

        By 1,000 quantiles where there is no closed form: twice the average pinball loss
        (Gneiting & Ranjan 2011, eq. 12).
        """
        quantiles = self.quantile(_LEVELS)
        off = np.asarray(y, dtype=float).reshape(quantiles.shape[:-1])[..., None] - quantiles
        return np.asarray(2.0 * np.maximum(_LEVELS * off, (_LEVELS - 1.0) * off).mean(axis=-1))

    def uncertainty(self) -> Bunch:
        """Variance by its source: ``total``, ``epistemic``, ``aleatoric``."""
        raise TypeError(
            f"{self!r} doesn't say which part of its variance is the noise's: uncertainty() takes "
            "models of this package, and what is inside a transformation of the target."
        )

    def components(self) -> "Components":
        """Means and standard deviations of the mixture's components, and their weights."""
        raise TypeError(
            f"{self!r} has no components: components() takes normal mixtures, and what is inside a "
            "transformation of the target."
        )


class Components(NamedTuple):
    """A predictive distribution as a mixture; normal where the noise is."""

    weights: Array  # (n_components,), adding up to one
    loc: Array  # (n_components, n_samples) or (n_components, n_samples, n_targets)
    scale: Array  # the same; standard deviations, observation noise included


class PosteriorPredictive(PredictiveDistribution):
    """A window on the law of a regressor of this package."""

    def __init__(self, model: BayesianRegressorMixin, X: Any) -> None:
        self._model, self._X = model, X

    @property
    def has_normal_components(self) -> bool:  # type: ignore[override]
        return bool(self._model._observation.kind == "normal")

    def __repr__(self) -> str:
        n_components = len(self._model._components(self._X[:1])[0])
        parts = f"mixture of {n_components:,} {self._model._observation.kind} components"
        return f"<{parts}, by {type(self._model).__name__}, at {num_samples(self._X):,} rows>"

    def components(self) -> Components:
        return Components(*self._model._components(self._X))

    def mean(self) -> Array:
        return np.asarray(self._model.predict(self._X))

    def std(self) -> Array:
        return np.asarray(self._model.predict(self._X, return_std=True)[1])

    def quantile(self, q: Any) -> Array:
        values = self._model.predict_quantiles(self._X, np.atleast_1d(q).tolist())
        return values if np.ndim(q) else values[..., 0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._model.sample_y(self._X, n, random_state)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._model.sample_f(self._X, n, random_state)

    def log_prob(self, y: Any) -> Array:
        return self._model.log_predictive_density(self._X, y)

    def cdf(self, y: Any) -> Array:
        return self._of_targets(y, lambda law, y: law.cdf(y))

    def crps(self, y: Any) -> Array:
        return self._of_targets(y, crps)

    def _of_targets(self, y: Any, ask: Callable[..., Tensor]) -> Array:
        """Answers of the law for observed targets, each by itself."""
        model, targets = self._model, self._model._observed_targets(y)
        return model._shaped(model._reduce(self._X, lambda law, y: [ask(law, y)], targets)[0])

    def uncertainty(self) -> Bunch:
        return self._model.predict_uncertainty(self._X)


class NormalPredictive(PredictiveDistribution):
    """Predictions of a regressor that returns mean and standard deviation: independent normals."""

    has_normal_components = True

    def __init__(self, mean: Array, std: Array) -> None:
        self._mean, self._std = np.asarray(mean, dtype=float), np.asarray(std, dtype=float)

    def __repr__(self) -> str:
        return f"<independent normals at {len(self._mean):,} rows>"

    def components(self) -> Components:
        return Components(np.ones(1), self._mean[None], self._std[None])

    def mean(self) -> Array:
        return self._mean

    def std(self) -> Array:
        return self._std

    def quantile(self, q: Any) -> Array:
        levels = checked_levels(q)
        values = self._mean[..., None] + self._std[..., None] * norm.ppf(levels)
        return values if np.ndim(q) else values[..., 0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        noise = check_random_state(random_state).standard_normal((*self._mean.shape, n))
        return np.asarray(self._mean[..., None] + self._std[..., None] * noise)

    def log_prob(self, y: Any) -> Array:
        z = self._standardised(y)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = -0.5 * z**2 - np.log(self._std) - 0.5 * np.log(2.0 * np.pi)
        values = np.where(self._std > 0, values, -np.inf)  # a point mass has no density
        return np.asarray(values.reshape(len(values), -1).sum(axis=1))

    def cdf(self, y: Any) -> Array:
        return np.asarray(ndtr(self._standardised(y)))

    def crps(self, y: Any) -> Array:
        """Closed form (Gneiting & Raftery 2007, eq. 21)."""
        off = np.asarray(y, dtype=float).reshape(self._mean.shape) - self._mean
        with np.errstate(divide="ignore", invalid="ignore"):
            z = off / self._std
            values = self._std * (z * (2.0 * ndtr(z) - 1.0) + 2.0 * norm.pdf(z) - np.pi**-0.5)
        return np.where(self._std > 0, values, np.abs(off))

    def _standardised(self, y: Any) -> Array:
        off = np.asarray(y, dtype=float).reshape(self._mean.shape) - self._mean
        with np.errstate(divide="ignore", invalid="ignore"):
            # At a point mass itself P(target <= y) is 1.
            return np.where((self._std > 0) | (off != 0), off / self._std, np.inf)


_STEP = 1e-5  # of the transformation's derivative, relative to the spread of the predictions


class TransformedPredictive(PredictiveDistribution):
    """Predictions of a `TransformedTargetRegressor`: the law of a monotone function.

    Quantiles, intervals, draws, cdf and density are exact (the density up to the transformation's
    numerical derivative); mean, standard deviation and CRPS are averages over 1,000 quantiles.
    """

    def __init__(self, inner: Any, transformer: Any, n_targets: int, is_flat: bool) -> None:
        self._inner, self._transformer = inner, transformer
        self._n_targets, self._is_flat = n_targets, is_flat
        low, high = (self._outward(inner.quantile(q)) for q in (0.05, 0.95))
        if not (np.all(low <= high) or np.all(low >= high)):
            raise TypeError(
                "the transformation of the target neither rises nor falls everywhere: its "
                "predictive distribution isn't known."
            )
        self._falls = bool(np.any(low > high))

    def __repr__(self) -> str:
        return f"<{self._transformer} of {self._inner!r}>"

    def _outward(self, values: Array) -> Array:
        """Turn the inner model's targets into the user's."""
        return self._each(values, self._transformer.inverse_transform)

    def _inward(self, values: Array) -> Array:
        return self._each(values, self._transformer.transform)

    def _each(self, values: Array, transform: Callable[[Array], Array]) -> Array:
        values = np.asarray(values, dtype=float)
        several = self._n_targets > 1 and values.ndim == 3  # the axis of targets isn't the last
        moved = np.moveaxis(values, 1, -1) if several else values
        out = np.asarray(transform(moved.reshape(-1, self._n_targets))).reshape(moved.shape)
        return np.moveaxis(out, -1, 1) if several else out

    def quantile(self, q: Any) -> Array:
        levels = checked_levels(q)
        values = self._outward(self._inner.quantile(1.0 - levels if self._falls else levels))
        return values if np.ndim(q) else values[..., 0]

    def sample(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._outward(self._inner.sample(n, random_state))

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        return self._outward(self._inner.functions(n, random_state))

    def cdf(self, y: Any) -> Array:
        below = self._inner.cdf(self._inward(self._observed(y)))
        return 1.0 - below if self._falls else below

    def log_prob(self, y: Any) -> Array:
        observed = self._observed(y)
        step = _STEP * np.maximum(self.std(), np.finfo(float).tiny)
        slope = (self._inward(observed + step) - self._inward(observed - step)) / (2.0 * step)
        log_slope = np.log(np.abs(slope)).reshape(len(observed), -1).sum(axis=1)
        return np.asarray(self._inner.log_prob(self._inward(observed)) + log_slope)

    def mean(self) -> Array:
        return np.asarray(self.quantile(_LEVELS).mean(axis=-1))

    def std(self) -> Array:
        return np.asarray(self.quantile(_LEVELS).std(axis=-1))

    def _observed(self, y: Any) -> Array:
        observed = np.asarray(y, dtype=float)
        return observed.ravel() if self._is_flat else observed.reshape(len(observed), -1)


class ClassPredictive:
    """Class probabilities of every row.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        Labels of the columns of `proba`.
    """

    def __init__(self, model: Any, X: Any) -> None:
        self._model, self._X = model, X
        self.classes = np.asarray(model.classes_)

    def __repr__(self) -> str:
        what = f"{len(self.classes)} classes, by {type(self._model).__name__}"
        return f"<probabilities of {what}, at {num_samples(self._X):,} rows>"

    def proba(self) -> Array:
        """(n_samples, n_classes)."""
        return np.asarray(self._model.predict_proba(self._X), dtype=float)

    def functions(self, n: int = 1, random_state: Any = 0) -> Array:
        """Probabilities given draws of functions, (n_samples, n_classes, n), joint over rows."""
        return self._ours("functions").sample_f(self._X, n, random_state)

    def log_prob(self, y: Any) -> Array:
        """Log probability of observed labels, (n_samples,) nats; -inf of one never seen."""
        if isinstance(self._model, BayesianClassifierMixin):
            return np.asarray(self._model.log_predictive_density(self._X, y), dtype=float)
        labels, proba = np.asarray(y).ravel(), self.proba()
        columns = np.searchsorted(self.classes, labels).clip(0, len(self.classes) - 1)
        known = self.classes[columns] == labels
        chosen = np.where(known, proba[np.arange(len(labels)), columns], 0.0)
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(chosen))

    def uncertainty(self) -> Bunch:
        """Entropy by its source, nats: ``total``, ``epistemic``, ``aleatoric``."""
        return self._ours("uncertainty").predict_uncertainty(self._X)

    def _ours(self, question: str) -> BayesianClassifierMixin:
        if not isinstance(self._model, BayesianClassifierMixin):
            raise TypeError(f"{self!r} has no {question}(): that takes models of this package.")
        return self._model
