"""Inducing layers against dense Gaussians, and exact where the sites are at the data."""

from math import log

import numpy as np
import pytest
import torch
from inference.layerwise.layerwise_problems import (
    SCALE,
    SCALES,
    make_data,
)
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.layerwise.base import (
    Layerwise,
    with_ones,
)
from skbayes_sym.inference.layerwise.collapsed import CollapsedLast
from skbayes_sym.inference.layerwise.global_inducing import InducingHidden, InducingLast, draw_layer
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP


def layer_problem(d, generator, m=5, h=3):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(2, m, d), normal(m, h), normal(h), normal(m)


@pytest.mark.parametrize("is_one", [True, False], ids=["one scale", "one an input"])
@pytest.mark.parametrize("d", [3, 9], ids=["D<=M", "D>M"])
def test_inducing_layer_equals_one_dense_gaussian_a_unit(d, is_one, generator):
    inducing, values, log_gain, log_precision = layer_problem(d, generator)
    repeated = inducing[:1].expand(20_000, -1, -1)
    scale = SCALE if is_one else SCALES.repeat(3)[:d]
    sites = values, log_gain, log_precision
    weights, own_kl = draw_layer(repeated, *sites, scale, generator=generator)
    u, kl, prior = inducing[0], 0.0, torch.eye(d).double() * scale**2
    for h in range(3):
        site = (log_gain[h] + log_precision).exp()
        covariance = torch.linalg.inv(torch.linalg.inv(prior) + u.T @ (site[:, None] * u))
        mean = covariance @ u.T @ (site * values[:, h])
        normal = torch.distributions.MultivariateNormal
        q, p = normal(mean, covariance), normal(torch.zeros(d).double(), prior)
        kl += float(torch.distributions.kl_divergence(q, p))
        draws, sd = weights[:, :, h], covariance.diagonal().sqrt()
        assert bool(((draws.mean(0) - mean).abs() < 5 * sd / 20_000**0.5).all())
        error = (draws.T.cov() - covariance).abs()
        assert bool((error < 5 * (2 / 20_000) ** 0.5 * torch.outer(sd, sd)).all())
    assert_close(own_kl, torch.full((20_000,), kl, dtype=torch.float64), rtol=1e-11, atol=0)


@pytest.mark.parametrize("d", [3, 60], ids=["K<N", "K>N"])
def test_linear_model_with_sites_at_the_data_has_the_evidence(d, generator):
    """M = N, Z = X, v = y, precision 1 / noise^2: the posterior is exact, so is the ELBO."""
    data = make_data(n=20, d=d)
    network, noise = MLP(d, (), 1, TANH), 0.3
    hidden, last = InducingHidden(network, (), 20), InducingLast(SCALE, 20, 1)
    params = torch.cat([
        data.x.flatten(),
        last.layout.flatten({
            "values": data.y, "log_gain": torch.zeros(1).double(),
            "log_precision": torch.full((20,), -2 * log(noise), dtype=torch.float64),
        }),
        torch.tensor([log(noise)], dtype=torch.float64),
    ])  # fmt: skip
    phi = with_ones(data.x).numpy()
    covariance = SCALE**2 * phi @ phi.T + noise**2 * np.eye(20)
    evidence = stats.multivariate_normal(np.zeros(20), covariance).logpdf(data.y.numpy()[:, 0])
    for parts in (Layerwise(network, hidden, last),
                  Layerwise(network, hidden, CollapsedLast(SCALE))):  # fmt: skip
        at = params if parts.last is last else torch.cat([data.x.flatten(), params[-1:]])
        likelihood, kl = parts.terms(at, data, 2, generator=generator)
        assert_close(
            likelihood - kl, torch.full((2,), evidence, dtype=torch.float64), rtol=0, atol=1e-9
        )
