"""Transformations against matrices written by hand, their noise and their half-widths."""

from math import pi

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import AUGMENTATIONS
from torch import nn
from torch.testing import assert_close

from skbayes_sym.models.augmentations.affine import AXIS, SIMILARITY, Affine, _exponential
from skbayes_sym.models.augmentations.base import Composed, InRescaledUnits
from skbayes_sym.models.augmentations.half_width import HalfWidth, amplitude, stratified_noise
from skbayes_sym.models.augmentations.module import ModuleAugmentation
from skbayes_sym.models.augmentations.tabular import ColumnShift, LogScale, Rotation2D


class Wobble(nn.Module):
    """x -> x + eta * noise * x, with two noises."""

    def __init__(self, start=(0.1, 0.2)):
        super().__init__()
        self.eta = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, x, eps):
        return x * (1.0 + eps * self.eta)


SCALE = (1.5, 2.0, 1.0)
IMAGES = {
    "similarity": Affine(image_shape=(2, 5, 4)),
    "axis": Affine(AXIS, image_shape=(2, 5, 4)),
    "correlated": Affine(SIMILARITY, image_shape=(2, 5, 4), correlated=True),
}
every_family = pytest.mark.parametrize("name", [*AUGMENTATIONS, *IMAGES])


def family(name, generator, n=4, s=3):
    """A bound family with inputs, parameters and noise."""
    augmentation = (AUGMENTATIONS | IMAGES)[name].bind(SCALE)
    shape = (2, 5, 4) if name in IMAGES else (3,)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    half_width = augmentation.half_width
    eta = 0.3 * torch.randn(half_width.n_params, generator=generator, dtype=torch.float64)
    noise = stratified_noise(n, s, half_width.n_noise, generator=generator, like=x)
    return augmentation, x, eta, noise


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


@pytest.mark.parametrize("name", [n for n in AUGMENTATIONS if n != "none"])
def test_gradient_in_eta(name, generator):
    augmentation, x, eta, noise = family(name, generator)

    def total(e):
        return (augmentation.transform(x, e, noise) ** 2 * x.unsqueeze(1)).sum()

    assert torch.autograd.gradcheck(total, eta.clone().requires_grad_())


def test_rotation_turns_the_named_columns_about_the_centre():
    x = torch.tensor([[1.0, 7.0, 0.0]], dtype=torch.float64)
    out = Rotation2D(columns=(0, 2)).transform(
        x, torch.tensor([pi / 2 * 1.0]).double(), torch.ones(1, 1, 1).double()
    )[0, 0]
    angle = float(Rotation2D().half_width.mixing(torch.tensor([pi / 2]).double()))
    assert_close(out, torch.tensor([np.cos(angle), 7.0, np.sin(angle)]))
    about = Rotation2D(centre=(1.0, 7.0)).transform(
        x, torch.tensor([2.0]).double(), torch.ones(1, 1, 1).double()
    )
    assert_close(about[0], x)


def test_translation_is_in_the_columns_unit():
    part = ColumnShift(columns=(1,)).bind(SCALE)
    assert part.half_width.names == ("translation_1",)
    assert_close(amplitude(part.half_width, torch.tensor([0.5])), torch.tensor([1.0]))
    x = torch.zeros(1, 3)
    out = part.transform(x, torch.tensor([0.5]), torch.full((1, 1, 1), -1.0))
    assert_close(out[0, 0], torch.tensor([0.0, -1.0, 0.0]))


def test_log_scale_is_joint_or_column_by_column():
    x = torch.ones(1, 3, dtype=torch.float64)
    noise = torch.ones(1, 1, 1, dtype=torch.float64)
    joint = LogScale().bind(SCALE).transform(x, torch.tensor([0.1]).double(), noise)
    assert_close(joint[0, 0], torch.full((3,), np.exp(0.1)).double(), rtol=1e-6, atol=0.0)
    own = LogScale(joint=False).bind(SCALE)
    assert own.half_width.names == ("log_scale_0", "log_scale_1", "log_scale_2")
    assert LogScale().bind(SCALE).half_width.names == ("log_scale",)


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


@pytest.mark.parametrize(
    ("augmentation", "message"),
    [
        (Rotation2D(columns=(0, 3)), r"between 0 and 2.*\(0, 3\).*3 columns"),
        (Rotation2D(columns=(1, 1)), "different columns"),
        (Rotation2D(columns=(0, 1, 2)), "two columns"),
        (ColumnShift(columns=(-1,)), "between 0 and 2"),
        (LogScale(columns=(7,)), "between 0 and 2"),
    ],
)
def test_columns_that_dont_exist(augmentation, message):
    with pytest.raises(ValueError, match=message):
        augmentation.bind(SCALE)


# The affine family


