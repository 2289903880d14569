r"""How often sweeps look at a gap that is drawn, and what they make of what they have seen.

While factors move, a running mean of a few looks is enough. Near the optimum it isn't: its noise
leaves a few tenths of a nat, and a longer mean is of posteriors that have moved on since. There the
gradient is that of common draws z, the same in every sweep, mended by fresh ones,

.. math:: g_t = \bar g(q_t; z) + \frac1t \sum_{s \le t}
    \bigl( g(q_s; z_s) - \bar g(q_s; z) \bigr),

which follows q at once and forgets none of the draws: control variates, as in SVRG (Johnson & Zhang
2013). Where draws are so cheap that enough can be common ones, these are all.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from skbayes_sym.numerics.random import generator_from
from skbayes_sym.symmetry.gaps.gap import Gap, GapGradient, RowPosterior

# Share of a new gradient in the running mean: its draws are fresh, so the mean holds those of some
# 2 / _SHARE gradients. A smaller one averages more, but what it averages is of a posterior that has
# moved on since.
_SHARE = 0.3
# A random gap is looked at again after 1, 2, 3, ... and at most so many sweeps: a look costs as
# much as a sweep over few entries, and what it finds changes ever more slowly.
_LONGEST_WAIT = 8
# Once the bound stalls, so many sweeps more take the last looks: what is left then is about a nat,
# which matters where ``tol`` is less.
_LAST_LOOKS, WORTH = 30, 1.0
# As many at common draws alone, which nothing has to average any more.
_SETTLED_LOOKS = 10
# Gradients that a last look averages. With fewer common draws the posterior comes to fit them
# faster than fresh ones mend it.
_COMMON, _FRESH = 4, 2


class GapStream(NamedTuple):
    """A gap to train on and the stream that it draws from."""

    gap: Gap[RowPosterior]
    generator: torch.Generator


@runtime_checkable
class SettledGap(Protocol):
    """A gap whose draws are so cheap that a posterior may be fitted to those of one call."""

    def settled_gradients(
        self, posterior: RowPosterior, *, generator: torch.Generator
    ) -> GapGradient:
        """Compute `Gap.value_and_gradients` from many more draws."""


class GapLooks:
    """Gradients of a gap, as sweeps are told them.

    A gap that answers exactly is looked at in every sweep; of a random one a running mean is kept,
    and looked at again after ever more sweeps, until the last looks begin.
    """

    def __init__(self, stream: GapStream) -> None:
        self._stream = stream
        self._mean: GapGradient | None = None
        self._looked_at, self._n_looks = 0, 0  # sweep of the last look, and their number
        self._last: Callable[[RowPosterior], GapGradient] | None = None

    def gradient(self, posterior: RowPosterior, sweep: int) -> GapGradient:
        """Value and slopes at a posterior, or the mean of those at the last few."""
        if self._last is not None:
            return self._last(posterior)
        gap, generator = self._stream
        if self._mean is None or not gap.is_random:
            self._mean = gap.value_and_gradients(posterior, generator=generator)
            self._looked_at, self._n_looks = sweep, 1
        elif sweep >= self._looked_at + min(self._n_looks, _LONGEST_WAIT):
            new, mean = gap.value_and_gradients(posterior, generator=generator), self._mean
            self._looked_at, self._n_looks = sweep, self._n_looks + 1
            share = max(_SHARE, 1.0 / self._n_looks)
            self._mean = GapGradient(
                torch.lerp(mean.value, new.value, share),
                mean.d_mean.lerp_(new.d_mean, share),
                mean.added_precision.lerp_(new.added_precision, share),
            )
        return self._mean

    def forget(self) -> None:
        """Drop the running mean: the posterior has been turned."""
        self._mean = None

    def begin_last(self, tol: float) -> int:
        """Number of sweeps that a bound that has stalled is worth."""
        if tol > WORTH or not self._stream.gap.is_random:
            return 0
        gap, generator = self._stream
        if not isinstance(gap, SettledGap):
            self._last = _LastLooks(self._stream).gradient
            return _LAST_LOOKS
        settled, seed = gap.settled_gradients, drawn_seed(generator)
        self._last = lambda posterior: settled(
            posterior, generator=generator_from(seed, generator.device)
        )
        return _SETTLED_LOOKS


def drawn_seed(generator: torch.Generator) -> int:
    """The seed of a stream that begins again and again."""
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


class _LastLooks:
    """Common draws, mended by all fresh ones so far; a look costs as much as six others."""

    def __init__(self, stream: GapStream) -> None:
        self._stream, self._n = stream, 0
        self._seed = drawn_seed(stream.generator)
        self._bias: GapGradient | None = None

    def gradient(self, posterior: RowPosterior) -> GapGradient:
        fresh = self._mean(posterior, self._stream.generator, _FRESH)
        same = generator_from(self._seed, self._stream.generator.device)
        common = self._mean(posterior, same, _COMMON)
        bias = GapGradient(*(f - c for f, c in zip(fresh, common, strict=True)))
        self._n += 1
        pairs = zip(bias if self._bias is None else self._bias, bias, strict=True)
        self._bias = GapGradient(*(torch.lerp(old, new, 1.0 / self._n) for old, new in pairs))
        return GapGradient(*(c + b for c, b in zip(common, self._bias, strict=True)))

    def _mean(self, posterior: RowPosterior, generator: torch.Generator, n: int) -> GapGradient:
        gap = self._stream.gap
        looks = [gap.value_and_gradients(posterior, generator=generator) for _ in range(n)]
        return GapGradient(*(sum(parts[1:], parts[0]) / n for parts in zip(*looks, strict=True)))
