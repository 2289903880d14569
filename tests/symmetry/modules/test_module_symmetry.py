"""Groups of modules: their order, counted by hand, and that they leave the function unchanged."""

import re
import time
from math import exp, factorial, log
from operator import getitem

import pytest
import torch
from symmetry.modules.architectures import CASES, ROWS, conv_net, encoder, mlp, resnet18
from symmetry.modules.programs import Program
from torch import nn
from torch.testing import assert_close

from skbayes_sym.symmetry import symmetry_of
from skbayes_sym.symmetry.modules import graph_analysis, module_symmetry
from skbayes_sym.symmetry.modules.module_symmetry import RULES, derive_symmetry
from skbayes_sym.symmetry.modules.numerical_check import (
    NotCheckableError,
    build_output_function,
    largest_output_change,
)

ROUNDING = 1e-9  # of outputs, float64; a wrong element changes them by a part of their size
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def assert_laws(group, generator, n=4):
    """Of a group, at random elements; entries move without rounding."""
    theta = torch.randn(n, group.layout.n_params, generator=generator, dtype=torch.float64)
    g, h = (group.sample((n,), generator=generator) for _ in range(2))
    moved = group.act(g, theta)
    assert torch.equal(group.act(group.compose(h, g), theta), group.act(h, moved))
    assert torch.equal(group.act(group.inverse(g), moved), theta)
    noisy = moved + 0.01 * torch.randn(moved.shape, generator=generator, dtype=torch.float64)
    aligned, back = group.align(noisy, theta)
    assert torch.equal(group.act(back, noisy), aligned)
    before, after = ((t - theta).norm(dim=-1) for t in (noisy, aligned))
    assert bool((after <= before * (1 + 1e-12)).all())
    orbits = group.coordinate_orbits(group.layout.n_params)
    scale = torch.rand(len(orbits), generator=generator, dtype=torch.float64)[orbits]
    assert torch.equal(group.act(g, scale * theta), scale * moved)


@every_case
def test_order_function_and_laws(case, generator):
    torch.manual_seed(0)
    module = case.make()
    group = derive_symmetry(module, (case.x,))
    assert group.log_order == pytest.approx(case.log_order, abs=1e-9)
    x = case.x if case.x.dtype == torch.int64 else torch.randn(case.x.shape, generator=generator)
    assert largest_output_change(module, group.layout, (x,), group, n=5) < ROUNDING
    assert_laws(group, generator)


class SmallAttention(nn.Module):
    """Attention in few dimensions."""

    def __init__(self, d, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.out = nn.Linear(d, 1)

    def forward(self, x):
        return self.out(self.attention(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize(("d", "heads"), [(2, 1), (4, 2), (6, 3), (8, 4)])
def test_copies_of_attention_in_few_dimensions_align_exactly(d, heads, generator):
    module = SmallAttention(d, heads)
    group = derive_symmetry(module, (torch.zeros(2, 3, d),))
    theta = torch.randn(25, group.n_params, generator=generator, dtype=torch.float64)
    copies = group.act(group.sample((25,), generator=generator), theta)
    assert torch.equal(group.align(copies, theta)[0], theta)


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("buckets", "mixer")])
def test_copies_align_exactly(name, generator):
    """All cases but the one whose docstring promises less."""
    case = CASES[name]
    module = case.make()
    group = derive_symmetry(module, (case.x,))
    theta = torch.randn(4, group.n_params, generator=generator, dtype=torch.float64)
    copies = group.act(group.sample((4,), generator=generator), theta)
    assert torch.equal(group.align(copies, theta)[0], theta)


def check_program(seed, *, selections=False):
    module = Program(seed, selections)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, generator=generator)
    group = derive_symmetry(module, (x,))
    assert largest_output_change(module, group.layout, (x,), group, n=3) < ROUNDING, module.plan
    assert_laws(group, generator, n=2)
    return group.log_order > 0


