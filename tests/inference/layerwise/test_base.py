"""Layers conditional on sampled ones: bounds by quadrature, gradients, minibatches."""

from math import log

import numpy as np
import pytest
import torch
from inference.layerwise.layerwise_problems import (
    every_posterior,
    given_prior,
    make_data,
    one_unit_evidence,
    parts_of,
    train,
)
from thin import some

from skbayes_sym.inference.layerwise.base import (
    LayerwiseElbo,
)
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP


@pytest.mark.long
@some("name", ["mc", "gc", "gg"], keep={"mc", "gg"})
def test_elbo_is_below_the_evidence_of_a_tiny_network(name, generator):
    rng = np.random.default_rng(0)
    x = np.linspace(-2, 2, 12)
    y = np.tanh(1.5 * x) + 0.2 * rng.standard_normal(12)
    data = Data(*(torch.as_tensor(a) for a in (x[:, None], y[:, None], np.ones(12))))
    evidence = one_unit_evidence(x, y, 0.2)
    parts = parts_of(name, MLP(1, (1,), 1, TANH), m=12)
    for steps in (1, 250):  # a bound from the start, a close one in the end
        params = train(parts, data, log(0.2), steps)
        assert float(params[-1]) == log(0.2)
        likelihood, kl = parts.terms(params, data, 4000, generator=generator)
        elbo = likelihood - kl
        assert float(elbo.mean()) < evidence + 4 * float(elbo.std()) / 4000**0.5
    # What is left is log 2 of the unit's sign and a little, but for the heuristic's overfit.
    assert float(elbo.mean()) > evidence - 1.2


@every_posterior
def test_gradient_is_that_of_the_tempered_bound(name):
    """One step with all weight on the likelihood's side, by differences with the same draws."""
    data, parts = make_data(), parts_of(name, MLP(3, (2, 2), 1, TANH))
    params = train(parts, data, log(0.3), 5)

    def value(at):
        generator = torch.Generator().manual_seed(3)
        likelihood, kl = parts.terms(at, data, 2, generator=generator)
        return float((0.02 * kl - likelihood).mean())

    generator = torch.Generator().manual_seed(3)
    batches = Batches(data, 10**6, generator)
    prior = given_prior(parts.network)
    objective = LayerwiseElbo(parts, prior, batches, params.clone(), n_draws=2, warm_up=100)
    objective(0)
    for i in range(0, len(params), 3):
        step = torch.zeros_like(params)
        step[i] = 1e-5
        slope = (value(params + step) - value(params - step)) / 2e-5
        assert float(objective.gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.long
def test_minibatches_are_unbiased():
    data = make_data(n=6)
    parts = parts_of("gg", MLP(3, (2,), 1, TANH), m=4)
    params = train(parts, data, log(0.3), 5)

    def objective(batch_size, seed):
        generator = torch.Generator().manual_seed(seed)
        batches = Batches(data, batch_size, generator)
        prior = given_prior(parts.network)
        return LayerwiseElbo(parts, prior, batches, params, n_draws=8, warm_up=0)

    full = torch.stack([objective(6, s)(0) for s in range(25)])
    small = torch.stack([objective(2, s)(0) for s in range(100)])
    error = (full.var() / 25 + small.var() / 100) ** 0.5
    assert float((full.mean() - small.mean()).abs()) < 4 * float(error)
