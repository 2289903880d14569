"""Scorers of predictive distributions and evidence, and a split without test rows."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, RegressorMixin

from skbayes_sym.base.distributions import PredictiveDistribution, observed_targets
from skbayes_sym.base.input_validation import warn_reordered_rows
from skbayes_sym.base.pipelines import fitted_attribute, unwrap
from skbayes_sym.base.predictive import predictive, predicts_distribution
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import BaseScorer, check_sample_weight, num_samples
from skbayes_sym.base.targets import require_targets
from skbayes_sym.numerics.arguments import is_number, short_repr


class ReportedEvidence(NamedTuple):
    """Log evidence of a fit as reported by the model.

    Attributes
    ----------
    value : float
        Log evidence in nats.
    std_error : float
        Monte Carlo standard error; nan if the model reports none.
    source : str
        Name of the attribute.
    side : {"exact", "estimate", "lower"}
        Whether the value is exact, an estimate or a lower bound.
    """

    value: float
    std_error: float
    source: str
    side: str


def read_evidence(estimator: BaseEstimator) -> ReportedEvidence | None:
    """Read ``log_evidence_`` if it is finite, else ``elbo_``; None if there is neither."""
    model = unwrap(estimator).model
    bound = fitted_attribute(model, "elbo_", np.nan)
    for source, side in (("log_evidence_", "estimate"), ("elbo_", "lower")):
        value = fitted_attribute(model, source, np.nan)
        if not np.isfinite(value):
            continue
        # A lower bound that equals the estimate shows that the estimate is exact.
        if source == "log_evidence_" and value == bound:
            side = "exact"
        error_name = source.removesuffix("_") + "_std_error_"
        std_error = fitted_attribute(model, error_name, np.nan)
        return ReportedEvidence(float(value), float(std_error), source, side)
    return None


class NoSplit:
    """Cross-validation splitter with a single split, whose training and test rows are all rows.

    It is used with ``get_scorer("evidence")``, which needs no held-out rows, because the evidence
    penalises models that fit the training data closely but predict poorly.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.model_selection import GridSearchCV
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import NoSplit, get_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg, grid = BayesianLinearRegressor(), {"prior": [0.1, 0.2, 0.4]}
    >>> search = GridSearchCV(reg, grid, scoring=get_scorer("evidence"), cv=NoSplit()).fit(X, y)
    >>> search.best_params_, round(search.best_score_)
    ({'prior': 0.2}, -2406)
    """

    # The arguments are those of scikit-learn's splitters.
    def split(
        self,
        X: Any,
        y: Any = None,  # noqa: ARG002
        groups: Any = None,  # noqa: ARG002
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the indices of all rows, as training and as test rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.
        y, groups : object
            Ignored.

        Yields
        ------
        train, test : ndarray of shape (n_samples,)
            Indices ``0, 1, ..., n_samples - 1``.
        """
        rows = np.arange(num_samples(X))
        yield rows, rows.copy()

    def get_n_splits(
        self,
        X: Any = None,  # noqa: ARG002
        y: Any = None,  # noqa: ARG002
        groups: Any = None,  # noqa: ARG002
    ) -> int:
        """Return the number of splits, 1.

        Parameters
        ----------
        X, y, groups : object
            Ignored.

        Returns
        -------
        int
            1.
        """
        return 1

    def __repr__(self) -> str:
        return "NoSplit()"


def evidence_scorer(
    estimator: BaseEstimator,
    X: Any = None,  # noqa: ARG001 -- as scikit-learn calls scorers
    y: Any = None,  # noqa: ARG001
) -> float:
    """Log evidence of a fitted model, or a lower bound on it: ``get_scorer("evidence")``.

    Parameters
    ----------
    estimator : estimator
        Fitted model with a finite ``log_evidence_`` or ``elbo_``, or a pipeline or search that
        contains one.
    X, y : object
        Ignored, because the evidence is that of the training rows.

    Returns
    -------
    float
        Log evidence in nats, summed over the rows; larger is better. See the Notes of `get_scorer`
        for which evidences are comparable.

    Raises
    ------
    ValueError
        If the model has neither attribute, or its ``log_evidence_`` is nan because the estimate is
        unreliable.
    """
    evidence = read_evidence(estimator)
    if evidence is not None:
        return evidence.value
    model = unwrap(estimator).model
    name = type(model).__name__
    reason = f"{name} has neither log_evidence_ nor elbo_"
    if fitted_attribute(model, "log_evidence_") is not None:
        reason = (
            f"log_evidence_ of {name} is not finite, because the estimate is unreliable (see the "
            "warning given by fit)"
        )
    raise ValueError(f'{reason}. Score it by cross-validation, scoring=get_scorer("log_density").')


