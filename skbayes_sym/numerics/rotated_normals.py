"""Noise for one stochastic gradient after another, at a fraction of what drawing it anew takes."""

from collections.abc import Sequence

import torch
from scipy.linalg import hadamard
from torch import Tensor

_GROUP = 16  # numbers that are mixed with each other
_FRESH = 16  # sets of numbers, one of them drawn and the others made of it
_LEAST = 2048  # numbers of a set: fewer are drawn as quickly


class RotatedNormals:
    """Sets of standard normals (n_rows, width), a list of them at a time, in views made once.

    On a CPU, where drawing is slow, one set in 16 is drawn. From each the next is made by an
    orthogonal map: groups of 16 numbers, neighbours and ones far apart in turn, times Hadamard's
    matrix with random signs on both sides (Wallace 1996 makes all his normals so).

    ``like``: gives dtype and device. The draw itself is made in float32: see `standard_normal`.
    ``generator``: on that device.

    The numbers of one set are independent and standard normal, exactly: what is averaged over a
    set has the law that it has of numbers drawn anew. Two sets of one draw are uncorrelated, since
    the signs are random; they are not independent (they have the same sum of squares, and the
    square of a number correlates with those in the set after it by 1/16). That is enough for steps
    that average: their gradients' mean has hardly more variance than by numbers drawn anew
    (``tests/inference/gaussian_vi/test_elbo.py``). It isn't for draws that are kept.

    From some ten thousand numbers on a set takes a quarter of what drawing it does
    (``asv_bench/benchmarks/variational.py``).

    C. S. Wallace (1996). Fast pseudorandom generators for normal and exponential variates. ACM
    Transactions on Mathematical Software 22.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, int]], like: Tensor, generator: torch.Generator
    ) -> None:
        sizes = [n_rows * width for n_rows, width in shapes]
        n = sum(sizes)
        self._rotates = like.device.type == "cpu" and n >= _LEAST
        padding = -n % _GROUP if self._rotates else 0
        self._sets = [
            torch.empty(n + padding, dtype=torch.float32, device=like.device)
            for _ in range(1 + self._rotates)
        ]
        self._converted = None if like.dtype == torch.float32 else self._sets[0].to(like.dtype)
        self._views = [
            [piece.view(shape) for piece, shape in zip(whole[:n].split(sizes), shapes, strict=True)]
            for whole in (self._sets if self._converted is None else [self._converted])
        ]
        self._generator, self._n_made = generator, 0
        self._mix = torch.tensor(hadamard(_GROUP) / _GROUP**0.5, dtype=torch.float32)
        self._rotations = self._mix

    def next(self) -> list[Tensor]:
        """The next set; it overwrites the one before the last."""
        k = self._n_made % _FRESH if self._rotates else 0
        self._n_made += 1
        if k == 0:
            self._draw()
        else:
            self._rotate(k)
        if self._converted is None:
            return self._views[k % 2]
        self._converted.copy_(self._sets[k % 2])
        return self._views[0]

    def _draw(self) -> None:
        self._sets[0].normal_(generator=self._generator)
        if self._rotates:
            bits = torch.randint(2, (_FRESH, 2, _GROUP), generator=self._generator)
            left, right = bits.mul_(2).sub_(1).float().unbind(1)
            self._rotations = left.unsqueeze(-1) * self._mix * right.unsqueeze(-2)

    def _rotate(self, k: int) -> None:
        old, new, mix = self._sets[1 - k % 2], self._sets[k % 2], self._rotations[k]
        if k % 2:
            torch.mm(old.view(-1, _GROUP), mix, out=new.view(-1, _GROUP))
        else:
            torch.mm(mix, old.view(_GROUP, -1), out=new.view(_GROUP, -1))
