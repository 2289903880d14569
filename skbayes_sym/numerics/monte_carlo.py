"""A number known up to Monte Carlo noise."""

from typing import NamedTuple

from torch import Tensor


class Estimate(NamedTuple):
    """A Monte Carlo estimate and how far off it may be."""

    value: float
    standard_error: float  # 0 where nothing was drawn, nan where one draw can't tell


def mean_and_error(values: Tensor) -> Estimate:
    """Mean of independent draws of shape (n,), with its standard error; in float64."""
    values = values.double()
    error = float(values.std() / len(values) ** 0.5) if len(values) > 1 else float("nan")
    return Estimate(float(values.mean()), error)
