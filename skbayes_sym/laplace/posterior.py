r"""Laplace's approximation around one mode or several, and its linearised predictions.

Around a mode the posterior is :math:`N(\theta^*, (H + \Delta)^{-1})`, and the network is replaced
by its linearisation, so that outputs are normal too (Immer et al. 2021, "glm"):

.. math:: f(x) \sim N(\hat f(x), J(x) (H + \Delta)^{-1} J(x)').
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from skbayes_sym.laplace.curvature import AveragedJacobian, Precision
from skbayes_sym.laplace.evidence import AveragedNetwork
from skbayes_sym.laplace.evidence_problem import LinearisedOutputs
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_factors, outputs_and_jacobian
from skbayes_sym.numerics.gaussian import multivariate_normal_log_prob
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.random import replicate_generator

Block = TypeVar("Block")

_JACOBIAN_ENTRIES = 1 << 23  # of a block, (outputs, rows, parameters)


@dataclass(frozen=True, eq=False)
class LaplacePosterior:
    """Normal distribution over the weights that are covered; the rest is at the mode."""

    loc: Any  # (P,), the mode, in the network's flat order
    precision: Precision  # of the covered parameters, as arrays
    positions: Any  # (P',), their places in ``loc``

    def tensors(self, like: Tensor) -> "LaplacePosterior":
        """Copy with tensors of the dtype and on the device of ``like``."""
        precision = self.precision.map(lambda values: torch.as_tensor(values).to(like))
        positions = torch.as_tensor(self.positions, device=like.device)
        return LaplacePosterior(torch.as_tensor(self.loc).to(like), precision, positions)

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
        precision = here.precision
        n = len(here.positions)
        return multivariate_normal_log_prob(precision.quadratic(away), -precision.log_det(), n)


class LinearisedNetwork(NamedTuple):
    """A network to first order in its weights around the mode, and their posterior."""

    model: AveragedNetwork
    posterior: LaplacePosterior  # as tensors
    eta: Tensor
    noise: Tensor  # (S, k), the transformations averaged over, the same for every row

    def mean(self, x: Tensor) -> Tensor:
        """Averaged outputs at the mode for inputs (N, *I), (N, O)."""
        size = n_rows_per_block(
            _JACOBIAN_ENTRIES, len(self.noise) * self.model.network.layout.n_params
        )
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

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` functions drawn from the linearised posterior at ``x``, (n, N, O).

        The draws of one function share their weights whatever rows are asked for: every block of
        rows sees the same stream.
        """
        streams = replicate_generator(generator)

        def functions(jacobian: AveragedJacobian, mean: Tensor) -> Tensor:
            draws = self.posterior.precision.output_draws(jacobian, n, generator=next(streams))
            return mean + draws

        return torch.cat(self._blocks(x, functions), 1)

    def _blocks(
        self, x: Tensor, finish: Callable[[AveragedJacobian, Tensor], Block]
    ) -> list[Block]:
        """``finish(jacobian, mean)`` of blocks of rows whose Jacobians fit into memory."""
        model = self.model
        n_outputs = model.network.n_outputs
        per_row = n_outputs * self.posterior.precision.entries_per_output
        parts = []
        for block in x.split(n_rows_per_block(_JACOBIAN_ENTRIES, per_row)):
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