def test_exponential_and_its_integral_by_the_general_routine(generator):
    m = 1.5 * torch.randn(300, 2, 2, generator=generator, dtype=torch.float64)
    m[0] = 0.0
    m[1] = torch.tensor([[0.0, -pi], [pi, 0.0]])
    exponential, integral = _exponential(m)
    assert_close(exponential, torch.matrix_exp(m), rtol=1e-10, atol=1e-11)
    # exp([M t; 0 0]) = [exp(M), integral t; 0 1]
    shift = torch.randn(300, 2, generator=generator, dtype=torch.float64)
    whole = torch.zeros(300, 3, 3, dtype=torch.float64)
    whole[:, :2, :2], whole[:, :2, 2] = m, shift
    expected = torch.matrix_exp(whole)[:, :2, 2]
    assert_close((integral @ shift.unsqueeze(-1)).squeeze(-1), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("basis", [AXIS, SIMILARITY], ids=["axis", "similarity"])
def test_matrices_of_a_square_image_are_the_papers(basis, generator):
    z = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    generators = torch.zeros(6, 3, 3, dtype=torch.float64)
    generators[:, :2, :2] = torch.tensor(basis.linear).reshape(6, 2, 2)
    generators[0, 0, 2] = generators[1, 1, 2] = 1.0
    expected = torch.matrix_exp(torch.einsum("ni,ijk->njk", z, generators))[:, :2]
    found = Affine(basis, image_shape=(1, 8, 8)).matrices(z)
    assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_displacements_by_averaging_over_the_square():
    side = (2.0 * torch.arange(200.0, dtype=torch.float64) + 1.0) / 200 - 1.0
    v, u = torch.meshgrid(side, side, indexing="ij")
    points = torch.stack([u.flatten(), v.flatten()])
    for basis in (AXIS, SIMILARITY):
        moves = [
            torch.ones(1, 40_000).double() if i < 2
            else torch.tensor(m, dtype=torch.float64).reshape(2, 2) @ points
            for i, m in enumerate(basis.linear)
        ]  # fmt: skip
        found = torch.tensor([float((d**2).sum(0).mean()) for d in moves])
        # Midpoint rule on 200 x 200 points: error of order 1/200^2.
        assert_close(found, torch.tensor(basis.displacement), rtol=1e-4, atol=0.0)
        for i in range(2, 6):  # orthogonal in displacement
            for j in range(2, i):
                assert abs(float((moves[i] * moves[j]).sum(0).mean())) < 1e-10


def test_a_rotation_by_a_right_angle_moves_pixels_exactly(generator):
    x = torch.rand(1, 1, 6, 6, generator=generator, dtype=torch.float64)
    # The parameter whose capped half-width is pi / 2: l = r (1 + (r / pi)^4)^(-1/4).
    r = (pi / 2) / (1 - 0.5**4) ** 0.25
    eta = torch.zeros(6, dtype=torch.float64)
    eta[2] = r
    noise = torch.ones(1, 1, 6, dtype=torch.float64)
    out = Affine(image_shape=(1, 6, 6)).transform(x, eta, noise)[:, 0]
    assert_close(out, torch.rot90(x, 1, (2, 3)), rtol=1e-9, atol=1e-9)


def test_a_rotation_of_a_wide_image_keeps_angles():
    """A quarter turn maps the middle of the right edge to that of the lower, in pixels."""
    z = torch.zeros(1, 6, dtype=torch.float64)
    z[0, 2] = pi / 2
    a = Affine(image_shape=(1, 10, 20)).matrices(z)[0, :, :2]
    half = torch.tensor([10.0, 5.0], dtype=torch.float64)  # pixels per unit
    in_pixels = half[:, None] * a / half
    expected = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert_close(in_pixels, expected, rtol=0.0, atol=1e-12)


def test_translation_of_one_is_half_the_image():
    x = torch.rand(1, 1, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = torch.zeros(1, 6, dtype=torch.float64)
    z[0, 0] = 1.0
    matrices = Affine(image_shape=(1, 8, 12)).matrices(z)
    assert_close(matrices[0, :, 2], torch.tensor([1.0, 0.0], dtype=torch.float64))
    grid = F.affine_grid(matrices, (1, 1, 8, 12), align_corners=False)
    moved = F.grid_sample(x, grid, align_corners=False)
    assert_close(moved[..., :6], x[..., 6:])
    assert float(moved[..., 6:].abs().max()) < 1e-12


def test_grid_is_that_of_the_library(generator):
    augmentation, x, eta, noise = family("similarity", generator)
    matrices = augmentation.matrices(noise @ augmentation.half_width.mixing(eta).T)
    expected = torch.stack(
        [
            F.grid_sample(
                x, F.affine_grid(matrices[:, s], x.shape, align_corners=False), align_corners=False
            )
            for s in range(3)
        ],
        1,
    )
    assert_close(augmentation.transform(x, eta, noise), expected)
    flat = augmentation.transform(x.flatten(1), eta, noise)  # images as rows of a table
    assert_close(flat, expected.flatten(2))


# Noise and half-widths


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


def test_correlated_extents_hold_the_diagonal_ones(generator):
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


def test_off_diagonal_entries_are_damped():
    half_width = HalfWidth(("a", "b"), (1e6, 1e6), correlated=True)
    mixing = half_width.mixing(torch.ones(4, dtype=torch.float64))
    expected = torch.tensor([[1.0, 0.2], [0.2, 1.0]], dtype=torch.float64)
    assert_close(mixing, expected)


# Modules


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


def test_lower_limits_hold_known_extents_up_and_leave_modules_free():
    joint = Composed((Rotation2D(), ModuleAugmentation(Wobble()))).bind((1.0, 1.0)).half_width
    assert_close(joint.lower_limit(), torch.tensor([0.05, 0.0, 0.0], dtype=torch.float64))
    correlated = Affine(SIMILARITY, image_shape=(1, 5, 4), correlated=True).half_width
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
