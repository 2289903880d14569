"""Two heads: density, expectations and curvature against scipy, quadrature and autograd."""

import numpy as np
import pytest
import torch
from cases import LIKELIHOODS
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.models import Heteroscedastic, NaturalHeteroscedastic
from skbayes_sym.numerics.gaussian import gauss_hermite

CASES = {k: c for k, c in LIKELIHOODS.items() if c.curvature == "expected"}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
NO_NOISE = torch.empty(0)


def drawn(case, generator, n=5):
    outputs = torch.randn(n, case.n_outputs, generator=generator, dtype=torch.float64)
    return outputs, case.targets(n, generator)


def test_the_density_is_a_normal_of_both_heads(generator):
    case = LIKELIHOODS["heteroscedastic"]
    f, y = drawn(case, generator)
    std = np.exp(-0.3 + 0.5 * f[:, 2:].numpy())
    expected = stats.norm.logpdf(y.numpy(), f[:, :2].numpy(), std).sum(1)
    assert_close(case.likelihood.log_prob(f, y), torch.as_tensor(expected))
    mixture = case.likelihood.predictive(f[None])
    assert_close(mixture.log_prob(y), torch.as_tensor(expected))
    assert_close(mixture.uncertainty().aleatoric, torch.as_tensor(std**2))


@pytest.mark.parametrize("likelihood", [Heteroscedastic(), NaturalHeteroscedastic()], ids=str)
def test_far_rows_have_a_density(likelihood):
    """Heads of thousands, where sigma would be 0 in one draw and infinite in the next."""
    outputs = torch.tensor([[[3.0, 2e4]], [[3.0, -2e4]], [[2e5, 900.0]]]).double()
    value = likelihood.predictive(outputs).log_prob(torch.ones(1, 1).double())
    assert bool(torch.isfinite(value).all())


@every_case
def test_expectations_equal_a_product_rule(case, generator):
    """Of one target, both outputs by 64 x 64 Gauss-Hermite nodes."""
    likelihood, n = case.likelihood, 4
    mean = torch.randn(n, 2, generator=generator, dtype=torch.float64)
    variance = 0.1 + torch.rand(n, 2, generator=generator, dtype=torch.float64)
    y = case.targets(n, generator)[:, :1]
    nodes, weights = gauss_hermite(64)
    f = torch.stack([t.expand(64, 64) for t in (nodes[:, None], nodes)], -1).reshape(-1, 1, 2)
    rule = (weights[:, None] * weights).reshape(-1)
    leaves = mean.requires_grad_(), variance.requires_grad_()
    value = rule @ likelihood.log_prob(mean + variance.sqrt() * f, y)
    slopes = torch.autograd.grad(value.sum(), leaves)
    found = likelihood.expected_log_prob(mean.detach(), variance.detach(), y, NO_NOISE)
    assert_close(found.value, value.detach(), rtol=1e-10, atol=1e-10)
    assert_close(found.d_mean, slopes[0], rtol=1e-9, atol=1e-9)
    assert_close(found.d_variance, slopes[1], rtol=1e-8, atol=1e-8)


@every_case
def test_the_curvature_is_the_variance_of_the_score(case, generator):
    """E[score score'] over new targets, by Gauss-Hermite, which is exact for these polynomials."""
    likelihood = case.likelihood
    f, y = drawn(case, generator)
    nodes, weights = gauss_hermite(8)
    mean, std = likelihood.mean(f), likelihood.variance(f).sqrt()
    expected = torch.zeros(len(f), case.n_outputs, case.n_outputs, dtype=torch.float64)
    for z1, w1 in zip(nodes, weights, strict=True):
        for z2, w2 in zip(nodes, weights, strict=True):
            leaf = f.clone().requires_grad_()
            value = likelihood.log_prob(leaf, mean + std * torch.stack([z1, z2])).sum()
            (score,) = torch.autograd.grad(value, leaf)
            expected += w1 * w2 * score.unsqueeze(-1) * score.unsqueeze(-2)
    root = likelihood.hessian_root(f, y)
    assert_close(torch.einsum("kno,knp->nop", root, root), expected, rtol=1e-9, atol=1e-9)


def test_the_noise_is_never_below_the_least(generator):
    f = torch.tensor([[0.0, -50.0], [0.0, 0.0], [0.0, 3.0]]).double()
    std = Heteroscedastic(least=0.1).variance(f).sqrt()
    assert_close(std[:, 0], 0.1 + f[:, 1].exp())
    with pytest.raises(ValueError, match="least must be a finite number of at least 0, got -1"):
        Heteroscedastic(least=-1)


@pytest.mark.parametrize("given", [{"spread": 0.0}, {"log_std": np.inf}, {"spread": np.nan}])
def test_settings_are_checked(given):
    with pytest.raises(ValueError, match=r"must be a (finite|positive) number"):
        Heteroscedastic(**given)
