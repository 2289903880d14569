"""Reference labelling: the best labels and the second best are those of all group elements."""

from itertools import permutations, product

import pytest
import torch
from symmetry.planted import CASES, planted
from torch.testing import assert_close

from skbayes_sym.symmetry.relabelling import (
    DiagonalReference,
    estimate_reference,
    improve_labelling,
    labelling_margin,
    orbit_mean_square,
)
from skbayes_sym.symmetry.units import Units


@pytest.mark.parametrize(
    ("permute", "flip"), [(True, True), (True, False), (False, True)],
    ids=["both", "permutations", "flips"],
)  # fmt: skip
def test_labels_and_margin_by_enumeration_of_the_group(permute, flip, generator):
    """Of all elements the labels are the best, and the margin is the gap to the second."""
    n, d, p = 25, 4, 3
    units = torch.randn(n, d, p, generator=generator, dtype=torch.float64)
    reference = DiagonalReference(
        torch.randn(d * p, generator=generator, dtype=torch.float64),
        torch.rand(d * p, generator=generator, dtype=torch.float64) + 0.2,
    )
    mean, variance = reference.select(torch.arange(d * p).reshape(d, p))
    density = torch.distributions.Normal(mean, variance.sqrt())
    orders = list(permutations(range(d))) if permute else [tuple(range(d))]
    signs = list(product([1.0, -1.0], repeat=d)) if flip else [(1.0,) * d]
    fits = [
        density.log_prob(units[:, list(pi)] * torch.tensor(s).unsqueeze(-1)).sum(dim=(-2, -1))
        for pi in orders
        for s in signs
    ]
    theta, group = units.flatten(1), Units(torch.arange(d * p).reshape(d, p), permute, flip)
    ranked = torch.stack(fits, dim=-1).sort(dim=-1, descending=True).values
    for thorough in (True, False):
        g, moved = improve_labelling(theta, group, reference, thorough=thorough)
        aligned = group.act(g, theta)
        reached = density.log_prob(aligned.unflatten(1, (d, p))).sum(dim=(-2, -1))
        before = density.log_prob(units).sum(dim=(-2, -1))
        assert bool((reached >= before - 1e-12).all())
        assert_close(moved, reached > before + 1e-6)
        if thorough:
            assert_close(reached, ranked[:, 0])
            margin = labelling_margin(aligned, group, reference)
            assert_close(margin, ranked[:, 0] - ranked[:, 1], rtol=0, atol=1e-10)
            shortfall = labelling_margin(theta, group, reference)[moved]
            assert_close(shortfall, (before - reached)[moved], rtol=0, atol=1e-10)


def test_mean_squares_are_pooled_over_coordinate_orbits(generator):
    case = CASES["5-4"]
    theta, draws = planted(case, 30, 0.5, generator)
    layout = case.network.layout
    pooled = layout.unflatten(orbit_mean_square(theta, case.group))
    mean_square = layout.unflatten(theta.square().mean(dim=0))
    assert_close(pooled["W1"], mean_square["W1"].mean(dim=0).expand(5, 3))
    assert_close(pooled["W2"], mean_square["W2"].mean().expand(4, 5))
    assert_close(pooled["b2"], mean_square["b2"].mean().expand(4))
    assert_close(orbit_mean_square(draws, case.group), orbit_mean_square(theta, case.group))
    assert_close(orbit_mean_square(0.0 * draws, case.group), torch.ones_like(draws[0]))


def test_variances_have_a_floor():
    """0.01 of the root mean square of the orbit, where draws don't vary."""
    theta = torch.tensor([[3.0, 5.0, 1.0], [3.0, 5.0, 2.0]], dtype=torch.float64)
    group = Units(torch.tensor([[0], [1]]))
    reference = estimate_reference(theta, orbit_mean_square(theta, group))
    expected = torch.tensor([17e-4, 17e-4, 0.25], dtype=torch.float64)
    assert_close(reference.variance, expected)
