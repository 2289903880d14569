"""Objectives that weights, and half-widths of transformations, are chosen by."""

from dataclasses import dataclass
from typing import Protocol


class Objective(Protocol):
    """Objective of a network that is averaged over transformations."""

    @property
    def transforms(self) -> bool:
        """Whether it is averaged at all."""
        ...

    @property
    def learns_prior(self) -> bool:
        """Whether the evidence is maximised over the prior's scales."""
        ...

    @property
    def reward(self) -> float | None:
        """Reward of wide laws that are trained with the weights; None where they aren't."""
        ...


@dataclass(frozen=True)
class Evidence:
    """Half-widths, prior and noise by the Laplace evidence, weights at their mode."""

    @property
    def transforms(self) -> bool:
        return True

    @property
    def learns_prior(self) -> bool:
        return True

    @property
    def reward(self) -> float | None:
        return None


@dataclass(frozen=True)
class PosteriorMode:
    """Weights at their mode: no transformations, and a prior that stays."""

    @property
    def transforms(self) -> bool:
        return False

    @property
    def learns_prior(self) -> bool:
        return False

    @property
    def reward(self) -> float | None:
        return None


@dataclass(frozen=True)
class Augerino:
    """Half-widths trained with the weights, by the likelihood and a reward for wide ones.

    The prior stays as it is (Benton et al. 2020).

    Parameters
    ----------
    reward : float, default=0.01
        Nats per row for a unit of the half-widths' norm (the paper's 0.01), in which affine
        ones other than the rotation count three times. It needs tuning.
    """

    reward: float = 0.01

    @property
    def transforms(self) -> bool:
        return True

    @property
    def learns_prior(self) -> bool:
        return False


OBJECTIVES: dict[str, Objective] = {
    "evidence": Evidence(),
    "map": PosteriorMode(),
    "augerino": Augerino(),
}
