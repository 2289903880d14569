"""Predictions by networks linearised at one mode, at several, or at an ensemble's members."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from skbayes_sym.base.noise_levels import at_levels, draw_levels
from skbayes_sym.base.predictor import BasePredictor, NetworkComponents, select_draws
from skbayes_sym.laplace.class_predictive import RefittedMember, scale_logits
from skbayes_sym.laplace.evidence_problem import (
    LinearisedOutputs,
    SoftmaxExpectations,
    linearised_logits,
    symmetric_root,
)
from skbayes_sym.laplace.posterior import LinearisedModes, LinearisedNetwork
from skbayes_sym.models.likelihoods.likelihood import N_NODES, Likelihood
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import outputs_and_jacobian, pack
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture, Predictive
from skbayes_sym.numerics.gaussian import gauss_hermite
from skbayes_sym.numerics.random import generator_from


@dataclass(frozen=True, eq=False)
class LinearisedPredictor(BasePredictor):
    """Numbers, by the network linearised at one mode."""

    network: LinearisedNetwork
    likelihood: Likelihood
    seed: int  # of draws of several outputs
    n_draws: int = 200  # of them per row, where no rule integrates over them

    def distribution(self, x: Tensor) -> Predictive:
        outputs = self.network.outputs(x)
        if self.likelihood.kind == "normal":  # one normal a row
            variance = outputs.covariance.diagonal(dim1=-2, dim2=-1).unsqueeze(0)
            return NormalMixture(
                outputs.mean.unsqueeze(0), variance, self.likelihood.noise_scale.square(),
                covariance=outputs.covariance.unsqueeze(0),
            )  # fmt: skip
        if outputs.mean.shape[-1] > 1:
            return self.likelihood.predictive(output_draws(outputs, self.n_draws, self.seed))
        nodes, weights = (t.to(x) for t in gauss_hermite(N_NODES))
        spread = outputs.covariance[..., 0].sqrt() * nodes[:, None, None]
        return self.likelihood.predictive(outputs.mean + spread, weights.log())

    def mean(self, x: Tensor) -> Tensor:
        return self.network.mean(x) if self.likelihood.kind == "normal" else super().mean(x)

    def covariance(self, x: Tensor) -> Tensor | None:
        return self.network.covariance(x) if self.likelihood.kind == "normal" else None

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        return self.likelihood.predictive(self.network.sample_functions(x, n, generator=generator))


@dataclass(frozen=True, eq=False)
class LinearisedClassPredictor(LinearisedPredictor):
    """Labels, by the network linearised at one mode."""

    integral: str = "sampling"  # or "plugin"
    variance_scale: float = 1.0  # of the logits

    def distribution(self, x: Tensor) -> Predictive:
        if self.integral == "plugin" or self.variance_scale == 0.0:
            return self.likelihood.predictive(self.network.mean(x).unsqueeze(0))
        outputs = self.network.outputs(x)
        outputs = outputs._replace(covariance=self.variance_scale * outputs.covariance)
        return self.likelihood.predictive(output_draws(outputs, self.n_draws, self.seed))

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        # The logits of the draws have the mean and the covariance that `law` averages over.
        mean = self.network.mean(x)
        if self.integral == "plugin" or self.variance_scale == 0.0:
            return self.likelihood.predictive(mean.expand(n, *mean.shape))
        deviations = self.network.sample_functions(x, n, generator=generator) - mean
        return self.likelihood.predictive(mean + self.variance_scale**0.5 * deviations)


@dataclass(frozen=True, eq=False)
class ModesPredictor(BasePredictor):
    """Numbers, by networks linearised at modes with noise of their own, (R, 1, T).

    ``levels`` (R, K, T): standard deviations that stand for the noise where few rows determine it,
    see `noise_levels`.
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
        mean, covariance = (t.to(x) for t in self.modes.outputs(x, self.packed))
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        noise = self.likelihood.noise_scale.square()
        weights = self.modes.weight.log().to(x)
        distribution = NormalMixture(mean, variance, noise, weights, covariance)
        return distribution if self.levels is None else at_levels(distribution, self.levels)

    def mean(self, x: Tensor) -> Tensor:
        outputs = self.modes.network.forward(self.modes.loc, x.double())
        return torch.einsum("r,rno->no", self.modes.weight, outputs).to(x)

    def covariance(self, x: Tensor) -> Tensor | None:
        return self.modes.covariance(x)

    def networks(self, x: Tensor) -> Iterator[NetworkComponents]:
        yield NetworkComponents(x, self.modes.network, self.modes.loc, self.modes.weight)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        mode = self.modes.weight.cpu().multinomial(n, replacement=True, generator=generator)
        functions = self.modes.draw(x, mode, generator=generator).to(x)
        if self.levels is not None:
            noise = draw_levels(self.levels, mode, generator=generator).to(x)
            return NormalMixture(functions, x.new_zeros(1, 1, 1), noise)
        return select_draws(self.likelihood, mode).predictive(functions)


