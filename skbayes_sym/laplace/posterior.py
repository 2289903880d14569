r"""Laplace's approximation around one mode or several, and linearised predictions.

Around a mode the posterior is :math:`N(\theta^*, (H + \Delta)^{-1})`. The network is replaced by
its linearisation, so that outputs are normal too (Immer et al. 2021, "glm"):

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
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_factors, outputs_and_jacobian
from skbayes_sym.models.normal_logits import LinearisedOutputs
from skbayes_sym.numerics.gaussian import multivariate_normal_log_prob
from skbayes_sym.numerics.linalg import log_det
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.random import replicate_generator

Block = TypeVar("Block")

_JACOBIAN_ENTRIES = 1 << 23  # largest size of a block (outputs, rows, parameters)


@dataclass(frozen=True, eq=False)
class LaplacePosterior:
    """Normal distribution over the covered weights. The others are fixed at the mode.

    Attributes
    ----------
    loc : array of shape (P,)
        The mode, in the network's flat order.
    precision : Precision
        Precision of the covered parameters, with arrays.
    positions : array of shape (P',), int
        Indices of the covered parameters in ``loc``.
    """

    loc: Any
    precision: Precision
    positions: Any

    def tensors(self, like: Tensor) -> "LaplacePosterior":
        """Copy with tensors of the dtype and on the device of ``like``."""
        precision = self.precision.map(lambda values: torch.as_tensor(values).to(like))
        positions = torch.as_tensor(self.positions, device=like.device)
        return LaplacePosterior(torch.as_tensor(self.loc).to(like), precision, positions)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n`` weight vectors, (n, P), on the generator's device."""
        like = torch.zeros((), dtype=torch.float64, device=generator.device)
        posterior = self.tensors(like)
        draws = posterior.loc.repeat(n, 1)
        draws[:, posterior.positions] += posterior.precision.sample(n, generator=generator)
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density of the covered parameters in nats, (*B, P) -> (*B,)."""
        theta = torch.as_tensor(theta).double()
        posterior = self.tensors(theta)
        deviation = (theta - posterior.loc)[..., posterior.positions]
        precision = posterior.precision
        return multivariate_normal_log_prob(
            precision.quadratic(deviation), -precision.log_det(), len(posterior.positions)
        )


class LinearisedNetwork(NamedTuple):
    """A network linearised in its weights around the mode, with their posterior.

    Attributes
    ----------
    model : AveragedNetwork
    posterior : LaplacePosterior
        Posterior with tensors.
    eta : Tensor
        Half-widths of the transformations.
    noise : Tensor of shape (S, k)
        Noise of the transformations that are averaged over, the same for every row.
    """

    model: AveragedNetwork
    posterior: LaplacePosterior
    eta: Tensor
    noise: Tensor

    def mean(self, x: Tensor) -> Tensor:
        """Averaged outputs (N, O) at the mode for inputs (N, *I)."""
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

        columns = zip(*self._map_blocks(x, moments), strict=True)
        return LinearisedOutputs(*(torch.cat(column) for column in columns))

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance (N, N, O) of every output at all rows ``x`` (N, *I).

        O(N^2 O P') time and O(N O P' + N^2 O) memory for P' covered parameters.
        """
        output_root = self.posterior.precision.output_root
        roots = torch.cat(self._map_blocks(x, lambda jacobian, _: output_root(jacobian)), 1)
        return torch.stack([root @ root.mT for root in roots], -1)

    def sample_functions(self, x: Tensor, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n`` functions from the linearised posterior at ``x``, (n, N, O).

        A function's weights don't depend on the rows, because every block of rows uses the same
        random numbers.
        """
        generators = replicate_generator(generator)

        def sample(jacobian: AveragedJacobian, mean: Tensor) -> Tensor:
            precision = self.posterior.precision
            return mean + precision.output_draws(jacobian, n, generator=next(generators))

        return torch.cat(self._map_blocks(x, sample), 1)

    def _map_blocks(
        self, x: Tensor, function: Callable[[AveragedJacobian, Tensor], Block]
    ) -> list[Block]:
        """Return ``function(jacobian, mean)`` for blocks of rows with Jacobians of limited size."""
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
                parts.append(function(jacobian, mean.detach()))
        return parts


@dataclass(frozen=True, eq=False)
class ModeMixture:
    """Mixture of normals ``sum_r w_r N(loc_r, (L_r L_r')^-1)`` around R distinct modes.

    Symmetric copies of the modes are left out. A mode's weight is the fraction of the restarts that
    ended in it, because Laplace's evidence of a mode has errors larger than the differences between
    modes.

    Attributes
    ----------
    loc : ndarray of shape (R, P)
        The modes, in the network's flat order.
    factor : ndarray of shape (R, P, P)
        Lower Cholesky factors of their precisions.
    weight : ndarray of shape (R,), optional
        Weights with a sum of one, equal by default.
    """

    loc: np.ndarray
    factor: np.ndarray
    weight: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The factors are the largest arrays of a model, and zero above the diagonal.
        lower = np.tril_indices(self.loc.shape[1])
        return {**vars(self), "factor": self.factor[:, *lower]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        n_weights = state["loc"].shape[1]
        factor = np.zeros((len(state["loc"]), n_weights, n_weights))
        factor[:, *np.tril_indices(n_weights)] = state["factor"]
        vars(self).update({**state, "factor": factor})

    @property
    def n_modes(self) -> int:
        """Number of modes R."""
        return len(self.loc)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Modes, factors and weights, float64 on the CPU."""
        if self.weight is None:
            weight = np.full(self.n_modes, 1.0 / self.n_modes)
        else:
            weight = self.weight
        return torch.as_tensor(self.loc), torch.as_tensor(self.factor), torch.as_tensor(weight)

    def sample(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n`` weight vectors, (n, P)."""
        loc, factor, weight = self.tensors
        mode = weight.multinomial(n, replacement=True, generator=generator)
        noise = torch.randn((n, loc.shape[1]), generator=generator, dtype=torch.float64)
        draws = loc[mode]
        for r in mode.unique().tolist():
            deviation = torch.linalg.solve_triangular(factor[r].mT, noise[mode == r].mT, upper=True)
            draws[mode == r] += deviation.mT
        return draws

    def log_prob(self, theta: Tensor) -> Tensor:
        """Log density in nats, (*B, P) -> (*B,)."""
        loc, factor, weight = self.tensors
        deviation = torch.as_tensor(theta).double().unsqueeze(-2) - loc
        squares = torch.einsum("...rp,rpq->...rq", deviation, factor).square().sum(-1)
        log_prob = multivariate_normal_log_prob(squares, -log_det(factor), loc.shape[1])
        return (log_prob + weight.log()).logsumexp(-1)


class LinearisedModes(NamedTuple):
    """Networks linearised at the modes, on the device of the predictions.

    Attributes
    ----------
    network : MLP
    loc : Tensor of shape (R, P)
        The modes, float64.
    factor : Tensor of shape (R, P, P)
        Lower Cholesky factors of their precisions.
    weight : Tensor of shape (R,)
        Weights with a sum of one.
    """

    network: MLP
    loc: Tensor
    factor: Tensor
    weight: Tensor

    def outputs(self, x: Tensor, packed: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute means and covariances of the outputs for every mode.

        Parameters
        ----------
        x : Tensor of shape (N, n_inputs)
        packed : Tensor, optional
            The weights' covariances as `pack` has them, with which many rows are faster.

        Returns
        -------
        mean : Tensor of shape (R, N, O)
        covariance : Tensor of shape (R, N, O, O)
            Covariance of the outputs of every row.
        """
        means = []
        covariances = []
        per_mode = len(x) * self.network.n_outputs * self.loc.shape[1]
        size = n_rows_per_block(1 << 22, per_mode)
        for start in range(0, len(self.loc), size):
            index = slice(start, start + size)  # a slice copies no covariance
            outputs, factors = outputs_and_factors(self.network, self.loc[index], x.double())
            means.append(outputs)
            if packed is not None:
                covariances.append(factors.covariance(packed[index]))
                continue
            columns = factors.dense().flatten(1, 2).mT
            solved = torch.linalg.solve_triangular(self.factor[index], columns, upper=False)
            if outputs.shape[-1] == 1:
                covariances.append(solved.square().sum(1).view_as(outputs).unsqueeze(-1))
            else:
                by_row = solved.unflatten(2, outputs.shape[1:])
                covariances.append(torch.einsum("rpno,rpnq->rnoq", by_row, by_row))
        return torch.cat(means), torch.cat(covariances)

    def draw(self, x: Tensor, mode: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw one function from each of the modes ``mode`` (n,), (n, N, O).

        A function's weights don't depend on the rows.

        Parameters
        ----------
        x : Tensor of shape (N, D)
            Inputs.
        mode : Tensor of int of shape (n,)
            Index of the mode of each function.
        generator : torch.Generator
            Source of random numbers.
        """
        shape = (len(mode), self.loc.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(x.device)
        mode = mode.to(x.device)
        functions = self.loc.new_empty(len(mode), len(x), self.network.n_outputs)
        for r in mode.unique().tolist():
            outputs, jacobian = outputs_and_jacobian(self.network, self.loc[r : r + 1], x.double())
            noise_r = noise[mode == r].mT
            deviation = torch.linalg.solve_triangular(self.factor[r].mT, noise_r, upper=True)
            functions[mode == r] = outputs[0] + (jacobian[0] @ deviation).movedim(-1, 0)
        return functions

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the mixture's functions at all rows, (N, N, O).

        It is the mean covariance within the modes plus the covariance between them;
        O(R O (N P^2 + N^2 P)).
        """
        within = x.new_zeros((), dtype=torch.float64)
        means = []
        for theta, factor, weight in zip(self.loc, self.factor, self.weight, strict=True):
            outputs, jacobian = outputs_and_jacobian(self.network, theta.unsqueeze(0), x.double())
            rows = jacobian[0].movedim(1, 0)  # (O, N, P)
            root = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
            within = within + weight * (root.mT @ root).movedim(0, -1)
            means.append(outputs[0])
        mean_r = torch.stack(means)
        deviation = mean_r - torch.einsum("r,rno->no", self.weight, mean_r)
        return within + torch.einsum("r,rno,rmo->nmo", self.weight, deviation, deviation)
