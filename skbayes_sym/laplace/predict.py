"""Predictions of networks linearised at one mode, at several, or at an ensemble's members."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import at_levels, draw_levels
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, select_draws
from skbayes_sym.laplace.class_predictive import RefittedMember
from skbayes_sym.laplace.posterior import LinearisedModes, LinearisedNetwork
from skbayes_sym.models.likelihoods.likelihood import N_NODES, Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian, pack
from skbayes_sym.models.normal_logits import (
    LinearisedOutputs,
    SoftmaxExpectations,
    points_for_prediction,
    scale_logits,
    symmetric_root,
)
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture, Predictive
from skbayes_sym.numerics.gaussian import gauss_hermite
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.random import generator_from

# Up to so many outputs of all rows, a triangular solve per mode takes less time than the products
# with packed covariances of the weights, which have to be packed first.
_MAX_SOLVED_OUTPUTS = 16
# Log probabilities that are computed at once: 32 MB.
_MAX_LOG_PROBABILITIES = 1 << 22


@dataclass(frozen=True, eq=False)
class LinearisedPredictor(BasePredictor):
    """Predictions of regression by a network linearised at one mode.

    Attributes
    ----------
    network : LinearisedNetwork
    likelihood : Likelihood
    seed : int
        Seed of draws of several outputs.
    n_draws : int, default=200
        Number of draws of a row's outputs where no quadrature rule integrates over them.
    levels : Tensor of shape (1, K, T), optional
        Standard deviations that replace the noise where few rows determine it, see `noise_levels`.
    """

    network: LinearisedNetwork
    likelihood: Likelihood
    seed: int
    n_draws: int = 200
    levels: Tensor | None = None

    def distribution(self, x: Tensor) -> Predictive:
        """Predictive distribution of rows.

        It is exact for normal noise, and a Gauss-Hermite rule for one output of another likelihood.
        """
        outputs = self.network.outputs(x)
        if self.likelihood.kind == "normal":
            variance = outputs.covariance.diagonal(dim1=-2, dim2=-1).unsqueeze(0)
            distribution = NormalMixture(
                outputs.mean.unsqueeze(0),
                variance,
                self.likelihood.noise_scale.square(),
                covariance=outputs.covariance.unsqueeze(0),
            )
            if self.levels is None:
                return distribution
            return at_levels(distribution, self.levels)
        if outputs.mean.shape[-1] > 1:
            return self.likelihood.predictive(draw_outputs(outputs, self.n_draws, self.seed))
        nodes, weights = (t.to(x) for t in gauss_hermite(N_NODES))
        deviations = outputs.covariance[..., 0].sqrt() * nodes[:, None, None]
        return self.likelihood.predictive(outputs.mean + deviations, weights.log())

    def mean(self, x: Tensor) -> Tensor:
        """Predictive mean, (N, T)."""
        if self.likelihood.kind == "normal":
            return self.network.mean(x)
        return super().mean(x)

    def covariance(self, x: Tensor) -> Tensor | None:
        """Joint covariance of the function at all rows, (N, N, T), for normal noise."""
        if self.likelihood.kind == "normal":
            return self.network.covariance(x)
        return None

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Distributions of the targets given ``n`` functions drawn from the posterior."""
        functions = self.network.sample_functions(x, n, generator=generator)
        if self.levels is None:
            return self.likelihood.predictive(functions)
        mode = torch.zeros(n, dtype=torch.long)
        noise = draw_levels(self.levels, mode, generator=generator).to(x)
        return NormalMixture(functions, x.new_zeros(1, 1, 1), noise)


