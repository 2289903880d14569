"""Members of a stack that model the logarithm of positive targets."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.stacking.members.base import Member
from skbayes_sym.stacking.task import StackTask


@dataclass(frozen=True, eq=False)
class LogTarget(Member):
    """Another member that is fitted to the standardised logarithm of the targets.

    It is scored by the density of the targets themselves.

    Parameters
    ----------
    inner : Member
        Member with leave-one-out predictions that are mixtures of normals.
    """

    inner: Member


class StandardisedLogarithm(NamedTuple):
    """Standardised logarithm of positive targets.

    Attributes
    ----------
    y : Tensor of shape (N, 1)
        Standardised logarithm.
    mean, std : float
        Weighted mean and standard deviation of the logarithm.
    """

    y: Tensor
    mean: float
    std: float


def standardise_logarithm(task: StackTask) -> StandardisedLogarithm:
    """Standardise the logarithm of the targets, which must be positive and not all equal."""
    if task.n_classes or task.targets.min() <= 0.0 or np.ptp(task.targets) == 0.0:
        raise ValueError("the logarithm needs positive targets that aren't all equal.")
    logarithm = np.log(task.targets)
    weight = task.weight.numpy()
    mean = float(np.average(logarithm, weights=weight))
    std = float(np.average((logarithm - mean) ** 2, weights=weight) ** 0.5)
    # Rounded as the targets of other members: trees must not depend on the units of y.
    y = torch.as_tensor((logarithm - mean) / std).round(decimals=12)
    return StandardisedLogarithm(y.unsqueeze(1), mean, std)
