"""A model (network, likelihood, prior and symmetry group), and training data on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.priors import Prior
from skbayes_sym.symmetry.group import SymmetryGroup


class Data(NamedTuple):
    """Training data in the units that the network uses.

    Attributes
    ----------
    x : Tensor of shape (N, n_inputs)
        Inputs.
    y : Tensor of shape (N, n_outputs), or (N,) int64
        Targets or classes.
    weight : Tensor of shape (N,)
        Weights of the rows.
    """

    x: Tensor
    y: Tensor
    weight: Tensor


class Batches:
    """Minibatches, with weights scaled to the whole data set.

    Rows are sampled without replacement, and an incomplete last batch is dropped.

    Parameters
    ----------
    data : Data
        Training data.
    batch_size : int
        Rows per step. N or more means all of them.
    generator : torch.Generator
        Random generator, which the steps can use as well.
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
        """Number of rows per step."""
        return min(self._size, self._n)

    def next(self) -> Data:
        """Return the rows of the next step."""
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

    The transformations in ``group`` change neither the function nor the prior.
    """

    network: Network
    likelihood: Likelihood
    prior: Prior
    group: SymmetryGroup
