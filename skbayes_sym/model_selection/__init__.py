"""Comparing and choosing models.

Reading order: ``_scorers`` (for ``scoring=``), ``_named`` (the same by name), ``_splits``,
``_entries`` (folds of a matrix's entries), ``_compare`` (several models, one table); it is made of
``_fits``, ``_predictions``, ``_loo`` and ``_table``.

In: estimators, fitted or not, through their public interface. Out: scores in nats per row.
"""

from skbayes_sym.model_selection._compare import compare_models
from skbayes_sym.model_selection._entries import EntryKFold, cross_validate_entries
from skbayes_sym.model_selection._named import get_scorer
from skbayes_sym.model_selection._scorers import evidence_scorer, log_predictive_density_scorer
from skbayes_sym.model_selection._splits import NoSplit

__all__ = [
    "EntryKFold",
    "NoSplit",
    "compare_models",
    "cross_validate_entries",
    "evidence_scorer",
    "get_scorer",
    "log_predictive_density_scorer",
]
