"""The laws of a symmetry group, over every group in cases.py."""

from math import exp, factorial, isfinite, lgamma, log

import pytest
import torch
from cases import GROUPS
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, RELU, TANH

every_group = pytest.mark.parametrize("case", GROUPS.values(), ids=GROUPS)
FINITE = {name: case for name, case in GROUPS.items() if isfinite(case.group.log_order)}


def rounding(case):
    """Finite groups only move entries and signs; a rotation rounds."""
    return 0.0 if isfinite(case.group.log_order) else 1e-13


def draw(case, n, generator):
    theta = torch.randn(n, case.network.layout.n_params, generator=generator, dtype=torch.float64)
    return theta, case.group.sample((n,), generator=generator)


@every_group
def test_the_function_stays_the_same(case, generator):
    theta, g = draw(case, 20, generator)
    x = torch.randn(7, case.network.n_inputs, generator=generator, dtype=torch.float64)
    outputs = case.network.forward(theta, x)
    assert_close(case.network.forward(case.group.act(g, theta), x), outputs, rtol=0, atol=1e-12)


@every_group
def test_inverse_and_identity(case, generator):
    theta, g = draw(case, 20, generator)
    group = case.group
    back = group.act(group.inverse(g), group.act(g, theta))
    assert_close(back, theta, rtol=0, atol=rounding(case))
    assert_close(group.act(group.identity(), theta), theta, rtol=0, atol=0)


@every_group
def test_compose_acts_from_the_right(case, generator):
    theta, g = draw(case, 20, generator)
    h = case.group.sample((20,), generator=generator)
    both = case.group.act(case.group.compose(g, h), theta)
    expected = case.group.act(g, case.group.act(h, theta))
    assert_close(both, expected, rtol=0, atol=rounding(case))


@every_group
def test_action_keeps_the_norm(case, generator):
    theta, g = draw(case, 20, generator)
    moved = case.group.act(g, theta)
    assert_close(moved.norm(dim=-1), theta.norm(dim=-1), rtol=1e-14, atol=rounding(case))


@every_group
def test_batch_axes_broadcast(case, generator):
    theta = torch.randn(2, 3, case.network.layout.n_params, generator=generator)
    g = case.group.sample((2, 3), generator=generator)
    assert case.group.act(g, theta).shape == theta.shape
    one = case.group.sample((), generator=generator)
    moved = case.group.act(one, theta)
    assert_close(moved[1, 2], case.group.act(one, theta[1, 2]))


@pytest.mark.parametrize("case", FINITE.values(), ids=FINITE)
def test_sampling_is_uniform(case, generator):
    order = round(exp(case.group.log_order))
    n = max(6000, 10 * order)
    marker = torch.arange(1.0, case.network.layout.n_params + 1, dtype=torch.float64)
    orbit = case.group.act(case.group.sample((n,), generator=generator), marker.expand(n, -1))
    points, counts = orbit.unique(dim=0, return_counts=True)
    # Counts are Poisson of mean n / order at most; the chance of missing a point at all is e^-10.
    assert order * (1 - 1e-3) <= len(points) <= order
    # Pearson's statistic has mean order - 1 and variance at most 2 (order - 1).
    expected = n / order
    misfit = float((counts - expected).square().sum()) / expected
    misfit += (order - len(points)) * expected
    assert abs(misfit - (order - 1)) <= 5 * (2 * (order - 1)) ** 0.5 + 1e-9


@every_group
def test_scales_of_coordinate_orbits_commute_with_the_group(case, generator):
    theta, g = draw(case, 20, generator)
    orbits = case.group.coordinate_orbits(theta.shape[-1])
    scale = torch.rand(theta.shape[-1], generator=generator, dtype=torch.float64)[orbits]
    scaled = case.group.act(g, scale * theta)
    assert_close(scaled, scale * case.group.act(g, theta), rtol=0, atol=rounding(case))
    assert torch.equal(orbits[orbits], orbits)  # each named by its first entry
    assert bool((orbits <= torch.arange(len(orbits))).all())


@every_group
def test_no_finer_division_commutes(case, generator):
    """A scale that differs within an orbit is moved by some element."""
    theta, g = draw(case, 200, generator)
    orbits = case.group.coordinate_orbits(theta.shape[-1])
    for orbit in orbits.unique():
        (members,) = (orbits == orbit).nonzero(as_tuple=True)
        if len(members) > 1:
            scale = torch.ones(theta.shape[-1], dtype=torch.float64)
            scale[members[: len(members) // 2]] = 2.0
            scaled = case.group.act(g, scale * theta)
            assert not torch.allclose(scaled, scale * case.group.act(g, theta))


@every_group
def test_align_reaches_the_orbit_point_nearest(case, generator):
    theta, g = draw(case, 20, generator)
    noise = 0.01 * torch.randn(theta.shape, generator=generator, dtype=torch.float64)
    moved = case.group.act(g, theta) + noise
    aligned, back = case.group.align(moved, theta)
    assert_close(aligned, case.group.act(back, moved), rtol=0, atol=0)
    if len(case.group.factors) < 2:  # one factor is solved exactly; several to a local optimum
        assert_close(aligned, theta, rtol=0, atol=0.1)
    assert bool(((aligned - theta).norm(dim=-1) <= (moved - theta).norm(dim=-1) + 1e-12).all())


EXACTLY_ALIGNED = [
    "permutation", "signed", "sign-flip", "orthogonal", "two-signs", "sets", "wreath",
]  # fmt: skip


@pytest.mark.parametrize("case", [GROUPS[name] for name in EXACTLY_ALIGNED], ids=EXACTLY_ALIGNED)
def test_align_beats_every_other_orbit_point(case, generator):
    theta, _ = draw(case, 5, generator)
    reference = theta.flip(0)
    aligned, _ = case.group.align(theta, reference)
    best = (aligned - reference).norm(dim=-1)
    for _ in range(300):
        g = case.group.sample((5,), generator=generator)
        assert bool((best <= (case.group.act(g, theta) - reference).norm(dim=-1) + 1e-12).all())


def test_orders():
    assert MLP(2, (5,), 1, RELU).symmetry().log_order == pytest.approx(lgamma(6))
    assert MLP(2, (5, 3), 1, TANH).symmetry().log_order == pytest.approx(
        log(factorial(5) * factorial(3)) + 8 * log(2)
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [GROUPS[n] for n in ("permutation", "signed", "sign-flip", "two-signs", "pairs", "wreath")],
)
def test_generators_generate(case):
    """Products of the named generators reach the whole orbit of one point."""
    start = torch.arange(1.0, case.network.layout.n_params + 1, dtype=torch.float64)
    seen, frontier = {tuple(start.tolist())}, [start]
    while frontier:
        theta = frontier.pop()
        for _, g in case.group.generators():
            moved = case.group.act(g, theta)
            if tuple(moved.tolist()) not in seen:
                seen.add(tuple(moved.tolist()))
                frontier.append(moved)
    assert log(len(seen)) == pytest.approx(case.group.log_order)
