"""Inverses of distribution functions within brackets that are made smaller."""

from collections.abc import Callable

import torch
from torch import Tensor

# Largest number of steps. Bisection alone would make a bracket narrower than the resolution of
# float64 by them.
_MAX_STEPS = 60


def invert_cdf(
    cdf: Callable[[Tensor], Tensor],
    probability: Tensor,
    middle: Tensor,
    width: Tensor | None = None,
    is_discrete: bool = False,
) -> Tensor:
    """Find the values at which a distribution function reaches probabilities, elementwise.

    Parameters
    ----------
    cdf : callable
        Distribution function.
    probability : Tensor
        Levels that are searched for.
    middle : Tensor of the same shape
        Guess. The bracket around it is doubled until it contains the value.
    width : Tensor of the same shape, optional
        First half width of the bracket; 1 by default.
    is_discrete : bool
        Whether the values are integers.

    Returns
    -------
    Tensor of the same shape
        Values, accurate to rounding. Of integers it is the smallest at which ``cdf`` is at least
        ``probability``.
    """
    if width is None:
        width = torch.ones_like(middle)
    if is_discrete:
        middle = middle.round()
        width = width.ceil().clamp_min(1.0)
    lower = middle - width
    upper = middle + width
    is_high = cdf(lower) >= probability
    is_low = cdf(upper) < probability
    while bool((is_high | is_low).any()):
        width = 2.0 * width
        lower, upper = (
            torch.where(is_high, middle - width, torch.where(is_low, upper, lower)),
            torch.where(is_low, middle + width, torch.where(is_high, lower, upper)),
        )
        is_high = is_high & (cdf(lower) >= probability)
        is_low = is_low & (cdf(upper) < probability)
    if is_discrete:
        return bisect_counts(cdf, probability, lower, upper)
    return solve_bracket(cdf, probability, lower, upper)


def solve_bracket(
    cdf: Callable[[Tensor], Tensor], probability: Tensor | float, lower: Tensor, upper: Tensor
) -> Tensor:
    """Find the value between two bounds at which ``cdf`` reaches ``probability``, elementwise.

    Inverse quadratic interpolation where the function is nearly a parabola, and bisection elsewhere
    (Chandrupatla 1997).

    Parameters
    ----------
    cdf : callable
        Distribution function, continuous or with jumps.
    probability : Tensor or float
        Level that is searched for.
    lower, upper : Tensor
        Ends of the bracket.

    Returns
    -------
    Tensor
        Values, accurate to rounding.

    References
    ----------
    Chandrupatla (1997). A new hybrid quadratic/bisection algorithm for finding the zero of a
    nonlinear function without using derivatives.
    """
    # `newest` and `opposite` enclose the value, and `previous` is an older end of the bracket.
    opposite = lower
    newest = upper
    at_opposite = cdf(lower) - probability
    at_newest = cdf(upper) - probability
    fraction = torch.full_like(lower, 0.5)
    resolution = 4.0 * torch.finfo(lower.dtype).eps
    for _ in range(_MAX_STEPS):
        value = newest + fraction * (opposite - newest)
        at_value = cdf(value) - probability
        is_same_side = (at_value >= 0.0) == (at_newest >= 0.0)
        previous = torch.where(is_same_side, newest, opposite)
        at_previous = torch.where(is_same_side, at_newest, at_opposite)
        opposite = torch.where(is_same_side, opposite, newest)
        at_opposite = torch.where(is_same_side, at_opposite, at_newest)
        newest = value
        at_newest = at_value

        width = (opposite - newest).abs()
        tolerance = resolution * torch.maximum(newest.abs(), opposite.abs())
        is_found = (at_newest == 0.0) | (width <= tolerance)
        if bool(is_found.all()):
            break
        relative_position = (newest - opposite) / (previous - opposite)
        relative_value = (at_newest - at_opposite) / (at_previous - at_opposite)
        is_smooth = (relative_value.square() < relative_position) & (
            (1.0 - relative_value).square() < 1.0 - relative_position
        )
        interpolated = at_newest / (at_opposite - at_newest) * at_previous / (
            at_opposite - at_previous
        ) + (previous - newest) / (opposite - newest) * at_newest / (
            at_previous - at_newest
        ) * at_opposite / (at_previous - at_opposite)
        least = (0.5 * tolerance / width.clamp_min(1e-300)).clamp_max(0.5)
        fraction = torch.where(is_smooth & interpolated.isfinite(), interpolated, 0.5)
        fraction = torch.minimum(torch.maximum(fraction, least), 1.0 - least)
        fraction = torch.where(is_found, 0.0, fraction)
    return torch.where(at_newest.abs() <= at_opposite.abs(), newest, opposite)


def bisect_counts(
    cdf: Callable[[Tensor], Tensor], probability: Tensor | float, lower: Tensor, upper: Tensor
) -> Tensor:
    """Find the smallest integers at which ``cdf`` is at least ``probability``, elementwise.

    Parameters
    ----------
    cdf : callable
        Distribution function.
    probability : Tensor or float
        Level that is searched for.
    lower, upper : Tensor
        Integers at the ends of the bracket. ``cdf(lower)`` is below the level.

    Returns
    -------
    Tensor
        Integers.
    """
    while True:
        middle = (0.5 * (lower + upper)).floor()
        is_open = (lower < middle) & (middle < upper)  # above 2^53 not all integers exist
        if not bool(is_open.any()):
            return upper
        is_below = cdf(middle) < probability
        lower = torch.where(is_open & is_below, middle, lower)
        upper = torch.where(is_open & ~is_below, middle, upper)
