"""Comparing and choosing models.

Reading order: `_compare` (the table a user asks for), made of `_fits` (one to each fold and one to
all rows), `_predictions` (what any fitted model says of new rows), `_loo` (leave-one-out densities
from one fit) and `_table` (a row of numbers); `_scorers` and `_splits` for searches; `_entries`
where the data are entries of a matrix.

Tested elsewhere: `_fits` (with `compare`), `_predictions` (with `scorers` and `compare`),
`_loo` (with `compare`), `_table` (with `compare`).

In: fitted or unfitted estimators, pipelines, searches. Out: tables and scores, nats per row.
"""

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
