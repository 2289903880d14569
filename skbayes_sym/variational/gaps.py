"""The symmetry gap by name or as an object: what is trained on, and what is reported."""

from dataclasses import dataclass
from typing import Any, ClassVar, cast

from sklearn.base import BaseEstimator

from skbayes_sym.base.scikit_learn import HasMethods, StrOptions
from skbayes_sym.numerics.permanent import MAX_EXACT_WIDTH
from skbayes_sym.symmetry.gaps.gap import Gap, MeanField
from skbayes_sym.symmetry.gaps.unit_gap import (
    Bethe,
    Exact,
    ExactUpTo,
    Importance,
    InfoNCE,
    PermanentEstimate,
    Soules,
    UnitGap,
)
from skbayes_sym.symmetry.gaps.unit_tables import unit_tables
from skbayes_sym.symmetry.group import SymmetryGroup

__all__ = ["Symmetrized"]

EXACT_WIDTH = 10  # units of a layer that are summed exactly, O(d 2^d), unless more are asked for
WIDE = 100  # units beyond which permanents cost more than the network's steps

GivenGap = str | PermanentEstimate | Gap[MeanField]

GAPS: dict[str, PermanentEstimate] = {
    "auto": ExactUpTo(EXACT_WIDTH, Soules(tighten=False)),
    "exact": Exact(),
    "importance": Importance(),
    "infonce": InfoNCE(),
    "soules": Soules(),
}


@dataclass(eq=False, repr=False)
class Symmetrized(BaseEstimator):
    """The group that a posterior is averaged over, and how its gap is computed in training.

    Parameters
    ----------
    group : str, SymmetryGroup or None, default="auto"
        As ``symmetry`` of `SymmetrizedVIRegressor`.
    gap : str, PermanentEstimate or Gap, default="auto"
        "auto": a permanent in full, O(d 2^d), up to 10 units a layer, Soules' lower bound without
        its tightening, O(d^2 log d), beyond; its gradient stands for 5 steps (from 4 draws) up to
        10 units, for 3 beyond 20, for 10 beyond 100. All others are computed at every step:
        "exact", "importance" (a lower bound from K = 16 permutations, O(K d^2)), "infonce" (the
        paper's estimator), "soules" (tightened). Objects set more:
        ``ExactUpTo(14, Importance(64))``, ``InfoNCE(20)``, one of yours, or a gap with a group of
        its own.
    """

    group: str | SymmetryGroup | None = "auto"
    gap: GivenGap = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "group": [
            StrOptions({"auto", "permutation", "signed_permutation", "sign_flip"}),
            HasMethods(["act", "generators"]),
            None,
        ],
        "gap": [StrOptions(set(GAPS)), callable, HasMethods(["estimate", "value_and_gradients"])],
    }


def symmetrized(symmetry: "str | SymmetryGroup | Symmetrized | None") -> Symmetrized:
    """``symmetry`` as an object; a ValueError if its parameters don't go together."""
    scheme = symmetry if isinstance(symmetry, Symmetrized) else Symmetrized(symmetry)
    scheme._validate_params()
    if isinstance(scheme.gap, Gap) and scheme.group != "auto":
        raise ValueError(
            f"symmetry={scheme.group!r}, but gap={type(scheme.gap).__name__} has a group of its "
            "own: leave symmetry='auto'."
        )
    if scheme.group is None and scheme.gap != "auto":
        raise ValueError(
            f"gap={scheme.gap!r} does not apply: symmetry=None averages over nothing. Leave gap at "
            "its default, or use symmetry='auto'."
        )
    return scheme


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
            try:
                unit_tables(self.group)
            except TypeError as error:
                raise TypeError(
                    f"symmetry={type(self.group).__name__} with gap={self.given!r}: {error} "
                    "For another group give gap=, an object with a `group` of its own, and leave "
                    "symmetry='auto'."
                ) from error
        if isinstance(self.given, str):
            if self.given == "exact" and self._widest > MAX_EXACT_WIDTH:
                raise ValueError(
                    f"gap='exact' sums over 2^width subsets, too many for width {self._widest}: "
                    f"use at most {MAX_EXACT_WIDTH} units a layer or gap='auto'."
                )
        elif self.given.side == "upper":
            raise ValueError(f"gap={self.given!r} bounds the gap from above: train on a lower one.")

    @property
    def _widest(self) -> int:
        """Exchangeable units of the widest layer."""
        return max((table.widest for table in unit_tables(self.group)), default=0)

    @property
    def n_draws(self) -> int:
        """Draws of the reported bounds: fewer of wide layers, whose draws scatter less."""
        if self._own:
            return 128
        n_entries = max(table.n_scores for table in unit_tables(self.group))
        most = 1024 if self._widest <= EXACT_WIDTH else 128
        return max(4 if self._widest > WIDE else 16, min(most, (1 << 17) // n_entries))

    @property
    def hold(self) -> int:
        """StepConfig that a gradient stands for, so that a step costs at most three plain ones.

        At 11 to 20 units a held gradient of Soules' bound lost 7 nats, beyond none.
        """
        if self.given != "auto" or EXACT_WIDTH < self._widest <= 20:
            return 1
        return 5 if self._widest <= EXACT_WIDTH else 3 if self._widest <= WIDE else 10

    @property
    def takes_several(self) -> bool:
        """Whether `trained` takes several posteriors at once."""
        return self._own is None

    @property
    def _own(self) -> Gap[MeanField] | None:
        return self.given if isinstance(self.given, Gap) else None

    @property
    def _permanent(self) -> PermanentEstimate:
        return cast(PermanentEstimate, GAPS.get(cast(str, self.given), self.given))

    def trained(self, n_draws: int) -> Gap[MeanField]:
        """Gap that training adds to the ELBO, from ``n_draws`` draws a step.

        Four times as many of a permanent that is held: its noise is kept for five steps, and at ten
        units four draws cost a tenth more than one. They raised the bound by .8 nats.
        """
        if self.hold > 1 and self._widest <= EXACT_WIDTH:
            n_draws = 4 * n_draws
        return self._own or UnitGap(self.group, self._permanent, n_draws=n_draws)

    @property
    def certificate(self) -> UnitGap | None:
        """A gap never above the true one at any draw: says when there is nothing left to train."""
        return None if self._own else UnitGap(self.group, Soules(tighten=False))

    @property
    def reported(self) -> tuple[Gap[MeanField], Gap[MeanField] | None]:
        """A lower and an upper bound, whatever was trained on; None where nobody knows one.

        Exact where training was, else up to `EXACT_WIDTH` units.
        """
        if self._own:
            return self._own, self._own if self._own.side == "exact" else None
        permanent = self._permanent
        width = permanent.max_width if isinstance(permanent, ExactUpTo) else 0
        width = max(EXACT_WIDTH, width)
        # Of wide layers 64 permutations raise the bound by at most log 32 over 2, at 32 times the
        # cost, and any number of rounds gives an upper bound: 5 gain 3 nats over 2 at 600 units.
        is_wide = self._widest > WIDE
        below: PermanentEstimate = ExactUpTo(width, Importance(2 if is_wide else 64))
        above: PermanentEstimate = ExactUpTo(width, Bethe(2) if is_wide else Bethe())
        if permanent.side == "exact" or self._widest <= width:
            below = above = permanent if permanent.side == "exact" else Exact()
        return UnitGap(self.group, below), UnitGap(self.group, above, bound="upper")
