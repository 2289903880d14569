"""Features of rows or columns: checked, each column divided by its root mean square."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.validation import check_array
from torch import Tensor

from skbayes_sym.estimators._fit.rows import ENCODE, Array, numbers_due

MOST_FEATURES = 5000  # their inner products are held and factorised


@dataclass(frozen=True, eq=False)
class SideFeatures:
    """Features of all rows of one side."""

    values: Array  # (n, h); scaled
    scaling: Array  # (h,); what the columns as given were divided by

    @classmethod
    def open(cls, raw: Any, n: int, name: str) -> "SideFeatures | None":
        """Check features as given to `fit`; None if there are none.

        Raises ValueError if there isn't one row for each row of the side, a number is missing, or
        there are more than 5,000.
        """
        if raw is None:
            return None
        values = checked(raw, name)
        if len(values) != n:
            raise ValueError(f"{name} has {len(values)} rows, but the matrix has {n} of them.")
        if values.shape[1] > MOST_FEATURES:
            raise ValueError(
                f"{name} has {values.shape[1]} columns, more than {MOST_FEATURES}: their "
                "coefficients are solved for in full. Hash or project them first."
            )
        scaling = np.sqrt(np.mean(values**2, axis=0))
        scaling[scaling == 0.0] = 1.0
        return cls(values / scaling, scaling)

    def tensor(self, device: torch.device) -> Tensor:
        """On the device, float64."""
        return torch.as_tensor(self.values, device=device)


def checked(raw: Any, name: str) -> Array:
    """Features as a dense float64 array."""
    with numbers_due(name, ENCODE):
        array = check_array(raw, accept_sparse=True, dtype=np.float64, input_name=name)
    return np.asarray(array.toarray() if sp.issparse(array) else array)


def scaled(raw: Any, scaling: Array | None, n: int, name: str) -> Tensor:
    """Features of new rows in the units of those of `fit`, (n, h).

    Raises ValueError if the model has none and some are given, or the other way round.
    """
    if scaling is None:
        if raw is not None:
            raise ValueError(f"{name} was not given to fit, so the model has no use for it.")
        return torch.zeros(n, 0, dtype=torch.float64)
    if raw is None:
        raise ValueError(f"{name} was given to fit: give that of the new rows too.")
    values = checked(raw, name)
    if values.shape != (n, len(scaling)):
        raise ValueError(f"{name} must be of shape {(n, len(scaling))}, got {values.shape}.")
    return torch.as_tensor(values / scaling)
