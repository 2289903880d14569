"""Regressors for a scikit-learn user: their `Predictor`, in the units of ``y``."""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar, cast

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import Bunch, get_tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from skbayes_sym.base.estimator import check_no_nan, prediction_environment, warn_infinite_rows
from skbayes_sym.base.model_factory import gaussian_noise
from skbayes_sym.base.progress import FLOATS
from skbayes_sym.base.requirements import ANY_LIKELIHOOD, Requirement
from skbayes_sym.base.rows import (
    ENCODE,
    Array,
    Rows,
    Scaling,
    is_standardized,
    numeric_conversion,
    refuse_categorical,
    require_rows,
    target_scaling,
)
from skbayes_sym.base.scikit_learn import check_array, num_samples, validate_data
from skbayes_sym.base.training import Targets, Training
from skbayes_sym.base.warnings import warn_user
from skbayes_sym.models.likelihoods import OF_CLASSES, OF_NUMBERS
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.likelihoods.noise import Gaussian
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
    wrong = y[(y < 0) | (y != np.floor(y))]
    if len(wrong):
        kind = "negative" if wrong[0] < 0 else "fractional"
        raise ValueError(
            f"likelihood={likelihood!r} is of counts, but y has {kind} values ({wrong[0]:g}). Use "
            "a likelihood of real numbers, such as the default, normal noise."
        )


def check_quantile_levels(levels: Any, name: str = "quantiles") -> Array:
    """Levels of quantiles as numbers, (n,); ValueError unless strictly between 0 and 1."""
    try:
        values = np.atleast_1d(np.asarray(levels, dtype=float))
    except (TypeError, ValueError):
        values = np.zeros(0)
    inside = (values > 0) & (values < 1)
    if values.ndim != 1 or not len(inside) or not inside.all():
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {levels!r}.")
    return values


