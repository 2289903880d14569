"""Features of rows or columns: in the order of labels, as numbers divided by their size."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from skbayes_sym.estimators._fit.columns import Columns, Table, table_of
from skbayes_sym.estimators._fit.rows import ENCODE, Array, numbers_due
from skbayes_sym.estimators.factorization.lists import as_labels, label_column
from skbayes_sym.numerics.arguments import is_frame, shown

MOST_FEATURES = 5000  # their inner products are held and factorised


class Described(NamedTuple):
    """Features as they were given, and what their rows are called; None: in the order of labels."""

    name: str
    table: Any
    labels: Array | None

    @classmethod
    def read(cls, raw: Any, side: int) -> "Described | None":
        """Features of rows (side 0) or columns (1).

        A frame is labelled by its index, or where that only numbers by a column such as "userId".
        """
        name = ("row_features", "column_features")[side]
        if raw is None or not is_frame(raw):
            return None if raw is None else cls(name, raw, None)
        index = np.asarray(raw.index)
        column = None
        if raw.index.name is None and index.dtype.kind in "iu":
            column = label_column(list(raw.columns), ("row", "column")[side])
        if column is not None:
            index, raw = raw[column], raw.drop(columns=[column])
        labels = as_labels(index, f"the index of {name}")
        if len(np.unique(labels)) < len(labels):
            raise ValueError(f"{name} has several rows of one label: keep one of each.")
        return cls(name, raw, labels)

    def ordered(self, labels: Array | None, n: int) -> Self:
        """Rows in the order of these labels, None: positions.

        Raises ValueError if there isn't one row for each, naming a label that is missing.
        """
        if self.labels is None or (labels is None and self.labels.dtype.kind == "U"):
            n_rows = self.table.shape[0] if hasattr(self.table, "shape") else len(self.table)
            if n_rows != n:
                raise ValueError(f"{self.name} has {n_rows} rows, but the matrix has {n} of them.")
            return self
        wanted = np.arange(n) if labels is None else labels
        order = np.argsort(self.labels)
        sorted_labels = self.labels[order]
        if (wanted.dtype.kind == "U") != (sorted_labels.dtype.kind == "U"):
            raise ValueError(
                f"{self.name} is labelled by {sorted_labels.dtype} such as {sorted_labels[:1]}, "
                f"the matrix by {wanted.dtype} such as {wanted[:1]}: set_index(...) says by what."
            )
        place = np.searchsorted(sorted_labels, wanted).clip(max=len(order) - 1)
        missing = wanted[sorted_labels[place] != wanted]
        if len(missing):
            raise ValueError(
                f"{self.name} has no row for {len(missing)} labels of the matrix, such as "
                f"{shown(missing[0].item())}: add it, or set_index(...) to what labels are."
            )
        return self._replace(table=self.table.iloc[order[place]], labels=wanted)


@dataclass(frozen=True, eq=False)
class FeatureCode:
    """How features become numbers; ``scaling`` (h,): what columns are divided by."""

    columns: Columns | None
    scaling: Array

    @classmethod
    def learned(cls, described: Described) -> tuple["FeatureCode", Array]:
        """The code of features, and these in it."""
        table = None if sp.issparse(described.table) else table_of(described.table)
        code = cls(None if table is None else Columns.learned(table), np.ones(1))
        values = code.encoded(described)
        if values.shape[1] > MOST_FEATURES:
            raise ValueError(
                f"{described.name} has {values.shape[1]} columns, more than {MOST_FEATURES}: their "
                "coefficients are solved for in full. Hash or project them first."
            )
        scaling = np.sqrt(np.mean(values**2, axis=0))
        scaling[scaling == 0.0] = 1.0
        return replace(code, scaling=scaling), values / scaling

    def encoded(self, described: Described) -> Array:
        """Features of any rows in this code, (n, h); words and gaps by columns of their own."""
        name, raw = described.name, described.table
        if self.columns is None:
            with numbers_due(name, ENCODE):
                array = check_array(raw, accept_sparse=True, dtype=np.float64, input_name=name)
            values = np.asarray(array.toarray() if sp.issparse(array) else array)
        else:
            names = [column.name for column in self.columns.columns]
            if not is_frame(raw):
                parts = list(check_array(raw, dtype=None, ensure_all_finite=False).T)
            else:
                by_name = {str(column): np.asarray(raw[column]) for column in raw.columns}
                parts = [by_name[column] for column in names if column in by_name]
            if len(parts) != len(names):
                raise ValueError(f"{name} must have the columns {names}, as in fit.")
            values = self.columns.encoded(Table(names, parts))
        if len(self.scaling) not in (1, values.shape[1]):
            raise ValueError(
                f"{name} must have {len(self.scaling)} columns, got {values.shape[1]}."
            )
        return np.asarray(values / self.scaling)


def of_new_rows(
    raw: Any, code: FeatureCode | None, labels: Array | None, n: int, side: int
) -> Tensor:
    """Features of new rows in the code of those of `fit`, (n, h).

    Raises ValueError if the model has none and some are given, or the other way round.
    """
    described, name = Described.read(raw, side), ("row_features", "column_features")[side]
    if code is None:
        if described is not None:
            raise ValueError(f"{name} was not given to fit, so the model has no use for it.")
        return torch.zeros(n, 0, dtype=torch.float64)
    if described is None:
        raise ValueError(f"{name} was given to fit: give that of the new rows too.")
    return torch.as_tensor(code.encoded(described.ordered(labels, n)))
