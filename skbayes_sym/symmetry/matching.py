"""One weight vector moved, within its orbit, to where it is most like another."""

import torch
from torch import Tensor

from skbayes_sym.symmetry.base import SymmetryGroup

_MOST_SWEEPS = 50


def matched(theta: Tensor, reference: Tensor, group: SymmetryGroup) -> Tensor:
    """The orbit point of ``theta`` (P,) that sweeps over the layers bring nearest ``reference``.

    A layer's assignment is exact given the others' (`SymmetryGroup.align`); sweeps go on while the
    distance falls. The end is a local optimum of a problem that has many (Ainsworth et al. 2023,
    "Git Re-Basin", Algorithm 1).

    Parameters
    ----------
    theta, reference : Tensor of shape (P,)
    group : SymmetryGroup
    """
    best, distance = theta, float((theta - reference).norm())
    for _ in range(_MOST_SWEEPS):
        moved, _ = group.align(best, reference)
        reached = float((moved - reference).norm())
        if not reached < distance:
            return best
        best, distance = moved, reached
    return best


def path(start: Tensor, end: Tensor, n: int) -> Tensor:
    """``n`` points of the straight line between two, (n, P), both ends included."""
    t = torch.linspace(0.0, 1.0, n, dtype=start.dtype).unsqueeze(1)
    return start + t * (end - start)