def _log_densities(estimator: BaseEstimator, X: Any, y: Any, **row_parameters: Any) -> Array:
    """Log predictive density of every row."""
    if not predicts_distribution(estimator):
        raise ValueError(
            f"{type(unwrap(estimator).model).__name__} predicts no distribution: it has no "
            "log_predictive_density, predict_proba or predict(X, return_std=True)."
        )
    return np.asarray(predictive(estimator, X, **row_parameters).log_prob(y))


def _regression_distribution(
    estimator: BaseEstimator, X: Any, **row_parameters: Any
) -> PredictiveDistribution:
    """Predictive distribution of a regressor; a ValueError for classifiers."""
    distribution: Any = predictive(estimator, X, **row_parameters)
    if not isinstance(distribution, PredictiveDistribution):
        raise ValueError(
            f"{type(unwrap(estimator).model).__name__} predicts classes, which have no order: "
            'score it by get_scorer("log_density").'
        )
    return distribution


def _neg_crps(estimator: BaseEstimator, X: Any, y: Any, **row_parameters: Any) -> Array:
    """Negative continuous ranked probability score of every row and target."""
    return -_regression_distribution(estimator, X, **row_parameters).crps(y)


def _neg_pinball(
    estimator: BaseEstimator, X: Any, y: Any, quantile: float, **row_parameters: Any
) -> Array:
    """Negative pinball loss of every row and target.

    Parameters
    ----------
    estimator : estimator
        Fitted regressor.
    X : array-like of shape (n_samples, n_features)
        Rows.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Targets.
    quantile : float
        Level between 0 and 1.
    **row_parameters : array-like
        Known errors or exposures of the held-out rows, see `predictive`.

    Returns
    -------
    ndarray of shape (n_samples,) or (n_samples, n_targets)
        Scores in the units of ``y``.
    """
    predicted = _regression_distribution(estimator, X, **row_parameters).quantile(quantile)
    observed = observed_targets(y)
    if observed.size != predicted.size:
        raise ValueError(
            f"y has shape {observed.shape}, but the predictions have shape {predicted.shape}."
        )
    residual = observed.reshape(predicted.shape) - predicted
    return -np.maximum(quantile * residual, (quantile - 1.0) * residual)


def _average(values: Array, y: Any, sample_weight: Any = None) -> float:  # noqa: ARG001
    """Weighted mean of scores over rows, with equal weights of the targets of a row.

    The argument ``y`` is required by scikit-learn's scorers.
    """
    unit = power_of_two(values)
    row_scores = (values / unit).reshape(len(values), -1).mean(axis=1)
    if sample_weight is None:
        return float(unit * row_scores.mean())
    weight = check_sample_weight(sample_weight, row_scores[:, None], ensure_non_negative=True)
    return float(unit * np.average(row_scores[weight > 0], weights=weight[weight > 0]))


def power_of_two(*arrays: Array) -> float:
    """Return a power of two near the largest absolute value.

    In this unit, sums and squares neither overflow nor round differently.
    """
    largest = max(float(np.abs(values, dtype=float).max(initial=0.0)) for values in arrays)
    if not 0.0 < largest < np.inf:
        return 1.0
    return float(np.ldexp(1.0, np.frexp(largest)[1] - 1))


