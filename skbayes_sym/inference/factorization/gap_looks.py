r"""How often sweeps look at a gap that is drawn, and what they make of what they have seen.

While factors move, a running mean of a few looks is enough. Near the optimum it isn't: its noise
leaves a few tenths of a nat, and a longer mean is of posteriors that have moved on since. There the
gradient is that of common draws z, the same in every sweep, mended by fresh ones,

.. math:: g_t = \bar g(q_t; z) + \frac1t \sum_{s \le t}
    \bigl( g(q_s; z_s) - \bar g(q_s; z) \bigr),

which follows q at once and forgets none of the draws: control variates, as in SVRG (Johnson & Zhang
2013).
"""

from typing import NamedTuple

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
# Gradients that a last look averages. With fewer common draws the posterior comes to fit them
# faster than fresh ones mend it.
_COMMON, _FRESH = 4, 2


class GapStream(NamedTuple):
    """A gap to train on and the stream that it draws from."""

    gap: Gap[RowPosterior]
    generator: torch.Generator


class GapLooks:
    """Gradients of a gap, as sweeps are told them.

    A gap that answers exactly is looked at in every sweep; of a random one a running mean is kept,
    and looked at again after ever more sweeps, until the last looks begin.
    """

    def __init__(self, stream: GapStream) -> None:
        self._stream = stream
        self._mean: GapGradient | None = None
        self._looked_at, self._n_looks = 0, 0  # sweep of the last look, and their number
        self._common_seed: int | None = None  # of the last looks' common draws

    def gradient(self, posterior: RowPosterior, sweep: int) -> GapGradient:
        """Value and slopes at a posterior, or the mean of those at the last few."""
        gap, generator = self._stream
        if self._common_seed is not None:
            return self._last_look(posterior, self._common_seed)
        if self._mean is None or not gap.is_random:
            self._mean = gap.value_and_gradients(posterior, generator=generator)
            self._looked_at, self._n_looks = sweep, 1
        elif sweep >= self._looked_at + min(self._n_looks, _LONGEST_WAIT):
            new = gap.value_and_gradients(posterior, generator=generator)
            self._looked_at, self._n_looks = sweep, self._n_looks + 1
            self._mean = _moved(self._mean, new, max(_SHARE, 1.0 / self._n_looks))
        return self._mean

    def forget(self) -> None:
        """Drop the running mean: the posterior has been turned."""
        self._mean = None

    def begin_last(self, tol: float) -> int:
        """Number of sweeps that a bound that has stalled is worth."""
        gap, generator = self._stream
        if tol > WORTH or not gap.is_random:
            return 0
        seed = torch.randint(2**62, (), generator=generator, device=generator.device)
        self._mean, self._n_looks, self._common_seed = None, 0, int(seed)
        return _LAST_LOOKS

    def _last_look(self, posterior: RowPosterior, seed: int) -> GapGradient:
        """Common draws, mended by all fresh ones; the running mean is that of their difference."""
        generator = self._stream.generator
        fresh = self._average(posterior, generator, _FRESH)
        same = generator_from(seed, generator.device)
        common = self._average(posterior, same, _COMMON)
        bias = GapGradient(*(f - c for f, c in zip(fresh, common, strict=True)))
        self._n_looks += 1
        self._mean = bias if self._mean is None else _moved(self._mean, bias, 1.0 / self._n_looks)
        return GapGradient(*(c + b for c, b in zip(common, self._mean, strict=True)))

    def _average(self, posterior: RowPosterior, generator: torch.Generator, n: int) -> GapGradient:
        gap = self._stream.gap
        looks = [gap.value_and_gradients(posterior, generator=generator) for _ in range(n)]
        return GapGradient(*(sum(parts[1:], parts[0]) / n for parts in zip(*looks, strict=True)))


def _moved(mean: GapGradient, new: GapGradient, share: float) -> GapGradient:
    return GapGradient(*(torch.lerp(a, b, share) for a, b in zip(mean, new, strict=True)))