@pytest.mark.parametrize(
    ("first", "n_programs"),
    [(0, 15), *(pytest.param(first, 100, marks=pytest.mark.long) for first in range(15, 515, 100))],
)
def test_random_programs(first, n_programs):
    """No false symmetry; most of them have some."""
    n_symmetric = sum(check_program(seed) for seed in range(first, first + n_programs))
    assert n_symmetric > 0.75 * n_programs


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 200, 100))
def test_random_programs_with_selections(first):
    """Programs that also select, move and order entries."""
    n_found = sum(check_program(seed, selections=True) for seed in range(first, first + 100))
    assert n_found > 70


def test_a_sum_over_stacked_tensors_equates_their_signs():
    """Also if blocks of their axes are new in every pass, because one of them was padded."""
    assert check_program(801949, selections=True)


@pytest.mark.slow
def test_many_random_programs_with_selections():
    assert sum(check_program(seed, selections=True) for seed in range(200, 2200)) > 1400


@pytest.mark.slow
def test_many_random_programs():
    assert sum(check_program(seed) for seed in range(500, 5000)) > 3400


def test_the_check_sees_a_group_of_another_module():
    """A tanh network's sign flips change a relu network."""
    group = symmetry_of(mlp(nn.Tanh()), ROWS)
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    assert largest_output_change(mlp(nn.ReLU()), group.layout, (x,), group) > 0.01


def test_a_false_factor_is_left_out_and_named(monkeypatch):
    rules = module_symmetry.RULES | {"relu": module_symmetry.RULES["tanh"]}
    monkeypatch.setattr(module_symmetry, "RULES", rules)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    x = torch.linspace(-1, 1, 12).reshape(4, 3)
    assert len(derive_symmetry(module, (x,)).factors) == 2
    group = symmetry_of(module, x)
    assert [factor.n_units for factor in group.factors] == [4]
    assert group.refused[0].startswith("5 units, exchanged")
    assert group.refused[0].endswith("which failed the numerical check")


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h) if h[0, 0] > 0 else self.b(h * h)


class State(Branch):
    """Counts its calls, and keeps a mean that it adds."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, x):
        h = torch.tanh(self.a(x))
        self.calls += 1
        self.mean.mul_(0.5).add_(h.mean(0))
        return self.b(h + self.mean)


class Weighted(Branch):
    """Units with weights that are no parameters."""

    def __init__(self):
        super().__init__()
        self.weights = torch.randn(4)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) * self.weights)


class Noisy(Branch):
    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) + torch.randn(4))


class Places(Branch):
    """Says which unit is largest: exchanging units changes that."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h) + h.argmax(1, keepdim=True)


def test_a_branch_on_values_is_refused():
    with pytest.raises(ValueError, match=r"Branch can't be traced.*branch on the"):
        symmetry_of(Branch(), ROWS)
    with pytest.raises(ValueError, match=r"check that module\(example_input\) runs"):
        symmetry_of(mlp(nn.Tanh()), torch.zeros(4, 5))


@pytest.mark.parametrize(
    ("kind", "elements"), [(State, 1), (Weighted, 16), (Noisy, 1), (Places, 1)]
)
def test_what_ties_units_to_their_places_makes_the_group_smaller(kind, elements, generator):
    torch.manual_seed(0)
    module, x = kind(), torch.randn(4, 3, generator=generator)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    group = symmetry_of(module, x)
    assert group.log_order == pytest.approx(torch.tensor(float(elements)).log().item())
    if kind is not Noisy:
        assert largest_output_change(module, group.layout, (x,), group, n=5) < ROUNDING
    assert_close(module.state_dict(), state, rtol=0, atol=0)  # nothing was written on it


class Float32(Branch):
    """Converts to float32, which a module with float64 parameters can't multiply by."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.float())))


class Dropped(Branch):
    """Zeros units at random."""

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h * torch.bernoulli(torch.full_like(h, 0.5)))


class Infinite(Branch):
    """Has infinite outputs."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) / 0.0


