"""Expected log likelihood and predictions of mean-field posteriors."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.base.predictor import BasePredictor, DrawsPredictor
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import Layers, mean_output, output_moments
from skbayes_sym.models.networks.network import Network
from skbayes_sym.models.predictive_mixtures import NormalMixture, Predictive
from skbayes_sym.numerics.linalg import as_double
from skbayes_sym.numerics.memory import n_rows_per_block
from skbayes_sym.numerics.random import Estimate, generator_from, mean_and_error, standard_normal
from skbayes_sym.variational.noise import draw_likelihoods

_CHUNK = 1 << 21  # numbers held at once: 16 MB in float64


def expected_log_likelihood(
    network: MLP,
    likelihood: Likelihood,
    posterior: MeanFieldGaussian,
    data: Data,
    *,
    n_draws: int,
    generator: torch.Generator,
) -> Estimate:
    """Estimate the expected log likelihood of an MLP by local reparametrisation.

    Parameters
    ----------
    network : MLP
        Network.
    likelihood : Likelihood
        Likelihood at its fitted parameters.
    posterior : MeanFieldGaussian
        Posterior of the weights.
    data : Data
        Inputs, targets and weights of N rows.
    n_draws : int
        Number of draws of the hidden units.
    generator : torch.Generator
        Source of randomness.

    Returns
    -------
    Estimate
        ``E_q[sum_n weight_n log p(y_n | f_n)]`` in nats, unbiased and in float64. Rows are handled
        in chunks of bounded memory.
    """
    like = torch.zeros(0, dtype=torch.float64, device=data.x.device)
    likelihood = likelihood.to(like)
    loc, variance = posterior_layers(network, posterior, like)
    widths = network.sizes[1:]
    n_rows = n_rows_per_block(_CHUNK, n_draws * max(widths))
    totals = like.new_zeros(n_draws)
    for start in range(0, len(data.x), n_rows):
        x, y, weight = (t[start : start + n_rows] for t in data)
        x = x.double()
        weight = weight.double()
        y = as_double(y)
        noise = [
            standard_normal((n_draws, len(x), width), generator=generator, like=like)
            for width in widths
        ]
        mean, var = output_moments(network, loc, variance, x, noise[:-1])
        mean, var = (t.expand(n_draws, *t.shape[1:]).flatten(0, 1) for t in (mean, var))
        repeated_y = y.repeat(n_draws, *(1,) * (y.ndim - 1))
        expected = likelihood.expected_log_prob(mean, var, repeated_y, noise[-1].flatten(0, 1))
        totals += expected.value.unflatten(0, (n_draws, -1)) @ weight
    return mean_and_error(totals)


def sampled_log_likelihood(
    network: Network,
    likelihood: Likelihood,
    posterior: MeanFieldGaussian,
    data: Data,
    *,
    n_draws: int,
    generator: torch.Generator,
) -> Estimate:
    """Estimate the expected log likelihood of any network by draws of its weights.

    Parameters
    ----------
    network : Network
        Network.
    likelihood : Likelihood
        Likelihood at its fitted parameters.
    posterior : MeanFieldGaussian
        Posterior of the weights.
    data : Data
        Inputs, targets and weights of N rows.
    n_draws : int
        Number of draws of the weights.
    generator : torch.Generator
        Source of randomness.

    Returns
    -------
    Estimate
        ``E_q[sum_n weight_n log p(y_n | f_n)]`` in nats, unbiased and in float64.
    """
    theta = posterior.sample(n_draws, generator=generator).double()
    x = data.x.double()
    y = data.y
    weight = data.weight.double()
    y = as_double(y)
    likelihood = likelihood.to(x)
    total = theta.new_zeros(n_draws)
    for rows in torch.arange(len(x), device=x.device).split(256):
        outputs = network.forward(theta, x[rows])
        total += likelihood.log_prob(outputs, y[rows]) @ weight[rows]
    return mean_and_error(total)


def posterior_layers(
    network: MLP, posterior: MeanFieldGaussian, like: Tensor
) -> tuple[Layers, Layers]:
    """Mean and variance of every layer, on the device and in the precision of ``like``.

    Parameters
    ----------
    network : MLP
        Network with P weights.
    posterior : MeanFieldGaussian
        Independent normal distributions of the weights.
    like : Tensor
        Tensor whose dtype and device the results have.
    """
    loc = torch.as_tensor(posterior.loc).to(like)
    variance = (torch.as_tensor(posterior.scale).double() ** 2).to(like)
    return network.layers(loc), network.layers(variance)


@dataclass(frozen=True, eq=False)
class MeanFieldPredictor(BasePredictor):
    """Predictions of an MLP averaged over draws of the hidden units, the same for every row.

    Attributes
    ----------
    network : MLP
        Network.
    posterior : MeanFieldGaussian
        Posterior of the weights.
    likelihood : Likelihood
        Likelihood at its fitted parameters.
    loc, variance : Layers
        Means and variances of the weights by layer.
    noise : list of Tensor
        Standard normal draws of every layer's units, (S, 1, width).
    """

    network: MLP
    posterior: MeanFieldGaussian
    likelihood: Likelihood
    loc: Layers
    variance: Layers
    noise: list[Tensor]

    @classmethod
    def from_posterior(
        cls,
        network: MLP,
        posterior: MeanFieldGaussian,
        likelihood: Likelihood,
        *,
        n_draws: int,
        seed: int,
        like: Tensor,
    ) -> Self:
        """Draw the random numbers and make a predictor.

        Parameters
        ----------
        network : MLP
            Network.
        posterior : MeanFieldGaussian
            Posterior of the weights.
        likelihood : Likelihood
            Likelihood at its fitted parameters.
        n_draws : int
            Number of draws.
        seed : int
            Seed of the draws.
        like : Tensor
            Tensor whose device and dtype predictions have.

        Returns
        -------
        MeanFieldPredictor
            Predictor.
        """
        generator = generator_from(seed)
        # Draws are made on the CPU in float32, so that predictions agree across devices.
        noise = [
            torch.randn(n_draws, 1, size, generator=generator, dtype=torch.float32)
            for size in network.sizes[1:]
        ]
        loc, variance = posterior_layers(network, posterior, like)
        noise = [e.to(like) for e in noise]
        return cls(network, posterior, likelihood.to(like), loc, variance, noise)

    def distribution(self, x: Tensor) -> Predictive:
        """Predictive distribution at inputs (N, I)."""
        mean, variance = output_moments(self.network, self.loc, self.variance, x, self.noise[:-1])
        if self.likelihood.kind == "normal":
            # For few rows every draw has its own noise level. Without hidden units all draws share
            # their moments.
            noise = self.likelihood.noise_scale.square()
            n_draws = max(len(mean), len(noise) if noise.ndim == 3 else 1)
            return NormalMixture(mean.expand(n_draws, *mean.shape[1:]), variance, noise)
        # Not in place: without hidden units all draws share their moments.
        outputs = torch.addcmul(mean, variance.sqrt_(), self.noise[-1])
        return self.likelihood.predictive(outputs)

    def mean(self, x: Tensor) -> Tensor:
        """Predictive mean at inputs (N, I)."""
        if self.likelihood.kind != "normal":
            return super().mean(x)
        return mean_output(self.network, self.loc, self.variance, x, self.noise[:-1])

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Predictive distributions of ``n`` new draws of the weights."""
        theta = self.posterior.sample(n, generator=generator).to(x)
        likelihood = draw_likelihoods(self.likelihood, n, generator=generator)
        return likelihood.predictive(self.network.forward(theta, x))


