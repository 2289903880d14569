"""Translations of a linear model's weights that its inputs don't see."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.symmetry.translation import Translation


@pytest.fixture
def group(generator):
    inputs = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    return Translation(torch.cat([inputs, inputs[:1]]))  # a repeated row adds no constraint


def draw(group, n, generator):
    theta, v = torch.randn(2, n, 6, generator=generator, dtype=torch.float64)
    return theta, group.element(v)


def test_outputs_stay_the_same(group, generator):
    theta, g = draw(group, 20, generator)
    moved = group.act(g, theta)
    assert_close(moved @ group.inputs.T, theta @ group.inputs.T, rtol=0, atol=1e-13)
    assert bool(((moved - theta).norm(dim=-1) > 0.1).all())


def test_group_laws(group, generator):
    theta, g = draw(group, 20, generator)
    _, h = draw(group, 20, generator)
    assert_close(group.act(group.inverse(g), group.act(g, theta)), theta, rtol=0, atol=1e-14)
    assert_close(group.act(group.identity(), theta), theta, rtol=0, atol=0)
    both = group.act(group.compose(g, h), theta)
    assert_close(both, group.act(g, group.act(h, theta)), rtol=0, atol=1e-14)
    assert_close(group.element(g), g, rtol=0, atol=1e-14)


def test_align_reaches_the_nearest_orbit_point(group, generator):
    theta, g = draw(group, 20, generator)
    reference = theta.flip(0)
    aligned, back = group.align(theta, reference)
    assert_close(aligned, group.act(back, theta), rtol=0, atol=0)
    best = (aligned - reference).norm(dim=-1)
    assert bool((best <= (group.act(g, theta) - reference).norm(dim=-1)).all())
    assert_close(group.align(aligned, reference)[0], aligned, rtol=0, atol=1e-14)
    assert_close(group.align(group.act(g, theta), theta)[0], theta, rtol=0, atol=1e-13)


def test_dimension_and_generators(group):
    generators = torch.stack([v for _, v in group.generators()])
    assert generators.shape == (3, 6)
    assert_close(generators @ generators.T, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-14)
    assert_close(generators @ group.inputs.T, torch.zeros(3, 4).double(), rtol=0, atol=1e-13)


def test_not_compact(group, generator):
    assert not group.is_compact
    assert group.log_order == float("inf")
    with pytest.raises(ValueError, match="no uniform distribution"):
        group.sample((), generator=generator)


def test_enough_rows_leave_nothing_free(generator):
    group = Translation(torch.randn(9, 6, generator=generator, dtype=torch.float64))
    assert group.is_compact
    assert group.log_order == 0.0
    assert group.generators() == []
