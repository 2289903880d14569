"""Modes of a posterior: many searches at once by Adam, or one to the last digit by L-BFGS."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from skbayes_sym.inference.log_density import Evaluation, LogDensity
from skbayes_sym.inference.network_posterior import NetworkPosterior
from skbayes_sym.models.model import Batches

_GTOL = 1e-8  # of the gradient, at a maximum


class MapObjective:
    """Minus the log posterior density of M positions, as `numerics.optimise.minimise` wants it.

    Each search goes its own way: the loss is a sum over positions, and Adam treats every
    coordinate by itself.

    ``params``, ``gradient`` (M * D,): ``theta`` of all positions one after the other, then ``log
    sigma`` of all: two stretches with ranges of their own.

    ``log_density``: over positions ``[theta | log sigma]``; ``n_theta``: length of ``theta``, all
    of the position where there is no sigma; ``position`` (M, D): where the searches start. The mode
    looked for is that of the density of (theta, sigma): that of (theta, log sigma) over sigma.
    """

    def __init__(self, log_density: LogDensity, n_theta: int, position: Tensor) -> None:
        self._log_density, self._split = log_density, [n_theta, position.shape[1] - n_theta]
        self._n = len(position)
        self.params = self._flat(position)
        self.gradient = torch.zeros_like(self.params)

    @property
    def n_theta(self) -> int:
        """Length of the stretch of ``params`` that holds ``theta``."""
        return self._n * self._split[0]

    @property
    def position(self) -> Tensor:
        """(M, D)."""
        parts = self.params.split([self._n * n for n in self._split])
        return torch.cat([p.view(self._n, -1) for p in parts if p.numel()], 1)

    def log_posterior(self, position: Tensor) -> Tensor:
        """Log density of (theta, sigma), (M, D) -> (M,) nats."""
        return self._log_density(position) - position[:, self._split[0] :].sum(1)

    def __call__(self, step: int) -> Tensor:
        """Mean of the losses, 0-d; the gradient written is that of their sum."""
        position = self.position
        value, gradient = self._log_density.evaluate(position)
        torch.neg(self._flat(gradient), out=self.gradient)
        self.gradient[self.n_theta :] += 1.0
        return (position[:, self._split[0] :].sum(1) - value).mean()

    def _flat(self, position: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in position.split(self._split, 1)])


@dataclass(frozen=True, eq=False)
class MinibatchDensity:
    """A log posterior density estimated from the rows of a batch, another one at every call.

    Unbiased: the rows' weights are scaled to the whole data set.
    """

    posterior: NetworkPosterior  # of all rows
    batches: Batches

    @property
    def n_dims(self) -> int:
        """Length of a position."""
        return self.posterior.n_dims

    def __call__(self, position: Tensor) -> Tensor:
        return self.posterior(position)

    def evaluate(self, position: Tensor) -> Evaluation:
        return replace(self.posterior, data=self.batches.next()).evaluate(position)