@dataclass(frozen=True, eq=False, kw_only=True)
class WeightDrawsPredictor(DrawsPredictor):
    """Predictions of any network averaged over draws of the weights; functions are drawn anew.

    Attributes
    ----------
    posterior : MeanFieldGaussian
        Posterior of the weights.
    """

    posterior: MeanFieldGaussian

    @classmethod
    def from_posterior(
        cls,
        network: Network,
        posterior: MeanFieldGaussian,
        likelihood: Likelihood,
        *,
        n_draws: int,
        seed: int,
        like: Tensor,
    ) -> Self:
        """Draw the weights and make a predictor.

        Parameters
        ----------
        network : Network
            Network.
        posterior : MeanFieldGaussian
            Posterior of the weights.
        likelihood : Likelihood
            Likelihood at its fitted parameters.
        n_draws : int
            Number of draws.
        seed : int
            Seed of the draws.
        like : Tensor
            Tensor whose device and dtype predictions have.

        Returns
        -------
        WeightDrawsPredictor
            Predictor.
        """
        theta = posterior.sample(n_draws, generator=generator_from(seed)).to(like)
        return cls(network, theta, likelihood.to(like), posterior=posterior)

    def sample_conditionals(self, x: Tensor, n: int, *, generator: torch.Generator) -> Predictive:
        """Predictive distributions of ``n`` new draws of the weights."""
        theta = self.posterior.sample(n, generator=generator).to(x)
        likelihood = draw_likelihoods(self.likelihood, n, generator=generator)
        return likelihood.predictive(self.network.forward(theta, x))
