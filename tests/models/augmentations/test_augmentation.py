"""Coefficients and their noise, laws of all families, compositions, any torch module."""

from math import pi

import pytest
import torch
from cases import AUGMENTATIONS
from models.augmentations.families import IMAGES, SCALE, family
from torch import nn
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import (
    Composed,
    HalfWidth,
    ModuleAugmentation,
    RescaledAugmentation,
    amplitude,
    sample_stratified_noise,
)
from skbayes_sym.models.augmentations.images import Affine
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D


def test_noise_is_uniform_and_stratified(generator):
    noise = sample_stratified_noise(
        3000, 7, 2, generator=generator, like=torch.zeros((), dtype=float)
    )
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


every_family = pytest.mark.parametrize("name", [*AUGMENTATIONS, *IMAGES])


@every_family
def test_shapes_and_rows_are_transformed_one_by_one(name, generator):
    augmentation, x, eta, noise = family(name, generator)
    out = augmentation.transform(x, eta, noise)
    assert out.shape == (4, 3, *x.shape[1:])
    assert_close(augmentation.transform(x[2:3], eta, noise[2:3]), out[2:3])
    assert_close(augmentation.transform(x, eta, noise[:, 1:2]), out[:, 1:2])


@every_family
def test_no_noise_is_the_identity(name, generator):
    augmentation, x, eta, noise = family(name, generator)
    out = augmentation.transform(x, eta, torch.zeros_like(noise))
    assert_close(out, x.unsqueeze(1).expand_as(out))


@every_family
def test_float32_follows_the_input(name, generator):
    augmentation, x, eta, noise = family(name, generator)
    out = augmentation.transform(x.float(), eta.float(), noise.float())
    assert out.dtype == torch.float32
    wide = augmentation.transform(x, eta, noise).float()
    assert_close(out, wide, rtol=1e-4, atol=2e-5)


@every_family
def test_names_start_and_amplitudes(name, generator):
    augmentation, _, eta, _ = family(name, generator)
    half_width = augmentation.half_width
    assert len(set(half_width.names)) == len(half_width.names) == len(amplitude(half_width, eta))
    assert half_width.start().shape == eta.shape
    assert_close(amplitude(half_width, eta), amplitude(half_width, -eta))
    assert (amplitude(half_width, half_width.start()) > 0).all()


@pytest.mark.parametrize("name", [*(n for n in AUGMENTATIONS if n != "none"), *IMAGES])
def test_gradient_in_eta(name, generator):
    augmentation, x, eta, noise = family(name, generator)

    def total(e):
        return (augmentation.transform(x, e, noise) ** 2 * x.unsqueeze(1)).sum()

    assert torch.autograd.gradcheck(total, eta.clone().requires_grad_())


def test_composition_applies_the_first_first(generator):
    x = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    both = Composed((ColumnShift(columns=(0,)), LogScale())).bind((1.0, 1.0, 1.0))
    eta = torch.tensor([1.0, 0.4], dtype=torch.float64)
    noise = torch.ones(2, 1, 2, dtype=torch.float64)
    shifted = x + torch.tensor([1.0, 0.0, 0.0])
    expected = shifted * LogScale().bind(SCALE).half_width.mixing(eta[1:]).exp()
    assert_close(both.transform(x, eta, noise)[:, 0], expected, rtol=1e-4, atol=1e-4)
    assert both.half_width.names == ("translation_0", "log_scale")
    assert AUGMENTATIONS["composed"].half_width.names == ("rotation", "translation_2", "rotation 2")


def test_in_units_acts_on_the_inputs_as_given(generator):
    part = RescaledAugmentation(Rotation2D(), (1.0, 2.0), (3.0, 0.5))
    mean, scale = torch.tensor(part.mean).double(), torch.tensor(part.scale).double()
    raw = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    noise = sample_stratified_noise(4, 5, 1, generator=generator, like=raw)
    eta = torch.tensor([0.8], dtype=torch.float64)
    inside = part.transform((raw - mean) / scale, eta, noise)
    assert_close(inside * scale + mean, Rotation2D().transform(raw, eta, noise))


class Wobble(nn.Module):
    """x -> x + eta * noise * x, with two noises."""

    def __init__(self, start=(0.1, 0.2)):
        super().__init__()
        self.eta = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x, eps):
        return x * (1.0 + eps * self.eta)


def test_any_module_with_eta(generator):
    part = ModuleAugmentation(Wobble()).bind((1.0, 1.0))
    x = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    noise = sample_stratified_noise(4, 3, 2, generator=generator, like=x)
    eta = torch.tensor([0.5, -0.7], dtype=torch.float64, requires_grad=True)
    out = part.transform(x, eta, noise)
    assert_close(out, x.unsqueeze(1) * (1.0 + noise * eta))
    assert torch.autograd.grad(out.sum(), eta)[0].abs().min() > 0
    assert part.half_width.names == ("Wobble_0", "Wobble_1")
    assert_close(part.half_width.start(), torch.tensor([0.1, 0.2], dtype=torch.float64))
    assert_close(amplitude(part.half_width, eta), torch.tensor([0.5, 0.7], dtype=torch.float64))
    assert_close(part.module.eta.detach(), part.half_width.start())  # the module is left alone


def test_lower_limits_hold_known_half_widths_up_and_leave_modules_free():
    joint = Composed((Rotation2D(), ModuleAugmentation(Wobble()))).bind((1.0, 1.0)).half_width
    assert_close(joint.lower_limit(), torch.tensor([0.05, 0.0, 0.0], dtype=torch.float64))
    correlated = Affine(image_shape=(1, 5, 4), correlated=True).half_width
    assert_close(correlated.lower_limit(), 0.05 * torch.eye(6, dtype=torch.float64).flatten())


@pytest.mark.parametrize("columns", [-0.5, "x", [0.5], [None]])
def test_columns_that_are_no_positions(columns):
    with pytest.raises(TypeError, match="columns of ColumnShift must be a sequence of int"):
        ColumnShift(columns).bind((1.0, 1.0))


@pytest.mark.parametrize("parts", [2.5, [1.0], None])
def test_parts_that_are_no_augmentations(parts):
    with pytest.raises(TypeError, match="parts must be a tuple of augmentations"):
        Composed(parts)


@pytest.mark.parametrize("shape", [float("inf"), (8.0, 8.0), (0, 8)])
def test_shapes_of_images_are_checked(shape):
    with pytest.raises(TypeError, match="image_shape must be"):
        Affine(image_shape=shape)


def test_modules_that_cant_be_learned():
    frozen = Wobble()
    frozen.eta.requires_grad_(False)
    with pytest.raises(ValueError, match=r"Wobble.eta is frozen.*Unfreeze"):
        ModuleAugmentation(frozen).bind((1.0, 1.0))
    with pytest.raises(ValueError, match="no parameter `eta`"):
        ModuleAugmentation(nn.Linear(2, 2)).bind((1.0, 1.0))
    with pytest.raises(ValueError, match="must be finite"):
        ModuleAugmentation(Wobble((float("nan"), 1.0))).bind((1.0, 1.0))
    with pytest.raises(TypeError, match=r"module must be a torch.nn.Module .* got <function"):
        ModuleAugmentation(lambda x, eps: x)
    squeezing = Wobble()
    squeezing.forward = lambda x, eps: x[:, :1]
    with pytest.raises(ValueError, match=r"shape it got, \(6, 2\), got \(6, 1\)"):
        ModuleAugmentation(squeezing).transform(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2, 3, 2)
        )
