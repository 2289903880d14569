"""What every fit gets, and what it hands back."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.utils._param_validation import StrOptions
from torch import Tensor

from skbayes_sym.estimators._fit.callbacks import FitTask
from skbayes_sym.estimators._fit.rows import (
    Array,
    Rows,
    Scaling,
)
from skbayes_sym.numerics.optimise import Stopped

logger = logging.getLogger("skbayes_sym")

FLOATS = (np.float64, np.float32)  # inputs of these dtypes are taken as they are

# Rows a prediction handles at once: with the draws taken in blocks too, the hidden layers of a
# block stay in cache and memory is bounded however many rows are asked for.
PREDICT_ROWS = 128

# How a fit runs, whatever it fits.
RUN_CONSTRAINTS: dict[str, list[Any]] = {
    "device": [str],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "verbose": ["verbose"],
}


class FitContext(NamedTuple):
    """What a recipe gets besides the estimator's own parameters."""

    rows: Rows
    origin: Array  # place among `rows` of every row given; -1 where its weight is 0
    x_scaling: Scaling
    seed: int
    device: torch.device
    dtype: torch.dtype
    begin: Callable[[int], FitTask]  # opens the callbacks' task, given the number of blocks

    def tensor(self, values: Array) -> Tensor:
        """Values on the device, floats in the working precision."""
        tensor = torch.as_tensor(np.ascontiguousarray(values), device=self.device)
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor


class Fitted(NamedTuple):
    """What a recipe hands back."""

    attributes: Mapping[str, Any]
    stop_reason: Stopped
