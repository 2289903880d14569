r"""Laplace evidence of an averaged network, and its gradient in minibatches.

.. math::

    \log Z = \sum_n w_n \log p(y_n \mid \hat f_n) - \tfrac12 \sum_l \delta_l |\theta_l|^2
             + \tfrac12 \sum_l P_l \log\delta_l - \tfrac12 \log\det(H + \Delta)

at a mode theta (the factors of 2 pi cancel between prior and posterior). H depends on the
half-widths eta and on the likelihood's parameters through sums over data. So, with the
preconditioner P = d log det / dF held fixed,

.. math:: \nabla \log Z = \sum_{\text{batches}} \nabla\Big[\sum_n w_n \log p(y_n \mid \hat f_n)
          - \tfrac12 \langle P, F_{\text{batch}} \rangle\Big]

(Immer et al. 2022, eqs. 16 and 22-23; their Algorithm 1 lacks the mean in line 16 and the factor
-1/2 in line 19). One pass over the data computes F and P, and a second one the gradient. Memory is
that of one batch. Both passes draw the same noise from the same seed, so that the gradient is
exactly that of the evidence computed at once.

With S transformed inputs per row, the evidence is on average a lower bound of its value for S to
infinity (Jensen's inequality, as far as the likelihood is concerned). Compare models at equal and
large S.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from skbayes_sym.laplace.curvature import (
    AveragedJacobian,
    Directions,
    Factors,
    Precision,
    Structure,
)
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.network import Recording, RecordingNetwork, WeightLayer
from skbayes_sym.numerics.layout import ParamLayout
from skbayes_sym.numerics.random import generator_from

if TYPE_CHECKING:
    from skbayes_sym.models.augmentations.augmentation import Augmentation


@dataclass(frozen=True, eq=False)
class AveragedNetwork:
    """A network averaged over S random transformations of its input.

    Attributes
    ----------
    network : RecordingNetwork
    augmentation : Augmentation
    likelihood : Likelihood
        Likelihood at its initial parameters.
    n_samples : int
        Number of transformations S.
    n_last : int, optional
        Number of the last weight layers that the Laplace approximation covers, all by default. The
        evidence is then that of these layers given the features of the others.
    """

    network: RecordingNetwork
    augmentation: "Augmentation"
    likelihood: Likelihood
    n_samples: int
    n_last: int | None = None

    @property
    def layers(self) -> Sequence[WeightLayer]:
        """Weight layers that the Laplace approximation covers."""
        layers = self.network.weight_layers
        if self.n_last is None:
            return layers
        return layers[len(layers) - self.n_last :]

    @property
    def n_half_widths(self) -> int:
        """Number of entries of eta, 0 without transformations."""
        return self.augmentation.half_width.n_params

    @cached_property
    def hyper(self) -> ParamLayout:
        """Layout of the hyperparameters in one flat vector."""
        return ParamLayout(
            {
                "eta": (self.n_half_widths,),
                "likelihood": (self.likelihood.n_params,),
                "log_precision": (len(self.layers),),
            }
        )

    @cached_property
    def owner(self) -> Tensor:
        """Index of the covered layer (L for none) of every entry of ``theta``, (P,) int64."""
        layout = self.network.layout
        owner = torch.full((layout.n_params,), len(self.layers))
        for i, layer in enumerate(self.layers):
            for name in (layer.weight, layer.bias):
                if name is not None:
                    owner[layout.slices[name]] = i
        return owner

    @cached_property
    def sizes(self) -> Tensor:
        """Number of parameters of every covered layer, (L,)."""
        return torch.bincount(self.owner, minlength=len(self.layers) + 1)[: len(self.layers)]

    def layer_norms(self, theta: Tensor) -> Tensor:
        """Squared norm of every covered layer's parameters, (L,) float64."""
        total = torch.zeros(len(self.layers) + 1, dtype=torch.float64, device=theta.device)
        owner = self.owner.to(theta.device)
        return total.index_add_(0, owner, theta.detach().double().square())[:-1]

    def noise(self, n_rows: int, like: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the noise of the transformations of ``n_rows`` rows, (n_rows, S, k).

        Parameters
        ----------
        n_rows : int
            Number of rows.
        like : Tensor
            Tensor whose dtype and device the noise has.
        generator : torch.Generator
            Source of random numbers.
        """
        # Few models have transformations, whose import takes time.
        from skbayes_sym.models.augmentations.augmentation import sample_stratified_noise

        k = self.augmentation.half_width.n_noise
        return sample_stratified_noise(n_rows, self.n_samples, k, generator=generator, like=like)

    def record(
        self, theta: Tensor, eta: Tensor, x: Tensor, noise: Tensor
    ) -> tuple[Recording, Tensor]:
        """Make a recorded forward pass.

        Parameters
        ----------
        theta : Tensor of shape (P,)
        eta : Tensor
            Half-widths.
        x : Tensor of shape (N, *I)
        noise : Tensor of shape (N, S, k)
            Noise of the transformations.

        Returns
        -------
        Recording
            Recorded pass of N * S inputs.
        Tensor of shape (N, O)
            Averaged outputs.
        """
        recording = self.network.record(theta, self._transformed(x, eta, noise))
        return recording, recording.outputs.unflatten(0, (-1, self.n_samples)).mean(1)

    def forward(self, theta: Tensor, eta: Tensor, x: Tensor, noise: Tensor) -> Tensor:
        """Return the averaged outputs (N, O), for the arguments of `record`.

        Parameters
        ----------
        theta : Tensor of shape (P,)
            Weights.
        eta : Tensor
            Half-widths.
        x : Tensor of shape (N, ...)
            Inputs.
        noise : Tensor of shape (N, S, k)
            Noise of the transformations, see `noise`.
        """
        outputs = self.network.forward(theta, self._transformed(x, eta, noise))
        return outputs.unflatten(0, (-1, self.n_samples)).mean(1)

    def _transformed(self, x: Tensor, eta: Tensor, noise: Tensor) -> Tensor:
        inputs = self.augmentation.transform(x, eta, noise).flatten(0, 1)
        return inputs.reshape(-1, *self.network.input_shape)


class EvidenceParts(NamedTuple):
    """Terms of the Laplace log evidence, nats.

    Attributes
    ----------
    log_likelihood : float
    log_prior : float
        Quadratic term and normaliser.
    log_det : float
        Log determinant of the posterior's precision.
    """

    log_likelihood: float
    log_prior: float
    log_det: float

    @property
    def value(self) -> float:
        """Log evidence."""
        return self.log_likelihood + self.log_prior - 0.5 * self.log_det


class BatchTerms(NamedTuple):
    """Log likelihood of a minibatch, and the Jacobian from which its factors are computed.

    Attributes
    ----------
    log_likelihood : Tensor, 0-d
    jacobian : AveragedJacobian
    """

    log_likelihood: Tensor
    jacobian: AveragedJacobian


class DataSums(NamedTuple):
    """Sums over all rows.

    Attributes
    ----------
    log_likelihood : Tensor, 0-d
    factors : list of Tensor
        Factors of the curvature.
    """

    log_likelihood: Tensor
    factors: Factors


@dataclass(frozen=True, eq=False)
class LaplaceEvidence:
    """Laplace evidence of an averaged network on data, in minibatches.

    Attributes
    ----------
    model : AveragedNetwork
    data : Data
    structure : Structure
        Part of the curvature that is kept.
    directions : Directions
        Directions along which the likelihood's curvature is taken.
    batch_size : int
        Rows at a time. It determines the memory, and doesn't change the result.
    """

    model: AveragedNetwork
    data: Data
    structure: Structure
    directions: Directions
    batch_size: int

    def _batches(self) -> Iterator[Data]:
        for start in range(0, len(self.data.x), self.batch_size):
            yield Data(*(t[start : start + self.batch_size] for t in self.data))

    def batch_terms(
        self,
        theta: Tensor,
        hyper: Tensor,
        batch: Data,
        generator: torch.Generator,
        *,
        create_graph: bool = False,
    ) -> BatchTerms:
        """Make a forward pass of a minibatch.

        Parameters
        ----------
        theta : Tensor of shape (P,)
        hyper : Tensor
            Flat vector of hyperparameters.
        batch : Data
        generator : torch.Generator
            Source of transformations and sketches.
        create_graph : bool, default=False
            Whether the result must be differentiable in ``hyper``.

        Returns
        -------
        BatchTerms
        """
        h = self.model.hyper.unflatten(hyper)
        noise = self.model.noise(len(batch.x), batch.x, generator)
        recording, averaged = self.model.record(theta, h["eta"], batch.x, noise)
        return self.recorded_terms(
            recording, averaged, h["likelihood"], batch, generator, create_graph=create_graph
        )

    def recorded_terms(
        self,
        recording: Recording,
        averaged: Tensor,
        lik_params: Tensor,
        batch: Data,
        generator: torch.Generator,
        *,
        create_graph: bool = False,
    ) -> BatchTerms:
        """Compute the terms of a minibatch from a recorded forward pass.

        Parameters
        ----------
        recording : Recording
        averaged : Tensor of shape (N, O)
            Averaged outputs.
        lik_params : Tensor
            Parameters of the likelihood.
        batch : Data
        generator : torch.Generator
            Source of sketches.
        create_graph : bool, default=False
            Whether the result must be differentiable in the hyperparameters.

        Returns
        -------
        BatchTerms
        """
        likelihood = self.model.likelihood.to(averaged).at(lik_params)
        log_lik = (batch.weight * likelihood.log_prob(averaged, batch.y)).sum()
        if create_graph:
            outputs = averaged
        else:
            outputs = averaged.detach()
        directions = self.directions.columns(likelihood, outputs, batch.y, generator=generator)
        jacobian = AveragedJacobian(
            recording, self.model.layers, self.model.n_samples, averaged, directions, create_graph
        )
        return BatchTerms(log_lik, jacobian)

    def surrogate(self, terms: BatchTerms, weight: Tensor, preconditioners: Factors) -> Tensor:
        """Minibatch part of a function with the gradient of the evidence.

        Its value has no meaning.

        Parameters
        ----------
        terms : BatchTerms
            Log likelihood and Jacobian of the minibatch.
        weight : Tensor of shape (N,)
            Weights of its rows.
        preconditioners : list of Tensor
            Derivatives of log det of the posterior precision with respect to the factors F, fixed.
        """
        inner = self.structure.inner(terms.jacobian, weight, preconditioners)
        return terms.log_likelihood - 0.5 * inner

    def compute_data_sums(self, theta: Tensor, hyper: Tensor, seed: int) -> DataSums:
        """Return log likelihood and factors of all data.

        Parameters
        ----------
        theta : Tensor of shape (P,)
            Weights.
        hyper : Tensor
            Hyperparameters.
        seed : int
            Seed of the transformations.
        """
        generator = generator_from(seed, theta.device)
        log_lik = theta.new_zeros((), dtype=torch.float64)
        total: Factors = []
        for batch in self._batches():
            with torch.enable_grad():  # of the outputs in the pre-activations
                terms = self.batch_terms(theta, hyper, batch, generator)
            log_lik += terms.log_likelihood.detach()
            total = add_factors(total, self.structure.factors(terms.jacobian, batch.weight))
        return DataSums(log_lik, total)

    def gradient(self, theta: Tensor, hyper: Tensor, seed: int, precision: Precision) -> Tensor:
        """Compute the gradient of the evidence in eta and the likelihood's parameters.

        Parameters
        ----------
        theta : Tensor of shape (P,)
        hyper : Tensor
            Flat vector of hyperparameters.
        seed : int
        precision : Precision
            Precision of the posterior. With that of `compute_data_sums` with the same seed, the
            gradient is exactly the evidence's.

        Returns
        -------
        Tensor
            Gradient, with 0 for the prior's precisions.
        """
        generator = generator_from(seed, theta.device)
        preconditioners = precision.preconditioners()
        total = torch.zeros_like(hyper)
        for batch in self._batches():
            leaf = hyper.detach().clone().requires_grad_()
            with torch.enable_grad():
                terms = self.batch_terms(theta, leaf, batch, generator, create_graph=True)
                value = self.surrogate(terms, batch.weight, preconditioners)
                total += torch.autograd.grad(value, leaf)[0]
        return total

    def precision(self, factors: Factors, hyper: Tensor) -> Precision:
        """Return the posterior's precision, given the sum of the factors over all rows."""
        prior = self.model.hyper.unflatten(hyper)["log_precision"].double().exp()
        return self.structure.precision(factors, float(self.data.weight.double().sum()), prior)

    def evidence(
        self, theta: Tensor, hyper: Tensor, log_likelihood: Tensor, precision: Precision
    ) -> tuple[EvidenceParts, Tensor]:
        """Compute the log evidence and its derivative in the log prior precisions.

        Parameters
        ----------
        theta : Tensor of shape (P,)
        hyper : Tensor
            Flat vector of hyperparameters.
        log_likelihood : Tensor, 0-d
        precision : Precision
            Precision of the posterior.

        Returns
        -------
        EvidenceParts
        Tensor of shape (L,)
            Derivative in closed form.
        """
        log_precision = self.model.hyper.unflatten(hyper)["log_precision"].double()
        prior = log_precision.exp()
        sizes = self.model.sizes.to(prior)
        norms = self.model.layer_norms(theta)
        log_prior = 0.5 * (sizes * log_precision - prior * norms).sum()
        slope = 0.5 * (sizes - prior * (norms + precision.slopes()))
        log_det = float(precision.log_det())
        terms = EvidenceParts(float(log_likelihood), float(log_prior), log_det)
        return terms, slope


def add_factors(total: Factors, part: Factors, scale: float = 1.0) -> Factors:
    """Add factors to a running sum, which the first part starts.

    Parameters
    ----------
    total : list of Tensor
        Sum of the parts so far. It is modified; empty before the first part.
    part : list of Tensor
        Factors to add.
    scale : float, default=1.0
        Number by which they are multiplied.
    """
    if not total:
        return [scale * f.detach() for f in part]
    return [t.add_(f.detach(), alpha=scale) for t, f in zip(total, part, strict=True)]
