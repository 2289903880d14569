"""The mixture of Laplace approximations against dense formulas and its own draws."""

import numpy as np
import torch
from scipy import stats

from skbayes_sym.inference.laplace.laplace_posterior import LinearisedModes, ModeMixture
from skbayes_sym.models import MLP, TANH

NETWORK = MLP(2, (2,), 1, TANH)
WEIGHT = np.array([0.5, 0.2, 0.3])


def mixture(scale=1.0):
    rng = np.random.default_rng(0)
    p = NETWORK.layout.n_params
    loc = rng.standard_normal((3, p))
    root = rng.standard_normal((3, p, 2 * p)) / scale
    factor = np.linalg.cholesky(root @ root.transpose(0, 2, 1))
    return ModeMixture(loc, factor, WEIGHT)


def test_the_density_is_that_of_the_mixture():
    q = mixture()
    theta = np.random.default_rng(1).standard_normal((4, q.loc.shape[1]))
    laws = [
        stats.multivariate_normal(m, np.linalg.inv(f @ f.T))
        for m, f in zip(q.loc, q.factor, strict=True)
    ]
    expected = np.log(WEIGHT @ [law.pdf(theta) for law in laws])
    np.testing.assert_allclose(q.log_prob(torch.as_tensor(theta)).numpy(), expected, rtol=1e-9)


def test_draws_have_the_moments_of_the_mixture():
    q = mixture()
    draws = q.sample(40_000, generator=torch.Generator().manual_seed(0)).numpy()
    within = WEIGHT @ [np.diag(np.linalg.inv(f @ f.T)) for f in q.factor]
    mean = WEIGHT @ q.loc
    variance = within + WEIGHT @ (q.loc - mean) ** 2
    z = (draws.mean(0) - mean) / np.sqrt(variance / len(draws))
    assert np.abs(z).max() < 4.5
    np.testing.assert_allclose(draws.var(0), variance, rtol=0.05)


def test_functions_and_variances_are_those_of_the_linearised_network():
    q = mixture(scale=0.1)  # narrow: the network is linear over its draws
    loc, factor, weight = q.tensors
    modes = LinearisedModes(NETWORK, loc, factor, weight)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = modes.outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(mean, NETWORK.forward(loc, x))
    n = 20_000
    noise = torch.randn(
        n, loc.shape[1], generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    drawn = modes.functions(x, torch.ones(n, dtype=torch.int64), noise)
    torch.testing.assert_close(drawn.var(0), variance[1], rtol=0.06, atol=0.0)
    theta = loc[1] + torch.linalg.solve_triangular(factor[1].mT, noise[:50].T, upper=True).T
    torch.testing.assert_close(drawn[:50], NETWORK.forward(theta, x), atol=0.02, rtol=0.0)


def test_the_covariance_adds_that_between_modes_to_that_within():
    loc, factor, weight = mixture().tensors
    modes = LinearisedModes(NETWORK, loc, factor, weight)
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean, covariance = modes.outputs(x)
    variance = covariance.diagonal(dim1=-2, dim2=-1)
    found = modes.covariance(x)
    away = mean - torch.einsum("r,rno->no", weight, mean)
    spread = torch.einsum("r,rno->no", weight, variance + away.square())
    torch.testing.assert_close(found.diagonal(), spread.T)
    jacobian = torch.stack(
        [torch.autograd.functional.jacobian(lambda t: NETWORK.forward(t, x)[:, 0], m) for m in loc]
    )
    within = jacobian @ torch.cholesky_inverse(factor) @ jacobian.mT
    between = torch.einsum("r,rno,rmo->nm", weight, away, away)
    torch.testing.assert_close(found[..., 0], torch.einsum("r,rnm->nm", weight, within) + between)
