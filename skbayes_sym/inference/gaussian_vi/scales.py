r"""Prior scales as layers have them: one per input of a layer, shared by all of its units.

Scales that are learned are points, like the noise. Training maximises

.. math:: \mathrm{ELBO}(q, \alpha) + \log p(\alpha)

over the posterior and the log precisions together, so that the ELBO at the scales found stays a
lower bound on :math:`\log p(y \mid \alpha)`; the hyperprior's density isn't part of it.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.priors import ScalesByGroup
from skbayes_sym.numerics.machine import positions


@dataclass(frozen=True, eq=False)
class PriorOfLayers:
    """Given or learned scales of a network's layers."""

    network: MLP
    scales: ScalesByGroup

    def __post_init__(self) -> None:
        # Scales that are equal now need not stay so: groups are what counts where they move.
        told = self.scales.group.double() if self.scales.is_learned else self.scales.scale
        for weight, bias in self.network.layers(told):
            if not bool((weight == weight[:1]).all() and (bias == bias[:1]).all()):
                raise ValueError(
                    "the prior must be the same for all units of a layer: give a number as "
                    "prior, or one per layer."
                )

    @property
    def start(self) -> Tensor:
        """Log precisions to start from, float64 (G,); none of scales that are given."""
        hyper = self.scales.hyper.double()
        return hyper if self.scales.is_learned else hyper[:0]

    def split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """The posterior's parameters, and log precisions, which come last."""
        n = len(params) - len(self.start)
        return params[:n], params[n:]

    def of_layers(self, hyper: Tensor) -> list[Tensor]:
        """Scales (D + 1,) of every layer's D inputs and, last, its biases."""
        if not self.scales.is_learned:
            return [s.to(hyper) for s in self._given]
        scale = (-0.5 * hyper).exp()
        return [scale[positions(group, hyper)] for group in self._groups]

    def log_hyperprior(self, hyper: Tensor) -> Tensor:
        """Density of the log precisions, nats; 0 of scales that are given."""
        return self.scales.log_hyperprior(hyper)

    @cached_property
    def _groups(self) -> list[tuple[int, ...]]:
        return [tuple(group.tolist()) for group in self._of_first_units(self.scales.group)]

    @cached_property
    def _given(self) -> list[Tensor]:
        return self._of_first_units(self.scales.scale)

    def _of_first_units(self, values: Tensor) -> list[Tensor]:
        layers = self.network.layers(values)
        return [torch.cat([weight[0], bias[:1]]) for weight, bias in layers]
