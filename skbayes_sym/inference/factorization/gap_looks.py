"""How often sweeps look at a gap that is drawn, and what they make of what they have seen."""

from typing import NamedTuple

import torch

from skbayes_sym.symmetry.gaps.base import Gap, GapGradient, RowPosterior

# Share of a new gradient in the running mean: its draws are fresh, so the mean holds those of some
# 2 / _SHARE gradients. A smaller one averages more, but what it averages is of a posterior that has
# moved on since.
_SHARE = 0.3
# A random gap is looked at again after 1, 2, 3, ... and at most so many sweeps: a look costs as
# much as a sweep over few entries, and what it finds changes ever more slowly.
LONGEST_WAIT = 8


class GapStream(NamedTuple):
    """A gap to train on and the stream that it draws from."""

    gap: Gap[RowPosterior]
    generator: torch.Generator


class RunningGap(NamedTuple):
    """What the looks at a gap have found so far."""

    mean: GapGradient  # of all looks if they are random, else the last
    last: int  # sweep of the last look
    n_looks: int


def look(
    running: RunningGap | None,
    stream: GapStream,
    posterior: RowPosterior,
    sweep: int,
    longest_wait: int,
) -> RunningGap:
    """Look at a gap that answers exactly in every sweep, at a random one when its time has come."""
    gap, generator = stream
    if running is None or not gap.is_random:
        return RunningGap(gap.value_and_gradients(posterior, generator=generator), sweep, 1)
    mean, last, n_looks = running
    if sweep < last + min(n_looks, longest_wait):
        return running
    new = gap.value_and_gradients(posterior, generator=generator)
    n_looks += 1
    share = max(_SHARE, 1.0 / n_looks)
    mean = GapGradient(
        torch.lerp(mean.value, new.value, share),
        mean.d_mean.lerp_(new.d_mean, share),
        mean.added_precision.lerp_(new.added_precision, share),
    )
    return RunningGap(mean, sweep, n_looks)
