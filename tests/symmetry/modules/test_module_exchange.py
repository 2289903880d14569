"""Exchanges of whole modules: their order, counted by hand, and that no false ones arise."""

import random
from math import lgamma, log

import pytest
import torch
import torch.nn.functional as F
from symmetry.modules.test_module_symmetry import ROUNDING, assert_laws
from torch import nn

from skbayes_sym import Chains, MCMCRegressor
from skbayes_sym.symmetry import symmetry_of
from skbayes_sym.symmetry.modules.module_symmetry import derive_symmetry
from skbayes_sym.symmetry.modules.numerical_check import largest_output_change

N_EXPERTS = 3
X = torch.linspace(-1.0, 1.0, 15).reshape(5, 3)


def units(n, n_signs=0):
    return lgamma(n + 1) + n * n_signs * log(2.0)


def expert(activation=nn.Tanh, n_outputs=2):
    return nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, n_outputs))


class Mixture(nn.Module):
    """Experts whose outputs are combined in one of several ways."""

    def __init__(self, combine, make=expert, n=N_EXPERTS):
        super().__init__()
        torch.manual_seed(0)
        self.combine = combine
        self.gate = nn.Linear(3, n)
        self.experts = nn.ModuleList([make() for _ in range(n)])
        self.out = nn.Linear(2, 2)
        self.wide = nn.Linear(2 * n, 2)

    def forward(self, x):
        return self.combine(self, torch.softmax(self.gate(x), -1), [e(x) for e in self.experts])


def weigh(m, w, outputs):
    return m.out(sum(w[:, i : i + 1] * output for i, output in enumerate(outputs)))


def weigh_stacked(m, w, outputs):
    return m.out(torch.einsum("ne,neo->no", w, torch.stack(outputs, 1)))


def weigh_the_best(m, w, outputs):
    best = w.topk(2, -1)
    kept = torch.zeros_like(w).scatter(1, best.indices, best.values)
    return m.out((kept[:, None] * torch.stack(outputs, -1)).sum(-1))


def concatenate(m, w, outputs):
    del w
    return m.wide(torch.cat(outputs, -1))


def average(m, w, outputs):
    del w
    return m.out(torch.stack(outputs).mean(0))


