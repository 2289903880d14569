"""Predictions: laws of the outputs of the network linearised at the mode."""

from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from skbayes_sym.estimators.laplace.evaluation import EVALUATION_SAMPLES
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.posterior import (
    LaplacePosterior,
    LinearisedOutputs,
    linearised_covariance,
    linearised_functions,
    linearised_outputs,
)
from skbayes_sym.models.augmentations.base import Augmentation
from skbayes_sym.models.augmentations.ranges import stratified_noise
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.networks.recording import RecordingNetwork
from skbayes_sym.numerics.random import generator_from, spawn_seeds


@dataclass(frozen=True, eq=False)
class Transformations:
    """A family of transformations as learned.

    Parameters
    ----------
    augmentation : Augmentation
        Of scaled inputs.
    eta : Tensor
    """

    augmentation: Augmentation
    eta: Tensor


@dataclass(frozen=True, eq=False)
class Linearised:
    """The averaged network linearised at the mode, on one device.

    Parameters
    ----------
    model : AveragedNetwork
    posterior : LaplacePosterior
        As tensors.
    eta : Tensor
    noise : Tensor of shape (S, k)
        The transformations averaged over, shared by all rows: a prediction depends on its own row
        alone.
    seed : int
        Of the draws that class probabilities are averaged over.
    """

    model: AveragedNetwork
    posterior: LaplacePosterior
    eta: Tensor
    noise: Tensor
    seed: int

    @classmethod
    def fitted(
        cls,
        network: RecordingNetwork,
        posterior: LaplacePosterior,
        n_layers: int,
        transformations: Transformations,
        seed: int,
    ) -> "Linearised":
        """Of a fit's arrays; tensors where and as ``transformations.eta`` is."""
        family, eta = transformations.augmentation, transformations.eta
        n_noise = family.extent.n_noise
        n_samples = EVALUATION_SAMPLES if n_noise else 1
        # The likelihood isn't asked for anything here.
        model = AveragedNetwork(network, family, Categorical(), n_samples, n_layers)
        noise_seed, draws_seed = spawn_seeds(seed, 2)
        # Drawn on the CPU, so that they are the same on every device.
        noise = stratified_noise(
            1, n_samples, n_noise, generator=generator_from(noise_seed), like=torch.zeros(())
        )
        return cls(model, posterior.tensors(eta), eta, noise[0].to(eta), draws_seed)

    def law(self, x: Tensor) -> LinearisedOutputs:
        """Normal law of the outputs of every row."""
        return linearised_outputs(self.model, self.posterior, self.eta, x, self.noise)

    def mean(self, x: Tensor) -> Tensor:
        """Averaged outputs at the mode, (N, O)."""
        noise = self.noise.expand(len(x), *self.noise.shape)
        return self.model.forward(self.posterior.loc, self.eta, x, noise)

    def covariance(self, x: Tensor) -> Tensor:
        """Joint covariance of the outputs at all rows, (N, N, O)."""
        return linearised_covariance(self.model, self.posterior, self.eta, x, self.noise)

    def functions(self, x: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """Functions drawn from the posterior, (n, N, O)."""
        return linearised_functions(
            self.model, self.posterior, self.eta, x, self.noise, n, generator
        )

    def draws(self, x: Tensor, n: int) -> Tensor:
        """Outputs drawn with the same standard normals for every row, (n, N, O)."""
        law = self.law(x)
        generator = generator_from(self.seed)
        noise = torch.randn((n, law.mean.shape[-1]), generator=generator).to(law.mean)
        # The symmetric root, which is unique: a Cholesky factor or eigenvectors alone would let
        # rounding decide between equal alternatives.
        values, vectors = torch.linalg.eigh(law.covariance)
        root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT
        return law.mean + torch.einsum("nok,sk->sno", root, noise)

    def moderated(self, x: Tensor) -> Tensor:
        """Logits shrunk by their variance (MacKay 1992, eq. 24, one class at a time), (N, O)."""
        law = self.law(x)
        variance = law.covariance.diagonal(dim1=-2, dim2=-1)
        return law.mean / (1.0 + pi / 8.0 * variance).sqrt()