class DistributionScorer(BaseScorer):
    """Mean score of predictive distributions over rows.

    It is a scikit-learn scorer: after ``set_score_request(sample_weight=True)`` searches pass the
    sample weights of held-out rows, and after ``set_score_request(noise_std=True)`` or
    ``exposure=True`` their known errors or exposures, see `predictive`.

    Parameters
    ----------
    name : str
        Name of the score.
    score_rows : callable
        ``score_rows(estimator, X, y, **row_parameters)`` returns the scores of rows and targets.
    """

    def __init__(self, name: str, score_rows: Callable[..., Array]) -> None:
        super().__init__(score_func=_average, sign=1, kwargs={})
        self._name = name
        self._score_rows = score_rows

    def _score(
        self,
        method_caller: Any,  # noqa: ARG002 -- as in scikit-learn's base class
        estimator: BaseEstimator,
        X: Any,
        y_true: Any,
        **routed: Any,
    ) -> float:
        """Score held-out rows.

        Parameters
        ----------
        method_caller : object
            Ignored.
        estimator : estimator
            Fitted model.
        X : array-like of shape (n_samples, n_features)
            Rows.
        y_true : array-like of shape (n_samples,) or (n_samples, n_targets)
            Targets.
        **routed : object
            Sample weights, known errors and exposures, if they are requested.

        Returns
        -------
        float
            Mean score.
        """
        require_targets(y_true)
        warn_reordered_rows(X, y=y_true, **routed)
        sample_weight = routed.pop("sample_weight", None)
        scores = self._score_rows(estimator, X, y_true, **routed)
        return _average(scores, y_true, sample_weight)

    def __repr__(self) -> str:
        return f'get_scorer("{self._name}")'


def get_scorer(scoring: str, *, quantile: float | None = None) -> Callable[..., float]:
    r"""Get a scorer of predictive distributions or of evidence by name, for ``scoring=``.

    Parameters
    ----------
    scoring : {"log_density", "neg_crps", "neg_pinball", "evidence"}
        Larger is always better.

        - "log_density": mean log predictive density in nats, in the units of ``y`` and joint over
          the targets of a row. For regressors and classifiers. It is strictly proper: in
          expectation only the true distribution has the largest score.
        - "neg_crps": minus the mean continuous ranked probability score, in the units of ``y``. For
          regressors. For a point prediction it is the absolute error.
        - "neg_pinball": minus the mean pinball loss
          :math:`\max(q (y - f), (q - 1)(y - f))` of the predicted quantile f at ``quantile``. For
          regressors.
        - "evidence": ``log_evidence_`` of the model if it is finite, else the lower bound
          ``elbo_``, in nats and summed over the training rows. Use it with `NoSplit`, which trains
          on all rows.
    quantile : float, optional
        Level q of "neg_pinball", strictly between 0 and 1. Only for this score.

    Returns
    -------
    callable
        Scorer ``(estimator, X, y, *, sample_weight=None) -> float``, which can be pickled. Except
        for "evidence" it is a scikit-learn scorer with ``set_score_request``. It scores all models
        that `skbayes_sym.predictive` accepts: estimators of this package; pipelines, searches and
        `TransformedTargetRegressor` that contain them; and scikit-learn's models with
        ``return_std`` (as normal distributions) or ``predict_proba``.

    Raises
    ------
    ValueError
        If the name isn't known, or ``quantile`` is missing, out of range or unused. The scorer
        raises it for a model that predicts no distribution, for classifiers if the score needs a
        regressor, and for models without evidence or with an unreliable ``log_evidence_``, which is
        nan.

    Notes
    -----
    The standard deviation of a `GaussianProcessRegressor` includes the noise only if its kernel
    contains a `WhiteKernel`.

    Evidences of different fits are comparable if they are those of the same rows and of the same
    kind: exact, or converged bounds of one family. An estimate is favoured over a lower bound by
    the gap of the bound. A model that sets its prior or noise by maximising the evidence, instead
    of integrating over them, is favoured slightly for each of them. Laplace's estimates for
    networks are wrong by tens of nats, so they are only a hint when comparing widths, activations,
    linear models with networks, or different methods
    (``python asv_bench/studies/evidence_trust.py`` prints how reliable they are).

    References
    ----------
    Gneiting & Raftery (2007). Strictly proper scoring rules, prediction, and estimation. CRPS:
    eq. 21; pinball: eq. 40.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_validate
    >>> from skbayes_sym.model_selection import get_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> scoring = {
    ...     "log_density": get_scorer("log_density"),
    ...     "upper": get_scorer("neg_pinball", quantile=0.95),
    ... }
    >>> scores = cross_validate(BayesianRidge(), X, y, scoring=scoring, cv=3)
    >>> scores["test_log_density"].round(2), scores["test_upper"].round(2)
    (array([-5.43, -5.46, -5.39]), array([-5.8 , -5.23, -5.5 ]))
    """
    row_scores = {"log_density": _log_densities, "neg_crps": _neg_crps}
    if not isinstance(scoring, str) or scoring not in {"evidence", "neg_pinball", *row_scores}:
        raise ValueError(
            f"{scoring!r} isn't a scorer of this package, which has evidence, log_density, "
            "neg_crps and neg_pinball. For the scorers of scikit-learn use "
            "sklearn.metrics.get_scorer."
        )
    if quantile is not None and scoring != "neg_pinball":
        raise ValueError(f"quantile is only for neg_pinball: {scoring!r} has none.")
    if scoring == "evidence":
        return evidence_scorer
    if scoring == "neg_pinball":
        if quantile is None:
            raise ValueError('get_scorer("neg_pinball") needs quantile, such as quantile=0.9.')
        _check_level(quantile)
        return DistributionScorer(scoring, partial(_neg_pinball, quantile=quantile))
    return DistributionScorer(scoring, row_scores[scoring])


