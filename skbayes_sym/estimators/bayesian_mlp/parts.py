"""Predictors of the parts of a pool: modes of numbers or of labels, members, refitted members."""

from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.inference.laplace.labels_predictive import Posteriors, labels_mixture
from skbayes_sym.inference.laplace.member_refit import RefittedMember, refitted_mixture
from skbayes_sym.inference.laplace.mode_mixture import LinearisedModes
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture


class NumbersModes(NamedTuple):
    """Networks linearised at modes, and the noise of each, (R, T)."""

    modes: LinearisedModes
    noise_std: Tensor

    def law(self, x: Tensor) -> NormalMixture:
        mean, covariance = (t.to(x) for t in self.modes.outputs(x))
        variance = covariance.diagonal(dim1=-2, dim2=-1)
        noise = self.noise_std.to(x).square().unsqueeze(1)
        return NormalMixture(mean, variance, noise, None, covariance)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> NormalMixture:
        mode = torch.randint(len(self.noise_std), (n,), generator=generator)
        functions = self.modes.draw(x, mode, generator=generator).to(x)
        noise = self.noise_std[mode].to(x).square().unsqueeze(1)
        return NormalMixture(functions, torch.zeros_like(noise), noise)


class NumbersMembers(NamedTuple):
    """Networks of weights (M, P), and the noise of each, (M, T)."""

    network: MLP
    theta: Tensor
    noise_std: Tensor

    def law(self, x: Tensor) -> NormalMixture:
        outputs = self.network.forward(self.theta.to(x), x)
        noise = self.noise_std.to(x).square().unsqueeze(1)
        return NormalMixture(outputs, torch.zeros_like(noise), noise)

    def drawn(self, x: Tensor, n: int, *, generator: torch.Generator) -> NormalMixture:
        member = torch.randint(len(self.theta), (n,), generator=generator)
        outputs = self.network.forward(self.theta.to(x)[member], x)
        noise = self.noise_std[member].to(x).square().unsqueeze(1)
        return NormalMixture(outputs, torch.zeros_like(noise), noise)


class LabelsModes(NamedTuple):
    """Networks linearised at refined modes, and the factor on their logits' variance."""

    network: MLP
    posteriors: Posteriors
    variance_scale: float

    def law(self, x: Tensor) -> CategoricalMixture:
        return _like(
            x, labels_mixture(self.network, self.posteriors, x.double(), self.variance_scale)
        )


class LabelsMembers(NamedTuple):
    """Networks of weights (M, P)."""

    network: MLP
    theta: Tensor

    def law(self, x: Tensor) -> CategoricalMixture:
        return CategoricalMixture(self.network.forward(self.theta.to(x), x).log_softmax(-1))


class LabelsRefitted(NamedTuple):
    """Members refitted as linearised networks, and the factor on their logits' variance."""

    network: MLP
    members: tuple[list[RefittedMember], Tensor]
    variance_scale: float

    def law(self, x: Tensor) -> CategoricalMixture:
        return _like(
            x, refitted_mixture(self.network, self.members, x.double(), self.variance_scale)
        )


def _like(x: Tensor, law: CategoricalMixture) -> CategoricalMixture:
    weights = None if law.log_weights is None else law.log_weights.to(x)
    return CategoricalMixture(law.log_probs.to(x), weights)
