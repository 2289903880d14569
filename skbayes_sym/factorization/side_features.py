"""Features of rows or columns: in the order of labels, as numbers; and what they rated at all."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from skbayes_sym.base.columns import Columns, as_table
from skbayes_sym.base.rows import ENCODE, Array, numeric_conversion
from skbayes_sym.base.scikit_learn import check_array, safe_indexing
from skbayes_sym.factorization.frames import (
    frame_names,
    get_role_column,
    looks_like_id,
    match_role,
)
from skbayes_sym.factorization.labels import check_labels, convert_labels
from skbayes_sym.factorization.ratings import mask_to_nan
from skbayes_sym.numerics.arguments import is_frame, short_repr
from skbayes_sym.numerics.tables import read_table

MAX_FEATURES = 5000  # their inner products are held and factorised


class SideFeatures(NamedTuple):
    """Features as they were given, and what their rows are called; None: in the order of labels."""

    name: str
    table: Any
    labels: Array | None
    is_numbered: bool = False  # labels are only the positions of the frame's rows

    @classmethod
    def read(cls, raw: Any, side: int, columns: Any = "auto") -> "SideFeatures | None":
        """Features of rows (side 0) or columns (1).

        A frame is labelled by its index. If that only numbers, the labels are in the column
        that ``columns`` of the estimator names, or in one with a well-known name such as "userId".

        Raises ValueError if several columns could hold the labels, or a label occurs twice.
        """
        name = ("row_features", "column_features")[side]
        if raw is None or not is_frame(raw):
            return None if raw is None else cls(name, mask_to_nan(raw), None)
        if hasattr(raw, "to_pandas") and hasattr(raw, "column_names"):  # of pyarrow
            raw = raw.to_pandas()
        is_numbered = not hasattr(raw, "index")
        index = np.arange(len(raw)) if is_numbered else np.asarray(raw.index)
        if not is_numbered:
            is_numbered = raw.index.name is None and index.dtype.kind in "iu"
        label_column = None
        if is_numbered:
            label_column = _label_column(raw, name, ("row", "column")[side], columns)
            if label_column is not None:
                index = raw[label_column]
                raw = raw[[other for other in frame_names(raw) if other != label_column]]
        labels = check_labels(index, f"the index of {name}")
        if len(np.unique(labels)) < len(labels):
            raise ValueError(f"{name} has several rows of one label: keep one of each.")
        is_default = is_numbered and label_column is None
        return cls(name, raw, labels, is_default and np.array_equal(labels, np.arange(len(labels))))

    def ordered(self, labels: Array | None, n: int) -> Self:
        """Rows in the order of these labels, None: positions.

        Raises ValueError if there isn't one row for each, naming a label that is missing.
        """
        if self.labels is None or (labels is None and self.labels.dtype.kind not in "iu"):
            n_rows = self.table.shape[0] if hasattr(self.table, "shape") else len(self.table)
            if n_rows != n:
                raise ValueError(f"{self.name} has {n_rows} rows, but the matrix has {n} of them.")
            return self
        wanted = np.arange(n) if labels is None else labels
        known = convert_labels(
            self.labels, wanted, f"labels of {self.name}", "labels of the matrix"
        )
        order = np.argsort(known)
        sorted_labels = known[order]
        place = np.searchsorted(sorted_labels, wanted).clip(max=len(order) - 1)
        missing = wanted[sorted_labels[place] != wanted]
        if len(missing):
            raise ValueError(
                f"{self.name} has no row for {len(missing)} labels of the matrix, such as "
                f"{short_repr(missing[0].item())}: add it, or set_index(...) to what labels are."
            )
        return self._replace(table=safe_indexing(self.table, order[place]), labels=wanted)


def _label_column(table: Any, name: str, role: str, columns: Any) -> Any:
    """The column of features that holds labels, or None if the order of rows does."""
    names = frame_names(table)
    named = get_role_column(columns, role)
    if named is not None and named in names:
        return named
    found = match_role(names, role)
    if len(found) > 1:
        raise ValueError(
            f"{found} of {name} may all hold the labels of its rows: call "
            f"{name}.set_index({found[0]!r}), say, and drop the others."
        )
    ids = [other for other in names if looks_like_id(other)]
    if not found and len(ids) == 1 and len(np.unique(np.asarray(table[ids[0]]))) == len(table):
        raise ValueError(
            f"{name} has the column {ids[0]!r}, which looks like the labels of its rows: call "
            f"{name}.set_index({ids[0]!r}). If it is a feature, give it another name."
        )
    return found[0] if found else None


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """How features become numbers.

    ``scaling`` (h,): what columns are divided by, less ``centre``; None: none were given.
    ``directions`` (m, r): of which entries there are. ``names``: columns of a frame.
    """

    columns: Columns | None = None
    scaling: Array | None = None
    directions: Array | None = None
    centre: Array | float = 0.0
    names: tuple[str, ...] = ()

    @classmethod
    def learned(
        cls, described: SideFeatures | None, rated: sp.csr_array | None, n_directions: int
    ) -> tuple["FeatureEncoder", Array] | None:
        """The code of features and of what was rated, and these in it; None without either.

        ``rated`` (n, m): ones where there are entries.
        """
        columns = scaling = directions = None
        names: tuple[str, ...] = ()
        if described is not None:
            table = None if sp.issparse(described.table) else as_table(described.table)
            columns = None if table is None else Columns.from_table(table)
            if is_frame(described.table):
                names = tuple(map(str, frame_names(described.table)))
            values = cls(columns, np.ones(1))._given(described)
            if values.shape[1] > MAX_FEATURES:
                raise ValueError(
                    f"{described.name} has {values.shape[1]} columns, more than {MAX_FEATURES}: "
                    "their coefficients are solved for in full. Hash or project them first."
                )
            scaling = np.sqrt(np.mean(values**2, axis=0))
            scaling[scaling == 0.0] = 1.0
        if rated is not None and rated.nnz and min(rated.shape) > 1:
            n_kept = min(n_directions, min(rated.shape) - 1)
            start = np.ones(min(rated.shape))
            directions = svds(_shares(rated), k=n_kept, v0=start)[2].T
            size = np.sqrt(np.mean((_shares(rated) @ directions) ** 2, axis=0)).max()
            directions = directions / size
        code = cls(columns, scaling, directions, 0.0, names)
        return None if scaling is directions is None else (code, code.encoded(described, rated))

    @classmethod
    def of_context(cls, described: SideFeatures, weights: Array) -> "FeatureEncoder":
        """The code of entries' context: every column has mean 0 and variance 1 by ``weights``."""
        learned = cls.learned(described, None, 0)
        assert learned is not None
        code, values = learned
        mean = np.average(values, axis=0, weights=weights)
        spread = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
        spread[spread < 1e-13] = 1.0  # rounding of a constant
        return replace(code, centre=mean * code.scaling, scaling=spread * code.scaling)

    def encoded(self, described: SideFeatures | None, rated: sp.csr_array | None = None) -> Array:
        """Features of any rows, and which columns they rated, in this code, (n, h + r)."""
        parts = [] if self.scaling is None or described is None else [self._given(described)]
        if self.directions is not None:
            assert rated is not None
            parts.append(np.asarray(_shares(rated) @ self.directions))
        return np.concatenate(parts, axis=1)

    def _given(self, described: SideFeatures) -> Array:
        """Features in this code, (n, h); words and gaps by columns of their own."""
        name = described.name
        raw = described.table
        if is_frame(raw) and self.names:
            by_name = {str(column): column for column in frame_names(raw)}
            if not set(self.names) <= set(by_name):
                raise ValueError(f"{name} must have the columns {list(self.names)}, as in fit.")
            raw = raw[[by_name[column] for column in self.names]]
        if self.columns is None:
            with numeric_conversion(name, ENCODE):
                array = check_array(raw, accept_sparse=True, dtype=np.float64, input_name=name)
            values = np.asarray(array.toarray() if sp.issparse(array) else array)
        else:
            names = [column.name for column in self.columns.columns]
            table = read_table(raw)
            if table is None or len(table.names) != len(names):
                raise ValueError(f"{name} must have the columns {names}, as in fit.")
            values = self.columns.encode(table)
        assert self.scaling is not None
        if len(self.scaling) not in (1, values.shape[1]):
            n = len(self.scaling)
            raise ValueError(f"{name} must have {n} columns, got {values.shape[1]}.")
        return np.asarray((values - self.centre) / self.scaling)


