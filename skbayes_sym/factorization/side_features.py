"""Features of rows, of columns and of entries: alignment with labels and numerical encoding."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from skbayes_sym.base.columns import Columns, as_table
from skbayes_sym.base.input_validation import ENCODE, numeric_conversion
from skbayes_sym.base.rows import Array
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

# Largest number of features, because their Gram matrix is stored and factorised.
MAX_FEATURES = 5000


class SideFeatures(NamedTuple):
    """Features as users give them, with the labels of their rows.

    Attributes
    ----------
    name : str
        Name of the argument in messages.
    table : array-like, sparse matrix or DataFrame
        Features.
    labels : ndarray or None
        Labels of the rows of the table; None if these are in the order of the matrix.
    is_numbered : bool
        Whether the labels are only the positions of a frame's rows.
    """

    name: str
    table: Any
    labels: Array | None
    is_numbered: bool = False

    @classmethod
    def read(cls, raw: Any, axis: int, columns: Any = "auto") -> "SideFeatures | None":
        """Read the features of rows or columns.

        A frame is labelled by its index. If the index only numbers the rows, the labels are in the
        column that ``columns`` names, or in one with a well-known name such as "userId".

        Parameters
        ----------
        raw : array-like, sparse matrix, DataFrame or None
            Features.
        axis : {0, 1}
            0 for features of rows, 1 for features of columns.
        columns : "auto", tuple or dict, default="auto"
            Parameter ``columns`` of the estimator.

        Returns
        -------
        SideFeatures or None
            None if no features were given.

        Raises
        ------
        ValueError
            If several columns could hold the labels, or a label occurs twice.
        """
        name = ("row_features", "column_features")[axis]
        if raw is None:
            return None
        if not is_frame(raw):
            return cls(name, mask_to_nan(raw), None)
        is_pyarrow = hasattr(raw, "to_pandas") and hasattr(raw, "column_names")
        if is_pyarrow:
            raw = raw.to_pandas()

        # An index without a name that holds integers only numbers the rows; polars has none.
        if hasattr(raw, "index"):
            index = np.asarray(raw.index)
            is_numbered = raw.index.name is None and index.dtype.kind in "iu"
        else:
            index = np.arange(len(raw))
            is_numbered = True
        label_column = None
        if is_numbered:
            label_column = _find_label_column(raw, name, ("row", "column")[axis], columns)
        if label_column is not None:
            index = raw[label_column]
            raw = raw[[other for other in frame_names(raw) if other != label_column]]

        labels = check_labels(index, f"the index of {name}")
        if len(np.unique(labels)) < len(labels):
            raise ValueError(f"{name} has several rows of one label: keep one of each.")
        is_default_index = (
            is_numbered and label_column is None and np.array_equal(labels, np.arange(len(labels)))
        )
        return cls(name, raw, labels, is_default_index)

    def align(self, labels: Array | None, n: int) -> Self:
        """Order the rows by the labels of a matrix.

        Parameters
        ----------
        labels : ndarray of shape (n,) or None
            Labels of the matrix; None for positions.
        n : int
            Number of its rows, or columns.

        Returns
        -------
        SideFeatures
            Features in the order of the labels.

        Raises
        ------
        ValueError
            If there isn't one row for each label.
        """
        is_positional = labels is None and (
            self.labels is None or self.labels.dtype.kind not in "iu"
        )
        if self.labels is None or is_positional:
            if hasattr(self.table, "shape"):
                n_rows = self.table.shape[0]
            else:
                n_rows = len(self.table)
            if n_rows != n:
                raise ValueError(f"{self.name} has {n_rows} rows, but the matrix has {n} of them.")
            return self
        targets = np.arange(n) if labels is None else labels
        known = convert_labels(
            self.labels, targets, f"labels of {self.name}", "labels of the matrix"
        )
        order = np.argsort(known)
        sorted_labels = known[order]
        index = np.searchsorted(sorted_labels, targets).clip(max=len(order) - 1)
        missing = targets[sorted_labels[index] != targets]
        if len(missing):
            raise ValueError(
                f"{self.name} has no row for {len(missing)} labels of the matrix, such as "
                f"{short_repr(missing[0].item())}: add these rows, or "
                "set the index to the column of labels."
            )
        return self._replace(table=safe_indexing(self.table, order[index]), labels=targets)


def _find_label_column(table: Any, name: str, role: str, columns: Any) -> Any:
    """Find the column of features that holds the labels of their rows.

    Parameters
    ----------
    table : DataFrame
        Features.
    name : str
        Name of the argument in messages.
    role : {"row", "column"}
        What the features describe.
    columns : "auto", tuple or dict
        Parameter ``columns`` of the estimator.

    Returns
    -------
    object or None
        Name of the column; None if rows are in the order of the matrix.

    Raises
    ------
    ValueError
        If several columns could hold the labels, or a column of ids has no well-known name.
    """
    names = frame_names(table)
    chosen = get_role_column(columns, role)
    if chosen is not None and chosen in names:
        return chosen
    candidates = match_role(names, role)
    if len(candidates) > 1:
        raise ValueError(
            f"{candidates} of {name} may all hold the labels of its rows: call "
            f"{name}.set_index({candidates[0]!r}), say, and drop the others."
        )
    if candidates:
        return candidates[0]
    ids = [other for other in names if looks_like_id(other)]
    if len(ids) == 1 and len(np.unique(np.asarray(table[ids[0]]))) == len(table):
        raise ValueError(
            f"{name} has the column {ids[0]!r}, which looks like the labels of its rows: call "
            f"{name}.set_index({ids[0]!r}). If it is a feature, give it another name."
        )
    return None


class EncodedFeatures(NamedTuple):
    """Numerical features, with the encoder that made them.

    Attributes
    ----------
    encoder : FeatureEncoder
        Encoder, for features of new rows.
    values : ndarray of shape (n, h)
        Encoded features.
    """

    encoder: "FeatureEncoder"
    values: Array


@dataclass(frozen=True, eq=False)
class FeatureEncoder:
    """Numerical encoding of given features and of implicit ones.

    Implicit features are coordinates of the pattern of observed entries along its leading singular
    vectors, as in SVD++ (Koren 2008).

    Parameters
    ----------
    columns : Columns, optional
        Encoding of text and missing values in the columns of a table.
    scaling : ndarray of shape (h,), optional
        Divisors of the encoded columns; None if no features were given.
    directions : ndarray of shape (m, r), optional
        Singular vectors of the pattern of observed entries; None without implicit features.
    centre : ndarray of shape (h,) or float, default=0.0
        Subtracted from the encoded columns before the division.
    names : tuple of str, default=()
        Names of the columns, if the features were a frame.
    """

    columns: Columns | None = None
    scaling: Array | None = None
    directions: Array | None = None
    centre: Array | float = 0.0
    names: tuple[str, ...] = ()

    @classmethod
    def fit(
        cls, features: SideFeatures | None, indicator: sp.csr_array | None, n_directions: int
    ) -> EncodedFeatures | None:
        """Learn the encoding of features.

        Parameters
        ----------
        features : SideFeatures or None
            Given features, in the order of the rows.
        indicator : sparse array of shape (n, m) or None
            1 at observed entries, for implicit features.
        n_directions : int
            Number of implicit features.

        Returns
        -------
        EncodedFeatures or None
            None if there are neither given nor implicit features.

        Raises
        ------
        ValueError
            If there are more than 5,000 encoded columns.
        """
        columns = None
        scaling = None
        directions = None
        names: tuple[str, ...] = ()
        if features is not None:
            if not sp.issparse(features.table):
                table = as_table(features.table)
                if table is not None:
                    columns = Columns.from_table(table)
            if is_frame(features.table):
                names = tuple(map(str, frame_names(features.table)))
            values = cls(columns, np.ones(1)).encode_features(features)
            if values.shape[1] > MAX_FEATURES:
                raise ValueError(
                    f"{features.name} has {values.shape[1]} columns, more than {MAX_FEATURES}: "
                    "their coefficients are solved for in full. Hash or project them first."
                )
            scaling = np.sqrt(np.mean(values**2, axis=0))
            scaling[scaling == 0.0] = 1.0
        if indicator is not None and indicator.nnz and min(indicator.shape) > 1:
            n_kept = min(n_directions, min(indicator.shape) - 1)
            normalised = _normalise_rows(indicator)
            start = np.ones(min(indicator.shape))
            directions = svds(normalised, k=n_kept, v0=start)[2].T
            directions = directions / np.sqrt(np.mean((normalised @ directions) ** 2, axis=0)).max()
        if scaling is None and directions is None:
            return None
        encoder = cls(columns, scaling, directions, 0.0, names)
        return EncodedFeatures(encoder, encoder.encode(features, indicator))

    @classmethod
    def fit_context(cls, features: SideFeatures, weights: Array) -> "FeatureEncoder":
        """Learn the encoding of the context of entries.

        Every encoded column has mean 0 and variance 1 under the weights (N,) of the entries.
        """
        encoded = cls.fit(features, None, 0)
        assert encoded is not None
        encoder, values = encoded
        mean = np.average(values, axis=0, weights=weights)
        deviation = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=weights))
        # A smaller one is the rounding error of a constant column.
        deviation[deviation < 1e-13] = 1.0
        return replace(encoder, centre=mean * encoder.scaling, scaling=deviation * encoder.scaling)

    def encode(self, features: SideFeatures | None, indicator: sp.csr_array | None = None) -> Array:
        """Encode given features and the pattern of observed entries of any rows, (n, h + r)."""
        parts = []
        if self.scaling is not None and features is not None:
            parts.append(self.encode_features(features))
        if self.directions is not None:
            assert indicator is not None
            parts.append(np.asarray(_normalise_rows(indicator) @ self.directions))
        return np.concatenate(parts, axis=1)

    def encode_features(self, features: SideFeatures) -> Array:
        """Encode given features, (n, h); text and missing values have columns of their own.

        Raises
        ------
        ValueError
            If the features have other columns than in `fit`.
        """
        name = features.name
        table = features.table
        if is_frame(table) and self.names:
            by_name = {str(column): column for column in frame_names(table)}
            if not set(self.names) <= set(by_name):
                raise ValueError(f"{name} must have the columns {list(self.names)}, as in fit.")
            table = table[[by_name[column] for column in self.names]]
        if self.columns is None:
            with numeric_conversion(name, ENCODE, table):
                array = check_array(table, accept_sparse=True, dtype=np.float64, input_name=name)
            if sp.issparse(array):
                array = array.toarray()
            values = np.asarray(array)
        else:
            names = [column.name for column in self.columns.columns]
            columns = read_table(table)
            if columns is None or len(columns.names) != len(names):
                raise ValueError(f"{name} must have the columns {names}, as in fit.")
            values = self.columns.encode(columns)
        assert self.scaling is not None
        if len(self.scaling) not in (1, values.shape[1]):
            n_columns = len(self.scaling)
            raise ValueError(f"{name} must have {n_columns} columns, got {values.shape[1]}.")
        return np.asarray((values - self.centre) / self.scaling)


def _normalise_rows(indicator: sp.csr_array) -> sp.csr_array:
    """Divide rows by the square root of their number of entries, as in SVD++ (Koren 2008)."""
    counts = np.diff(indicator.indptr)
    root_counts = np.sqrt(np.repeat(np.maximum(counts, 1), counts))
    data = indicator.data / root_counts
    return sp.csr_array((data, indicator.indices, indicator.indptr), shape=indicator.shape)


def encode_new_rows(
    raw: Any, encoder: FeatureEncoder | None, labels: Array | None, indicator: sp.csr_array,
    axis: int, columns: Any = "auto",
) -> Tensor:  # fmt: skip
    """Encode the features of new rows, or columns, as those of `fit`.

    Parameters
    ----------
    raw : array-like, sparse matrix, DataFrame or None
        Features as the user passed them.
    encoder : FeatureEncoder or None
        Encoder of the fit; None if it had no features.
    labels : ndarray or None
        Labels of the new rows.
    indicator : sparse array of shape (n, m)
        1 at the observed entries of the n new rows.
    axis : {0, 1}
        0 for rows, 1 for columns.
    columns : "auto", tuple or dict, default="auto"
        Parameter ``columns`` of the estimator.

    Returns
    -------
    Tensor of shape (n, h)
        Encoded features, float64.

    Raises
    ------
    ValueError
        If features are given to a model without, or missing for a model with features.
    """
    features = SideFeatures.read(raw, axis, columns)
    name = ("row_features", "column_features")[axis]
    takes_features = encoder is not None and encoder.scaling is not None
    if features is not None and not takes_features:
        raise ValueError(f"{name} wasn't passed to fit, so the model can't use it.")
    if features is None and takes_features:
        raise ValueError(f"{name} was passed to fit: pass it for the new rows too.")
    n_rows = indicator.shape[0]
    if encoder is None:
        return torch.zeros(n_rows, 0, dtype=torch.float64)
    if features is not None:
        features = features.align(labels, n_rows)
    return torch.as_tensor(encoder.encode(features, indicator))
