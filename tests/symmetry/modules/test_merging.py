"""Trained copies brought onto one another: exact copies come back, functions stay."""

import copy

import pytest
import torch
from symmetry.modules.architectures import CASES, encoder, mlp
from torch import nn
from torch.testing import assert_close

from skbayes_sym.symmetry import Product, align_modules, merge_modules, symmetry_of
from skbayes_sym.symmetry.modules.merging import flatten_module, interpolate_modules


def copies(module, x, n, generator):
    """The module and others that compute the same, each moved by a random element."""
    group, moved = symmetry_of(module, x), [module]
    theta = nn.utils.parameters_to_vector(module.parameters()).detach()
    for _ in range(n - 1):
        other = copy.deepcopy(module)
        g = group.sample((), generator=generator)
        nn.utils.vector_to_parameters(group.act(g, theta), other.parameters())
        moved.append(other)
    return moved


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"mixer", "sort"}))
def test_a_copy_is_brought_back_from_anywhere(name, generator):
    """Also deep ones, where each factor's partners are out of order at first."""
    case = CASES[name]
    group = symmetry_of(case.make(), case.x)
    theta = torch.randn(3, group.layout.n_params, generator=generator, dtype=torch.float64)
    moved = group.act(group.sample((3,), generator=generator), theta)
    found, g = group.align(moved, theta)
    assert_close(found, theta, rtol=0, atol=0)
    assert_close(group.act(g, moved), found, rtol=0, atol=0)


def test_from_factors_one_by_one_is_no_worse_than_sweeps(generator):
    case = CASES["two layers, norm first"]
    group = symmetry_of(case.make(), case.x)
    theta, reference = torch.randn(2, 6, group.layout.n_params, generator=generator).double()
    ours, swept = (
        group.align(theta, reference)[0],
        Product(group.factors).align(theta, reference)[0],
    )
    gains = (swept - reference).norm(dim=-1) - (ours - reference).norm(dim=-1)
    assert bool((gains >= -1e-9).all())


@pytest.mark.long
def test_merging_copies_gives_the_function_back(generator):
    torch.manual_seed(0)
    x = torch.randn(6, 5, 9)
    module = encoder(16, 2, 24, 2).eval()
    parts = copies(module, x, 4, generator)
    before = [flatten_module(part) for part in parts]
    plain = interpolate_modules(parts[0], parts[1], 0.5)
    assert float((plain(x) - module(x)).detach().abs().max()) > 0.05
    merged = merge_modules(parts, x)
    assert_close(merged(x), module(x), rtol=0, atol=1e-5)
    for part, theta in zip(parts, before, strict=True):
        assert torch.equal(flatten_module(part), theta)  # what was given stays


def test_aligned_modules_compute_what_they_did_and_are_cycle_consistent(generator):
    """Three different networks: each keeps its function, and all are nearer to one another."""
    x, parts = torch.randn(7, 3, generator=generator), []
    for seed in range(3):
        torch.manual_seed(seed)
        parts.append(mlp(nn.Tanh()))
    moved = align_modules(parts, x)

    def spread(modules):
        return float(torch.stack([flatten_module(m) for m in modules]).var(dim=0).sum())

    for old, new in zip(parts, moved, strict=True):
        assert_close(new(x), old(x), rtol=0, atol=1e-6)
    assert torch.equal(flatten_module(moved[0]), flatten_module(parts[0]))
    assert spread(moved) < 0.9 * spread(parts)
    again = align_modules(moved, x)
    assert spread(again) <= spread(moved) * (1 + 1e-9)


def test_running_moments_move_along(generator):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    module(torch.randn(50, 3))  # moments of its own for every channel
    order, other = torch.randperm(6, generator=generator), copy.deepcopy(module)
    with torch.no_grad():
        for part in (other[0].weight, other[0].bias, other[1].weight, other[1].bias,
                     other[1].running_mean, other[1].running_var):  # fmt: skip
            part.copy_(part[order].clone())
        other[3].weight.copy_(other[3].weight[:, order].clone())
    x = torch.randn(5, 3)
    assert_close(merge_modules([module.eval(), other.eval()], x)(x), module(x), rtol=0, atol=1e-5)


def test_modules_must_be_of_one_architecture():
    others = [mlp(nn.Tanh()), nn.Sequential(nn.Linear(3, 2))]
    with pytest.raises(ValueError, match="the same names and shapes"):
        merge_modules(others, torch.zeros(2, 3))