class JointClassPredictor(BasePredictor):
    """Labels, by several laws of the weights of a linearised network."""

    network: MLP
    shares: Tensor  # (R,), of sum one

    def terms(self, which: int, x: Tensor) -> SoftmaxExpectations:
        """Logits of rows in float64 under a law, at points that all rows share.

        32 Gauss-Hermite nodes for two classes, 256 quasi-Monte Carlo points for more.
        """
        raise NotImplementedError

    def logits(self, which: int, x: Tensor, noise: Tensor) -> Tensor:
        """Logits (m, N, K) of a law, from standard normals (m, P); rows are in float64."""
        raise NotImplementedError

    def distribution(self, x: Tensor) -> CategoricalMixture:
        """O(N R P^2) time and 8 N R S C bytes for S points: predict in blocks of rows."""
        draws = []
        log_weights = []
        for which, share in enumerate(self.shares):
            terms = self.terms(which, x.double())
            draws.append(terms.log_probabilities().movedim(-1, 0))
            log_weights.append((terms.weights * share).log())
        return CategoricalMixture(torch.cat(draws).to(x), torch.cat(log_weights).to(x))

    def sample_conditionals(
        self, x: Tensor, n: int, *, generator: torch.Generator
    ) -> CategoricalMixture:
        chosen = self.shares.cpu().multinomial(n, replacement=True, generator=generator)
        shape = (n, self.network.layout.n_params)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64).to(x.device)
        order = chosen.argsort(stable=True)
        distributions = []
        for which in chosen.unique().tolist():
            logits = self.logits(which, x.double(), noise[chosen == which])
            distribution = SoftmaxExpectations(logits.flatten(0, 1)).log_probabilities()[..., 0]
            distributions.append(distribution.unflatten(0, logits.shape[:2]).to(x))
        return CategoricalMixture(torch.cat(distributions)[order.argsort()])


class ClassModesPredictor(JointClassPredictor):
    """Labels, by networks linearised at modes; a scale of 0 is the modes alone."""

    def __init__(
        self, modes: LinearisedModes, variance_scale: float, integral: str = "sampling"
    ) -> None:
        self.network, self.theta, factor, weight = modes
        self.covariances, self.shares = torch.cholesky_inverse(factor), weight / weight.sum()
        self.variance_scale = 0.0 if integral == "plugin" else variance_scale

    def terms(self, which: int, x: Tensor) -> SoftmaxExpectations:
        if not self.variance_scale:
            return SoftmaxExpectations(self.network.forward(self.theta[which], x))
        logits = linearised_logits(self.network, self.theta[which], self.covariances[which], x)
        return scale_logits(logits, self.variance_scale)

    def logits(self, which: int, x: Tensor, noise: Tensor) -> Tensor:
        outputs, jacobian = outputs_and_jacobian(self.network, self.theta[which].unsqueeze(0), x)
        moved = noise @ symmetric_root(self.variance_scale * self.covariances[which])
        return outputs + torch.einsum("nkp,mp->mnk", jacobian[0], moved)


class RefittedPredictor(JointClassPredictor):
    """Labels, by members refitted as linearised networks, which count alike."""

    def __init__(
        self, network: MLP, members: Sequence[RefittedMember], variance_scale: float
    ) -> None:
        self.network = network
        self.members = members
        self.variance_scale = variance_scale
        self.shares = torch.full((len(members),), 1.0 / len(members), dtype=torch.float64)

    def terms(self, which: int, x: Tensor) -> SoftmaxExpectations:
        return scale_logits(self.members[which].logits(self.network, x), self.variance_scale)

    def logits(self, which: int, x: Tensor, noise: Tensor) -> Tensor:
        wide = self.variance_scale**0.5 * noise
        return self.members[which].sample_logits(self.network, x, wide)


def output_draws(distribution: LinearisedOutputs, n: int, seed: int) -> Tensor:
    """Outputs drawn with the same standard normals for every row, (n, N, O)."""
    shape = (n, distribution.mean.shape[-1])
    noise = torch.randn(shape, generator=generator_from(seed), dtype=torch.float32)
    noise = noise.to(distribution.mean)
    # The symmetric root, which is unique: a Cholesky factor or eigenvectors alone would let
    # rounding decide between equal alternatives.
    return distribution.mean + torch.einsum(
        "nok,sk->sno", symmetric_root(distribution.covariance), noise
    )
