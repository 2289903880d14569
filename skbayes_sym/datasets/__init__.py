"""The data of the papers: toys (``_toy``), and the sets that they benchmark on (``_loading``)."""

from skbayes_sym.datasets._loading import load_dataset
from skbayes_sym.datasets._toy import (
    make_absolute_value,
    make_low_rank,
    make_regression2d,
    make_repeated_datum,
    make_rings,
    make_sinusoidal,
)

__all__ = [
    "load_dataset",
    "make_absolute_value",
    "make_low_rank",
    "make_regression2d",
    "make_repeated_datum",
    "make_rings",
    "make_sinusoidal",
]
