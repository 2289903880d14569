"""Pass weights and groups to estimators of any package, also inside pipelines and searches."""

from inspect import signature
from typing import Any, Literal

from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline

from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import splits_groups

# Parameters of meta-estimators that hold the model inside.
_INNER_MODEL_PARAMETERS = ("estimator", "regressor", "classifier", "base_estimator")


def weight_support(model: Any) -> Literal["all", "some", "none"]:
    """Return whether sample weights reach all fitted parts of an estimator.

    Parameters
    ----------
    model : estimator
        Estimator of any package, fitted or not.

    Returns
    -------
    {"all", "some", "none"}
        "some" if the predicting model takes weights but a step before it doesn't. Weights then
        don't have the effect of repeated rows. "none" if a predicting model takes no weights.
    """
    if isinstance(model, Pipeline):
        steps = [step for _, step in model.steps if step is not None and step != "passthrough"]
        if steps:
            support = weight_support(steps[-1])
        else:
            support = "none"
        if support == "all" and not all(_is_weighted(step) for step in steps[:-1]):
            return "some"
        return support

    inner_models = _inner_models(model)
    if not inner_models:
        return "all" if _takes_weights(model) else "none"
    supports = {weight_support(inner) for inner in inner_models}
    if "none" in supports or not (_takes_weights(model) or _passes_parameters(model)):
        return "none"
    if hasattr(model, "cv"):
        # Repeated rows would be in both the training and the test part of its folds.
        return "all"
    # The transformation of the target takes no weights.
    transformer = getattr(model, "transformer", None)
    is_learned = transformer is not None and _requires_fit(transformer)
    if "some" in supports or is_learned:
        return "some"
    return "all"


def fit_with_weights(model: Any, X: Any, y: Any, sample_weight: Array) -> None:
    """Fit an estimator in place, with weights for everything inside it that takes them.

    Scikit-learn's metadata routing passes the weights on. Requests that the user has set are left
    unchanged.

    Parameters
    ----------
    model : estimator
        Estimator of any package.
    X : array-like of shape (n_samples, n_features)
        Training inputs.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Training targets.
    sample_weight : ndarray of shape (n_samples,)
        Weights of the rows.
    """
    if not isinstance(model, Pipeline) and not _inner_models(model):
        model.fit(X, y, sample_weight=sample_weight)
        return
    _request_weights(model)
    with config_context(enable_metadata_routing=True):
        model.fit(X, y, sample_weight=sample_weight)


def fit_with_groups(model: Any, X: Any, y: Any, groups: Any) -> None:
    """Fit an estimator in place, with groups for everything inside it that takes them.

    Scikit-learn's metadata routing passes the groups on. Requests that the user has set are left
    unchanged.

    Parameters
    ----------
    model : estimator
        Estimator of any package.
    X : array-like of shape (n_samples, n_features)
        Training inputs.
    y : array-like of shape (n_samples,) or (n_samples, n_targets)
        Training targets.
    groups : array-like of shape (n_samples,) or None
        Groups of the rows.
    """
    if hasattr(model, "get_params"):
        parts = list(model.get_params(deep=True).values())
    else:
        parts = []
    models = [part for part in [model, *parts] if _takes_groups(part)]
    if groups is None or not (models or any(map(splits_groups, parts))):
        model.fit(X, y)
    elif _takes_groups(model):
        model.fit(X, y, groups=groups)
    else:
        with config_context(enable_metadata_routing=True):
            for part in models:
                if part.get_metadata_routing().fit.requests.get("groups") is None:
                    part.set_fit_request(groups=True)
            model.fit(X, y, groups=groups)


def _takes_groups(part: Any) -> bool:
    """Whether a part of a model has a method ``fit`` with the parameter ``groups``."""
    is_estimator = isinstance(part, BaseEstimator) and hasattr(part, "fit")
    return is_estimator and "groups" in signature(part.fit).parameters


def _takes_weights(model: Any) -> bool:
    """Whether ``fit`` has the parameter ``sample_weight``."""
    return "sample_weight" in signature(model.fit).parameters


def _passes_parameters(model: Any) -> bool:
    """Whether ``fit`` takes any keyword, which it routes to the models inside."""
    kinds = [parameter.kind for parameter in signature(model.fit).parameters.values()]
    return any(kind == kind.VAR_KEYWORD for kind in kinds)


def _is_weighted(step: Any) -> bool:
    """Whether a step of a pipeline takes weights, or learns nothing from the data."""
    return _takes_weights(step) or not _requires_fit(step)


def _requires_fit(step: Any) -> bool:
    """Whether a step of a pipeline learns from the data."""
    tags = getattr(step, "__sklearn_tags__", None)
    return tags is None or bool(tags().requires_fit)


def _inner_models(model: Any) -> list[Any]:
    """Return the models that a meta-estimator fits."""
    candidates = [getattr(model, name, None) for name in _INNER_MODEL_PARAMETERS]
    pairs = getattr(model, "estimators", None)
    if isinstance(pairs, list):
        candidates += [pair[-1] for pair in pairs if isinstance(pair, tuple)]
    return [candidate for candidate in candidates if isinstance(candidate, BaseEstimator)]


def _request_weights(model: Any) -> None:
    """Request weights for all estimators and scorers inside a model that have no request yet."""
    inner = [value for value in model.get_params(deep=True).values() if hasattr(value, "fit")]
    for part in [model, *inner]:
        for method in ("fit", "score"):
            setter = getattr(type(part), f"set_{method}_request", None)
            parameters = signature(getattr(part, method, part.fit)).parameters
            if setter is None or "sample_weight" not in parameters:
                continue
            requests = part.get_metadata_routing()
            requests = getattr(requests, "_self_request", requests)
            if requests is None:
                # A meta-estimator that only passes weights on.
                continue
            if getattr(requests, method).requests.get("sample_weight") is None:
                with config_context(enable_metadata_routing=True):
                    getattr(part, f"set_{method}_request")(sample_weight=True)
        scoring = getattr(part, "scoring", None)
        if isinstance(scoring, str):
            with config_context(enable_metadata_routing=True):
                scorer = get_scorer(scoring)
                part.scoring = scorer.set_score_request(sample_weight=True)
