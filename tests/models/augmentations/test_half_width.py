"""Laws of the coefficients, and their noise."""

from math import pi

import torch
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import HalfWidth, amplitude, stratified_noise
from skbayes_sym.models.augmentations.tabular import Rotation2D


def test_noise_is_uniform_and_stratified(generator):
    noise = stratified_noise(3000, 7, 2, generator=generator, like=torch.zeros((), dtype=float))
    assert noise.shape == (3000, 7, 2)
    assert float(noise.abs().max()) <= 1.0
    strata = ((noise + 1.0) * 3.5).floor().sort(dim=1).values
    assert torch.equal(strata, torch.arange(7.0).double()[None, :, None].expand(3000, 7, 2))
    single = noise[:, 0]  # one sample of each row is uniform: moments at 5 standard errors
    assert (single.mean(0).abs() < 5 * (1 / 3 / 3000) ** 0.5).all()
    assert ((single**2).mean(0) - 1 / 3).abs().max() < 5 * (4 / 45 / 3000) ** 0.5
    assert abs(float((noise[..., 0] * noise[..., 1]).mean())) < 5 * (1 / 9 / 21000) ** 0.5


def test_rotation_is_capped_at_pi_smoothly():
    half_width = Rotation2D().half_width
    eta = torch.linspace(0.0, 40.0, 400, dtype=torch.float64)
    reach = torch.stack([half_width.mixing(e.reshape(1))[0, 0] for e in eta])
    assert (reach < pi).all()
    assert (reach.diff() > 0).all()
    assert_close(reach[20], eta[20], rtol=0.05, atol=0.0)  # hardly shrunk below half the limit
    assert float(reach[-1]) > 0.999 * pi


def test_correlated_half_widths_hold_the_diagonal_ones(generator):
    names, limits = ("a", "b", "c"), (3.0, 2.0, 9.0)
    diagonal, full = HalfWidth(names, limits), HalfWidth(names, limits, correlated=True)
    eta = torch.randn(3, generator=generator, dtype=torch.float64)
    assert_close(full.mixing(eta.diag().flatten()), diagonal.mixing(eta))
    assert full.n_params == 9
    assert_close(full.start().reshape(3, 3), diagonal.start().diag())


def test_covariance_is_that_of_the_coefficients(generator):
    half_width = HalfWidth(("a", "b"), (3.0, 2.0), (1.0, 4.0), correlated=True)
    eta = torch.randn(4, generator=generator, dtype=torch.float64)
    n = 50_000
    eps = 2.0 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 1.0
    z = eps @ half_width.mixing(eta).T
    products = z[:, :, None] * z[:, None, :]
    error = (products.mean(0) - half_width.covariance(eta)).abs()
    assert (error < 5.0 * products.std(0) / n**0.5).all()
    # row norms are capped, whatever the correlations
    assert (amplitude(half_width, 100.0 * eta) < torch.tensor([3.0, 8.0])).all()
    rows = half_width.mixing(eta).norm(dim=1)
    assert_close(amplitude(half_width, eta), rows)
