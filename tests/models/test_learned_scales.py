"""Scales by group: groups, closed-form updates, and the collapsed law by quadrature."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.priors import ARD, LayerScales
from skbayes_sym.symmetry import check_invariant

NETWORK = MLP(3, (4,), 2, TANH)


def test_groups_are_layers_or_columns_of_the_input():
    layers, columns = (prior.bind(NETWORK.layout) for prior in (LayerScales(), ARD()))
    assert layers.names == ("W1", "b1", "W2", "b2")
    assert layers.sizes.tolist() == [12, 4, 8, 2]
    assert columns.names == ("W1[:, 0]", "W1[:, 1]", "W1[:, 2]", "b1", "W2", "b2")
    first = NETWORK.layout.unflatten(columns.group)["W1"]
    assert torch.equal(first, torch.arange(3).expand(4, 3))
    assert layers.reference_variance.tolist() == [0.75, 1.0, 0.25, 1.0]


@pytest.mark.parametrize("prior", [LayerScales(), ARD()])
def test_units_may_be_exchanged_and_flipped(prior):
    bound = prior.bind(NETWORK.layout)
    check_invariant(NETWORK.symmetry(), bound.log_prob, NETWORK.layout)
    check_invariant(NETWORK.symmetry(), bound.collapse().log_prob, NETWORK.layout)


def test_the_update_is_the_maximum():
    """Of E log p(theta | alpha) + log p(log alpha), whose slope vanishes there."""
    bound = ARD(shape=2.0).bind(NETWORK.layout)
    generator = torch.Generator().manual_seed(0)
    mean = bound.sample(1, generator=generator)[0]
    variance = torch.rand(len(mean), generator=generator, dtype=torch.float64)
    hyper = bound.update(mean, variance).hyper.clone().requires_grad_()
    precision = hyper.exp()[bound.group]
    expected = 0.5 * (hyper[bound.group] - precision * (mean**2 + variance)).sum()
    (expected + bound.log_hyperprior(hyper)).backward()
    torch.testing.assert_close(hyper.grad, torch.zeros_like(hyper), atol=1e-12, rtol=0.0)


def test_the_hyperprior_is_a_density_of_log_precisions():
    bound = LayerScales(shape=3.0).bind(MLP(2, (), 1, TANH).layout)
    fixed = torch.zeros(2, dtype=torch.float64)

    def density(h):
        fixed[0] = h
        return np.exp(float(bound.log_hyperprior(fixed)))

    other = np.exp(stats.gamma.logpdf(1.0, 3.0, scale=1.0 / 3.0))  # of the other group, at 0
    total, _ = integrate.quad(density, -15.0, 8.0)
    np.testing.assert_allclose(total, other, rtol=1e-8)


def test_the_collapsed_law_is_the_integral_over_the_scales():
    bound = LayerScales(shape=1.5).bind(MLP(2, (), 1, TANH).layout)
    theta = torch.tensor([0.4, -1.3, 0.8], dtype=torch.float64)
    expected = 0.0
    for part, variance in ((theta[:2], 0.5), (theta[2:], 1.0)):
        distribution = stats.gamma(1.5, scale=1.0 / (1.5 * variance))
        value, _ = integrate.quad(
            lambda a, part=part, distribution=distribution: (
                distribution.pdf(a) * stats.norm.pdf(part, scale=a**-0.5).prod()
            ),
            0.0,
            np.inf,
        )
        expected += np.log(value)
    np.testing.assert_allclose(float(bound.collapse().log_prob(theta)), expected, rtol=1e-7)


@pytest.mark.parametrize("prior", [LayerScales(), ARD(shape=3.0)])
def test_the_kernel_is_the_density_and_its_slope(prior, generator):
    collapsed = prior.bind(NETWORK.layout).collapse()
    theta = torch.randn(5, NETWORK.layout.n_params, generator=generator, dtype=torch.float64)
    theta.requires_grad_()
    expected = collapsed.log_prob(theta)
    (slope,) = torch.autograd.grad(expected.sum(), theta)
    value, gradient = collapsed.kernel(theta)(theta.detach())
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-13)


def test_the_mean_log_scale_given_the_weights():
    bound = LayerScales(shape=1.5).bind(MLP(2, (), 1, TANH).layout)
    theta = torch.tensor([0.4, -1.3, 0.8], dtype=torch.float64)
    found = bound.collapse().log_scale(theta)
    for g, (part, variance) in enumerate(((theta[:2], 0.5), (theta[2:], 1.0))):
        rate = 1.5 * variance + 0.5 * float(part @ part)
        distribution = stats.gamma(1.5 + 0.5 * len(part), scale=1.0 / rate)
        assert float(found[g]) == pytest.approx(
            distribution.expect(lambda a: -0.5 * np.log(a)), rel=1e-6
        )


def test_mistakes():
    with pytest.raises(ValueError, match="shape must be a positive number"):
        ARD(shape=0.0).bind(NETWORK.layout)
    with pytest.raises(ValueError, match="26 parameters, the network has 8"):
        LayerScales().bind(NETWORK.layout).bind(MLP(3, (), 2, TANH).layout)


def test_collapsed_draws_are_those_of_their_density():
    """Precisions are Gamma distributed with mean ``1 / reference_variance``.

    A weight is then ``sqrt(reference_variance)`` times a Student-t variable of ``2 shape`` degrees
    of freedom, which a Kolmogorov-Smirnov test compares with.
    """
    prior = LayerScales(shape=3.0).bind(NETWORK.layout)
    draws = prior.collapse().sample(2000, generator=torch.Generator().manual_seed(0))
    for group in range(prior.n_groups):
        first = int((prior.group == group).nonzero()[0])
        z = draws[:, first] / float(prior.reference_variance[group]) ** 0.5
        assert stats.kstest(z.numpy(), stats.t(2 * 3.0).cdf).pvalue > 1e-4
