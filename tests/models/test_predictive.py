import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.testing import assert_close

from skbayes_sym.models.predictive import CategoricalMixture, NormalMixture


@pytest.fixture(params=[False, True], ids=["equal", "weighted"])
def mixture(request, generator):
    loc = torch.randn(5, 3, 2, generator=generator, dtype=torch.float64)
    variance = torch.rand(5, 3, 2, generator=generator, dtype=torch.float64)
    noise = torch.tensor([0.3, 0.7], dtype=torch.float64)
    weights = torch.rand(5, generator=generator, dtype=torch.float64).log_softmax(0)
    return NormalMixture(loc, variance, noise, weights if request.param else None)


def components(mixture):
    weights = np.full(5, 0.2) if mixture.log_weights is None else mixture.log_weights.exp().numpy()
    scale = (mixture.variance + mixture.noise_variance).sqrt().numpy()
    return weights, mixture.loc.numpy(), scale


def test_moments_by_quadrature(mixture):
    weights, loc, scale = components(mixture)
    for n in range(3):
        for t in range(2):

            def density(y, n=n, t=t):
                return weights @ stats.norm.pdf(y, loc[:, n, t], scale[:, n, t])

            mean = integrate.quad(lambda y, f=density: y * f(y), -20, 20)[0]
            second = integrate.quad(lambda y, f=density: y**2 * f(y), -20, 20)[0]
            assert float(mixture.mean()[n, t]) == pytest.approx(mean, abs=1e-7)
            assert float(mixture.std()[n, t]) == pytest.approx((second - mean**2) ** 0.5, abs=1e-7)


def test_uncertainty_adds_up(mixture):
    total, epistemic, aleatoric = mixture.uncertainty()
    assert_close(total, epistemic + aleatoric, rtol=0, atol=0)
    assert_close(aleatoric, mixture.noise_variance.expand_as(total), rtol=1e-12, atol=0)


def test_log_prob_is_joint_over_outputs(mixture, generator):
    y = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    weights, loc, scale = components(mixture)
    joint = stats.norm.pdf(y.numpy(), loc, scale).prod(-1)
    assert_close(mixture.log_prob(y), torch.as_tensor(np.log(weights @ joint)))


def test_log_prob_far_out_is_finite(mixture):
    assert bool(torch.isfinite(mixture.log_prob(torch.full((3, 2), 1e6))).all())


@pytest.mark.parametrize("probability", [1e-4, 0.05, 0.5, 0.9, 0.9999])
def test_quantile_inverts_cdf(mixture, probability):
    at = mixture.quantile(probability)
    expected = torch.full_like(at, probability)
    assert_close(mixture.cdf(at), expected, rtol=0, atol=1e-12)


@pytest.fixture(params=[False, True], ids=["equal", "weighted"])
def classes(request, generator):
    logits = 3 * torch.randn(6, 4, 3, generator=generator, dtype=torch.float64)
    weights = torch.rand(6, generator=generator, dtype=torch.float64).log_softmax(0)
    return CategoricalMixture(logits.log_softmax(-1), weights if request.param else None)


def test_class_probabilities(classes):
    w = (
        torch.full((6,), 1 / 6).double()
        if classes.log_weights is None
        else classes.log_weights.exp()
    )
    expected = torch.einsum("s,snc->nc", w, classes.log_probs.exp())
    assert_close(classes.probabilities(), expected)


def test_class_uncertainty(classes):
    total, epistemic, aleatoric = classes.uncertainty()
    p = classes.probabilities()
    assert_close(total, -(p * p.log()).sum(-1), rtol=1e-10, atol=1e-12)
    assert bool((epistemic > 0).all())
    assert_close(total, epistemic + aleatoric, rtol=0, atol=0)


def test_certain_classes_have_no_entropy():
    one_hot = torch.tensor([[[0.0, -torch.inf]]])
    for part in CategoricalMixture(one_hot).uncertainty():
        assert_close(part, torch.zeros(1))