def _check_level(quantile: Any) -> None:
    """Refuse levels that aren't strictly between 0 and 1."""
    if not is_number(quantile) or not 0.0 < quantile < 1.0:
        raise ValueError(
            f"quantile must be a number strictly between 0 and 1, got {short_repr(quantile)}."
        )


class QuantilePredictor(MetaEstimatorMixin, RegressorMixin, BaseEstimator):
    """Regressor whose ``predict`` returns one quantile of the predictive distribution of a model.

    It serves MAPIE's conformalised quantile regression, scikit-learn's ``mean_pinball_loss`` and
    other tools that take point predictions.

    Parameters
    ----------
    estimator : estimator
        Regressor, pipeline or search that `predictive` accepts, fitted or not. It isn't copied.
    quantile : float, default=0.5
        Level, strictly between 0 and 1.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import QuantilePredictor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> upper = QuantilePredictor(BayesianLinearRegressor().fit(X, y), 0.95).predict(X)
    >>> round(float((y <= upper).mean()), 2)
    0.95
    """

    def __init__(self, estimator: BaseEstimator, quantile: float = 0.5) -> None:
        self.estimator = estimator
        self.quantile = quantile

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the model in place.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training rows.
        y : array-like of shape (n_samples,)
            Targets.
        **fit_params : object
            Arguments of the model's ``fit``.

        Returns
        -------
        QuantilePredictor
            The object itself.
        """
        _check_level(self.quantile)
        self._require_model()
        self.estimator.fit(X, y, **fit_params)
        return self

    def predict(self, X: Any) -> Array:
        """Predict the quantile.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows.

        Returns
        -------
        ndarray of shape (n_samples,)
            Quantiles in the units of the targets.
        """
        _check_level(self.quantile)
        self._require_model()
        return predictive(self.estimator, X).quantile(self.quantile)

    def _require_model(self) -> None:
        """Refuse anything that isn't an estimator."""
        is_model = hasattr(self.estimator, "fit") and hasattr(self.estimator, "get_params")
        if isinstance(self.estimator, type) or not is_model:
            raise ValueError(f"estimator must be a regressor, got {short_repr(self.estimator)}.")

    @property
    def n_features_in_(self) -> int:
        """Number of columns seen by the model in `fit`."""
        return int(self.estimator.n_features_in_)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self.estimator, "n_features_in_")
