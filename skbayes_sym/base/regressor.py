"""Predictions of regressors as NumPy arrays, in the units of ``y``."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Bunch, assert_all_finite, get_tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.columns import OpenRows
from skbayes_sym.base.estimator import check_no_nan, prediction_environment, warn_infinite_rows
from skbayes_sym.base.input_validation import (
    ENCODE,
    numeric_conversion,
    refuse_categorical,
    require_rows,
    warn_reordered_rows,
)
from skbayes_sym.base.model_factory import gaussian_noise
from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.requirements import ANY_LIKELIHOOD, Requirement
from skbayes_sym.base.row_parameters import check_exposure, check_noise_std
from skbayes_sym.base.rows import Array, is_standardized
from skbayes_sym.base.scikit_learn import check_array, validate_data
from skbayes_sym.base.targets import (
    RegressionTargets,
    Targets,
    read_numbers,
    require_targets,
)
from skbayes_sym.base.training import Training
from skbayes_sym.models.likelihoods.likelihood import ClassLikelihood, Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
from skbayes_sym.models.likelihoods.registry import (
    REGRESSION_LIKELIHOODS,
    SupportedLikelihoods,
    is_target_likelihood,
)
from skbayes_sym.models.predictive_mixtures import TargetPredictive
from skbayes_sym.models.priors import HalfNormal
from skbayes_sym.numerics.arguments import check_count, check_not_masked, draw_seed
from skbayes_sym.numerics.memory import covariance_allocation, draws_allocation, require_memory
from skbayes_sym.numerics.random import generator_from
from skbayes_sym.numerics.runtime import filters_lock
from skbayes_sym.numerics.tables import fill_masked, non_string_column_names

_HOST = torch.device("cpu")


def check_counts(y: Array, likelihood: object) -> None:
    """Raise a ValueError that names the likelihood and the first target that is no count."""
    invalid = y[(y < 0) | (y != np.floor(y))]
    if len(invalid):
        kind = "negative" if invalid[0] < 0 else "fractional"
        raise ValueError(
            f"likelihood={likelihood!r} requires counts, but y has {kind} values ({invalid[0]:g}). "
            "Use a likelihood of real numbers, such as the default, normal noise."
        )


def check_quantile_levels(levels: Any, name: str = "quantiles") -> Array:
    """Return quantile levels as an array.

    Parameters
    ----------
    levels : float or array-like of shape (n_levels,)
        Levels, strictly between 0 and 1.
    name : str
        Name of the parameter, for the error message.

    Returns
    -------
    ndarray of shape (n_levels,)

    Raises
    ------
    ValueError
        If there is no level, or one isn't strictly between 0 and 1.
    """
    try:
        values = np.atleast_1d(np.asarray(levels, dtype=float))
    except (TypeError, ValueError):
        values = np.zeros(0)
    is_valid = (values > 0) & (values < 1)
    if values.ndim != 1 or not len(is_valid) or not is_valid.all():
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {levels!r}.")
    return values


class BayesianRegressorMixin(RegressorMixin):
    """Predictions of a regressor, in the units of the targets, observation noise included."""

    standardize: bool | str
    likelihood: Any = "auto"
    noise_std: Any
    # Value for estimators that lack this parameter.
    outliers: str = "keep"
    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]] = SupportedLikelihoods(
        is_target_likelihood, {"auto": REGRESSION_LIKELIHOODS["gaussian"]}
    )
    # Types of likelihoods that need a classifier.
    _unsupported_likelihoods: ClassVar[tuple[type, ...]] = (ClassLikelihood,)
    _likelihood_requirement: ClassVar[Requirement] = ANY_LIKELIHOOD

    y_mean_: Array
    y_scale_: Array
    noise_std_: Array
    # Learned parameters of a likelihood other than the default, in scaled units.
    _likelihood_params_: Any = None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        try:
            likelihood: Any = self.resolved_likelihood
        except ValueError:
            # `fit` refuses unknown names. Tags exist for any parameters.
            return tags
        tags.target_tags.positive_only = (
            isinstance(likelihood, Likelihood) and likelihood.is_discrete
        )
        return tags

    def _validate_training_data(self, X: Any, y: Any) -> tuple[Array, RegressionTargets]:
        """Return numeric inputs and targets, and set ``n_features_in_`` and the like."""
        self._likelihood_requirement.require(self.resolved_likelihood, "likelihood")
        target_tags = get_tags(self).target_tags
        X = fill_masked(X)
        require_rows(X)
        refuse_categorical(X)
        check_not_masked("y", y)
        column_names = non_string_column_names(X)
        require_targets(y)
        y = read_numbers(y, type(self).__name__, self._classifier_name)
        with numeric_conversion("X", ENCODE, X, y):
            X, y = validate_data(
                self, X, y, dtype=FLOATS, multi_output=target_tags.multi_output, y_numeric=True
            )
            if issparse(y):
                raise TypeError("Sparse data was passed for y: give y.toarray().")
            y = y.astype(np.float64)
        self._column_names_in_ = column_names
        if target_tags.positive_only:
            check_counts(y, self.likelihood)
        targets = RegressionTargets(
            values=y.reshape(len(y), -1),
            ndim=y.ndim,
            is_standardized=self._standardizes_targets,
            is_discrete=self.resolved_likelihood.is_discrete,
            excludes_outliers=self.outliers == "exclude",
            classifier_name=self._classifier_name,
        )
        return X, targets

    @property
    def _classifier_name(self) -> str:
        """Class name of the corresponding classifier."""
        name = type(self).__name__.replace("Regressor", "Classifier")
        if name == "LayerwiseVIClassifier":
            return "SymmetrizedVIClassifier"
        return name

    @property
    def _standardizes_targets(self) -> bool:
        """Whether methods receive targets in units of their standard deviation."""
        scales_targets = self.resolved_likelihood.scales_targets
        return bool(scales_targets and is_standardized(self.standardize, "y"))

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood with its learned parameters, in standardised units."""
        check_is_fitted(self)
        if self._has_default_noise:
            raise AttributeError("likelihood='auto' is normal noise, all of which is in noise_std_")
        return self.fitted_likelihood

    @property
    def fitted_likelihood(self) -> Likelihood:
        """Distribution of the targets given the outputs, as learned, in scaled units."""
        likelihood = self.resolved_likelihood
        if not self._has_default_noise:
            if not likelihood.n_params:
                return likelihood
            return likelihood.at(torch.as_tensor(self._fitted_likelihood_params()))
        log_noise = torch.as_tensor(self._fitted_noise_std() / self.y_scale_).log()
        noise_std = self._param_at_fit("noise_std")  # type: ignore[attr-defined]
        return Gaussian(log_noise, learn=isinstance(noise_std, str | HalfNormal))

    def _fitted_likelihood_params(self) -> Array:
        """Learned parameters of the likelihood, (n_params,), or (S, 1, n_params) for S draws."""
        if self._likelihood_params_ is not None:
            return np.asarray(self._likelihood_params_)
        return np.log(np.atleast_1d(self.noise_std_ / self.y_scale_))

    def _fitted_noise_std(self) -> Array:
        """Standard deviation of the noise in the units of ``y``, (T,), or (S, 1, T) for S draws."""
        return np.atleast_1d(self.noise_std_)

    @property
    def _has_default_noise(self) -> bool:
        """Whether the likelihood is the default by name, which is normal noise."""
        name = self._param_at_fit("likelihood")
        default = self._likelihoods_by_name.get("auto", self)
        return isinstance(name, str) and self._likelihoods_by_name.get(name) is default

    @property
    def has_normal_components(self) -> bool:
        """Whether predictive distributions are mixtures of normals."""
        return bool(self.fitted_likelihood.kind == "normal")

    @property
    def predicts_counts(self) -> bool:
        """Whether predictive distributions are over non-negative integers."""
        return bool(self.fitted_likelihood.is_discrete)

    def _default_likelihood(self, data: Training) -> Likelihood:
        """Return the likelihood that "auto" stands for."""
        return gaussian_noise(self.noise_std, data)

    def _check_row_parameters(
        self, targets: Targets, noise_std: Any = None, exposure: Any = None
    ) -> Array | None:
        """Return known errors or exposures, (n_samples, n_targets); None if there are none.

        Parameters
        ----------
        targets : Targets
            Validated targets.
        noise_std : array-like of shape (n_samples,) or (n_samples, n_targets), optional
            Known standard deviations of the targets.
        exposure : array-like of the same shape, optional
            Exposures of counts.

        Returns
        -------
        ndarray or None

        Raises
        ------
        ValueError
            If the likelihood has no such parameter, or values are missing or out of range.
        """
        kind = self.resolved_likelihood.kind
        if noise_std is not None and kind != "normal":
            raise ValueError(
                f"fit(noise_std=...) adds known errors to normal noise, but likelihood="
                f"{self.likelihood!r}. Use the default likelihood, or exposure= for counts."
            )
        if noise_std is not None:
            return check_noise_std(noise_std, targets.values.shape)
        if exposure is not None:
            self._require_counts("fit")
            return check_exposure(exposure, targets.values.shape)
        return None

    def _require_counts(self, method: str) -> None:
        """Raise a ValueError if a method gets exposures, and the likelihood has none."""
        if self.resolved_likelihood.kind != "counts":
            raise ValueError(
                f"{method}(exposure=...) multiplies the mean of counts, but likelihood="
                f"{self.likelihood!r}. Use likelihood='poisson', or noise_std= for known errors."
            )

    def _count_outputs(self, data: Training) -> int:
        """Return the number of targets."""
        return int(data.rows.y.shape[1])

    def predict(self, X: Any, return_std: bool | str = False, return_cov: bool = False) -> Any:
        """Predict the mean of the posterior predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        return_std : bool or "function", default=False
            Whether to return the standard deviation of a new target too. "function" excludes the
            observation noise.
        return_cov : bool, default=False
            Whether to return the joint covariance of new targets at the rows of ``X`` instead.
            Available for models whose posterior of functions is normal.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
            Mean of a new target.
        std : ndarray of the same shape
            Standard deviation of a new target, observation noise included unless ``return_std`` is
            "function". Only returned if ``return_std``.
        cov : ndarray of shape (n_samples, n_samples) or (n_samples, n_samples, n_targets)
            Covariance of new targets. The observation noise is included on the diagonal, which is
            ``std ** 2``. Only returned if ``return_cov``.
        """
        if return_cov:
            if return_std:
                raise ValueError(
                    "return_std and return_cov can't both be set: the standard deviations "
                    "are the square roots of the covariance's diagonal."
                )
            return self._mean_and_covariance(X)
        if not return_std:
            return self._match_target_ndim(self._predict_mean(X))
        if isinstance(return_std, str) and return_std != "function":
            raise ValueError(f"return_std must be True, False or 'function', got {return_std!r}.")

        def moments(distribution: TargetPredictive) -> list[Tensor]:
            if return_std == "function":
                std = distribution.uncertainty().epistemic.sqrt()
            else:
                std = distribution.std()
            return [distribution.mean(), std]

        mean, std = self.evaluate_functional(X, moments)
        return self._match_target_ndim(mean), self._match_target_ndim(std)

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        """Predict quantiles of a new target.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        quantiles : sequence of float
            Levels of the quantiles, strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, n_quantiles) or (n_samples, n_targets, n_quantiles)
            Quantiles in the units of ``y``, observation noise included.
        """
        levels = check_quantile_levels(quantiles).tolist()
        values = self.evaluate_functional(X, lambda p: p.quantiles(levels))
        return self._match_target_ndim(np.stack(values, axis=-1), extra=1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        """Predict the central interval that contains a new target with probability ``coverage``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        coverage : float, default=0.9
            Probability, strictly between 0 and 1.

        Returns
        -------
        ndarray of shape (n_samples, 2) or (n_samples, n_targets, 2)
            Lower and upper end.
        """
        if not isinstance(coverage, Real) or not 0.0 < coverage < 1.0:
            raise ValueError(f"coverage must lie strictly between 0 and 1, got {coverage!r}.")
        return self.predict_quantiles(X, (0.5 * (1 - coverage), 0.5 * (1 + coverage)))

    def predict_uncertainty(self, X: Any) -> Bunch:
        """Predict the variance of a new target, split by its source.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        Bunch of ndarrays of shape (n_samples,) or (n_samples, n_targets)
            ``epistemic`` is the variance of the function, which decreases with more data.
            ``aleatoric`` is the variance of the noise. ``total`` is their sum. All are in squared
            units of the targets.
        """
        values = self.evaluate_functional(X, lambda p: list(p.uncertainty()))
        total, epistemic, aleatoric = map(self._match_target_ndim, values)
        return Bunch(total=total, epistemic=epistemic, aleatoric=aleatoric)

    def log_predictive_density(self, X: Any, y: Any) -> Array:
        """Compute the log density of observed targets under the posterior predictive distribution.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets.

        Returns
        -------
        ndarray of shape (n_samples,)
            Log density in nats of ``y`` as given, joint over the targets of a row.
        """
        warn_reordered_rows(X, y=y)
        targets = self._check_observed_targets(y)
        return self.evaluate_functional(X, lambda p, y: [p.log_prob(y)], targets)[0]

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw whole functions from the posterior and add observation noise.

        The rows of one draw share their weights, so they vary together.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of draws, at least one.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the draws.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
            Draws in the units of ``y``.

        Raises
        ------
        MemoryError
            Before anything is drawn, if the draws don't fit into memory.
        """
        seed = draw_seed(random_state)
        # The noise has a random stream of its own.
        rng = np.random.default_rng(np.random.SeedSequence(seed).generate_state(1)[0])

        def sample(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
            conditionals = self._predictor_at(x).sample_conditionals(x, n, generator=generator)
            return conditionals.sample_per_draw(rng)

        return self._join_functions(X, n_samples, seed, sample, "sample_y")

    def sample_f(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions from the posterior, as `sample_y` does, without observation noise.

        The same seed yields the same functions at whatever rows they are evaluated.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int, default=1
            Number of functions, at least one.
        random_state : int, RandomState instance or None, default=0
            Seed or generator of the functions.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
            Values of the functions in the units of ``y``.

        Raises
        ------
        MemoryError
            Before anything is drawn, if the draws don't fit into memory.
        """

        def sample(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
            return self._predictor_at(x).sample_functions(x, n, generator=generator)

        return self._join_functions(X, n_samples, draw_seed(random_state), sample, "sample_f")

    def _join_functions(
        self,
        X: Any,
        n_samples: Any,
        seed: int,
        sample: Callable[[Tensor, int, torch.Generator], Tensor],
        task: str,
    ) -> Array:
        """Evaluate the same functions in blocks of rows, and return them in target units.

        Parameters
        ----------
        X : array-like of shape (n_samples_X, n_features)
            Inputs.
        n_samples : int
            Number of functions, which is validated.
        seed : int
            Seed of the generator that every block receives.
        sample : callable (x, n, generator) -> Tensor of shape (n, n_block, n_targets)
            Draws functions in scaled units at a block of scaled inputs.
        task : str
            Name of the method, for errors of memory.

        Returns
        -------
        ndarray of shape (n_samples_X, n_samples) or (n_samples_X, n_targets, n_samples)
        """
        X = self.check_inputs(X)
        n = check_count("n_samples", n_samples)
        n_targets = len(self.y_scale_)
        require_memory([draws_allocation(n, len(X), n_targets)], _HOST, task=task)
        values = np.empty((n, len(X), n_targets))
        with prediction_environment():
            for x, rows in self._indexed_blocks(X):
                values[:, rows] = sample(x, n, generator_from(seed)).cpu().numpy()
        values *= self.y_scale_
        values += self.y_mean_
        (by_row,) = check_no_nan([np.moveaxis(values, 0, -1)])
        warn_infinite_rows(by_row)
        return self._match_target_ndim(by_row, extra=1)

    def _mean_and_covariance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean (N, T) and the joint covariance (N, N, T) of new targets."""
        inputs = self.check_inputs(X)
        if isinstance(inputs, OpenRows):
            raise ValueError(
                "return_cov=True needs rows whose categories were all known in fit, but row "
                f"{inputs.open_index[0]} of X has another, over whose possible values predictions "
                "average. sample_y draws functions, whose covariance can be taken."
            )
        parts = [covariance_allocation(len(inputs), len(self.y_scale_))]
        require_memory(parts, _HOST, task="return_cov=True")
        with prediction_environment():
            x = self._full_input(inputs)
            function_covariance = self._predictor_at(x).covariance(x)
            if function_covariance is None:
                raise ValueError(
                    "return_cov=True needs a normal posterior of functions, which "
                    f"{type(self).__name__} doesn't have with these parameters. sample_y draws "
                    "functions, whose covariance can be taken."
                )
            covariance = function_covariance.cpu().numpy() * self.y_scale_**2
        mean, noise = self.evaluate_functional(X, lambda p: [p.mean(), p.uncertainty().aleatoric])
        diagonal = np.arange(len(noise))
        covariance[diagonal, diagonal] += noise
        warn_infinite_rows(covariance)
        return self._match_target_ndim(mean), self._match_target_ndim(covariance)

    def _full_input(self, inputs: Any) -> Any:
        """Return all rows of validated inputs at once, as the predictor takes them."""
        return torch.cat(list(self.input_blocks(inputs)))

    def score(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> float:
        """Compute the coefficient of determination R^2 of `predict`, averaged over targets.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Observed targets.
        sample_weight : array-like of shape (n_samples,), optional
            Weights of the rows.
        exposure : array-like of shape (n_samples,) or (n_samples, n_targets), optional
            Exposures of the counts ``y``, by which the predictions are multiplied; 1 by default.

        Returns
        -------
        float

        Raises
        ------
        ValueError
            If exposures are given and the model isn't one of counts, or R^2 isn't finite.
        """
        warn_reordered_rows(X, y=y, sample_weight=sample_weight, exposure=exposure)
        predicted = self.predict(X)
        check_not_masked("y", y)
        require_targets(y)
        y = read_numbers(y, type(self).__name__, self._classifier_name)
        if exposure is not None:
            self._require_counts("score")
            shape = (len(predicted), predicted.size // len(predicted))
            predicted = predicted * check_exposure(exposure, shape).reshape(predicted.shape)
        with numeric_conversion("y", y=y), filters_lock:
            assert_all_finite(np.asarray(y), input_name="y")
            r2 = float(r2_score(y, predicted, sample_weight=sample_weight))
        if not np.isfinite(r2) and len(predicted) > 1:
            raise ValueError(
                f"R^2 is {r2}: squares of y or of predictions, or sums of them weighed by "
                "sample_weight, are beyond the range of numbers. Rescale them."
            )
        return r2

    def _log_density_by_draw(self, X: Any, y: Any) -> Array:
        """Log density of observed targets given every draw of a posterior of draws, (S, N)."""
        warn_reordered_rows(X, y=y)
        targets = self._check_observed_targets(y)
        (values,) = self.evaluate_functional(X, lambda p, y: [p.log_prob_per_draw(y).T], targets)
        return values.T

    def _check_observed_targets(self, y: Any) -> Array:
        """Return targets with which predictions are compared, (n_samples, n_targets)."""
        check_is_fitted(self)
        check_not_masked("y", y)
        require_targets(y)
        y = read_numbers(y, type(self).__name__, self._classifier_name)
        # A copy, because torch warns of read-only memory such as that of a pandas series.
        with numeric_conversion("y", y=y):
            targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", copy=True)
        targets = targets.reshape(len(targets), -1)
        n_targets = len(self.y_scale_)
        if targets.shape[1] != n_targets:
            raise ValueError(f"y has {targets.shape[1]} targets, the model has {n_targets}.")
        return targets

    def mixture_components(self, X: Any) -> tuple[Array, Array, Array]:
        """Return the components of predictive distributions that are mixtures.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.

        Returns
        -------
        weights : ndarray of shape (n_components,)
            Weights of the components, the same for all rows.
        means, stds : ndarray of shape (n_components, n_samples[, n_targets])
            Means and standard deviations of the components, in the units of ``y``.
        """
        weights: list[Tensor] = []

        def moments(distribution: TargetPredictive) -> list[Tensor]:
            values = [
                distribution.means.movedim(0, -1),
                distribution.scales.expand_as(distribution.means).movedim(0, -1),
            ]
            if not weights:
                weights.append(distribution.weights)
            # Rows with unknown levels come first and have several times the components of others.
            repeats = len(weights[0]) // values[0].shape[-1]
            return [torch.cat([value] * repeats, dim=-1) for value in values]

        means, stds = (
            np.moveaxis(self._match_target_ndim(values, extra=1), -1, 0)
            for values in self.evaluate_functional(X, moments)
        )
        return weights[0].cpu().numpy(), means, stds

    def _predict_mean(self, X: Any) -> Array:
        """Return expected targets (N, T), without computing variances."""

        def evaluate(x: Tensor, _rows: Any) -> list[Tensor]:
            mean, scale = self._target_units(x)
            return [mean + scale * self._predictor_at(x).mean(x)]

        (means,) = self._map_blocks(X, evaluate)
        warn_infinite_rows(means)
        return means

    def evaluate_functional(
        self, X: Any, functional: Callable[..., list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Evaluate a functional of the predictive distributions, in blocks of rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Inputs.
        functional : callable
            Takes the predictive distribution of a block of rows, in target units, and if ``y`` is
            given the targets of the block. Returns tensors with the rows as their first axis.
        y : ndarray of shape (n_samples, n_targets), optional
            Observed targets.

        Returns
        -------
        list of ndarray
            Results of the functional, joined over blocks.
        """

        def evaluate(x: Tensor, rows: Any) -> list[Tensor]:
            scaled = cast(TargetPredictive, self._predictor_at(x).distribution(x))
            distribution = scaled.rescale(*self._target_units(x))
            if y is not None:
                return functional(distribution, torch.as_tensor(y[rows], device=x.device))
            values = functional(distribution)
            if any(bool(value.isinf().any()) for value in values):
                # Warn only if the prediction itself is infinite, or has no variance.
                for moment in (distribution.mean(), distribution.uncertainty().epistemic):
                    if warn_infinite_rows(moment.cpu().numpy(), rows):
                        break
            return values

        return self._map_blocks(X, evaluate, y)

    def _target_units(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and scale of the targets on the device of ``x``, always in float64.

        The mean may be large compared with the scale: in float32 1.7e9 + 10 is 1.7e9.
        """
        mean = torch.as_tensor(self.y_mean_)
        scale = torch.as_tensor(self.y_scale_)
        return mean.to(x.device, torch.float64), scale.to(x.device, torch.float64)

    def _match_target_ndim(self, values: Array, extra: int = 0) -> Array:
        """Drop the axis of targets, before ``extra`` axes, if ``y`` had none."""
        if self._y_ndim_ == 2:
            return values
        return values.squeeze(axis=values.ndim - 1 - extra)
