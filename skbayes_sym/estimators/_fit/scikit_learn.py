"""All that is taken from scikit-learn and isn't public there, and what its versions differ in."""

from importlib.metadata import PackageNotFoundError, metadata

from sklearn.base import _fit_context as fit_context
from sklearn.metrics._scorer import _BaseScorer as BaseScorer
from sklearn.utils import _safe_indexing as safe_indexing
from sklearn.utils._param_validation import HasMethods, Interval, StrOptions, validate_params
from sklearn.utils.metaestimators import _safe_split as safe_split
from sklearn.utils.validation import _check_sample_weight as check_sample_weight
from sklearn.utils.validation import _num_samples as num_samples

try:
    from sklearn.callback import CallbackSupportMixin
except ImportError:  # before 1.9 there are no callbacks

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """No ``set_callbacks``."""


def page_of_a_class() -> str:
    """Template of the address of a class's page; empty as long as the package has no site."""
    try:
        lines = metadata("skbayes-sym").get_all("Project-URL") or []
    except PackageNotFoundError:
        return ""
    site = dict(line.split(", ", 1) for line in lines).get("Documentation", ".invalid")
    return "" if ".invalid" in site else f"{site}/api/generated/skbayes_sym.{{estimator_name}}.html"


__all__ = [
    "BaseScorer", "CallbackSupportMixin", "HasMethods", "Interval", "StrOptions",
    "check_sample_weight", "fit_context", "num_samples", "page_of_a_class", "safe_indexing",
    "safe_split", "validate_params",
]  # fmt: skip
