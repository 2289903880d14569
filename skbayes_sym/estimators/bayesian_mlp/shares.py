"""What linear model, modes and members count for in a pool, by the rows that each leaves out."""

from math import log, log1p
from typing import NamedTuple

import torch
from scipy.special import expit
from torch import Tensor

from skbayes_sym.inference.pooling.left_out import expected_share, mixed, stacked_share

# Networks of one kind count if they gain at least this share of the other kind's gain over the
# linear model. Left-out rows of linearised networks are too rough to weigh the kinds more finely:
# stacking gives members nothing on concrete (a share of .91 there), where they gain a tenth of a
# nat per row; where the share is .6 to .8 (yacht, airfoil, friedman1) they cost .03 to .2.
_LEAST_GAIN = 0.85


class Shares(NamedTuple):
    """Shares of the kinds, which add up to 1; within a kind all count alike."""

    linear: float
    modes: float
    members: float

    def attributes(self) -> dict[str, float]:
        """As fitted attributes."""
        return {f"{kind}_share_": share for kind, share in self._asdict().items()}

    def with_evidence(self, linear: float, networks: float) -> "Shares":
        """The linear model counts for at least what the evidences, in nats, give it.

        For more weights than rows: these networks have seen every row that they leave out, and
        promise a quarter of a nat more per row than they keep (250 rows x 50 columns).
        """
        share = float(expit(linear - networks))
        if share <= self.linear:
            return self
        rest = (1.0 - share) / (1.0 - self.linear)
        return Shares(share, rest * self.modes, rest * self.members)


def equal_shares(n_modes: int, n_members: int) -> Shares:
    """All networks alike, without a linear model."""
    n = max(n_modes + n_members, 1)
    return Shares(0.0, n_modes / n, n_members / n)


def shared(linear: Tensor, modes: Tensor, members: Tensor, weight: Tensor) -> Shares:
    """The kinds of networks that left-out rows speak for, mixed alike, stacked with the linear one.

    Parameters
    ----------
    linear : Tensor of shape (N,)
        Log densities of left-out rows at the linear model, nats.
    modes : Tensor of shape (R, N)
        At every mode, of which there may be none.
    members : Tensor of shape (M, N)
        At every member.
    weight : Tensor of shape (N,)
    """
    kinds = [kind for kind in (modes, members) if len(kind)]
    gains = [float((weight * (mixed(kind) - linear)).sum()) for kind in kinds]
    best = max(gains)
    least = min(_LEAST_GAIN * best, best)  # where none gains, the one that loses least
    kept = [kind for kind, gain in zip(kinds, gains, strict=True) if gain >= least]
    share = stacked_share(linear, mixed(torch.cat(kept)), weight)
    n_modes, n_members = (len(k) if any(k is one for one in kept) else 0 for k in (modes, members))
    of_modes = (1.0 - share) * n_modes / (n_modes + n_members)
    return Shares(share, of_modes, 1.0 - share - of_modes if n_members else 0.0)


def shared_by_classes(
    linear: Tensor | None, modes: Tensor | None, members: Tensor | None, weight: Tensor
) -> Shares:
    """Modes and members by the share expected of them, stacked with the linear model.

    Parameters
    ----------
    linear, modes, members : Tensor of shape (N,), optional
        Log probabilities of left-out rows, nats; None of what is not there or leaves no rows out.
        Where modes have them and members don't, members count for nothing.
    weight : Tensor of shape (N,)
    """
    if modes is None or members is None:
        of_modes, networks = (0.0, members) if modes is None else (1.0, modes)
    else:
        of_modes = expected_share(modes, members, weight)
        networks = (modes + log(of_modes)).logaddexp(members + log1p(-of_modes))
    share = 0.0
    if linear is not None and networks is not None:
        share = stacked_share(linear, networks, weight)
    return Shares(share, (1.0 - share) * of_modes, (1.0 - share) * (1.0 - of_modes))
