"""The symmetry gap by name or as an object: what is trained on, and what is reported."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from sklearn.base import BaseEstimator

from skbayes_sym.estimators._fit.scikit_learn import HasMethods, StrOptions
from skbayes_sym.symmetry.gaps.gap import Gap, MeanField
from skbayes_sym.symmetry.gaps.permanent_estimates import (
    Bethe,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
)
from skbayes_sym.symmetry.gaps.unit_gap import UnitGap
from skbayes_sym.symmetry.group import SymmetryGroup
from skbayes_sym.symmetry.units import unit_layers

__all__ = ["Symmetrized"]

EXACT_WIDTH = 10  # units of a layer that are summed exactly, O(d 2^d), unless more are asked for
_WIDEST_EXACT = 20
_REPORTED_PERMUTATIONS = 64  # of wider layers

GivenGap = str | PermanentEstimate | Gap[MeanField]

GAPS: dict[str, PermanentEstimate] = {
    "auto": ExactUpTo(EXACT_WIDTH, Importance()),
    "exact": Exact(),
    "importance": Importance(),
    "infonce": InfoNCE(),
    "soules": Soules(),
}


class Symmetrized(BaseEstimator):
    """The group that a posterior is averaged over, and how its gap is computed in training.

    Parameters
    ----------
    group : str, SymmetryGroup or None, default="auto"
        As ``symmetry`` of `SymmetrizedVIRegressor`.
    gap : str, PermanentEstimate or Gap, default="auto"
        "auto": "exact" (a permanent, O(d 2^d)) up to 10 units a layer, "importance" (a lower bound
        from K = 16 permutations, O(K d^2)) beyond. "infonce" is the paper's estimator with
        permutations drawn without replacement, "soules" a deterministic lower bound. Objects set
        more: ``ExactUpTo(14, Importance(64))``, ``InfoNCE(20, replacement=True)`` (the paper's own
        draws), one of yours, or a gap with a group of its own.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "group": [
            StrOptions({"auto", "permutation", "signed_permutation", "sign_flip"}),
            HasMethods(["act", "generators"]),
            None,
        ],
        "gap": [StrOptions(set(GAPS)), callable, HasMethods(["estimate", "value_and_gradients"])],
    }

    def __init__(self, group: str | SymmetryGroup | None = "auto", gap: GivenGap = "auto") -> None:
        self.group = group
        self.gap = gap


def symmetrized(given: "str | SymmetryGroup | Symmetrized | None") -> Symmetrized:
    """``symmetry`` as an object, checked.

    Raises
    ------
    ValueError
        If one of its parameters is no value for it, or they don't go together.
    """
    found = given if isinstance(given, Symmetrized) else Symmetrized(given)
    found._validate_params()
    if isinstance(found.gap, Gap) and found.group != "auto":
        raise ValueError(
            f"symmetry={found.group!r}, but gap={type(found.gap).__name__} has a group of its "
            "own: leave symmetry='auto'."
        )
    if found.group is None and found.gap != "auto":
        raise ValueError(
            f"gap={found.gap!r} does not apply: symmetry=None averages over nothing. Leave gap at "
            "its default, or use symmetry='auto'."
        )
    return found


class Reported(NamedTuple):
    """Bounds on both sides, whatever was trained on; ``upper`` is None where nobody knows one."""

    lower: Gap[MeanField]
    upper: Gap[MeanField] | None


@dataclass(frozen=True)
class SymmetryGap:
    """How the gap under a group is estimated.

    ``given``: a name among `GAPS`, an estimate of permanents, or a gap with a group of its own.
    Raises ValueError if it bounds the gap from above, or ``"exact"`` was asked for and a layer is
    too wide. Raises TypeError if the group isn't made of units and ``given`` is no gap of its own.
    """

    given: GivenGap
    group: SymmetryGroup

    def __post_init__(self) -> None:
        if self._own is None:
            self._require_units()
        if isinstance(self.given, str):
            if self.given == "exact" and self._widest > _WIDEST_EXACT:
                raise ValueError(
                    f"gap='exact' sums over 2^width subsets, too many for width {self._widest}: "
                    f"use at most {_WIDEST_EXACT} units a layer or gap='auto'."
                )
        elif self.given.side == "upper":
            raise ValueError(f"gap={self.given!r} bounds the gap from above: train on a lower one.")

    def _require_units(self) -> None:
        """Permanents are of exchangeable units."""
        try:
            unit_layers(self.group)
        except TypeError as error:
            raise TypeError(
                f"symmetry={type(self.group).__name__} with gap={self.given!r}: {error} "
                "For another group give gap=, an object with a `group` of its own, and leave "
                "symmetry='auto'."
            ) from error

    @property
    def _widest(self) -> int:
        """Exchangeable units of the widest layer."""
        return max((u.n_units for u in unit_layers(self.group) if u.permutes), default=0)

    @property
    def n_entries(self) -> int:
        """Entries of the units' matrix of the widest layer; 1 where the gap isn't one of units."""
        return 1 if self._own else max(unit.n_units for unit in unit_layers(self.group)) ** 2

    @property
    def _own(self) -> Gap[MeanField] | None:
        return self.given if isinstance(self.given, Gap) else None

    @property
    def _permanent(self) -> PermanentEstimate:
        return cast(PermanentEstimate, GAPS.get(cast(str, self.given), self.given))

    def trained(self, n_draws: int) -> Gap[MeanField]:
        """Gap that training adds to the ELBO, from ``n_draws`` draws a step."""
        return self._own or UnitGap(self.group, self._permanent, n_draws=n_draws)

    @property
    def certificate(self) -> UnitGap | None:
        """A gap never above the true one at any draw: says when there is nothing left to train."""
        return None if self._own else UnitGap(self.group, Soules(tighten=False))

    @property
    def reported(self) -> Reported:
        """Exact where training was, else up to `EXACT_WIDTH` units; bounds beyond."""
        if self._own:
            return Reported(self._own, self._own if self._own.side == "exact" else None)
        permanent = self._permanent
        width = permanent.max_width if isinstance(permanent, ExactUpTo) else 0
        width = max(EXACT_WIDTH, width)
        below: PermanentEstimate = ExactUpTo(width, Importance(_REPORTED_PERMUTATIONS))
        above: PermanentEstimate = ExactUpTo(width, Bethe())
        if permanent.side == "exact" or self._widest <= width:
            below = above = permanent if permanent.side == "exact" else Exact()
        return Reported(UnitGap(self.group, below), UnitGap(self.group, above, bound="upper"))
