"""Comparison and selection of models.

* `_scorers`: scorers of predictive distributions and evidence, for ``scoring=``
* `_compare`: `compare_models`, a table of cross-validated scores

Those for matrices with missing entries are in `skbayes_sym.factorization.splitters`.
"""

from skbayes_sym.factorization.splitters import EntryKFold, RankingScorer, cross_validate_entries
from skbayes_sym.model_selection._compare import compare_models
from skbayes_sym.model_selection._scorers import (
    NoSplit,
    QuantilePredictor,
    evidence_scorer,
    get_scorer,
)

__all__ = [
    "EntryKFold", "NoSplit", "QuantilePredictor", "RankingScorer", "compare_models",
    "cross_validate_entries", "evidence_scorer", "get_scorer",
]  # fmt: skip
