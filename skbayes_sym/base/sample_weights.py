"""Sample weights for anyone's estimator: through pipelines, searches and other meta-estimators."""

from inspect import signature
from typing import Any, Literal

from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.metrics import get_scorer
from sklearn.pipeline import Pipeline

from skbayes_sym.base.rows import Array

_INNER = ("estimator", "regressor", "classifier", "base_estimator")


def weight_support(model: Any) -> Literal["all", "some", "none"]:
    """Tell whether sample weights reach what is fitted.

    Parameters
    ----------
    model : estimator
        Fitted or not.

    Returns
    -------
    {"all", "some", "none"}
        "some" if a model that predicts takes weights but a step before it doesn't, for which
        repeated rows are exact and weights aren't; "none" if a model that predicts doesn't.
    """
    if isinstance(model, Pipeline):
        steps = [step for _, step in model.steps if step is not None and step != "passthrough"]
        support = weight_support(steps[-1]) if steps else "none"
        if support == "all" and not all(_is_weighted(step) for step in steps[:-1]):
            return "some"
        return support
    inner = _inner_models(model)
    if inner:
        supports = {weight_support(part) for part in inner}
        takes = _takes_weights(model) or _passes_parameters(model)
        if "none" in supports or not takes:
            return "none"
        if hasattr(model, "cv"):  # repeated rows would be on both sides of its folds
            return "all"
        # Of the target, which takes no weights.
        transformer = getattr(model, "transformer", None)
        is_learned = transformer is not None and _requires_fit(transformer)
        return "some" if "some" in supports or is_learned else "all"
    return "all" if _takes_weights(model) else "none"


def fit_with_weights(model: Any, X: Any, y: Any, sample_weight: Array) -> None:
    """Fit an estimator in place, with weights for everything inside it that takes them.

    Scikit-learn's metadata routing passes them on. What already requests or refuses weights is left
    as it is.
    """
    if not isinstance(model, Pipeline) and not _inner_models(model):
        model.fit(X, y, sample_weight=sample_weight)
        return
    _request_weights(model)
    with config_context(enable_metadata_routing=True):
        model.fit(X, y, sample_weight=sample_weight)


def _takes_weights(model: Any) -> bool:
    return "sample_weight" in signature(model.fit).parameters


def _passes_parameters(model: Any) -> bool:
    """Whether ``fit`` takes any keyword, which it routes to what is inside."""
    kinds = [parameter.kind for parameter in signature(model.fit).parameters.values()]
    return any(kind == kind.VAR_KEYWORD for kind in kinds)


def _is_weighted(step: Any) -> bool:
    """Whether a step of a pipeline takes weights, or learns nothing that they would change."""
    return _takes_weights(step) or not _requires_fit(step)


def _requires_fit(step: Any) -> bool:
    tags = getattr(step, "__sklearn_tags__", None)
    return tags is None or bool(tags().requires_fit)


def _inner_models(model: Any) -> list[Any]:
    """Models that a meta-estimator fits."""
    found = [getattr(model, name, None) for name in _INNER]
    named = getattr(model, "estimators", None)
    if isinstance(named, list):
        found += [pair[-1] for pair in named if isinstance(pair, tuple)]
    return [part for part in found if isinstance(part, BaseEstimator)]


def _request_weights(model: Any) -> None:
    """Request weights for all estimators and scorers inside a model that don't say otherwise."""
    parts = [model, *(v for v in model.get_params(deep=True).values() if hasattr(v, "fit"))]
    for part in parts:
        for method in ("fit", "score"):
            setter = getattr(type(part), f"set_{method}_request", None)
            wanted = signature(getattr(part, method, part.fit)).parameters
            if setter is None or "sample_weight" not in wanted:
                continue
            requests = part.get_metadata_routing()
            requests = getattr(requests, "_self_request", requests)
            if requests is None:  # which only passes weights on
                continue
            if getattr(requests, method).requests.get("sample_weight") is None:
                with config_context(enable_metadata_routing=True):
                    getattr(part, f"set_{method}_request")(sample_weight=True)
        scoring = getattr(part, "scoring", None)
        if isinstance(scoring, str):
            with config_context(enable_metadata_routing=True):
                scorer = get_scorer(scoring)
                part.scoring = scorer.set_score_request(sample_weight=True)
