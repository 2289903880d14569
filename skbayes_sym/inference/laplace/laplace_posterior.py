r"""The Laplace posterior and its linearised predictive.

Around a mode the posterior is :math:`N(\theta^*, (H + \Delta)^{-1})`, and the network is replaced
by its linearisation, so that outputs are normal too (Immer et al. 2021, "glm"):

.. math:: f(x) \sim N(\hat f(x), J(x) (H + \Delta)^{-1} J(x)').
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.jacobian import AveragedJacobian
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.precision import Precision
from skbayes_sym.numerics.gaussian import log_normal_multivariate
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.random import copies

Block = TypeVar("Block")

# Entries of a block of Jacobians, (outputs, rows, parameters).
_JACOBIAN_ENTRIES = 1 << 23


@dataclass(frozen=True, eq=False)
class LaplacePosterior:
    """Normal distribution over the weights that are covered; the rest is at the mode."""

    loc: Any  # (P,), the mode, in the network's flat order
    precision: Precision  # of the covered parameters, as arrays
    positions: Any  # (P',), their places in ``loc``

    def tensors(self, like: Tensor) -> "LaplacePosterior":
        """Copy with tensors of the dtype and on the device of ``like``."""

        def convert(values: Any) -> Tensor:
            return torch.as_tensor(values).to(like)

        positions = torch.as_tensor(self.positions, device=like.device)
        return LaplacePosterior(convert(self.loc), self.precision.map(convert), positions)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P), on the generator's device."""
        here = self.tensors(torch.zeros((), dtype=torch.float64, device=generator.device))
        draws = here.loc.repeat(n, 1)
        draws[:, here.positions] += here.precision.sample(n, generator=generator)
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density of the covered parameters in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta).double()
        here = self.tensors(theta)
        away = (theta - here.loc)[..., here.positions]
        precision, n = here.precision, len(here.positions)
        return log_normal_multivariate(precision.quadratic(away), -precision.log_det(), n)


class LinearisedOutputs(NamedTuple):
    """Law of the outputs of every row under the linearised network."""

    mean: Tensor  # (N, O)
    covariance: Tensor  # (N, O, O), of the function, without observation noise


class LinearisedNetwork(NamedTuple):
    """A network to first order in its weights around the mode, and their posterior."""

    model: AveragedNetwork
    posterior: LaplacePosterior  # as tensors
    eta: Tensor
    noise: Tensor  # (S, k), the transformations averaged over, the same for every row

    def mean(self, x: Tensor) -> Tensor:
        """Averaged outputs at the mode for inputs (N, *I), (N, O)."""
        size = rows_within(_JACOBIAN_ENTRIES, len(self.noise) * self.model.network.layout.n_params)
        means = []
        for block in x.split(size):
            noise = self.noise.expand(len(block), *self.noise.shape)
            means.append(self.model.forward(self.posterior.loc, self.eta, block, noise))
        return torch.cat(means)

    def outputs(self, x: Tensor) -> LinearisedOutputs:
        """Mean and covariance of the outputs of every row of ``x`` (N, *I)."""

        def moments(jacobian: AveragedJacobian, mean: Tensor) -> LinearisedOutputs:
            return LinearisedOutputs(mean, self.posterior.precision.output_covariance(jacobian))

        columns = zip(*self._blocks(x, moments), strict=True)
        return LinearisedOutputs(*(torch.cat(column) for column in columns))

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of every output at all rows ``x`` (N, *I), (N, N, O).

        Cost O(N^2 O P') and memory O(N O P' + N^2 O) for P' covered parameters.
        """
        root = self.posterior.precision.output_root
        roots = torch.cat(self._blocks(x, lambda jacobian, _: root(jacobian)), 1)
        return torch.stack([r @ r.mT for r in roots], -1)

    def functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` functions drawn from the linearised posterior at ``x``, (n, N, O).

        The draws of one function share their weights whatever rows are asked for: every block of
        rows sees the same stream.
        """
        streams = copies(generator)

        def functions(jacobian: AveragedJacobian, mean: Tensor) -> Tensor:
            draws = self.posterior.precision.output_draws(jacobian, n, generator=next(streams))
            return mean + draws

        return torch.cat(self._blocks(x, functions), 1)

    def _blocks(
        self, x: Tensor, finish: Callable[[AveragedJacobian, Tensor], Block]
    ) -> list[Block]:
        """``finish(jacobian, mean)`` of blocks of rows whose Jacobians fit into memory."""
        model = self.model
        n_outputs = model.network.layout.shapes[model.layers[-1].weight][0]
        per_row = n_outputs * self.posterior.precision.entries_per_output
        parts = []
        for block in x.split(rows_within(_JACOBIAN_ENTRIES, per_row)):
            with torch.enable_grad():
                noise = self.noise.expand(len(block), *self.noise.shape)
                recording, mean = model.record(self.posterior.loc, self.eta, block, noise)
                directions = torch.eye(n_outputs, dtype=x.dtype, device=x.device)
                directions = directions.unsqueeze(1).expand(-1, len(block), -1)
                jacobian = AveragedJacobian(
                    recording, model.layers, model.n_samples, mean, directions
                )
            with torch.no_grad():
                parts.append(finish(jacobian, mean.detach()))
        return parts
