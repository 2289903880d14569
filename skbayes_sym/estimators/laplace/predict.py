"""Predictions: what is asked of the network linearised at the mode."""

from math import pi
from typing import NamedTuple

import torch
from torch import Tensor

from skbayes_sym.estimators.laplace.evaluation import EVALUATION_SAMPLES
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.posterior import (
    LaplacePosterior,
    LinearisedNetwork,
    LinearisedOutputs,
)
from skbayes_sym.models.augmentations.base import Augmentation
from skbayes_sym.models.augmentations.half_width import stratified_noise
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.likelihoods.expectations import N_NODES
from skbayes_sym.models.networks.recording import RecordingNetwork
from skbayes_sym.numerics.quadrature import gauss_hermite
from skbayes_sym.numerics.random import generator_from

N_OUTPUT_DRAWS = 200  # of several outputs per row, where no rule integrates over them


class Transformations(NamedTuple):
    """A family of transformations of scaled inputs, as learned."""

    augmentation: Augmentation
    eta: Tensor


def linearised(
    network: RecordingNetwork,
    posterior: LaplacePosterior,
    n_layers: int,
    transformations: Transformations,
    seed: int,
) -> LinearisedNetwork:
    """A fit's arrays as a network that predicts; tensors like ``transformations.eta``.

    Parameters
    ----------
    n_layers : int
        How many of the last ones ``posterior`` covers.
    seed : int
        Of the transformations averaged over: the same for every row and on every device, so that
        a prediction depends on its own row alone.
    """
    augmentation, eta = transformations
    n_noise = augmentation.half_width.n_noise
    n_samples = EVALUATION_SAMPLES if n_noise else 1
    # The likelihood isn't asked for anything here.
    model = AveragedNetwork(network, augmentation, Categorical(), n_samples, n_layers)
    on_host = torch.zeros(())
    noise = stratified_noise(
        1, n_samples, n_noise, generator=generator_from(seed), like=on_host
    )  # fmt: skip
    return LinearisedNetwork(model, posterior.tensors(eta), eta, noise[0].to(eta))


def output_draws(law: LinearisedOutputs, n: int, seed: int) -> Tensor:
    """Outputs drawn with the same standard normals for every row, (n, N, O)."""
    shape = (n, law.mean.shape[-1])
    noise = torch.randn(shape, generator=generator_from(seed)).to(law.mean)
    # The symmetric root, which is unique: a Cholesky factor or eigenvectors alone would let
    # rounding decide between equal alternatives.
    values, vectors = torch.linalg.eigh(law.covariance)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return law.mean + torch.einsum("nok,sk->sno", root, noise)


def output_nodes(law: LinearisedOutputs) -> tuple[Tensor, Tensor]:
    """Gauss-Hermite nodes (S, N, 1) of one output per row, and their log weights (S,)."""
    nodes, weights = (t.to(law.mean) for t in gauss_hermite(N_NODES))
    return law.mean + law.covariance[..., 0].sqrt() * nodes[:, None, None], weights.log()


def moderated(law: LinearisedOutputs) -> Tensor:
    """Logits shrunk by their variance (MacKay 1992, eq. 24, one class at a time), (N, O)."""
    variance = law.covariance.diagonal(dim1=-2, dim2=-1)
    return law.mean / (1.0 + pi / 8.0 * variance).sqrt()
