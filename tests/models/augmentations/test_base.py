"""Laws of all families, compositions, and units of the inputs."""

import pytest
import torch
from cases import AUGMENTATIONS
from models.augmentations.families import IMAGES, SCALE, family
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import (
    Composed,
    InRescaledUnits,
    amplitude,
    stratified_noise,
)
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D

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
    part = InRescaledUnits(Rotation2D(), (1.0, 2.0), (3.0, 0.5))
    mean, scale = torch.tensor(part.mean).double(), torch.tensor(part.scale).double()
    raw = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    noise = stratified_noise(4, 5, 1, generator=generator, like=raw)
    eta = torch.tensor([0.8], dtype=torch.float64)
    inside = part.transform((raw - mean) / scale, eta, noise)
    assert_close(inside * scale + mean, Rotation2D().transform(raw, eta, noise))
