"""Predictions of targets that were positive in all training rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, Predictor
from skbayes_sym.models.positive_targets import PositiveDraws, PositiveTargets


@dataclass(frozen=True, eq=False)
class PositivePredictor(BasePredictor):
    """Predictor whose targets are hardly ever zero or negative, see `PositiveTargets`.

    Parameters
    ----------
    base : Predictor
        Predictor of one target with a density, in scaled units.
    origin : float
        Scaled value of the target zero.
    max_mass : float
        Largest probability of values up to zero.
    """

    base: Predictor
    origin: float
    max_mass: float

    def distribution(self, x: Any) -> PositiveTargets:
        """Return the distribution of the target of every row."""
        base: Any = self.base.distribution(x)
        return PositiveTargets(base, self.origin, self.max_mass)

    def networks(self, x: Any) -> Iterator[NetworkComponents]:
        """Yield the networks of the base."""
        return self.base.networks(x)

    def sample_conditionals(self, x: Any, n: int, *, generator: torch.Generator) -> Any:
        """Sample n functions, whose targets have the distribution of `distribution`."""
        draws = self.base.sample_conditionals(x, n, generator=generator)
        return PositiveDraws(draws, self.distribution(x))

    def sample_functions(self, x: Any, n: int, *, generator: torch.Generator) -> Tensor:
        """Return the functions of the base, (n, N, 1)."""
        return self.base.sample_functions(x, n, generator=generator)