class Moved(Noisy):
    """Adds noise behind the units, so that they can still be exchanged."""

    def forward(self, x):
        return self.b(torch.tanh(self.a(x))) + torch.randn(1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Float32, "it fails in float64 (RuntimeError: "),
        (Moved, "its outputs are random"),
        (Infinite, "its outputs aren't finite"),
    ],
)
def test_a_module_that_cannot_be_checked_is_reported(kind, reason):
    torch.manual_seed(0)
    module = kind()
    group = symmetry_of(module, ROWS)
    assert group.log_order == pytest.approx(log(factorial(4) * 2**4))
    assert group.unchecked.startswith(reason)
    assert f"not checked numerically: {reason}" in group.report()
    with pytest.raises(NotCheckableError, match=re.escape(reason)):
        largest_output_change(module, group.layout, (ROWS,), group)
    assert symmetry_of(mlp(nn.Tanh()), ROWS).unchecked == ""


@torch.library.custom_op("skbayes_sym_tests::relu", mutates_args=())
def first_unit_only(x: torch.Tensor) -> torch.Tensor:
    """Relu of the first unit only; it has the name of an operation with another rule."""
    return torch.cat([x[:, :1].relu(), x[:, 1:]], dim=1)


@first_unit_only.register_fake
def _(x):
    return torch.empty_like(x)


class Custom(Branch):
    def forward(self, x):
        return self.b(first_unit_only(self.a(x)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Custom, "skbayes_sym_tests::relu"),
        (Noisy, "randn"),
        (Dropped, "rand"),
        (Places, "argmax along an axis of units"),
    ],
)
def test_every_operation_without_a_rule_is_named(kind, name):
    """Custom and random operations; the units that enter them stay in place."""
    torch.manual_seed(0)
    group = symmetry_of(kind(), ROWS)
    assert not any(factor.permutes for factor in group.factors)
    assert name in group.refused


@pytest.mark.parametrize("name", ["buckets", "encoder"])
def test_operations_are_either_known_or_refused(name):
    """Every operation of a trace has a rule, makes a constant, or is named."""
    case = CASES[name]
    module = case.make()
    refused = derive_symmetry(module, (case.x,)).refused
    for node in graph_analysis.trace(module, (case.x,)).nodes:
        if node.op != "call_function" or node.target is getitem or not node.all_input_nodes:
            continue
        operation = graph_analysis.operation(node)
        assert operation in {*RULES, *refused, "full_like", "copy_"}


@pytest.mark.long
def test_the_repr_is_short(generator):
    """At most ten lines of at most a hundred characters, which say how to see all."""
    group = symmetry_of(resnet18(8), torch.zeros(2, 3, 32, 32))
    lines = repr(group).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("Symmetry group of 12 factors, log |G| = ")
    assert lines[1].startswith("- 8 units, exchanged, each with 3 signs: rows of 0.weight")
    assert lines[-1].endswith("print(group.report()) shows all")


def test_running_moments_move_along_if_they_are_part_of_the_weights():
    """In eval mode they tell channels apart; as part of the weights they don't."""
    torch.manual_seed(0)
    module, x = conv_net().eval(), torch.randn(4, 1, 16, 16)
    fixed, moving = symmetry_of(module, x), symmetry_of(module, x, buffers=True)
    assert fixed.log_order < moving.log_order
    n_buffers = sum(buffer.numel() for buffer in module.buffers())
    assert moving.layout.n_params == fixed.layout.n_params + n_buffers
    for group in (fixed, moving):
        assert largest_output_change(module, group.layout, (x,), group, n=5) < ROUNDING


