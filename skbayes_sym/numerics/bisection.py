"""Inverses of distribution functions by bisection."""

from collections.abc import Callable

import torch
from torch import Tensor


def invert_cdf(cdf: Callable[[Tensor], Tensor], probability: Tensor, middle: Tensor) -> Tensor:
    """Find the values at which ``cdf`` reaches ``probability``, elementwise, accurate to rounding.

    The bracket around ``middle`` is doubled until it contains the value. Then it is bisected.
    """
    width = torch.ones_like(middle)
    lower = middle - width
    upper = middle + width
    while bool((cdf(lower) >= probability).any() | (cdf(upper) < probability).any()):
        width = 2.0 * width
        lower = torch.where(cdf(lower) >= probability, middle - width, lower)
        upper = torch.where(cdf(upper) < probability, middle + width, upper)
    return bisect(cdf, probability, lower, upper)


def bisect(
    cdf: Callable[[Tensor], Tensor], probability: Tensor | float, lower: Tensor, upper: Tensor
) -> Tensor:
    """Find the value between two bounds at which ``cdf`` reaches ``probability``, elementwise.

    Parameters
    ----------
    cdf : callable
        Distribution function.
    probability : Tensor or float
        Level that is searched for.
    lower, upper : Tensor
        Ends of the bracket.
    """
    for _ in range(60):  # the bracket is then narrower than the resolution of float64
        middle = 0.5 * (lower + upper)
        below = cdf(middle) < probability
        lower = torch.where(below, middle, lower)
        upper = torch.where(below, upper, middle)
    return 0.5 * (lower + upper)
