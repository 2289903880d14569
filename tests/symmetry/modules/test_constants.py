"""What a module's group leaves alone, and what the report names: constants, single places."""

import copy
from itertools import pairwise
from math import factorial, log

import pytest
import torch
from torch import nn

from skbayes_sym import loss_barrier
from skbayes_sym.symmetry import align_modules, merge_modules, symmetry_of
from skbayes_sym.symmetry.modules.numerical_check import largest_output_change

ROWS = torch.linspace(-1.0, 1.0, 12).reshape(4, 3)


def signed(*widths):
    """Log order of exchanges and signs of layers of tanh units."""
    return sum(log(factorial(n)) + n * log(2.0) for n in widths)


class WideAndDeep(nn.Module):
    """Inputs beside hidden units, as one vector."""

    def __init__(self, n_inputs, join):
        super().__init__()
        self.hidden, self.join = nn.Linear(n_inputs, 5), join
        self.out = nn.Linear(join(torch.zeros(1, 5), torch.zeros(1, n_inputs)).shape[1], 1)

    def forward(self, x):
        return self.out(self.join(torch.tanh(self.hidden(x)), x))


JOINS = {
    "behind": lambda h, x: torch.cat([h, x[:, :1]], 1),
    "before": lambda h, x: torch.cat([x[:, :1], h], 1),
    "on both sides": lambda h, x: torch.cat([x[:, :1], h, x[:, :1]], 1),
    "two": lambda h, x: torch.cat([h, x[:, :1], x[:, :1]], 1),
    "a column of ones": lambda h, x: torch.cat([h, torch.ones(len(x), 1)], 1),
    "padded with ones": lambda h, x: nn.functional.pad(h, (0, 1), value=1.0),
    "padded with zeros": lambda h, x: nn.functional.pad(h, (1, 2)),
}


@pytest.mark.parametrize("n_inputs", [1, 3])
@pytest.mark.parametrize("join", JOINS.values(), ids=JOINS)
def test_a_part_of_one_place_leaves_the_others_free(join, n_inputs):
    group = symmetry_of(WideAndDeep(n_inputs, join), torch.zeros(4, n_inputs))
    # Weights of padded zeros are idle; the numerical check has passed for all of them.
    assert group.log_order >= signed(5) - 1e-9
    assert group.factors[0].n_units == 5
    assert group.factors[0].log_order == pytest.approx(signed(5))
    assert not group.refused