def test_report_names_tensors_operations_and_what_is_left_out():
    report = symmetry_of(CASES["encoder"].make(), CASES["encoder"].x).report()
    assert "20 units, exchanged: rows of layer.linear1.weight, layer.linear1.bias, " in report
    assert "(addmm, relu)" in report
    assert "; inside: 4 times 4 units, exchanged, each with a sign: parts of rows of" in report
    assert "refused: bucketize" in symmetry_of(CASES["buckets"].make(), ROWS).report()
    relu = symmetry_of(mlp(nn.ReLU()), ROWS)
    assert sum(rescaling.n for rescaling in relu.rescalings) == 16
    words = "8 positive scales, multiplied: rows of 0.weight, 0.bias; divided: columns of 2.weight"
    assert words in relu.report()


def test_rescalings_leave_the_function_unchanged():
    """Those of a relu network, one unit of the first layer as an example."""
    torch.manual_seed(0)
    module, x = mlp(nn.ReLU()), torch.linspace(-1, 1, 12).reshape(4, 3)
    layout = symmetry_of(module, x).layout
    theta = torch.cat([p.detach().flatten() for p in module.parameters()]).double()
    scaled = theta.clone()
    parts = layout.unflatten(scaled)
    parts["0.weight"][2] *= 3.0
    parts["0.bias"][2] *= 3.0
    parts["2.weight"][:, 2] /= 3.0
    function = build_output_function(module, layout, (x,))
    assert_close(function(scaled), function(theta), rtol=1e-12, atol=1e-12)


class GatedUnits(nn.Module):
    """d(silu(g x) * u x)."""

    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(3, 8), nn.Linear(3, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


def test_rescalings_name_only_tensors_that_scale():
    """The gate can't scale; biases scale with their layer's rows."""
    (gated,) = symmetry_of(GatedUnits(), ROWS).rescalings
    assert gated == (("rows of up.weight", "up.bias"), ("columns of down.weight",), 8)
    relu = symmetry_of(mlp(nn.ReLU()), ROWS).rescalings
    first, second = sorted(relu, key=lambda scale: scale.multiplied[0])
    assert first == (("rows of 0.weight", "0.bias"), ("columns of 2.weight",), 8)
    assert second == (("rows of 2.weight", "2.bias"), ("columns of 4.weight",), 8)


def test_products_of_other_signs_and_scales_are_not_counted(generator):
    """Exchanges and signs of 2 x 2 units: 2 of the halves, 4^2 and 2^2 inside; as images are."""
    module = nn.Sequential(
        nn.Linear(1, 4), nn.Tanh(), nn.Unflatten(1, (2, 2)),
        nn.Linear(2, 2, bias=False), nn.Flatten(), nn.Linear(4, 1),
    )  # fmt: skip
    group = symmetry_of(module, torch.linspace(-1, 1, 4).reshape(4, 1))
    theta = torch.randn(group.layout.n_params, generator=generator, dtype=torch.float64)
    images = group.act(group.sample((5000,), generator=generator), theta.expand(5000, -1))
    assert len(images.unique(dim=0)) == round(exp(group.log_order)) == 128
    scales = symmetry_of(CASES["group norm"].make(), CASES["group norm"].x).rescalings
    assert sorted(scale.n for scale in scales) == [4, 8]


LARGE = {
    "resnet-18": (lambda: resnet18(64), torch.zeros(2, 3, 32, 32), 11_173_962),
    "encoder": (lambda: encoder(256, 8, 1024, 4), torch.zeros(2, 5, 9), 3_162_371),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_cost_of_large_networks(name, generator):
    """Seconds of CPU, with room for a slow machine; what is reported is measured elsewhere."""
    make, x, n_params = LARGE[name]
    module = make()
    symmetry_of(mlp(nn.Tanh()), ROWS)  # imports
    start = time.process_time()
    group = symmetry_of(module, x)
    assert time.process_time() - start < 10.0
    assert group.layout.n_params == n_params
    theta = torch.randn(n_params, generator=generator)
    g = group.sample((), generator=generator)
    assert torch.equal(group.act(group.inverse(g), group.act(g, theta)), theta)