def _shares(rated: sp.csr_array) -> sp.csr_array:
    """Rows divided by the root of their number of entries, as in SVD++ (Koren 2008)."""
    counts = np.maximum(np.diff(rated.indptr), 1)
    return sp.csr_array((rated.data / np.sqrt(np.repeat(counts, np.diff(rated.indptr))),
                         rated.indices, rated.indptr), shape=rated.shape)  # fmt: skip


def encode_new_rows(
    raw: Any, code: FeatureEncoder | None, labels: Array | None, rated: sp.csr_array, side: int,
    columns: Any = "auto",
) -> Tensor:  # fmt: skip
    """Features of new rows, and what they rated, in the code of those of `fit`, (n, h).

    Raises ValueError if the model has none and some are given, or the other way round.
    """
    described = SideFeatures.read(raw, side, columns)
    name = ("row_features", "column_features")[side]
    takes = code is not None and code.scaling is not None
    if described is not None and not takes:
        raise ValueError(f"{name} was not given to fit, so the model has no use for it.")
    if described is None and takes:
        raise ValueError(f"{name} was given to fit: give that of the new rows too.")
    if code is None:
        return torch.zeros(rated.shape[0], 0, dtype=torch.float64)
    if described is not None:
        described = described.ordered(labels, rated.shape[0])
    return torch.as_tensor(code.encoded(described, rated))
