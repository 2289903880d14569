"""Comparing and choosing models."""

from skbayes_sym.model_selection._compare import compare_models
from skbayes_sym.model_selection._entries import EntryKFold, cross_validate_entries
from skbayes_sym.model_selection._scorers import evidence_scorer, log_predictive_density_scorer
from skbayes_sym.model_selection._splits import NoSplit

__all__ = [
    "EntryKFold",
    "NoSplit",
    "compare_models",
    "cross_validate_entries",
    "evidence_scorer",
    "log_predictive_density_scorer",
]
