"""Predictions of the Laplace and LILA estimators."""

from math import pi
from typing import Any

import torch
from torch import Tensor

from skbayes_sym.estimators.laplace.recipe import EVALUATION_SAMPLES
from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.posterior import LinearisedNetwork, LinearisedOutputs
from skbayes_sym.models.augmentations.half_width import stratified_noise
from skbayes_sym.models.likelihoods.categorical import Categorical
from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture
from skbayes_sym.numerics.random import generator_from, spawn_seeds


def linearised(estimator: Any, like: Tensor) -> LinearisedNetwork:
    """The fitted network, linearised, on the device of ``like``; made once."""

    def make() -> LinearisedNetwork:
        augmentation = estimator._augmentation_
        n_noise = augmentation.half_width.n_noise
        n_samples = EVALUATION_SAMPLES if n_noise else 1
        model = AveragedNetwork(
            estimator.network_, augmentation, Categorical(), n_samples, estimator._n_last_
        )
        # Drawn on the CPU and shared by all rows: a prediction depends on its own row alone.
        generator = generator_from(spawn_seeds(estimator._predict_seed_, 2)[0])
        noise = stratified_noise(1, n_samples, n_noise, generator=generator, like=torch.zeros(()))
        eta = torch.as_tensor(estimator._eta_).to(like)
        return LinearisedNetwork(
            model, estimator.posterior_.tensors(like), eta, noise[0].to(like)
        )  # fmt: skip

    return estimator._cached(f"laplace on {like.device}", make)


def normal_predictive(estimator: Any, x: Tensor) -> NormalMixture:
    """One normal a row: the linearised posterior and the noise."""
    law = linearised(estimator, x).outputs(x)
    variance = law.covariance.diagonal(dim1=-2, dim2=-1)
    noise = torch.as_tensor(estimator.noise_std_ / estimator.y_scale_).to(x)
    return NormalMixture(law.mean.unsqueeze(0), variance.unsqueeze(0), noise.square())


def class_predictive(estimator: Any, x: Tensor) -> CategoricalMixture:
    """Class probabilities, averaged over the linearised posterior as ``predictive`` says."""
    if estimator.predictive == "plugin":
        return CategoricalMixture(linearised(estimator, x).mean(x).log_softmax(-1).unsqueeze(0))
    law = linearised(estimator, x).outputs(x)
    if estimator.predictive == "probit":
        return CategoricalMixture(_probit(law).log_softmax(-1).unsqueeze(0))
    draws = _draws(estimator, law)
    return CategoricalMixture(draws.log_softmax(-1))


def _probit(law: LinearisedOutputs) -> Tensor:
    """Logits shrunk by their variance (MacKay 1992, eq. 24, one class at a time)."""
    variance = law.covariance.diagonal(dim1=-2, dim2=-1)
    return law.mean / (1.0 + pi / 8.0 * variance).sqrt()


def _draws(estimator: Any, law: LinearisedOutputs) -> Tensor:
    """Outputs drawn with the same standard normals for every row, (n, N, O)."""
    n_outputs = law.mean.shape[-1]

    def make() -> Tensor:
        generator = generator_from(spawn_seeds(estimator._predict_seed_, 2)[1])
        shape = (estimator.n_predict_samples, n_outputs)
        return torch.randn(shape, generator=generator).to(law.mean)

    noise = estimator._cached(f"draws {n_outputs} on {law.mean.device}", make)
    # The symmetric root, which is unique: a Cholesky factor or eigenvectors alone would let
    # rounding decide between equal alternatives.
    values, vectors = torch.linalg.eigh(law.covariance)
    root = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.mT
    return law.mean + torch.einsum("nok,sk->sno", root, noise)
