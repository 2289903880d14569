"""Which transformations a network is averaged over, and what their half-widths are chosen by."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple, Protocol

import torch

from skbayes_sym.models.augmentations.augmentation import Augmentation

Family = Augmentation | torch.nn.Module


@dataclass(frozen=True)
class Invariances:
    """Families of transformations whose half-widths are learned, and how.

    Parameters
    ----------
    families : "auto", augmentation, torch.nn.Module or sequence of them, default="auto"
        Several act one after the other. "auto" is `Affine` for images, and none for tables.
    n_augmentations : int, default=8
        Transformations per row in training, a Latin hypercube: what memory and time go with. The
        reported evidence takes 32.
    learning_rate : float or "auto", default="auto"
        Adam's step size for the half-widths at the start. "auto" lets one travel 3 pi in all
        updates and at most 0.2 in one, and affine half-widths other than the rotation a third of
        it (with `Augerino`: that of the weights).
    n_predict_augmentations : int or "auto", default="auto"
        Transformations that predictions average over, what their time goes with; 1 is the input as
        it is. "auto" is 32, and 1 where the learned half-widths are negligible: where averaging
        moves the log density of no training row looked at by more than 0.001 nats. It may be
        changed after `fit`.

    Raises
    ------
    ValueError
        If one of the numbers isn't positive.
    """

    families: str | Family | Sequence[Family] = "auto"
    n_augmentations: int = 8
    learning_rate: float | str = "auto"
    n_predict_augmentations: int | str = "auto"

    def __post_init__(self) -> None:
        n, n_predict, rate = self.n_augmentations, self.n_predict_augmentations, self.learning_rate
        if not (isinstance(n, Integral) and n >= 1):
            raise ValueError(f"n_augmentations must be a positive integer, got {n!r}.")
        if n_predict != "auto" and not (isinstance(n_predict, Integral) and n_predict >= 1):
            raise ValueError(
                f"n_predict_augmentations must be 'auto' or a positive integer, got {n_predict!r}."
            )
        if rate != "auto" and not (isinstance(rate, Real) and rate > 0):
            raise ValueError(f"learning_rate must be 'auto' or a positive number, got {rate!r}.")


class TransformObjective(Protocol):
    """Objective of a network that is averaged over transformations."""

    @property
    def transforms(self) -> bool:
        """Whether it is averaged at all."""

    @property
    def learns_prior(self) -> bool:
        """Whether the evidence is maximised over the prior's scales."""

    @property
    def reward(self) -> float | None:
        """Reward of wide laws that are trained with the weights; None where they aren't."""


class _ByEvidence(NamedTuple):
    """Weights at their mode; half-widths, prior and noise by the Laplace evidence, or as given."""

    transforms: bool
    learns_prior: bool
    reward: float | None = None


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


OBJECTIVES: dict[str, TransformObjective] = {
    "evidence": _ByEvidence(True, True),
    "map": _ByEvidence(False, False),
    "augerino": Augerino(),
}
