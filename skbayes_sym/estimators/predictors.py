"""The two mixins: what a scikit-learn user may ask of a fitted posterior.

An estimator with one of them brings

    _predictive(x) -> NormalMixture | TargetMixture | CategoricalMixture     in scaled units
    _sample_outputs(x, n, generator) -> SampledOutputs       coherent functions (regressors)
    _output_covariance(x) -> Tensor        of functions, where they are normal (regressors)
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Bunch, assert_all_finite, get_tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from skbayes_sym.estimators._fit.device import one_thread
from skbayes_sym.estimators._fit.memory import covariance_part, function_bytes, sampling_parts
from skbayes_sym.estimators._fit.model import gaussian_noise
from skbayes_sym.estimators._fit.rows import (
    ENCODE,
    Array,
    Rows,
    Scaling,
    column_scaling,
    is_standardized,
    numbers_due,
    require_rows,
)
from skbayes_sym.estimators._fit.run import FLOATS, PREDICT_ROWS
from skbayes_sym.estimators._fit.scikit_learn import num_samples
from skbayes_sym.estimators._fit.training import Training
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.models.crps import crps
from skbayes_sym.models.likelihoods.base import Likelihood
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.defaults import TargetLikelihood
from skbayes_sym.models.likelihoods.named import OF_CLASSES, OF_NUMBERS
from skbayes_sym.models.predictive import NormalMixture, Predictive, TargetMixture
from skbayes_sym.numerics.arguments import check_count, labels_of, seed_of, shown
from skbayes_sym.numerics.linalg import decompositions_in_words
from skbayes_sym.numerics.memory import memory_in_words, require_memory
from skbayes_sym.numerics.random import generator_from

# Copies of draws of targets, by tests/memory_peaks.py, that drawing them by a likelihood takes.
_BY_LIKELIHOOD = 4


class SampledOutputs(NamedTuple):
    """Functions drawn from a posterior, each with the noise that goes with it."""

    outputs: Tensor  # (n, N, T), in scaled target units
    noise_std: Array  # broadcastable to (n, N, T), in target units


def _noise_of_all(noise: Sequence[Array]) -> Array:
    """Of the rows of all blocks; the first block's where it doesn't depend on the row."""
    depends = noise[0].ndim == 3 and noise[0].shape[1] > 1
    return np.concatenate(noise, axis=1) if depends else noise[0]


def noise_stream(seed: int) -> np.random.Generator:
    """The stream of the noise that goes with functions drawn with this seed."""
    return np.random.default_rng(np.random.SeedSequence(seed).generate_state(1)[0])


def check_counts(y: Array, likelihood: object) -> None:
    """Raise unless targets are counts.

    Raises
    ------
    ValueError
        Naming the likelihood, the first target that is none, and what to do.
    """
    wrong = y[(y < 0) | (y != np.floor(y))]
    if len(wrong):
        kind = "negative" if wrong[0] < 0 else "fractional"
        raise ValueError(
            f"likelihood={likelihood!r} is of counts, but y has {kind} values ({wrong[0]:g}). Use "
            "a likelihood of real numbers, such as the default, normal noise."
        )


def _warn_of_constant(y: Array) -> None:
    """Say what can't be learned of targets that are all the same."""
    constant = (y == y[0]).all(axis=0)
    if constant.any():
        place = int(constant.argmax())
        which = "y" if y.shape[1] == 1 else f"column {place} of y"
        warn_user(
            f"{which} is constant ({y[0, place]:g}): there is nothing to learn but that, and no "
            "scale to tell noise from. Check the targets.",
            UserWarning,
        )


def quantile_levels(quantiles: Any) -> Array:
    """As numbers; NaN where they are none, which lies between no limits."""
    try:
        return np.atleast_1d(np.asarray(quantiles, dtype=float))
    except (TypeError, ValueError):
        return np.full(1, np.nan)


def _warn_of_infinite(law: Predictive, first: int) -> None:
    """Say which rows are beyond the range of numbers; a law may be without a variance, too."""
    for values in (law.mean(), law.uncertainty().epistemic):  # type: ignore[attr-defined]
        if _warn_of_infinite_rows(values.cpu().numpy(), first):
            return