class BayesianRegressorMixin(RegressorMixin):
    """Everything a regressor predicts, in target units, observation noise included."""

    standardize: bool | str
    likelihood: Any = "auto"
    _column_names_in_: list[str] | None = None
    noise_std: Any
    _likelihoods_by_name: ClassVar[Mapping[str, Likelihood]] = {"auto": Gaussian(), **OF_NUMBERS}
    _unsupported_likelihoods: ClassVar[tuple[type, ...]] = tuple(map(type, OF_CLASSES.values()))
    _likelihood_requirement: ClassVar[Requirement] = ANY_LIKELIHOOD  # of a likelihood
    y_mean_: Array
    y_scale_: Array

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        chosen: Any = self.resolved_likelihood
        tags.target_tags.positive_only = isinstance(chosen, Likelihood) and chosen.is_discrete
        return tags

    def _check_targets(self, X: Any, y: Any) -> tuple[Array, Array]:
        self._likelihood_requirement.require(self.resolved_likelihood, "likelihood")
        target = get_tags(self).target_tags
        X = fill_masked(X)
        require_rows(X)
        refuse_categorical(X)
        check_not_masked("y", y)
        names = non_string_column_names(X)
        self._refuse_labels(y)
        with numeric_conversion("X and y", ENCODE, X):
            X, y = validate_data(
                self, X, y, dtype=FLOATS, multi_output=target.multi_output, y_numeric=True
            )
            if issparse(y):
                raise TypeError("Sparse data was passed for y: give y.toarray().")
            y = y.astype(np.float64)
        self._column_names_in_ = names
        if target.positive_only:
            check_counts(y, self.likelihood)
        return X, y

    def _refuse_labels(self, y: Any) -> None:
        """Name the classifier if y holds words that are no numbers."""
        array = np.asarray(y)
        if array.dtype.kind not in "USO":
            return
        for value in array.ravel()[:1000]:
            try:
                if isinstance(value, str):
                    float(value)
            except ValueError as error:
                classifier = type(self).__name__.replace("Regressor", "Classifier")
                if classifier == "LayerwiseVIClassifier":
                    classifier = "SymmetrizedVIClassifier"
                raise ValueError(
                    f"y holds labels such as {str(value)!r}, but {type(self).__name__} predicts "
                    f"numbers. Use {classifier}."
                ) from error

    @property
    def likelihood_(self) -> Likelihood:
        """The likelihood that was given, with what was learned of it, in standardised units."""
        check_is_fitted(self)
        if self._has_default_noise:
            raise AttributeError("likelihood='auto' is normal noise, all of which is in noise_std_")
        return self.fitted_likelihood

    @property
    def fitted_likelihood(self) -> Likelihood:
        """How targets follow from functions, with what was learned of it, in scaled units."""
        chosen = self.resolved_likelihood
        if not self._has_default_noise:
            if not chosen.n_params:
                return chosen
            return chosen.at(torch.as_tensor(self._fitted_likelihood_params()))
        log_noise = torch.as_tensor(self._fitted_noise_std() / self.y_scale_).log()
        noise = vars(self).get("_fitted_with_", {}).get("noise_std", self.noise_std)
        return Gaussian(log_noise, learn=isinstance(noise, str | HalfNormal))

    def _fitted_likelihood_params(self) -> Array:
        """Parameters of the likelihood, (n_params,), or (S, 1, n_params) of draws."""
        if "_likelihood_params_" in vars(self):
            return self._likelihood_params_
        return np.log(np.atleast_1d(self.noise_std_ / self.y_scale_))

    def _fitted_noise_std(self) -> Array:
        """Standard deviation in the units of ``y``, (T,), or (S, 1, T) of draws."""
        return np.atleast_1d(self.noise_std_)

    @property
    def _has_default_noise(self) -> bool:
        return isinstance(self._likelihood_parameter, str) and self._likelihood_parameter == "auto"

    def _encode_targets(self, y: Array) -> Targets:
        columns = y.reshape(len(y), -1)
        constant = (columns == columns[0]).all(axis=0)
        if len(columns) > 1 and constant.any() and not self.resolved_likelihood.is_discrete:
            place = int(constant.argmax())
            which = "y" if columns.shape[1] == 1 else f"column {place} of y"
            warn_user(
                f"{which} is constant ({columns[0, place]:g}): there is nothing to learn but that, "
                "and no scale to tell noise from: their absolute value is taken for it. Check "
                "the targets.",
                UserWarning,
            )
        return Targets(columns, y.ndim)

    def _scale_targets(self, rows: Rows) -> Scaling | None:
        scales = self.resolved_likelihood.scales_targets
        enabled = scales and is_standardized(self.standardize, "y")
        return target_scaling(rows, enabled=enabled)

    @property
    def has_normal_components(self) -> bool:
        """Whether predictive distributions are mixtures of normals."""
        return bool(self.fitted_likelihood.kind == "normal")

    @property
    def predicts_counts(self) -> bool:
        """Whether predictive distributions are of whole numbers."""
        return bool(self.fitted_likelihood.is_discrete)

    def _default_likelihood(self, data: Training) -> Likelihood:
        return gaussian_noise(self.noise_std, data)

    def _count_outputs(self, data: Training) -> int:
        return int(data.rows.y.shape[1])

    def predict(self, X: Any, return_std: bool | str = False, return_cov: bool = False) -> Any:
        """Mean of the posterior predictive.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
        return_std : bool or "function", default=False
            Whether to return the standard deviation of a new target too; "function" leaves the
            observation noise out.
        return_cov : bool, default=False
            Whether to return the joint covariance of new targets at the rows of ``X`` instead; for
            models whose posterior of functions is normal.

        Returns
        -------
        mean : ndarray of shape (n_samples,) or (n_samples, n_targets)
        std : ndarray of the same shape
            Observation noise included, but for "function"; only if ``return_std``.
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
            return self._match_target_ndim(self._predict_mean(X))
        if isinstance(return_std, str) and return_std != "function":
            raise ValueError(f"return_std must be True, False or 'function', got {return_std!r}.")

        def moments(distribution: TargetPredictive) -> list[Tensor]:
            std = (
                distribution.uncertainty().epistemic.sqrt()
                if return_std == "function"
                else distribution.std()
            )
            return [distribution.mean(), std]

        mean, std = self.evaluate_functional(X, moments)
        return self._match_target_ndim(mean), self._match_target_ndim(std)

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
        levels = check_quantile_levels(quantiles).tolist()
        values = self.evaluate_functional(X, lambda p: [p.quantile(q) for q in levels])
        return self._match_target_ndim(np.stack(values, axis=-1), extra=1)

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
        parts = map(
            self._match_target_ndim, self.evaluate_functional(X, lambda p: list(p.uncertainty()))
        )
        return Bunch(**dict(zip(("total", "epistemic", "aleatoric"), parts, strict=True)))

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
        return self.evaluate_functional(
            X, lambda p, y: [p.log_prob(y)], self._check_observed_targets(y)
        )[0]

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
        seed = draw_seed(random_state)
        # The noise has a stream of its own.
        rng = np.random.default_rng(np.random.SeedSequence(seed).generate_state(1)[0])

        def targets(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
            return (
                self.predictor(x)
                .sample_conditionals(x, n, generator=generator)
                .sample_per_draw(rng)
            )

        return self._join_functions(X, n_samples, seed, targets, "sample_y")

    def sample_f(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw functions from the posterior, as `sample_y` does, without observation noise.

        One seed means the same functions, whatever rows are asked for.
        """

        def functions(x: Tensor, n: int, generator: torch.Generator) -> Tensor:
            return self.predictor(x).sample_functions(x, n, generator=generator)

        return self._join_functions(X, n_samples, draw_seed(random_state), functions, "sample_f")

    def _join_functions(
        self, X: Any, n: Any, seed: int,
        draw: Callable[[Tensor, int, torch.Generator], Tensor], task: str,
    ) -> Array:  # fmt: skip
        """Join draws ``draw(x, n, generator)`` (n, N, T) of blocks of rows, in target units."""
        X = self._check_inputs(X)
        n = check_count("n_samples", n)
        require_memory([draws_allocation(n, len(X), len(self.y_scale_))], _HOST, task=task)
        values = np.empty((n, len(X), len(self.y_scale_)))
        with prediction_environment():
            for x, rows in self._indexed_blocks(X):
                drawn = draw(x, n, generator_from(seed))
                values[:, rows] = drawn.cpu().numpy()
        values *= self.y_scale_
        values += self.y_mean_
        (by_row,) = check_no_nan([np.moveaxis(values, 0, -1)])
        warn_infinite_rows(by_row)
        return self._match_target_ndim(by_row, extra=1)

    def _mean_and_covariance(self, X: Any) -> tuple[Array, Array]:
        rows = self._check_inputs(X)
        parts = [covariance_allocation(len(rows), len(self.y_scale_))]
        require_memory(parts, _HOST, task="return_cov=True")
        with prediction_environment():
            x = self._full_input(rows)
            covariance = self.predictor(x).covariance(x)
            if covariance is None:
                raise ValueError(
                    "return_cov=True needs a normal posterior of functions, which "
                    f"{type(self).__name__} doesn't have with these parameters. sample_y draws "
                    "functions, whose covariance can be taken."
                )
            functions = covariance.cpu().numpy() * self.y_scale_**2
        mean, noise = self.evaluate_functional(X, lambda p: [p.mean(), p.uncertainty().aleatoric])
        diagonal = np.arange(len(noise))
        functions[diagonal, diagonal] += noise
        warn_infinite_rows(functions)
        return self._match_target_ndim(mean), self._match_target_ndim(functions)

    def _full_input(self, rows: Any) -> Any:
        """Inputs of a question as the predictor takes them, all rows at once."""
        return torch.cat(list(self.input_blocks(rows)))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Coefficient of determination R^2 of `predict`, the mean over targets."""
        check_not_masked("y", y)
        predicted = self.predict(X)
        with numeric_conversion("y"), filters_lock:
            r2 = float(r2_score(y, predicted, sample_weight=sample_weight))
        if not np.isfinite(r2) and num_samples(X) > 1:
            raise ValueError(
                f"R^2 is {r2}: squares of y or of predictions, or sums of them weighed by "
                "sample_weight, are beyond the range of numbers. Rescale them."
            )
        return r2

    def _check_observed_targets(self, y: Any) -> Array:
        """Targets to judge predictions by, (n_samples, n_targets)."""
        check_is_fitted(self)
        check_not_masked("y", y)
        # Copied, since torch warns of memory that it may not write to, such as a pandas series'.
        with numeric_conversion("y"):
            targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", copy=True)
        targets = targets.reshape(len(targets), -1)
        n_targets = len(self.y_scale_)
        if targets.shape[1] != n_targets:
            raise ValueError(f"y has {targets.shape[1]} targets, the model has {n_targets}.")
        return targets

    def mixture_components(self, X: Any) -> tuple[Array, Array, Array]:
        """Weights (S,), means and standard deviations (S, N[, T]) of the law's components."""
        weights: list[Tensor] = []

        def ask(distribution: TargetPredictive) -> list[Tensor]:
            values = [
                distribution.means.movedim(0, -1),
                distribution.scales.expand_as(distribution.means).movedim(0, -1),
            ]
            if not weights:
                weights.append(distribution.weights)
            # Rows with unknown levels come first and have several times the components of others.
            repeats = len(weights[0]) // values[0].shape[-1]
            return [torch.cat([value] * repeats, dim=-1) for value in values]

        loc, scale = (
            np.moveaxis(self._match_target_ndim(t, extra=1), -1, 0)
            for t in self.evaluate_functional(X, ask)
        )
        return weights[0].cpu().numpy(), loc, scale

    def _predict_mean(self, X: Any) -> Array:
        """Expected targets, (N, T): no variance is made for them."""

        def ask(x: Tensor, rows: slice) -> list[Tensor]:
            mean, scale = self._target_units(x)
            return [mean + scale * self.predictor(x).mean(x)]

        (means,) = self._map_blocks(X, ask)
        warn_infinite_rows(means)
        return means

    def evaluate_functional(
        self, X: Any, functional: Callable[..., list[Tensor]], y: Array | None = None
    ) -> list[Array]:
        """Functionals of the law in target units, and of targets of the rows, block by block."""

        def ask(x: Tensor, rows: slice) -> list[Tensor]:
            distribution = cast(TargetPredictive, self.predictor(x).distribution(x)).rescale(
                *self._target_units(x)
            )
            if y is not None:
                return functional(distribution, torch.as_tensor(y[rows], device=x.device))
            values = functional(distribution)
            if any(bool(value.isinf().any()) for value in values):
                # or without a variance
                for each in (distribution.mean(), distribution.uncertainty().epistemic):
                    if warn_infinite_rows(each.cpu().numpy(), rows):
                        break
            return values

        return self._map_blocks(X, ask, y)

    def _target_units(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Level and scale of the targets on the device of ``x``, float64 whatever its precision.

        Levels may be large against the spread: in float32 1.7e9 + 10 is 1.7e9.
        """
        mean, scale = (torch.as_tensor(a) for a in (self.y_mean_, self.y_scale_))
        return mean.to(x.device, torch.float64), scale.to(x.device, torch.float64)

    def _match_target_ndim(self, values: Array, extra: int = 0) -> Array:
        """Drop the axis of targets if ``y`` had none."""
        return values if self._y_ndim_ == 2 else values.squeeze(axis=values.ndim - 1 - extra)
