"""The symmetry gap by name: how it is estimated in training and in the report."""

from typing import NamedTuple

from skbayes_sym.symmetry.gaps.permanent_estimates import (
    DoublyStochastic,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
)

EXACT_WIDTH = 10  # units of a layer that are summed exactly, O(d 2^d), unless more are asked for
_WIDEST_EXACT = 20
_REPORTED_PERMUTATIONS = 64  # of wider layers, at least

GAPS: dict[str, PermanentEstimate] = {
    "auto": ExactUpTo(EXACT_WIDTH, Importance()),
    "exact": Exact(),
    "importance": Importance(),
    "infonce": InfoNCE(),
    "soules": Soules(),
}


class Reported(NamedTuple):
    """Bounds on both sides of the permanents, whatever was trained on."""

    lower: ExactUpTo
    upper: ExactUpTo


def permanent_estimate(gap: str | PermanentEstimate, widest: int) -> PermanentEstimate:
    """What training takes for layers of at most ``widest`` units.

    Raises
    ------
    ValueError
        If ``"exact"`` was asked for and a layer is too wide, or the estimate is an upper bound.
    """
    if not isinstance(gap, str):
        if gap.side == "upper":
            raise ValueError(f"gap={gap!r} bounds the gap from above: train on a lower bound.")
        return gap
    if gap == "exact" and widest > _WIDEST_EXACT:
        raise ValueError(
            f"gap='exact' sums over 2^width subsets, too many for width {widest}: use at most "
            f"{_WIDEST_EXACT} units a layer or gap='auto'."
        )
    return GAPS[gap]


def reported(estimate: PermanentEstimate) -> Reported:
    """The report's estimates: exact where training was, else up to `EXACT_WIDTH` units."""
    # What sums wide layers exactly says so by its side, or up to which width.
    own = _WIDEST_EXACT if estimate.side == "exact" else getattr(estimate, "max_width", 0)
    width = max(EXACT_WIDTH, own)
    return Reported(
        ExactUpTo(width, Importance(_REPORTED_PERMUTATIONS)),
        ExactUpTo(width, DoublyStochastic()),
    )