@dataclass(frozen=True, eq=False)
class LinearisedClassPredictor(LinearisedPredictor):
    """Predictions of classification by a network linearised at one mode.

    Attributes
    ----------
    integral : {"sampling", "plugin"}, default="sampling"
        Whether to average over draws of the logits, or to take the mode's.
    variance_scale : float, default=1.0
        Factor on the variance of the logits.
    """

    integral: str = "sampling"
    variance_scale: float = 1.0

    def distribution(self, x: Tensor) -> Predictive:
        """Predictive distribution of rows."""
        if self.integral == "plugin" or self.variance_scale == 0.0:
            return self.likelihood.predictive(self.network.mean(x).unsqueeze(0))
        outputs = self.network.outputs(x)
        outputs = outputs._replace(covariance=self.variance_scale * outputs.covariance)
        return self.likelihood.predictive(draw_outputs(outputs, self.n_draws, self.seed))

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Distributions of the class given ``n`` functions drawn from the posterior.

        The logits have the mean and the covariance that `distribution` averages over.
        """
        mean = self.network.mean(x)
        if self.integral == "plugin" or self.variance_scale == 0.0:
            return self.likelihood.predictive(mean.expand(n, *mean.shape))
        deviations = self.network.sample_functions(x, n, generator=generator) - mean
        return self.likelihood.predictive(mean + self.variance_scale**0.5 * deviations)


@dataclass(frozen=True, eq=False)
class ModesPredictor(BasePredictor):
    """Predictions of regression by networks linearised at several modes.

    Attributes
    ----------
    modes : LinearisedModes
    likelihood : Likelihood
        Normal noise of every mode, (R, 1, T).
    levels : Tensor of shape (R, K, T), optional
        Standard deviations that replace each mode's noise where few rows determine it, see
        `noise_levels`.
    """

    modes: LinearisedModes
    likelihood: Likelihood
    levels: Tensor | None = None

    @cached_property
    def packed(self) -> Tensor:
        """Covariances of the weights, as `pack` has them."""
        network, _, factor, _ = self.modes
        return pack(torch.cholesky_inverse(factor), network.sizes)

    def distribution(self, x: Tensor) -> Predictive:
        """Predictive distribution of rows."""
        packed = None
        if len(x) * self.modes.network.n_outputs > _MAX_SOLVED_OUTPUTS:
            packed = self.packed
        mean, covariance = (t.to(x) for t in self.modes.outputs(x, packed))
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        noise = self.likelihood.noise_scale.square()
        log_weights = self.modes.weight.log().to(x)
        if mean.shape[-1] == 1:
            distribution = NormalMixture(mean, variance, noise, log_weights)
        else:
            distribution = NormalMixture(mean, variance, noise, log_weights, covariance)
        if self.levels is None:
            return distribution
        return at_levels(distribution, self.levels)

    def mean(self, x: Tensor) -> Tensor:
        """Predictive mean, (N, T)."""
        outputs = self.modes.network.forward(self.modes.loc, x.double())
        return torch.einsum("r,rno->no", self.modes.weight, outputs).to(x)

    def covariance(self, x: Tensor) -> Tensor | None:
        """Joint covariance of the mixture's functions at all rows, (N, N, T)."""
        return self.modes.covariance(x)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        """Networks whose outputs are the means of the components."""
        yield NetworkComponents(x, self.modes.network, self.modes.loc, self.modes.weight)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Distributions of the targets given ``n`` functions drawn from the posterior."""
        mode = self.modes.weight.cpu().multinomial(n, replacement=True, generator=generator)
        functions = self.modes.draw(x, mode, generator=generator).to(x)
        if self.levels is not None:
            noise = draw_levels(self.levels, mode, generator=generator).to(x)
            return NormalMixture(functions, x.new_zeros(1, 1, 1), noise)
        return select_draws(self.likelihood, mode).predictive(functions)


class JointClassPredictor(BasePredictor):
    """Predictions of classification by several posteriors of a linearised network's weights.

    Attributes
    ----------
    network : MLP
    weights : Tensor of shape (R,)
        Weights of the posteriors with a sum of one.
    """

    network: MLP
    weights: Tensor

    def expectations(self, index: slice, x: Tensor) -> SoftmaxExpectations:
        """Expectations under the logits of N rows (float64) in R of the posteriors, (R N, K).

        They are averages over 32 Gauss-Hermite nodes for two classes, and over 256 quasi-Monte
        Carlo points for more, which are the same for all rows.
        """
        raise NotImplementedError

    def sample_logits(self, i: int, x: Tensor, noise: Tensor) -> Tensor:
        """Sample logits (m, N, K) of rows (float64) in posterior ``i``, given normals (m, P).

        Parameters
        ----------
        i : int
            Index of the posterior.
        x : Tensor of shape (N, D)
            Inputs.
        noise : Tensor of shape (m, P)
            Standard normal noise.
        """
        raise NotImplementedError

    def distribution(self, x: Tensor) -> CategoricalMixture:
        """Predictive distribution of rows.

        O(N R P^2) time and 8 N R S C bytes for S points: predict in blocks of rows.
        """
        n_outputs = self.network.n_outputs
        n_points = len(points_for_prediction(n_outputs).weights)
        n_per_posterior = len(x) * n_points * max(2, n_outputs)
        size = n_rows_per_block(_MAX_LOG_PROBABILITIES, n_per_posterior)
        draws = []
        log_weights = []
        for start in range(0, len(self.weights), size):
            index = slice(start, start + size)
            expectations = self.expectations(index, x.double())
            log_p = expectations.log_probabilities().unflatten(0, (-1, len(x)))  # (R, N, C, S)
            draws.append(log_p.movedim(-1, 1).flatten(0, 1))
            weights = self.weights[index].to(expectations.weights)
            log_weights.append((weights.unsqueeze(1) * expectations.weights).log().flatten())
        return CategoricalMixture(torch.cat(draws).to(x), torch.cat(log_weights).to(x))

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> CategoricalMixture:
        """Distributions of the class given ``n`` functions drawn from the posteriors."""
        component = self.weights.cpu().multinomial(n, replacement=True, generator=generator)
        shape = (n, self.network.layout.n_params)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(x.device)
        order = component.argsort(stable=True)
        distributions = []
        for i in component.unique().tolist():
            logits = self.sample_logits(i, x.double(), noise[component == i])
            log_p = SoftmaxExpectations(logits.flatten(0, 1)).log_probabilities()[..., 0]
            distributions.append(log_p.unflatten(0, logits.shape[:2]).to(x))
        return CategoricalMixture(torch.cat(distributions)[order.argsort()])


class ClassModesPredictor(JointClassPredictor):
    """Predictions of classification by networks linearised at several modes.

    Parameters
    ----------
    modes : LinearisedModes
    variance_scale : float
        Factor on the variance of the logits. 0 predicts with the modes themselves.
    integral : {"sampling", "plugin"}, default="sampling"
        "plugin" has the same effect as ``variance_scale=0``.
    """

    def __init__(
        self, modes: LinearisedModes, variance_scale: float, integral: str = "sampling"
    ) -> None:
        self.modes = modes
        self.network = modes.network
        self.weights = modes.weight / modes.weight.sum()
        if integral == "plugin":
            self.variance_scale = 0.0
        else:
            self.variance_scale = variance_scale

    @cached_property
    def covariances(self) -> Tensor:
        """Covariances of the weights, (R, P, P)."""
        return torch.cholesky_inverse(self.modes.factor)

    @cached_property
    def packed(self) -> Tensor:
        """Covariances of the weights, as `pack` has them."""
        return pack(self.covariances, self.network.sizes)

    def expectations(self, index: slice, x: Tensor) -> SoftmaxExpectations:
        """Expectations under the logits of N rows (float64) around R modes, (R N, K)."""
        if not self.variance_scale:
            logits = self.network.forward(self.modes.loc[index], x)
            return SoftmaxExpectations(logits.flatten(0, 1))
        packed = None
        if len(x) * self.network.n_outputs > _MAX_SOLVED_OUTPUTS:
            packed = self.packed[index]
        modes = LinearisedModes(self.network, *(t[index] for t in self.modes[1:]))
        mean, covariance = modes.outputs(x, packed)
        outputs = LinearisedOutputs(mean.flatten(0, 1), covariance.flatten(0, 1))
        return scale_logits(outputs, self.variance_scale)

    def sample_logits(self, i: int, x: Tensor, noise: Tensor) -> Tensor:
        """Sample logits (m, N, K) of rows (float64) around mode ``i``, given normals (m, P)."""
        outputs, jacobian = outputs_and_jacobian(self.network, self.modes.loc[i : i + 1], x)
        deviations = noise @ symmetric_root(self.variance_scale * self.covariances[i])
        return outputs + torch.einsum("nkp,mp->mnk", jacobian[0], deviations)


class RefittedPredictor(JointClassPredictor):
    """Predictions of classification by refitted members of an ensemble, weighted equally.

    Parameters
    ----------
    network : MLP
    members : sequence of RefittedMember
    variance_scale : float
        Factor on the variance of the logits.
    """

    def __init__(
        self, network: MLP, members: Sequence[RefittedMember], variance_scale: float
    ) -> None:
        self.network = network
        self.members = members
        self.variance_scale = variance_scale
        self.weights = torch.full((len(members),), 1.0 / len(members), dtype=torch.float64)

    def expectations(self, index: slice, x: Tensor) -> SoftmaxExpectations:
        """Expectations under the logits of N rows (float64) of R members, (R N, K)."""
        logits = [member.logits(self.network, x) for member in self.members[index]]
        joined = LinearisedOutputs(*(torch.cat(part) for part in zip(*logits, strict=True)))
        return scale_logits(joined, self.variance_scale)

    def sample_logits(self, i: int, x: Tensor, noise: Tensor) -> Tensor:
        """Sample logits (m, N, K) of rows (float64) of member ``i``, given normals (m, P)."""
        scaled = self.variance_scale**0.5 * noise
        return self.members[i].sample_logits(self.network, x, scaled)


def draw_outputs(distribution: LinearisedOutputs, n: int, seed: int) -> Tensor:
    """Draw outputs (n, N, O) with the same standard normals for every row.

    Parameters
    ----------
    distribution : LinearisedOutputs
        Means and covariances of the outputs of N rows.
    n : int
        Number of draws.
    seed : int
        Seed of the draws.
    """
    shape = (n, distribution.mean.shape[-1])
    noise = torch.randn(shape, generator=generator_from(seed), dtype=torch.float32)
    noise = noise.to(distribution.mean)
    # The symmetric root is unique. With a Cholesky factor or eigenvectors, rounding would decide
    # between equal alternatives.
    root = symmetric_root(distribution.covariance)
    return distribution.mean + torch.einsum("nok,sk->sno", root, noise)
