"""Comparing and choosing models.

Reading order: ``_scorers`` (for ``scoring=``), ``_entries`` (a matrix's entries and rankings),
``_compare`` (several models, one table).

In: estimators, fitted or not, through their public interface. Out: scores in nats per row.
"""

from skbayes_sym.factorization.splitters import EntryKFold, RankingScorer, cross_validate_entries
from skbayes_sym.model_selection._compare import compare_models
from skbayes_sym.model_selection._scorers import NoSplit, QuantileOf, evidence_scorer, get_scorer

__all__ = [
    "EntryKFold", "NoSplit", "QuantileOf", "RankingScorer", "compare_models",
    "cross_validate_entries", "evidence_scorer", "get_scorer",
]  # fmt: skip
