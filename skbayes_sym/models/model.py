"""The four nouns of a model together, and rows on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import Prior
from skbayes_sym.symmetry.group import SymmetryGroup


class Data(NamedTuple):
    """Training data in the scale the network sees."""

    x: Tensor  # (N, n_inputs)
    y: Tensor  # (N, n_outputs) or (N,) int64
    weight: Tensor  # (N,)


class Batches:
    """Rows of every step, and their weights scaled to the whole data set.

    Drawn without replacement; a last incomplete batch is dropped.

    ``batch_size``: rows a step; N or more for all of them. ``generator``: what a step draws beside
    its rows may come from it too.
    """

    def __init__(self, data: Data, batch_size: int, generator: torch.Generator) -> None:
        self.data = data
        self.generator = generator
        self._n = len(data.x)
        self._size = batch_size
        self._weighted = data._replace(weight=data.weight * max(1.0, self._n / batch_size))
        self._next = self._n
        self._order = torch.empty(0)

    @property
    def batch_size(self) -> int:
        """Rows a step."""
        return min(self._size, self._n)

    def next(self) -> Data:
        """The rows of the next step."""
        if self._size >= self._n:
            return self._weighted
        if self._next + self._size > self._n:
            self._order = torch.randperm(
                self._n, generator=self.generator, device=self.generator.device
            )
            self._next = 0
        rows = self._order[self._next : self._next + self._size]
        self._next += self._size
        return Data(*(t.index_select(0, rows) for t in self._weighted))


class Model(NamedTuple):
    """Targets ``y ~ likelihood(network(theta, x))`` with ``theta ~ prior``.

    The transformations in ``group`` change neither function nor prior.
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    group: SymmetryGroup
