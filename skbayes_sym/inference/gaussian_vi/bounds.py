"""The terms of the reported bounds, estimated with fresh draws after training."""

import torch
from torch import Tensor

from skbayes_sym.inference.posteriors import MeanFieldGaussian
from skbayes_sym.models.likelihoods.likelihood import Likelihood
from skbayes_sym.models.model import Data
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.models.networks.mlp_passes import Layers, output_moments
from skbayes_sym.numerics.memory import rows_within
from skbayes_sym.numerics.random import Estimate, mean_and_error, standard_normal

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
    """``E_q[sum_n weight_n log p(y_n | f_n)]`` by local reparametrisation, nats.

    Unbiased, in float64; rows are taken in chunks of bounded memory.
    """
    like = torch.zeros(0, dtype=torch.float64, device=data.x.device)
    likelihood = likelihood.to(like)
    loc, variance = posterior_layers(network, posterior, like)
    widths = network.sizes[1:]
    rows = rows_within(_CHUNK, n_draws * max(widths))
    totals = like.new_zeros(n_draws)
    for start in range(0, len(data.x), rows):
        x, y, weight = (t[start : start + rows] for t in data)
        x, weight = x.double(), weight.double()
        y = y.double() if y.is_floating_point() else y
        noise = [
            standard_normal((n_draws, len(x), width), generator=generator, like=like)
            for width in widths
        ]
        mean, var = output_moments(network, loc, variance, x, noise[:-1])
        mean, var = (t.expand(n_draws, *t.shape[1:]).flatten(0, 1) for t in (mean, var))
        expected = likelihood.expected_log_prob(
            mean, var, y.repeat(n_draws, *(1,) * (y.ndim - 1)), noise[-1].flatten(0, 1)
        )
        totals += expected.value.unflatten(0, (n_draws, -1)) @ weight
    return mean_and_error(totals)


def posterior_layers(
    network: MLP, posterior: MeanFieldGaussian, like: Tensor
) -> tuple[Layers, Layers]:
    """Mean and variance of every layer as tensors like ``like``."""
    loc = torch.as_tensor(posterior.loc).to(like)
    variance = (torch.as_tensor(posterior.scale).double() ** 2).to(like)
    return network.layers(loc), network.layers(variance)
