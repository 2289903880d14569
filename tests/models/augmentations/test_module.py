"""Any torch module with a vector of half-widths."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from skbayes_sym.models.augmentations.augmentation import (
    Composed,
    ModuleAugmentation,
    amplitude,
    stratified_noise,
)
from skbayes_sym.models.augmentations.images import Affine
from skbayes_sym.models.augmentations.tabular import Rotation2D


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
    noise = stratified_noise(4, 3, 2, generator=generator, like=x)
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


def test_modules_that_cant_be_learned():
    frozen = Wobble()
    frozen.eta.requires_grad_(False)
    with pytest.raises(ValueError, match=r"Wobble.eta is frozen.*Unfreeze"):
        ModuleAugmentation(frozen).bind((1.0, 1.0))
    with pytest.raises(ValueError, match="no parameter `eta`"):
        ModuleAugmentation(nn.Linear(2, 2)).bind((1.0, 1.0))
    with pytest.raises(ValueError, match="must be finite"):
        ModuleAugmentation(Wobble((float("nan"), 1.0))).bind((1.0, 1.0))
    squeezing = Wobble()
    squeezing.forward = lambda x, eps: x[:, :1]
    with pytest.raises(ValueError, match=r"shape it got, \(6, 2\), got \(6, 1\)"):
        ModuleAugmentation(squeezing).transform(
            torch.ones(2, 2), torch.ones(2), torch.zeros(2, 3, 2)
        )
