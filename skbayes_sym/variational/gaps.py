"""Estimates of the symmetry gap, in training and for the reported bounds."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

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

EXACT_WIDTH = 10  # widest layer whose permutations are summed exactly by default, O(d 2^d)
WIDE = 100  # width above which permanents cost more than the steps of the network

GapLike = str | PermanentEstimate | Gap[MeanField]

GAPS: dict[str, PermanentEstimate] = {
    "auto": ExactUpTo(EXACT_WIDTH, Soules(tighten=False)),
    "exact": Exact(),
    "importance": Importance(),
    "infonce": InfoNCE(),
    "soules": Soules(),
}

GROUP_CONSTRAINTS: list[Any] = [
    StrOptions({"auto", "permutation", "signed_permutation", "sign_flip"}),
    HasMethods(["act", "generators"]),
    None,
]


@dataclass(eq=False, repr=False)
class Symmetrized(BaseEstimator):
    """Group over which a posterior is averaged, and the estimate of its gap in training.

    Parameters
    ----------
    group : str, SymmetryGroup or None, default="auto"
        Group, as for the parameter ``symmetry`` of `SymmetrizedVIRegressor`.
    gap : str, PermanentEstimate or Gap, default="auto"
        Estimate of the gap.

        * "auto": exact permanents, O(d 2^d), of layers of up to 10 units, and Soules' lower bound
          without tightening, O(d^2 log d), of wider layers. Gradients are reused for 5 steps up to
          10 units (from 4 times as many draws), for 3 steps above 20 units, and for 10 steps above
          100 units. All other estimates are computed at every step.
        * "exact": exact permanents of layers of up to 20 units.
        * "importance": a lower bound from K = 16 permutations, O(K d^2).
        * "infonce": the estimator of Gelberg et al. (2024).
        * "soules": Soules' lower bound with tightening.
        * An object with other settings, such as ``ExactUpTo(14, Importance(64))`` or
          ``InfoNCE(20)``, a user-defined estimate of permanents, or a gap with its own group.
    """

    group: str | SymmetryGroup | None = "auto"
    gap: GapLike = "auto"

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "group": GROUP_CONSTRAINTS,
        "gap": [StrOptions(set(GAPS)), callable, HasMethods(["estimate", "value_and_gradients"])],
    }

    def check(self) -> Self:
        """Validate the parameters.

        Returns
        -------
        Symmetrized
            The object itself.

        Raises
        ------
        ValueError
            If a parameter is invalid or the two don't go together.
        """
        self._validate_params()
        if isinstance(self.gap, Gap) and self.group != "auto":
            raise ValueError(
                f"symmetry={self.group!r}, but gap={type(self.gap).__name__} has a group of its "
                "own: leave symmetry='auto'."
            )
        if self.group is None and self.gap != "auto":
            raise ValueError(
                f"gap={self.gap!r} does not apply: symmetry=None uses no group. Leave gap "
                "at its default, or use symmetry='auto'."
            )
        return self


def as_symmetrized(symmetry: "str | SymmetryGroup | Symmetrized | None") -> Symmetrized:
    """Convert the parameter ``symmetry`` to a valid object."""
    if isinstance(symmetry, Symmetrized):
        scheme = symmetry
    else:
        scheme = Symmetrized(symmetry)
    return scheme.check()


@dataclass(frozen=True)
class SymmetryGap:
    """Estimates of the symmetry gap under a group.

    Parameters
    ----------
    gap : str, PermanentEstimate or Gap
        A name in `GAPS`, an estimate of permanents, or a gap with its own group.
    group : SymmetryGroup
        Group over which the posterior is averaged.

    Raises
    ------
    ValueError
        If ``gap`` is an upper bound, or "exact" with a layer that is too wide.
    TypeError
        If the group doesn't act on units and ``gap`` doesn't have its own group.
    """

    gap: GapLike
    group: SymmetryGroup

    def __post_init__(self) -> None:
        if self._custom_gap is None:
            try:
                unit_tables(self.group)
            except TypeError as error:
                raise TypeError(
                    f"symmetry={type(self.group).__name__} with gap={self.gap!r}: {error} "
                    "For another group give gap=, an object with a `group` of its own, and leave "
                    "symmetry='auto'."
                ) from error
        if isinstance(self.gap, str):
            if self.gap == "exact" and self._max_width > MAX_EXACT_WIDTH:
                raise ValueError(
                    f"gap='exact' sums over 2^width subsets, too many for width {self._max_width}: "
                    f"use at most {MAX_EXACT_WIDTH} units a layer or gap='auto'."
                )
        elif self.gap.side == "upper":
            raise ValueError(
                f"gap={self.gap!r} is an upper bound on the gap, but training needs a lower bound."
            )

    @property
    def _max_width(self) -> int:
        """Largest number of exchangeable units in a layer."""
        return max((table.widest for table in unit_tables(self.group)), default=0)

    @property
    def n_draws(self) -> int:
        """Number of draws for the reported bounds; wide layers, which scatter less, need fewer."""
        if self._custom_gap:
            return 128
        n_entries = max(table.n_scores for table in unit_tables(self.group))
        n_draws = (1 << 17) // n_entries
        if self._max_width <= EXACT_WIDTH:
            return max(16, min(1024, n_draws))
        if self._max_width <= WIDE:
            return max(16, min(128, n_draws))
        return max(4, min(128, n_draws))

    @property
    def hold(self) -> int:
        """Number of steps that reuse a gradient, so that a step costs at most three plain ones.

        With 11 to 20 units a reused gradient of Soules' bound lost 7 nats. With more it lost none.
        """
        if self.gap != "auto" or EXACT_WIDTH < self._max_width <= 20:
            return 1
        if self._max_width <= EXACT_WIDTH:
            return 5
        if self._max_width <= WIDE:
            return 3
        return 10

    @property
    def is_batched(self) -> bool:
        """Whether `trained` takes several posteriors at once."""
        return self._custom_gap is None

    @property
    def _custom_gap(self) -> Gap[MeanField] | None:
        """The user's gap with its own group, or None."""
        return self.gap if isinstance(self.gap, Gap) else None

    @property
    def _permanent(self) -> PermanentEstimate:
        """Estimate of permanents by name or as an object."""
        return cast(PermanentEstimate, GAPS.get(cast(str, self.gap), self.gap))

    def trained(self, n_draws: int) -> Gap[MeanField]:
        """Gap that training adds to the ELBO, with ``n_draws`` draws per step.

        An exact permanent that is reused for five steps gets four times as many draws, because its
        noise is reused, too. With ten units four draws cost a tenth more than one. They raised the
        bound by 0.8 nats.
        """
        if self.hold > 1 and self._max_width <= EXACT_WIDTH:
            n_draws = 4 * n_draws
        return self._custom_gap or UnitGap(self.group, self._permanent, n_draws=n_draws)

    @property
    def certificate(self) -> UnitGap | None:
        """Gap that is never above the true one at any draw, which certifies that it is saturated.

        None for a gap with its own group.
        """
        if self._custom_gap:
            return None
        return UnitGap(self.group, Soules(tighten=False))

    @property
    def reported(self) -> tuple[Gap[MeanField], Gap[MeanField] | None]:
        """Lower and upper bound to report, whatever training used; None if no bound is known.

        Both are exact if the training gap was, and for layers of at most `EXACT_WIDTH` units.
        """
        if self._custom_gap:
            is_exact = self._custom_gap.side == "exact"
            return self._custom_gap, self._custom_gap if is_exact else None
        permanent = self._permanent
        if permanent.side == "exact":
            return UnitGap(self.group, permanent), UnitGap(self.group, permanent, bound="upper")

        width = EXACT_WIDTH
        if isinstance(permanent, ExactUpTo):
            width = max(width, permanent.max_width)
        if self._max_width <= width:
            return UnitGap(self.group, Exact()), UnitGap(self.group, Exact(), bound="upper")
        # In wide layers 64 permutations would raise the lower bound by at most log 32 over that of
        # 2, at 32 times the cost. Any number of Bethe rounds gives an upper bound; at 600 units 5
        # rounds gain 3 nats over 2.
        importance = Importance(64)
        bethe = Bethe()
        if self._max_width > WIDE:
            importance = Importance(2)
            bethe = Bethe(2)
        below = ExactUpTo(width, importance)
        above = ExactUpTo(width, bethe)
        return UnitGap(self.group, below), UnitGap(self.group, above, bound="upper")
