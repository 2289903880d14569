from math import exp, factorial

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.quadrature import gauss_hermite, sobol_normal


def test_gauss_hermite_is_exact_for_polynomials():
    nodes, weights = gauss_hermite(8)
    for k in range(8):  # E[z^2k] = (2k)! / (2^k k!), degree up to 14 <= 2 * 8 - 1
        exact = factorial(2 * k) / (2**k * factorial(k))
        assert float(weights @ nodes ** (2 * k)) == pytest.approx(exact, rel=1e-12)
        assert float(weights @ nodes ** (2 * k + 1)) == pytest.approx(0.0, abs=1e-9 * exact)


def test_gauss_hermite_of_an_exponential():
    nodes, weights = gauss_hermite(64)
    assert float(weights @ (1.7 * nodes).exp()) == pytest.approx(exp(1.7**2 / 2), rel=1e-12)


def test_sobol_normal_is_symmetric_seeded_and_normal():
    points = sobol_normal(500, 3, seed=1)
    assert points.shape == (512, 3)
    assert_close(points[:256], -points[256:], rtol=0, atol=0)
    assert_close(points, sobol_normal(500, 3, seed=1), rtol=0, atol=0)
    assert not torch.equal(points, sobol_normal(500, 3, seed=2))
    second = points.T @ points / 512
    # A net of 256 points: far closer than the Monte Carlo error, 5 / sqrt(512) = 0.22.
    assert_close(second, torch.eye(3, dtype=torch.float64), rtol=0, atol=0.03)


def test_sobol_normal_is_unbiased():
    """Over many scramblings the mean of E[exp(z1 - z2 / 2)] has its closed form."""
    values = torch.stack(
        [(p[:, 0] - 0.5 * p[:, 1]).exp().mean() for p in (sobol_normal(16, 2, seed=s)
                                                         for s in range(400))]
    )  # fmt: skip
    error = float(values.std() / 400**0.5)
    assert abs(float(values.mean()) - exp(0.625)) < 4 * error


def test_nodes_asked_for_first_in_inference_mode_can_be_differentiated_through():
    gauss_hermite.cache_clear()
    with torch.inference_mode():
        gauss_hermite(7)
    nodes, weights = gauss_hermite(7)
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    ((scale * nodes).square() @ weights).backward()
    torch.testing.assert_close(scale.grad, torch.tensor(2.0, dtype=torch.float64))