class Dense(nn.Module):
    """Every layer sees all before it."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.out = nn.Linear(1, 5), nn.Linear(6, 4), nn.Linear(10, 1)

    def forward(self, x):
        h = torch.cat([x, torch.tanh(self.a(x))], 1)
        return self.out(torch.cat([h, torch.tanh(self.b(h))], 1))


class Cut(nn.Module):
    """Takes six units apart."""

    def __init__(self, cut):
        super().__init__()
        self.hidden, self.out, self.cut = nn.Linear(3, 6), nn.Linear(5, 1), cut

    def forward(self, x):
        most, one = self.cut(torch.tanh(self.hidden(x)))
        return self.out(most) + one


CUTS = {
    "split": lambda h: h.split([5, 1], 1),
    "split the other way": lambda h: h.split([1, 5], 1)[::-1],
    "slices": lambda h: (h[:, :5], h[:, 5:]),
}


def test_parts_of_one_place_through_a_dense_net():
    group = symmetry_of(Dense(), torch.zeros(4, 1))
    assert group.log_order == pytest.approx(signed(5, 4))


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_one_unit_cut_off_leaves_the_others_free(cut):
    group = symmetry_of(Cut(cut), ROWS)
    assert group.log_order == pytest.approx(signed(5))


class Reordered(Cut):
    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        return self.out(h[:, torch.tensor([1, 0, 2, 4, 3])])


class Strided(Cut):
    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x))[:, ::2].repeat_interleave(2, 1)[:, :5])


@pytest.mark.parametrize(("kind", "reason"), [(Reordered, "index"), (Strided, "slice")])
def test_what_a_rule_cannot_follow_is_named(kind, reason):
    group = symmetry_of(kind(None), ROWS)
    assert group.log_order < signed(5)
    assert any(entry.startswith(reason) for entry in group.refused)


def test_a_norm_in_eval_mode_points_to_its_buffers():
    norm = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))
    assert "buffers=True" not in symmetry_of(norm, ROWS).report()
    fixed, moving = (symmetry_of(norm.eval(), ROWS, buffers=b) for b in (False, True))
    assert fixed.log_order < moving.log_order
    assert "1.running_mean and 1 more" in fixed.report()
    assert "buffers=True" in fixed.report()
    assert "buffers=True" in repr(fixed)
    assert "buffers=True" not in moving.report()


class Positions(nn.Module):
    """A table looked up by a buffer of integers, and a mask."""

    def __init__(self):
        super().__init__()
        self.table, self.hidden, self.out = nn.Embedding(6, 4), nn.Linear(4, 5), nn.Linear(5, 1)
        self.register_buffer("ids", torch.arange(6))
        self.register_buffer("mask", torch.tensor([True] * 5 + [False]))

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x + self.table(self.ids) * self.mask[:, None])))


def test_buffers_of_integers_stay_in_their_places(generator):
    torch.manual_seed(0)
    first, second = Positions(), Positions()
    x = torch.randn(3, 6, 4, generator=generator)
    group = symmetry_of(first, x, buffers=True)
    assert group.log_order == pytest.approx(signed(5))
    theta = torch.arange(1.0, group.n_params + 1)
    moved = group.act(group.sample((), generator=generator), theta)
    assert torch.equal(moved[-12:], theta[-12:])
    _, turned = align_modules([first, second], x)
    torch.testing.assert_close(turned(x), second(x))
    middle = merge_modules([first, second], x)
    assert torch.equal(middle.ids, first.ids)
    assert torch.equal(middle.mask, first.mask)
    barrier = loss_barrier(
        lambda module: float(module(x).square().mean()), first, second, example_input=x, n_points=3
    )
    assert barrier.distance_after <= barrier.distance_before
    second.ids = second.ids.flip(0)
    with pytest.raises(ValueError, match=r"ids, a buffer of integers.*modules\[1\]"):
        merge_modules([first, second], x)


class Masked(nn.Module):
    """Adds the units that a mask selects to the output."""

    def __init__(self, mask):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, 4), nn.Linear(4, 1)
        self.register_buffer("mask", torch.tensor(mask))

    def forward(self, x):
        h = torch.tanh(self.hidden(x))
        return self.out(h) + (h * self.mask).sum(1, keepdim=True)


def test_the_numerical_check_keeps_masks():
    """Exchanges change a module that selects one unit; with noise all masks would be True."""
    torch.manual_seed(0)
    module = Masked([True, False, False, False])
    layout = symmetry_of(module, ROWS, buffers=True).layout
    plain = nn.Sequential(module.hidden, nn.Tanh(), module.out)
    (exchanges,) = symmetry_of(plain, ROWS).factors
    exchanges = exchanges.subgroup(permute=True, signs=())
    assert largest_output_change(module, layout, (ROWS,), exchanges, n=3) > 0.01
    all_units = Masked([True] * 4)
    assert largest_output_change(all_units, layout, (ROWS,), exchanges, n=3) < 1e-9


def deep(*widths):
    torch.manual_seed(0)
    layers = [(nn.Linear(n, m), nn.Tanh()) for n, m in pairwise(widths)]
    return nn.Sequential(*[layer for pair in layers for layer in pair][:-1])


def test_frozen_parameters_are_no_weights_and_do_not_move(generator):
    module = deep(3, 6, 5, 1)
    module[0].requires_grad_(False)
    group = symmetry_of(module, ROWS)
    assert "0.weight" not in group.layout.shapes
    assert group.log_order == pytest.approx(signed(5))
    theta = nn.utils.parameters_to_vector(p for p in module.parameters() if p.requires_grad)
    turned = copy.deepcopy(module)
    moved = group.act(group.sample((), generator=generator), theta.detach())
    nn.utils.vector_to_parameters(moved, (p for p in turned.parameters() if p.requires_grad))
    torch.testing.assert_close(turned(ROWS), module(ROWS))
    module[2].bias.requires_grad_(False)
    assert symmetry_of(module, ROWS).log_order == 0.0


def test_merging_leaves_what_is_frozen_in_all():
    first, second = deep(3, 6, 5, 1), deep(3, 6, 5, 1)
    nn.init.normal_(second[2].weight)
    for module in (first, second):
        module[0].requires_grad_(False)
    _, turned = align_modules([first, second], ROWS)
    assert torch.equal(turned[0].weight, first[0].weight)
    torch.testing.assert_close(turned(ROWS), second(ROWS))
    for module in (first, second):  # as networks are that only predict
        module.requires_grad_(False)
    second[0].weight.data = second[0].weight.flip(0)
    _, turned = align_modules([first, second], ROWS)
    torch.testing.assert_close(turned(ROWS), second(ROWS))


class Packed(nn.Module):
    """Uses the batch sizes of a packed sequence, which are values."""

    def __init__(self):
        super().__init__()
        self.recurrent, self.out = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, x):
        lengths = torch.tensor([4, 2])
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        states = self.recurrent(packed)[0].data.split(packed.batch_sizes.tolist())
        return self.out(states[0])


@pytest.mark.parametrize(
    ("make", "x", "error", "message"),
    [
        (nn.ReLU, ROWS, ValueError, "ReLU has no parameters"),
        (lambda: nn.LazyLinear(3), ROWS, ValueError, "no shape yet"),
        (lambda: nn.Linear(3, 2, device="meta"), ROWS, ValueError, "meta device"),
        (lambda: nn.Linear(3, 2).requires_grad_(False), ROWS, ValueError, "are frozen"),
        (lambda: nn.Linear(3, 2, dtype=torch.complex64), ROWS, ValueError, "complex"),
        (lambda: nn.Linear(3, 2), None, TypeError, "example_input must be a tensor.*NoneType"),
        (lambda: nn.Linear(3, 2), [ROWS], TypeError, "got list"),
        (lambda: "net", ROWS, TypeError, "must be a torch.nn.Module, got str"),
        (Packed, torch.zeros(2, 4, 3), ValueError, "packed sequences"),
    ],
)
def test_modules_without_a_group_are_refused_in_words(make, x, error, message):
    with pytest.raises(error, match=message):
        symmetry_of(make(), x)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_layers_without_units_are_refused_in_words():
    with pytest.raises(ValueError, match=r"0\.weight of Sequential has shape \(0, 3\)"):
        symmetry_of(nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 1)), ROWS)


@pytest.mark.parametrize(
    ("modules", "error", "message"),
    [
        ([], ValueError, "at least one module"),
        (nn.Linear(3, 1), TypeError, "must be a list of modules"),
        ([nn.Linear(3, 1), nn.Linear(3, 2)], ValueError, r"modules\[1\] differ"),
    ],
)
def test_what_cannot_be_merged_is_refused_in_words(modules, error, message):
    with pytest.raises(error, match=message):
        merge_modules(modules, ROWS)
