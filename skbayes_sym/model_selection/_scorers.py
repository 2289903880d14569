"""Scores for `scoring=` that know what a posterior is worth."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.unwrap import innermost
from skbayes_sym.model_selection._predictions import log_densities


class Evidence(NamedTuple):
    """What a fitted model reports of log p(y | X), nats."""

    value: float
    std_error: float  # Monte Carlo; nan if the model reports none
    source: str  # the attribute it comes from
    side: str  # "exact", "estimate" or "lower" (a lower bound)


def reported_evidence(estimator: BaseEstimator) -> Evidence | None:
    """``log_evidence_`` if it is a number, else ``elbo_``, else None."""
    model = innermost(estimator).model
    bound = getattr(model, "elbo_", np.nan)
    for source, side in (("log_evidence_", "estimate"), ("elbo_", "lower")):
        value = getattr(model, source, np.nan)
        if np.isfinite(value):
            # A lower bound that reaches an estimate of the evidence is the evidence.
            side = "exact" if source == "log_evidence_" and value == bound else side
            std_error = getattr(model, source.removesuffix("_") + "_std_error_", np.nan)
            return Evidence(float(value), float(std_error), source, side)
    return None


def evidence_scorer(estimator: BaseEstimator, X: Any = None, y: Any = None) -> float:
    """Log evidence of a fitted model, or its lower bound; for ``scoring=``.

    Parameters
    ----------
    estimator : object
        Fitted, with a finite ``log_evidence_`` or ``elbo_``. Of a `Pipeline` the last step is
        asked, of a search its best estimator.
    X, y : object
        Ignored: the score is of the rows that the model was fitted to.

    Returns
    -------
    float
        ``log_evidence_`` if it is finite, else ``elbo_``; nats, summed over the rows of the fit.
        Larger is better.

    Raises
    ------
    ValueError
        If the model has neither, or its ``log_evidence_`` is nan since it can't be trusted.

    See Also
    --------
    NoSplit : Fits to all rows at once.
    log_predictive_density_scorer : For every model that predicts a distribution.

    Notes
    -----
    Scores of different fits compare if they are of the same rows and of the same kind. An estimate
    beside a lower bound favours the former by what the bound lacks. A model that sets its prior or
    noise by the evidence, instead of averaging over them, is flattered a little for each.

    Exact evidences and converged bounds of one family compare. Laplace's estimates of networks are
    wrong by tens of nats: of widths, activations, a linear model against a network, and of other
    methods they are a hint at best (``python asv_bench/studies/evidence_trust.py`` prints how
    good a one); take `log_predictive_density_scorer`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skbayes_sym import BayesianLinearRegressor
    >>> from skbayes_sym.model_selection import evidence_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> round(evidence_scorer(BayesianLinearRegressor().fit(X, y)))
    -2406
    """
    evidence = reported_evidence(estimator)
    if evidence is not None:
        return evidence.value
    name = type(innermost(estimator).model).__name__
    remedy = "Score it by cross-validation instead, scoring=log_predictive_density_scorer."
    if hasattr(innermost(estimator).model, "log_evidence_"):
        raise ValueError(
            f"log_evidence_ of {name} is not finite: the estimate can't be trusted; the "
            f"warning given by fit says why. {remedy}"
        )
    raise ValueError(f"{name} has neither log_evidence_ nor elbo_. {remedy}")


def log_predictive_density_scorer(estimator: BaseEstimator, X: Any, y: Any) -> float:
    """Mean log predictive density of observed targets; for ``scoring=``.

    Parameters
    ----------
    estimator : object
        Fitted. Estimators with ``log_predictive_density`` are asked for it (of a `Pipeline` the
        last step, of a search its best estimator); other classifiers for ``predict_proba``;
        other regressors for ``predict(X, return_std=True)``, as the mean and standard deviation
        of a normal distribution.
    X : array-like of shape (n_samples, n_features)
    y : array-like of shape (n_samples,) or (n_samples, n_targets)

    Returns
    -------
    float
        Nats per row, of ``y`` as given; joint over the targets of a row. Larger is better.

    Raises
    ------
    ValueError
        If the model predicts no distribution.

    Notes
    -----
    A strictly proper score: in expectation only the true distribution has the largest. The
    standard deviation of a `GaussianProcessRegressor` holds the noise only if its kernel has a
    `WhiteKernel`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import BayesianRidge
    >>> from sklearn.model_selection import cross_val_score
    >>> from skbayes_sym.model_selection import log_predictive_density_scorer
    >>> X, y = load_diabetes(return_X_y=True)
    >>> cross_val_score(BayesianRidge(), X, y, scoring=log_predictive_density_scorer).round(2)
    array([-5.39, -5.43, -5.45, -5.42, -5.42])
    """
    values = log_densities(estimator, X, y)
    if values is None:
        raise ValueError(
            f"{type(innermost(estimator).model).__name__} predicts no distribution: it has no "
            "log_predictive_density, predict_proba or predict(X, return_std=True)."
        )
    return float(np.mean(values))
