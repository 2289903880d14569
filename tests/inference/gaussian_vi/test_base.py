"""Layers conditional on sampled ones: bounds by quadrature, gradients, minibatches."""

from math import log

import numpy as np
import pytest
import torch
from inference.gaussian_vi.layerwise_problems import (
    every_posterior,
    given_prior,
    make_data,
    one_unit_evidence,
    parts_of,
    train,
)
from scipy import optimize, stats
from thin import some
from torch.testing import assert_close

from skbayes_sym.inference.gaussian_vi.layers import LayerwiseElbo
from skbayes_sym.inference.gaussian_vi.scales import PriorOfLayers
from skbayes_sym.models.model import Batches, Data
from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.priors import ARD, LayerScales, Normal, ScalesByGroup
from skbayes_sym.numerics.optimise import ParamGroup, minimise


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


NETWORK = MLP(3, (2, 4), 2, TANH)


def learned(network, prior):
    return PriorOfLayers(network, prior.bind(network.layout))


@pytest.mark.parametrize("prior", [LayerScales(), ARD()], ids=["layers", "columns"])
def test_scales_lie_as_the_weights_do(prior, generator):
    found = learned(NETWORK, prior)
    hyper = torch.randn(found.scales.n_groups, generator=generator, dtype=torch.float64)
    layers = found.of_layers(hyper)
    assert [len(layer) for layer in layers] == [4, 3, 5]
    everywhere = found.scales.at(hyper).scale
    for scale, (weight, bias) in zip(layers, NETWORK.layers(everywhere), strict=True):
        assert_close(scale[:-1].expand_as(weight), weight, rtol=1e-15, atol=0)
        assert_close(scale[-1:].expand_as(bias), bias, rtol=1e-15, atol=0)
    assert (len(layers[0][:-1].unique()) == 1) == (prior == LayerScales())


def test_given_scales_stay_and_are_none_of_the_parameters():
    found = PriorOfLayers(
        NETWORK, ScalesByGroup.given(Normal([2.0, 0.5, 1.0]).bind(NETWORK.layout).scale)
    )
    assert len(found.start) == 0
    params = torch.arange(4.0).double()
    own, hyper = found.split(params)
    assert torch.equal(own, params)
    assert [layer.unique().tolist() for layer in found.of_layers(hyper)] == [[2.0], [0.5], [1.0]]
    assert float(found.log_hyperprior(hyper)) == 0.0


def test_units_that_the_prior_tells_apart_are_refused():
    scale = torch.ones(NETWORK.layout.n_params).double()
    by_input = scale.clone()
    by_input[NETWORK.layout.positions("W1")[:, 1]] = 0.3
    PriorOfLayers(NETWORK, ScalesByGroup.given(by_input))
    by_unit = scale.clone()
    by_unit[NETWORK.layout.positions("W1")[1]] = 0.3
    with pytest.raises(ValueError, match="the same for all units of a layer"):
        PriorOfLayers(NETWORK, ScalesByGroup.given(by_unit))
    group = torch.zeros(NETWORK.layout.n_params).long()
    group[NETWORK.layout.positions("b2")[1]] = 1  # of equal scale, but on its own
    one = torch.ones(2).double()
    with pytest.raises(ValueError, match="the same for all units of a layer"):
        PriorOfLayers(NETWORK, ScalesByGroup(group, ("all", "one"), one, 1.0, one))


@every_posterior
def test_the_gradient_is_that_of_the_tempered_bound_and_the_hyperprior(name, generator):
    data, network = make_data(n_targets=2), MLP(3, (2, 2), 2, TANH)
    prior, parts = learned(network, ARD()), parts_of(name, network)
    own = train(parts, data, log(0.3), 5)
    own = torch.cat([own, own[-1:]])  # a noise for each target
    move = 0.3 * torch.randn(prior.scales.n_groups, generator=generator, dtype=torch.float64)
    params = torch.cat([own, prior.start + move])

    def value(at):
        params, hyper = prior.split(at)
        draws = torch.Generator().manual_seed(3)
        under = parts.under(prior.of_layers(hyper))
        likelihood, kl = under.terms(params, data, 2, generator=draws)
        return float((0.02 * kl - likelihood).mean() - prior.scales.log_hyperprior(hyper))

    batches = Batches(data, 10**6, torch.Generator().manual_seed(3))
    objective = LayerwiseElbo(parts, prior, batches, params.clone(), n_draws=2, warm_up=100)
    objective(0)
    for i in (*range(0, len(own), 3), *range(len(own), len(params))):
        step = torch.zeros_like(params)
        step[i] = 1e-5
        slope = (value(params + step) - value(params - step)) / 2e-5
        assert float(objective.gradient[i]) == pytest.approx(slope, rel=1e-5, abs=1e-6)


@pytest.mark.long
@pytest.mark.kept("columns")
@pytest.mark.parametrize("prior", [LayerScales(), ARD()], ids=["layers", "columns"])
def test_learned_scales_maximise_the_evidence_of_the_linear_model(prior):
    """Without hidden layers, by SciPy on the dense normal density and the Gamma's, beside Adam."""
    rng = np.random.default_rng(0)
    data, noise = make_data(n=40), 0.3
    slope = torch.tensor([[1.0], [0.0], [0.1]]).double()
    data = data._replace(y=data.x @ slope + noise * torch.as_tensor(rng.normal(size=(40, 1))) + 2.0)
    network = MLP(3, (), 1, TANH)
    found = learned(network, prior)
    groups = found.scales.group.numpy()  # the weights, then the bias
    phi = np.column_stack([data.x.numpy(), np.ones(40)])

    def negative(hyper):
        covariance = phi * np.exp(-hyper[groups]) @ phi.T + noise**2 * np.eye(40)
        evidence = stats.multivariate_normal(np.zeros(40), covariance).logpdf(data.y.numpy()[:, 0])
        a, s2 = 0.5, found.scales.reference_variance.numpy()
        precision = np.exp(hyper)  # whose density by its logarithm has the Jacobian exp(hyper)
        return -evidence - (stats.gamma(a, scale=1 / (a * s2)).logpdf(precision) + hyper).sum()

    best = optimize.minimize(negative, np.zeros(len(found.start)), options={"gtol": 1e-8})
    parts = parts_of("mc", network)
    params = torch.cat([torch.tensor([log(noise)]).double(), found.start])
    batches = Batches(data, 10**6, torch.Generator().manual_seed(0))
    objective = LayerwiseElbo(parts, found, batches, params, n_draws=1, warm_up=0)
    minimise(objective, groups=[ParamGroup(slice(1, None), 0.03)], max_iter=900, block_size=900,
             on_step=lambda step, info: False)  # fmt: skip
    np.testing.assert_allclose(params[1:].numpy(), best.x, atol=2e-3)
    loss = float(objective(0) - found.log_hyperprior(params[1:]))
    assert loss == pytest.approx(best.fun, abs=1e-5)