# Inside an expert four tanh units are exchanged with their signs. Its outputs are units, too, whose
# exchanges and signs are common to all experts, or of each expert if outputs are concatenated.
INSIDE = N_EXPERTS * units(4, 1)
SYMMETRIC = {
    "weighted": (weigh, units(3) + INSIDE + units(2, 1)),
    "stacked": (weigh_stacked, units(3) + INSIDE + units(2, 1)),
    "best": (weigh_the_best, units(3) + INSIDE + units(2, 1)),
    "concatenated": (concatenate, units(3) + INSIDE + 3 * units(2, 1)),
    "average": (average, units(3) + INSIDE + units(2, 1)),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_modules_are_exchanged(name, generator):
    combine, log_order = SYMMETRIC[name]
    module = Mixture(combine)
    group = symmetry_of(module, X)
    assert group.log_order == pytest.approx(log_order, abs=1e-9)
    assert "3 modules, exchanged: experts.0, experts.1, experts.2" in group.report()
    other_rows = torch.randn(7, 3, generator=generator)
    assert largest_output_change(module, group.layout, (other_rows,), group, n=5) < ROUNDING
    assert_laws(group, generator)
    if name != "concatenated":  # its experts have two sets of units with common weights
        theta = torch.randn(8, group.n_params, generator=generator, dtype=torch.float64)
        copies = group.act(group.sample((8,), generator=generator), theta)
        assert torch.equal(group.align(copies, theta)[0], theta)


def test_the_rows_of_the_gate_move_with_the_modules():
    report = symmetry_of(Mixture(weigh), X).report()
    assert "experts.2, rows of gate.weight, gate.bias; inside each: 4 units" in report


def test_modules_without_units_inside(generator):
    module = Mixture(weigh, lambda: nn.Linear(3, 2))
    group = symmetry_of(module, X)
    assert group.log_order == pytest.approx(units(3) + units(2, 1), abs=1e-9)
    assert_laws(group, generator)


def test_convolutions_and_norms_with_their_buffers(generator):
    """In eval mode running moments are exchanged if they are part of the weights."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.branches = nn.ModuleList(
                [nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3)) for _ in range(2)]
            )
            self.out = nn.Linear(6, 2)

        def forward(self, x):
            return self.out(torch.cat([F.relu(b(x)) for b in self.branches], 1).mean((2, 3)))

    module = Branches().eval()
    images = torch.randn(3, 1, 4, 4, generator=generator)
    # As constants the moments tell both channels and branches apart.
    assert "modules" not in symmetry_of(module, images).report()
    group = symmetry_of(module, images, buffers=True)
    assert group.log_order == pytest.approx(log(2.0) + 2 * units(3, 1), abs=1e-9)
    assert largest_output_change(module, group.layout, (images,), group, n=5) < ROUNDING
    assert_laws(group, generator)


def unequal_weights(m, w, outputs):
    del w
    return m.out(outputs[0] + 2.0 * outputs[1] + 3.0 * outputs[2])


def unused(m, w, outputs):
    del w
    return m.out(outputs[0])


def without_effect(m, w, outputs):
    return m.out(w[:, :1] + 0.0 * sum(outputs))


def product_and_sum(m, w, outputs):
    del w
    return m.out(outputs[0].exp() * outputs[1] + outputs[2])


@pytest.mark.parametrize("combine", [unequal_weights, unused, without_effect, product_and_sum])
def test_modules_that_are_treated_differently_stay(combine):
    assert "modules, exchanged" not in symmetry_of(Mixture(combine), X).report()


def test_modules_in_series_stay():
    module = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(3, 3), nn.GELU())])
    assert "modules" not in symmetry_of(module, X).report()


def test_constants_tell_modules_apart():
    """Frozen weights may be equal now, and differ later."""
    module = Mixture(weigh)
    with torch.no_grad():
        module.gate.weight.zero_()
        module.gate.bias.zero_()
    module.gate.requires_grad_(False)
    assert "modules" not in symmetry_of(module, X).report()


@pytest.mark.long
@pytest.mark.parametrize("first_scale", [1.0, 2.0])
@pytest.mark.filterwarnings("ignore")  # few draws
def test_chains_exchange_modules_only_under_a_prior_that_is_the_same_for_all(
    first_scale, generator
):
    """Units inside the modules are still exchanged if the first module has a scale of its own."""
    module = nn.Sequential(Mixture(weigh), nn.Linear(2, 1))
    scales = [
        torch.full((p.numel(),), first_scale if ".experts.0." in name else 1.0)
        for name, p in module.named_parameters()
    ]
    x = torch.randn(20, 3, generator=generator).numpy()
    model = MCMCRegressor(
        network=module, prior=torch.cat(scales).tolist(), n_chains=2, n_draws=5,
        sampler=Chains(n_warmup=5), random_state=0,
    ).fit(x, x[:, 0])  # fmt: skip
    exchange = units(3) if first_scale == 1.0 else 0.0
    expected = exchange + INSIDE + 2 * units(2, 1)
    assert model.symmetry_.log_order == pytest.approx(expected, abs=1e-9)
    names = {type(factor).__name__ for factor in model.symmetry_.factors}
    assert names == ({"Wreath", "Units"} if exchange else {"Units"})


class RandomMixture(nn.Module):
    """Modules side by side, of which some are treated alike."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        r = random.Random(seed)
        self.n = r.choice([2, 3, 4])
        activation = r.choice([nn.Tanh, nn.ReLU, nn.GELU])
        depth = r.choice([0, 1, 2])
        self.experts = nn.ModuleList([self.make(activation, depth) for _ in range(self.n)])
        self.gate = nn.Linear(3, self.n)
        self.shared = nn.Parameter(torch.randn(self.n, self.n))
        self.scales = nn.Parameter(torch.rand(self.n) + 0.5)
        self.wide = nn.Linear(self.n * self.n, 2)
        self.out = nn.Linear(self.n, 2)
        self.weights = r.choice(["none", "gate", "best", "scales", "mixed", "constant"])
        self.combine = r.choice(["sum", "max", "cat", "flat", "chain", "product", "difference"])
        self.entry = r.choice(["same", "cumulative", "part"])

    def make(self, activation, depth):
        hidden = [m for _ in range(depth) for m in (nn.Linear(3, 3), activation())]
        return nn.Sequential(*hidden, nn.Linear(3, self.n))

    def forward(self, x):
        inputs = {
            "same": lambda i: x, "cumulative": lambda i: x + 0.1 * i,
            "part": lambda i: x * self.scales[i],
        }[self.entry]  # fmt: skip
        outputs = torch.stack([e(inputs(i)) for i, e in enumerate(self.experts)], 1)
        gate = torch.softmax(self.gate(x), -1)
        best = gate.topk(1, -1)
        weights = {
            "none": lambda: torch.ones_like(gate), "gate": lambda: gate,
            "best": lambda: torch.zeros_like(gate).scatter(1, best.indices, best.values),
            "scales": lambda: self.scales.expand_as(gate), "mixed": lambda: gate @ self.shared,
            "constant": lambda: torch.arange(1.0, self.n + 1).to(x).expand_as(gate),
        }[self.weights]()  # fmt: skip
        outputs = outputs * weights[..., None]
        return {
            "sum": lambda: self.out(outputs.sum(1)), "max": lambda: self.out(outputs.amax(1)),
            "cat": lambda: self.wide(outputs.flatten(1)),
            "flat": lambda: self.wide(outputs.mT.flatten(1)),
            "chain": lambda: self.out(outputs.cumsum(1).tanh().sum(1)),
            "product": lambda: self.out(outputs.prod(1)),
            "difference": lambda: self.out(outputs[:, 0] - outputs[:, 1:].sum(1)),
        }[self.combine]()  # fmt: skip


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(60, 360, 60))]
)
def test_random_mixtures_have_no_false_symmetry(first):
    """Weights, inputs and elements are new; a sixth or more of the mixtures have an exchange."""
    n_exchanged = 0
    for seed in range(first, first + 60):
        module = RandomMixture(seed)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(6, 3, generator=generator)
        group = derive_symmetry(module, (x,))
        others = (3.0 * torch.randn(40, 3, generator=generator),)
        assert largest_output_change(module, group.layout, others, group, n=5) < ROUNDING, seed
        assert_laws(group, generator, n=2)
        n_exchanged += "modules, exchanged" in group.report()
    assert 10 < n_exchanged < 40
