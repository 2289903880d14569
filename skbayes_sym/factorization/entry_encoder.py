"""Conversion of entries, labels and features to the representation of a fitted factorisation.

Users name rows and columns by labels, give entries in their own units, and describe context and
features by text or numbers. The fitted model uses positions, scaled values and encoded features.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from skbayes_sym.base.messages import warn_user
from skbayes_sym.base.rows import Array
from skbayes_sym.base.scikit_learn import safe_indexing
from skbayes_sym.factorization.frames import find_list_columns
from skbayes_sym.factorization.labels import locate_labels
from skbayes_sym.factorization.ratings import (
    ObservedEntries,
    parse_entry_list,
    warn_conflicting_values,
)
from skbayes_sym.factorization.side_features import (
    FeatureEncoder,
    SideFeatures,
    encode_new_rows,
)
from skbayes_sym.factorization.sparse_entries import CSREntries
from skbayes_sym.numerics.arguments import is_frame, short_repr

AXIS_NAMES = ("row", "column")


class EntryInputs(NamedTuple):
    """Inputs of a `FactorPredictor` for single entries.

    Attributes
    ----------
    x : Tensor of shape (E, 2) or (E, 2 + c)
        Positions of row and column, and the encoded context if there is one. Unknown labels have
        the positions after the known ones.
    n_unseen_rows, n_unseen_columns : int
        Numbers of distinct unknown labels.
    """

    x: Tensor
    n_unseen_rows: int
    n_unseen_columns: int


@dataclass(frozen=True, eq=False)
class EntryEncoder:
    """Converts entries as users give them to the representation of a fitted factorisation.

    Axis 0 stands for the rows of the matrix, axis 1 for its columns.

    Parameters
    ----------
    shape : tuple of int
        Numbers of rows and columns of the fitted matrix.
    labels : tuple of ndarray or None
        Labels of the rows and of the columns; None if they are numbered.
    column_roles : "auto", tuple or dict
        Parameter ``columns`` of the estimator, which names the columns of a frame.
    encoders : tuple of FeatureEncoder or None
        Encoders of the features of rows, of the features of columns, and of the context of
        entries; None for those that the model doesn't have.
    mean, scale : float
        The values of the matrix were centred by ``mean`` and divided by ``scale``.
    classes : ndarray or None
        Distinct values if the likelihood is one of classes, which are replaced by their positions.
    is_standardized : bool
        Whether the likelihood takes centred and scaled values; False for counts and classes.
    """

    shape: tuple[int, int]
    labels: tuple[Array | None, Array | None]
    column_roles: Any
    encoders: tuple[FeatureEncoder | None, FeatureEncoder | None, FeatureEncoder | None]
    mean: float
    scale: float
    classes: Array | None
    is_standardized: bool

    def locate(self, raw: Any, axis: int) -> tuple[Array, int]:
        """Return positions of labels along an axis, and the number of unknown labels."""
        return locate_labels(raw, self.shape[axis], f"{AXIS_NAMES[axis]}s", self.labels[axis])

    def encode_pairs(self, rows: Any, columns: Any, context: Array | None = None) -> EntryInputs:
        """Encode the rows and columns of entries whose values are unknown.

        Parameters
        ----------
        rows : array-like of shape (E,), or list of entries
            Labels or positions of rows, or a list that names rows and columns.
        columns : array-like of shape (E,) or None
            Labels or positions of columns; None if ``rows`` is a list of entries.
        context : ndarray of shape (E, c), optional
            Encoded context. By default that of a list of entries, if it has one.

        Returns
        -------
        EntryInputs
            Inputs of the predictor.

        Raises
        ------
        ValueError
            If ``rows`` is no list and ``columns`` is missing, or if their lengths differ.
        """
        if columns is None:
            names = find_list_columns(rows, self.column_roles, valued=False)
            if names is not None:
                context = self.encode_context(rows, None)
                rows, columns = (rows[name] for name in names)
            elif isinstance(rows, tuple) and len(rows) >= 2:
                rows, columns = rows[:2]
            else:
                raise ValueError(
                    "give rows and columns, or a list of entries: a tuple (rows, columns) or a "
                    f"frame whose columns are known to hold them; got {short_repr(rows)} and no "
                    "columns."
                )
        row_index, n_unseen_rows = self.locate(rows, 0)
        column_index, n_unseen_columns = self.locate(columns, 1)
        if len(row_index) != len(column_index):
            raise ValueError(
                f"rows has {len(row_index)} positions and columns {len(column_index)}: they must "
                "match."
            )
        x = np.stack([row_index, column_index], axis=1)
        if context is not None:
            x = np.column_stack([x, context])
        return EntryInputs(torch.as_tensor(x), n_unseen_rows, n_unseen_columns)

    def encode_context(self, X: Any, order: Array | None) -> Array | None:
        """Encode the context of the entries of a frame.

        Parameters
        ----------
        X : object
            List of entries.
        order : ndarray of shape (E,) or None
            Positions of the entries in the list; None for all in order.

        Returns
        -------
        ndarray of shape (E, c) or None
            None if the model has no context, or if ``X`` isn't a frame.
        """
        encoder = self.encoders[2]
        if encoder is None or not is_frame(X):
            return None
        if order is not None:
            X = safe_indexing(X, order)
        return encoder.encode(SideFeatures("context", X, None))

    def encode_values(self, values: Array) -> Array:
        """Scale values, or replace class labels by their positions.

        Raises
        ------
        ValueError
            If a value is none of the classes of the fit.
        """
        if self.classes is None:
            values = np.asarray(values, dtype=np.float64)
            if not self.is_standardized:
                return values
            return (values - self.mean) / self.scale
        index = np.searchsorted(self.classes, values).clip(max=len(self.classes) - 1)
        unknown = np.asarray(values)[self.classes[index] != values]
        if unknown.size:
            raise ValueError(f"{unknown[0]!r} isn't one of the labels {self.classes.tolist()}.")
        return index.astype(np.float64)

    def encode_list(self, X: Any, axis: int) -> tuple[CSREntries, Array | None]:
        """Encode a list of entries of new rows (axis 0), or of new columns (axis 1).

        Entries whose label on the other axis is unknown are dropped with a warning.

        Returns
        -------
        entries : CSREntries
            Entries of the new rows. For axis 1 the matrix is transposed.
        labels : ndarray or None
            Labels of the new rows.
        """
        observed = parse_entry_list(X, self.column_roles)
        warn_conflicting_values(observed)
        if axis == 1:
            observed = observed.transposed
        assert observed.column_labels is not None

        other_axis = 1 - axis
        n_other = self.shape[other_axis]
        positions, n_unseen = self.locate(observed.column_labels, other_axis)
        if n_unseen:
            warn_user(
                f"{n_unseen} {AXIS_NAMES[other_axis]}s weren't in the training data: their entries "
                "are ignored.",
                UserWarning,
            )
        observed = observed.select(positions[observed.columns] < n_other)
        observed = observed._replace(
            columns=positions[observed.columns].astype(np.int32),
            shape=(observed.shape[0], n_other),
        )
        return self._to_tensors(X, observed), observed.row_labels

    def encode_matrix(self, observed: ObservedEntries) -> CSREntries:
        """Encode the entries of a matrix of new rows."""
        return self._to_tensors(None, observed)

    def _to_tensors(self, X: Any, observed: ObservedEntries) -> CSREntries:
        """Scale values, encode the context, and convert entries to float64 tensors."""
        observed = observed._replace(values=self.encode_values(observed.values))
        if observed.list_index is not None:
            context = self.encode_context(X, observed.list_index)
            observed = observed._replace(context=context)
        return observed.to_tensors(torch.device("cpu"), torch.float64).by_row

    def encode_features(
        self, features: Any, entries: CSREntries, labels: Array | None, axis: int
    ) -> Tensor:
        """Encode the features of new rows (axis 0) or columns (axis 1).

        Parameters
        ----------
        features : array-like, DataFrame or None
            Features of the new rows; None if the model was fitted without.
        entries : CSREntries
            Observed entries of the new rows, for implicit features.
        labels : ndarray or None
            Labels of the new rows, by which a frame is aligned.
        axis : {0, 1}
            Axis that the new rows belong to.

        Returns
        -------
        Tensor of shape (n_new, h)
            Encoded features, float64.
        """
        n_entries = len(entries.indices)
        indicator = sp.csr_array(
            (np.ones(n_entries), entries.indices.numpy(), entries.indptr.numpy()),
            shape=(entries.n_rows, self.shape[1 - axis]),
        )
        encoder = self.encoders[axis]
        return encode_new_rows(features, encoder, labels, indicator, axis, self.column_roles)
