"""The training data as the recipes of networks take them: scaled, on the device, in batches."""

from typing import Any

import numpy as np

from skbayes_sym.estimators._fit.context import FitContext
from skbayes_sym.estimators._fit.rows import Array, Scaling
from skbayes_sym.estimators._fit.warnings import warn_user
from skbayes_sym.models.data import Data

FULL_BATCH_ROWS = 1000  # batch_size="auto": all rows up to here ...
MINIBATCH_ROWS = 200  # ... and this many beyond


def training_data(context: FitContext, y_scaling: Scaling | None) -> Data:
    """Rows in scaled units; labels (no scaling) as they are."""
    rows = context.rows
    return Data(
        context.tensor(context.x_scaling.apply(rows.X)),
        context.tensor(rows.y if y_scaling is None else y_scaling.apply(rows.y)),
        context.tensor(rows.weight),
    )


def automatic_batch(n_rows: int) -> int:
    """What ``batch_size="auto"`` is where nothing else is said."""
    return n_rows if n_rows <= FULL_BATCH_ROWS else MINIBATCH_ROWS


def rows_a_step(estimator: Any, n_rows: int, auto: int) -> int:
    """``batch_size``, with ``auto`` rows by default."""
    if estimator.batch_size == "auto":
        return min(auto, n_rows)
    if estimator.batch_size > n_rows:
        warn_user(
            f"batch_size={estimator.batch_size} exceeds the {n_rows} distinct training rows: "
            "every step uses all of them.",
            UserWarning,
        )
    return min(int(estimator.batch_size), n_rows)


def log_jacobian(weight: Array, scaling: Scaling | None) -> float:
    """Turns the log density of scaled targets into that of the targets as given, nats."""
    return 0.0 if scaling is None else -float(weight.sum() * np.log(scaling.scale).sum())