def _warn_of_infinite_rows(values: Array, first: int = 0) -> bool:
    """Say which is the first row that is infinite, and whether there is one."""
    wrong = np.isinf(values).reshape(len(values), -1).any(axis=1)
    if wrong.any():
        warn_user(
            f"the prediction for row {first + int(wrong.argmax())} of X is infinite: too far from "
            "the training data for this arithmetic. Check the row, or give X as float64.",
            UserWarning,
        )
    return bool(wrong.any())


def _numbers(columns: list[Array]) -> list[Array]:
    """Refuse what isn't a number.

    Raises
    ------
    ValueError
        Naming the first row.
    """
    for values in columns:
        wrong = np.isnan(values).reshape(len(values), -1).any(axis=1)
        if wrong.any():
            raise ValueError(
                f"the prediction for row {int(wrong.argmax())} of X is not a number: too far from "
                "the training data for this arithmetic, or of a fit with extreme parameters. "
                "Check the row, or give X as float64."
            )
    return columns


class BayesianRegressorMixin(RegressorMixin):
    """Everything a regressor predicts, in target units, observation noise included."""

    standardize: bool | str
    likelihood: Any = "auto"
    _named_likelihoods: ClassVar[Mapping[str, Likelihood]] = OF_NUMBERS
    _foreign_likelihoods: ClassVar[tuple[type, ...]] = tuple(map(type, OF_CLASSES.values()))
    y_mean_: Array
    y_scale_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self._is_of_counts()
        return tags

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        several = get_tags(self).target_tags.multi_output
        require_rows(X)
        with numbers_due("X and y", ENCODE):
            X, y = validate_data(self, X, y, dtype=FLOATS, multi_output=several, y_numeric=True)
            y = y.astype(np.float64)
        if self._is_of_counts():
            check_counts(y, self.likelihood)
        return X, y

    def _is_of_counts(self) -> bool:
        """Whether the likelihood's targets are whole numbers."""
        return bool(getattr(getattr(self, "_given_likelihood", None), "is_discrete", False))

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood that was given, with what was learned of it, in standardised units."""
        check_is_fitted(self)
        if getattr(self, "_given_likelihood", None) is None:
            raise AttributeError("likelihood='auto' is normal noise, all of which is in noise_std_")
        return self._learned_likelihood(torch.zeros(0, dtype=torch.float64))

    def _learned_likelihood(self, like: Tensor) -> Likelihood:
        """The one that was given, as learned, on the device of ``like``."""
        raise NotImplementedError

    def _encode_targets(self, y: Array) -> Array:
        self._y_ndim_ = y.ndim
        columns = y.reshape(len(y), -1)
        if len(columns) > 1 and not self._is_of_counts():
            _warn_of_constant(columns)
        return columns

    def _scale_targets(self, rows: Rows) -> Scaling | None:
        given: Likelihood | None = getattr(self, "_given_likelihood", None)
        scales = given is None or given.scales_targets
        enabled = scales and is_standardized(self.standardize, "y")
        return column_scaling(rows.y, rows.weight, enabled=enabled, ends=rows.y_ends)

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise("learn", data)

    def _n_outputs(self, data: Training) -> int:
        return int(data.rows.y.shape[1])

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Mean of the posterior predictive.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool, default=False
            Whether to return the standard deviation of a new target too.
        return_cov : bool, default=False
            Whether to return the joint covariance of new targets at the rows of ``X`` instead; for
            models whose posterior of functions is normal.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
        std : ndarray of the same shape
            Observation noise included; only if ``return_std``.
        cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_targets)
            Observation noise included, on the diagonal, which is that of ``std ** 2``; only if
            ``return_cov``.
        """
        if return_cov:
            if return_std:
                raise ValueError(
                    "return_std and return_cov can't both be asked for: the standard deviations "
                    "are the square roots of the covariance's diagonal."
                )
            return self._mean_and_covariance(X)
        if not return_std:
            return self._shaped(self._reduce(X, lambda p: [p.mean()])[0])
        mean, std = self._reduce(X, lambda p: [p.mean(), p.std()])
        return self._shaped(mean), self._shaped(std)

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of a new target.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        quantiles : sequence of float in (0, 1)

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_targets, n_quantiles)
        """
        levels = quantile_levels(quantiles)
        if levels.ndim != 1 or not len(levels) or not np.all((levels > 0) & (levels < 1)):
            raise ValueError(f"quantiles must lie strictly between 0 and 1, got {quantiles!r}.")
        values = self._reduce(X, lambda p: [p.quantile(float(q)) for q in levels])
        return self._shaped(np.stack(values, axis=-1), extra=1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Central interval that holds a new target with probability ``coverage``.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_targets, 2)
            Lower and upper end.
        """
        if not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must lie strictly between 0 and 1, got {coverage!r}.")
        return self.predict_quantiles(X, (0.5 * (1 - coverage), 0.5 * (1 + coverage)))

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Variance of a new target, split by its source.

        Returns
        -------
        Bunch of ndarrays of shape (n_samples,) or (n_samples, n_targets)
            ``epistemic`` (of the function; shrinks with data), ``aleatoric`` (of the noise) and
            their sum ``total``, in squared target units.
        """
        total, epistemic, aleatoric = self._reduce(X, lambda p: list(p.uncertainty()))
        return Bunch(
            total=self._shaped(total),
            epistemic=self._shaped(epistemic),
            aleatoric=self._shaped(aleatoric),
        )

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log density of observed targets under the posterior predictive.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of shape (n_samples,)
            Nats, of ``y`` as given; joint over the targets of a row.
        """
        return self._reduce(X, lambda p, y: [p.log_prob(y)], self._observed_targets(y))[0]

    def predictive_cdf(self, X: Any, y: Any) -> Array:
        """Probability that a new target lies at or below the observed one.

        Of a calibrated model with continuous targets these are uniform on (0, 1): the probability
        integral transform.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of the shape of ``y``
            Of each target by itself.
        """
        cdf = self._reduce(X, lambda p, y: [p.cdf(y)], self._observed_targets(y))[0]
        return self._shaped(cdf)

    def predictive_crps(self, X: Any, y: Any) -> Array:
        """Continuous ranked probability score of observed targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        y : array-like of shape (n_samples,) or (n_samples, n_targets)

        Returns
        -------
        ndarray of the shape of ``y``
            In the units of ``y``, of each target by itself; less is better.
        """
        values = self._reduce(X, lambda p, y: [crps(p, y)], self._observed_targets(y))[0]
        return self._shaped(values)

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw whole functions from the posterior and add observation noise.

        Rows of one draw share their weights, so they vary together.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
        n_samples : int, default=1
            Draws, at least one.
        random_state : int, RandomState instance or None, default=0

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)

        Raises
        ------
        MemoryError
            Before anything is drawn, if the draws can't fit.
        """
        X = self._check_inputs(X)
        n_samples = check_count("n_samples", n_samples)
        seed = seed_of(random_state)
        parts = sampling_parts(
            (n_samples, len(X), len(self.y_scale_)),
            each=self._function_bytes(min(len(X), PREDICT_ROWS)),
            n_copies=1 if self._adds_normal_noise() else _BY_LIKELIHOOD,
        )
        require_memory(parts, self._predict_device(), task="sample_y")
        with one_thread(), torch.no_grad(), memory_in_words(), decompositions_in_words():
            values = self._sample_targets(list(self._input_blocks(X)), n_samples, seed)
        (by_row,) = _numbers([np.moveaxis(values, 0, -1)])
        _warn_of_infinite_rows(by_row)
        return self._shaped(by_row, extra=1)

    def _adds_normal_noise(self) -> bool:
        """Whether `sample_y` draws targets so, rather than by a likelihood's law."""
        return getattr(self, "_given_likelihood", None) is None

    def _function_bytes(self, n_rows: int) -> int:
        """What a function drawn takes, besides its values, while it is found at rows."""
        size = np.dtype(self.dtype_).itemsize
        return function_bytes(self.network_, n_rows, size)

    def _sample_targets(self, blocks: list[Tensor], n: int, seed: int) -> Array:
        """Draws (n, N, T) in target units at all rows of the blocks."""
        functions = np.empty((n, sum(map(len, blocks)), len(self.y_scale_)))
        start, noise = 0, []
        for x in blocks:
            outputs, noise_std = self._sample_outputs(x, n, generator_from(seed))
            noise.append(noise_std)
            functions[:, start : start + len(x)] = outputs.cpu().numpy()
            start += len(x)
        functions *= self.y_scale_
        functions += self.y_mean_
        return self._observe(functions, _noise_of_all(noise), noise_stream(seed))

    def _mean_and_covariance(self, X: Any) -> tuple[Array, Array]:
        rows = self._check_inputs(X)
        parts = [covariance_part(len(rows), len(self.y_scale_))]
        require_memory(parts, self._predict_device(), task="return_cov=True")
        with one_thread(), torch.no_grad(), memory_in_words():
            x = torch.cat(list(self._input_blocks(rows)))
            functions = self._output_covariance(x).cpu().numpy() * self.y_scale_**2
        mean, noise = self._reduce(X, lambda p: [p.mean(), p.uncertainty().aleatoric])
        diagonal = np.arange(len(noise))
        functions[diagonal, diagonal] += noise
        _warn_of_infinite_rows(functions)
        return self._shaped(mean), self._shaped(functions)

    def _output_covariance(self, x: Tensor) -> Tensor:
        """Covariance of the function values at the rows of ``x``, (N, N, T), in scaled units."""
        raise ValueError(
            f"return_cov=True needs a normal posterior of functions, which {type(self).__name__} "
            "doesn't have with these parameters. sample_y draws functions, whose covariance can be "
            "taken."
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of `predict`, the mean over targets."""
        with numbers_due("y"):
            found = float(super().score(X, y, sample_weight=sample_weight))
        if not np.isfinite(found) and num_samples(X) > 1:
            raise ValueError(
                f"R^2 is {found}: squares of y or of predictions, or sums of them weighed by "
                "sample_weight, are beyond the range of numbers. Rescale them."
            )
        return found

    def _observed_targets(self, y: Any) -> Array:
        """Targets to judge predictions by, (n_samples, n_targets)."""
        check_is_fitted(self)
        # Copied, since torch warns of memory that it may not write to, such as a pandas series'.
        with numbers_due("y"):
            targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", copy=True)
        targets = targets.reshape(len(targets), -1)
        n_targets = len(self.y_scale_)
        if targets.shape[1] != n_targets:
            raise ValueError(f"y has {targets.shape[1]} targets, the model has {n_targets}.")
        return targets

    def _observe(self, functions: Array, noise_std: Array, rng: np.random.Generator) -> Array:
        """Targets drawn given function values (n, N, T), all in target units, in their place."""
        noise = rng.standard_normal(functions.shape)
        noise *= noise_std
        functions += noise
        return functions

    def _reduce(
        self, X: Any, functional: Callable[..., list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Functionals of the predictive in target units, block of rows by block of rows."""
        X = self._check_inputs(X)
        if y is not None and len(y) != len(X):
            raise ValueError(f"X has {len(X)} rows and y {len(y)}: they must match.")
        parts, start = [], 0
        require_memory(self._prediction_parts(len(X)), self._predict_device(), task="a prediction")
        with one_thread(), torch.no_grad(), memory_in_words(), decompositions_in_words():
            for x in self._input_blocks(X):
                extra = () if y is None else (torch.as_tensor(y[start : start + len(x)]).to(x),)
                law = self._in_units(x)
                parts.append([t.cpu().numpy() for t in functional(law, *extra)])
                if y is None and any(np.isinf(part).any() for part in parts[-1]):
                    _warn_of_infinite(law, start)
                start += len(x)
        return _numbers([np.concatenate(columns) for columns in zip(*parts, strict=True)])

    def _in_units(self, x: Tensor) -> NormalMixture | TargetMixture:
        mean, scale = (torch.as_tensor(a).to(x) for a in (self.y_mean_, self.y_scale_))
        return self._predictive(x).in_units(mean, scale)

    def _shaped(self, values: Array, extra: int = 0) -> Array:
        """Drop the axis of targets if ``y`` had none."""
        return values if self._y_ndim_ == 2 else values.squeeze(axis=values.ndim - 1 - extra)


class BayesianClassifierMixin(ClassifierMixin):
    """Everything a classifier predicts."""

    classes_: Array
    _named_likelihoods: ClassVar[Mapping[str, Likelihood]] = OF_CLASSES
    _foreign_likelihoods: ClassVar[tuple[type, ...]] = (TargetLikelihood,)

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        require_rows(X)
        with numbers_due("X", ENCODE):
            X, y = validate_data(self, X, y, dtype=FLOATS)
            check_classification_targets(y)
        return X, y

    def _encode_targets(self, y: Array) -> Array:
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 classes in y, got 1 class: "
                f"{classes.tolist()[0]!r}."
            )
        self.classes_ = classes
        return codes.astype(np.int64)

    def _scale_targets(self, rows: Rows) -> Scaling | None:
        return None

    def _default_likelihood(self, data: Training) -> Likelihood:
        return Categorical()

    def _n_outputs(self, data: Training) -> int:
        return len(self.classes_)

    def predict(self, X: Any) -> Array:
        """The most probable class of every row, (n_samples,)."""
        winners = self.predict_proba(X).argmax(axis=1)
        return self.classes_[winners]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of `predict`: the share of rows, or of ``sample_weight``, whose class it is."""
        labels_of(np.asarray(y), "y")
        return float(super().score(X, y, sample_weight=sample_weight))

    def predict_proba(self, X: Any) -> Array:
        """Posterior predictive probabilities, (n_samples, n_classes), columns as in `classes_`."""
        return self._reduce(X, lambda p: [p.probabilities()])[0]

    def predict_log_proba(self, X: Any) -> Array:
        """Logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Entropy of the predicted class in nats, split by its source.

        Returns
        -------
        Bunch of ndarrays of shape (n_samples,)
            ``epistemic`` (mutual information of class and weights; shrinks with data),
            ``aleatoric`` (expected entropy given the weights) and their sum ``total``.
        """
        total, epistemic, aleatoric = self._reduce(X, lambda p: list(p.uncertainty()))
        return Bunch(total=total, epistemic=epistemic, aleatoric=aleatoric)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Log probability of observed classes, (n_samples,) nats; -inf for a class never seen."""
        check_is_fitted(self)
        codes, known = self._observed_codes(y, num_samples(X))
        # By way of logarithms: probabilities underflow where these are numbers.
        log_prob = self._reduce(X, lambda p, codes: [p.log_prob(codes)], codes)[0]
        return np.where(known, log_prob, -np.inf)

    def _observed_codes(self, y: Any, n_rows: int) -> tuple[Array, Array]:
        """Columns of `predict_proba` that labels belong to, and whether they are known at all."""
        labels = np.asarray(y).ravel()
        if len(labels) != n_rows:
            raise ValueError(f"X has {n_rows} rows and y {len(labels)}: they must match.")
        with numbers_due("y"):
            assert_all_finite(labels, input_name="y")
        try:
            codes = np.searchsorted(self.classes_, labels).clip(0, len(self.classes_) - 1)
        except TypeError as error:
            raise TypeError(
                f"y must hold labels of one kind, as those of fit ({self.classes_.tolist()}), got "
                f"{shown(labels.tolist())}."
            ) from error
        return codes, self.classes_[codes] == labels

    def _reduce(
        self,
        X: Any,
        functional: Callable[..., list[Tensor]],
        codes: Array | None = None,
        law: Callable[[Tensor], Predictive] | None = None,
    ) -> list[Array]:
        """Functionals of the predictive, or of another ``law`` of rows, block by block."""
        parts, start, of_rows = [], 0, law or self._predictive
        X = self._check_inputs(X)
        require_memory(self._prediction_parts(len(X)), self._predict_device(), task="a prediction")
        with one_thread(), torch.no_grad(), memory_in_words(), decompositions_in_words():
            for x in self._input_blocks(X):
                of = slice(start, start + len(x))
                extra = () if codes is None else (torch.as_tensor(codes[of], device=x.device),)
                parts.append([t.cpu().numpy() for t in functional(of_rows(x), *extra)])
                start += len(x)
        return _numbers([np.concatenate(columns) for columns in zip(*parts, strict=True)])