@dataclass(frozen=True, eq=False)
class ModeMixture:
    """``sum_r w_r N(loc_r, (L_r L_r')^-1)``, around R distinct modes, none of their copies.

    A mode's weight is the share of the restarts that ended in it: Laplace's evidence of a mode is
    wrong by more than modes differ.
    """

    loc: np.ndarray  # (R, P), the modes, in the network's flat order
    factor: np.ndarray  # (R, P, P), lower Cholesky factors of their precisions
    weight: np.ndarray | None = None  # (R,), of sum one; equal by default

    @property
    def n_modes(self) -> int:
        return len(self.loc)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Modes, factors and weights, float64 on the CPU."""
        weight = np.full(self.n_modes, 1.0 / self.n_modes) if self.weight is None else self.weight
        return torch.as_tensor(self.loc), torch.as_tensor(self.factor), torch.as_tensor(weight)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """``n`` draws, (n, P)."""
        loc, factor, weight = self.tensors
        mode = weight.multinomial(n, replacement=True, generator=generator)
        noise = torch.randn((n, loc.shape[1]), generator=generator, dtype=torch.float64)
        drawn = loc[mode]
        for r in mode.unique().tolist():
            moved = torch.linalg.solve_triangular(factor[r].mT, noise[mode == r].mT, upper=True)
            drawn[mode == r] += moved.mT
        return drawn

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        loc, factor, weight = self.tensors
        away = torch.as_tensor(theta).double().unsqueeze(-2) - loc
        squares = torch.einsum("...rp,rpq->...rq", away, factor).square().sum(-1)
        each = multivariate_normal_log_prob(squares, -log_det(factor), loc.shape[1])
        return (each + weight.log()).logsumexp(-1)


class LinearisedModes(NamedTuple):
    """Networks linearised at the modes, on the device that predicts."""

    network: MLP
    loc: Tensor  # (R, P), float64
    factor: Tensor  # (R, P, P)
    weight: Tensor  # (R,), of sum one

    def outputs(self, x: Tensor, packed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Means (R, N, O) of every mode's outputs, and a row's covariances (R, N, O, O).

        ``packed``: the weights' covariances as `pack` has them, with which many rows are quicker.
        """
        means = []
        covariances = []
        per_mode = len(x) * self.network.n_outputs * self.loc.shape[1]
        size = n_rows_per_block(1 << 22, per_mode)
        # By slices, which copy no covariance.
        for which in (slice(start, start + size) for start in range(0, len(self.loc), size)):
            outputs, factors = outputs_and_factors(self.network, self.loc[which], x.double())
            means.append(outputs)
            if packed is not None:
                covariances.append(factors.covariance(packed[which]))
                continue
            columns = factors.dense().flatten(1, 2).mT
            solved = torch.linalg.solve_triangular(self.factor[which], columns, upper=False)
            if outputs.shape[-1] == 1:
                covariances.append(solved.square().sum(1).view_as(outputs).unsqueeze(-1))
            else:
                by_row = solved.unflatten(2, outputs.shape[1:])
                covariances.append(torch.einsum("rpno,rpnq->rnoq", by_row, by_row))
        return torch.cat(means), torch.cat(covariances)

    def draw(self, x: Tensor, mode: Tensor, *, generator: torch.Generator) -> Tensor:
        """Functions (n, N, O) of the modes ``mode`` (n,), alike for whatever rows are asked."""
        shape = (len(mode), self.loc.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(x.device)
        mode = mode.to(x.device)
        drawn = self.loc.new_empty(len(mode), len(x), self.network.n_outputs)
        for r in mode.unique().tolist():
            outputs, jacobian = outputs_and_jacobian(self.network, self.loc[r : r + 1], x.double())
            eps = noise[mode == r].mT
            shift = torch.linalg.solve_triangular(self.factor[r].mT, eps, upper=True)
            drawn[mode == r] = outputs[0] + (jacobian[0] @ shift).movedim(-1, 0)
        return drawn

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the mixture's functions at all rows, (N, N, O).

        That within the modes, on average, and that between them; O(R O (N P^2 + N^2 P)).
        """
        within = x.new_zeros((), dtype=torch.float64)
        means = []
        for theta, factor, weight in zip(self.loc, self.factor, self.weight, strict=True):
            outputs, jacobian = outputs_and_jacobian(self.network, theta.unsqueeze(0), x.double())
            rows = jacobian[0].movedim(1, 0)  # (O, N, P)
            root = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
            within = within + weight * (root.mT @ root).movedim(0, -1)
            means.append(outputs[0])
        each = torch.stack(means)
        away = each - torch.einsum("r,rno->no", self.weight, each)
        return within + torch.einsum("r,rno,rmo->nmo", self.weight, away, away)
