"""Laws of every prior, one's own included, and the shapes that scales may be given in."""

import pytest
import torch
from cases import OTHER_NETWORKS, PRIORS
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.models.priors import GaussianPrior, Normal, check_scales, layer_index
from skbayes_sym.numerics.layout import ParamLayout

TWO = ParamLayout({"W1": (1,), "W2": (1,)})
every_prior = pytest.mark.parametrize("unbound", PRIORS.values(), ids=PRIORS)


@every_prior
def test_densities_integrate_to_one_and_draws_follow_them(unbound, generator):
    prior = unbound.bind(TWO)
    t = (torch.arange(4000, dtype=torch.float64) + 0.5) / 2000 - 1.0  # midpoints of (-1, 1)
    y, weight = t / (1 - t**2), (1 + t**2) / (1 - t**2) ** 2 / 2000
    draws = prior.sample(20_000, generator=generator)
    assert draws.shape == (20_000, 2)
    at_zero = float(prior.log_prob(torch.zeros(2, dtype=torch.float64)))
    for k in range(2):  # the coordinates are independent: density along one, the other at 0
        along = torch.zeros(4000, 2, dtype=torch.float64)
        along[:, k] = y
        density = prior.log_prob(along).exp() * weight
        at_zero -= float(density.sum().log())
        mass = density / density.sum()
        square = float(mass @ y**2)
        error = 5 * ((float(mass @ y**4) - square**2) / 20_000) ** 0.5
        assert float(draws[:, k].square().mean()) == pytest.approx(square, abs=error)
    # p(0, 0) is the product of the two marginals at 0 only if the joint integrates to one.
    assert at_zero == pytest.approx(0.0, abs=1e-5)


@every_prior
def test_batches_and_binding(unbound, generator):
    prior = unbound.bind(TWO)
    theta = torch.randn(3, 4, 2, generator=generator, dtype=torch.float64)
    alone = torch.stack([prior.log_prob(t) for t in theta.reshape(-1, 2)])
    assert_close(prior.log_prob(theta), alone.reshape(3, 4))
    again = prior.bind(TWO)
    assert_close(again.log_prob(theta), prior.log_prob(theta), rtol=0, atol=0)


@every_prior
def test_gaussian_ones_say_so(unbound, generator):
    prior = unbound.bind(TWO)
    theta = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    gaussian = prior.gaussian()
    assert (gaussian is None) == (unbound is PRIORS["own-laplace"])
    if gaussian is not None:
        assert_close(gaussian.log_prob(theta), prior.log_prob(theta))


def test_gaussian_prior(generator):
    prior = GaussianPrior(torch.tensor([0.5, 2.0], dtype=torch.float64))
    theta = prior.sample(100, generator=generator)
    normal = torch.distributions.Normal(0.0, prior.scale)
    assert_close(prior.log_prob(theta), normal.log_prob(theta).sum(-1))
    assert_close(prior.precision, torch.tensor([4.0, 0.25], dtype=torch.float64))
    with pytest.raises(ValueError, match="over 2 parameters, the network has 3"):
        prior.bind(ParamLayout({"w": (3,)}))


def test_scales_by_number_layer_and_parameter():
    layout = MLP(1, (2,), 1, TANH).layout
    assert Normal(0.5).bind(layout).scale.tolist() == [0.5] * 7
    assert Normal([1.0, 2.0]).bind(layout).scale.tolist() == [1.0] * 4 + [2.0] * 3
    each = [0.1 * (i + 1) for i in range(7)]
    assert Normal(each).bind(layout).scale.tolist() == each
    with pytest.raises(ValueError, match="each of the 2 layers or one for each of the 7"):
        Normal([1.0, 2.0, 3.0]).bind(layout)
    with pytest.raises(ValueError, match="positive and finite"):
        Normal([1.0, 0.0]).bind(layout)
    with pytest.raises(ValueError, match="one for each of the 4 features"):
        check_scales([1.0, 2.0], features=4)


def test_layers_of_modules_go_by_their_names():
    layout = OTHER_NETWORKS["module"].layout
    assert layer_index(layout).tolist() == [0] * 8 + [1] * 3
