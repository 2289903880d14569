"""Units: log ratios with a known diagonal, and the permanent's estimates, each on its side."""

from math import factorial, log, pi

import pytest
import torch
from gap_oracle import log_density_ratio
from torch.distributions import Normal
from torch.nn.functional import softplus
from torch.testing import assert_close

from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.models.networks.mlp import MLP, RELU, TANH
from skbayes_sym.symmetry.gaps.unit_gap import (
    Exact,
    Importance,
    InfoNCE,
    Soules,
    UnitGap,
    saturation_tolerance,
    unit_gap,
    unit_log_ratios,
)
from skbayes_sym.symmetry.gaps.unit_tables import UnitTable, disjoint_unit_blocks
from skbayes_sym.symmetry.units import Units


def units(d, p=1):
    return torch.arange(d * p).reshape(d, p)


def assert_mean(values, expected, tolerance=0.0):
    """Within 4 standard errors of the Monte Carlo mean."""
    error = 4 * float(values.std()) / len(values) ** 0.5 + tolerance + 1e-12
    assert abs(float(values.mean()) - expected) < error, (float(values.mean()), expected, error)


def spread_units(d, p, spread):
    i, k = torch.meshgrid(torch.arange(d), torch.arange(p), indexing="ij")
    loc = spread * torch.sin(1.0 + 3 * i + 5 * k).double()
    scale = (0.5 + 0.3 * torch.cos(2.0 * i + k)).double()
    return loc.flatten(), scale.flatten()


@pytest.mark.parametrize("narrow", [1.0, 1e-4, 1e-8])
def test_unit_log_ratios_are_zero_on_the_diagonal_however_narrow(narrow, generator):
    """Terms as large as (5 / narrow)^2 would have to cancel there."""
    loc, scale = spread_units(4, 3, 5.0)
    noise = torch.randn(10, 12, generator=generator, dtype=torch.float64)
    plain, flipped = (
        unit_log_ratios(group, loc, narrow * scale, noise).diagonal(dim1=-2, dim2=-1)
        for group in (Units(units(4, 3)), Units(units(4, 3), flip=True))
    )
    assert_close(plain, torch.zeros_like(plain), rtol=0, atol=0)
    sd = narrow * scale
    odd = (loc * (loc + sd * noise) / sd**2).view(10, 4, 3).sum(-1)
    # exp(-2 odd) has the rounding of its exponent, a few hundred times that of a number.
    assert_close(flipped, softplus(-2.0 * odd), rtol=1e-11, atol=0)


@pytest.mark.parametrize("flip", [False, True])
def test_unit_log_ratios_are_the_orbit_density_over_the_own_one(flip, generator):
    """The written-out gradient against autograd through densities written out."""
    d, p = 4, 3
    group = Units(units(d, p), flip=flip)
    noise = torch.randn(5, d * p, generator=generator).double()
    start = torch.randn(2, d * p, generator=generator).double()
    weights = torch.randn(5, d, d, generator=generator).double()
    results = []
    for written_out in (True, False):
        both = start.clone().requires_grad_()
        loc, scale = both[0], both[1].exp()
        if written_out:
            ratios = unit_log_ratios(group, loc, scale, noise)
        else:
            log_q = -0.5 * noise**2 - scale.log() - 0.5 * log(2 * pi)
            w = (loc + scale * noise)[:, group.index].unsqueeze(-2)
            factors = Normal(loc[group.index], scale[group.index])
            density = factors.log_prob(w).sum(-1)
            if flip:
                density = density.logaddexp(factors.log_prob(-w).sum(-1))
            ratios = density - log_q[:, group.index].sum(-1, keepdim=True)
        (gradient,) = torch.autograd.grad((ratios * weights).sum(), both)
        results.append((ratios.detach(), gradient))
    assert_close(*results, rtol=1e-10, atol=1e-10)


def assert_not_above(smaller, larger):
    """Mean of the paired difference >= 0, up to 3 standard errors and rounding."""
    difference = larger - smaller
    error = 3 * float(difference.std()) / len(difference) ** 0.5
    assert float(difference.mean()) > -error - 1e-9


def enumerate_log_density_ratio(group, loc, scale, noise):
    posterior = MeanFieldGaussian(loc.numpy(), scale.numpy())
    return log_density_ratio(group, posterior, loc + scale * noise)


@pytest.mark.parametrize("signed", [False, True], ids=["S_4", "B_3"])
def test_exact_equals_enumeration(signed, generator):
    d, p = (3, 4) if signed else (4, 3)
    group = Units(units(d, p), flip=signed)
    loc = torch.randn(d * p, generator=generator, dtype=torch.float64)
    scale = (0.3 * torch.randn(d * p, generator=generator, dtype=torch.float64)).exp()
    noise = torch.randn(50, d * p, generator=generator, dtype=torch.float64)
    expected = enumerate_log_density_ratio(group, loc, scale, noise)
    values = unit_gap(UnitTable.from_units(group), loc, scale, noise, Exact(), generator=generator)
    assert_close(values, expected, rtol=0, atol=1e-11)


@pytest.mark.long
@pytest.mark.kept("permutation-0.0", "permutation-5.0", "signed-0.3", "signed-5.0")
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize("activation", [RELU, TANH], ids=["permutation", "signed"])
def test_deep_network_is_sandwiched(spread, activation, generator):
    """Chain lower bound <= gap <= sum upper bound on a 2-3-3-1 net, against enumeration."""
    network = MLP(2, (3, 3), 1, activation)
    group, n = network.symmetry(), network.layout.n_params
    base = torch.randn(2, n, generator=generator, dtype=torch.float64)
    loc, scale = spread * base[0], (0.3 * base[1]).exp()
    noise = torch.randn(200, n, generator=generator, dtype=torch.float64)
    exact = enumerate_log_density_ratio(group, loc, scale, noise)
    lower = UnitGap(group, Exact()).values(loc, scale, noise, generator=generator)
    upper = UnitGap(group, Exact(), "upper").values(loc, scale, noise, generator=generator)
    assert_not_above(lower, exact)
    assert_not_above(exact, upper)
    for factor in group.factors:  # one layer alone is a lower bound too
        alone = unit_gap(
            UnitTable.from_units(factor), loc, scale, noise, Exact(), generator=generator
        )
        assert_not_above(alone, exact)
    if spread == 5.0:
        assert_mean(lower, float(exact.mean()), tolerance=0.05)


def test_disjoint_blocks_share_nothing():
    group = MLP(3, (4, 5, 2), 2, RELU).symmetry()
    positions = torch.cat([b.index.flatten() for b in disjoint_unit_blocks(group)])
    assert len(positions.unique()) == len(positions)
    assert [b.index.shape[1] for b in disjoint_unit_blocks(group)] == [3 + 1, 4 + 1, 5 + 1 + 2]


def test_a_misspelt_bound_is_refused():
    """Also if the permanents are exact, which fits any side."""
    with pytest.raises(ValueError, match=r'bound must be "lower" or "upper", got \'typo\''):
        UnitGap(Units(units(3, 2)), Exact(), bound="typo")


class Refused(Exact):
    """A lower bound that must not be asked for."""

    side = "lower"

    def __call__(self, log_weights, *, generator):
        raise AssertionError("evaluated though it was certified that log |G| is reached")


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("d", [11, 80])
def test_wide_saturated_layers_are_certified(d, flip, generator):
    """Soules' bound says so; at any width an estimate of the permanent would say the same."""
    p = 3
    loc, scale = spread_units(d, p, 50.0)
    posterior = MeanFieldGaussian(loc.numpy(), 1e-2 * scale.numpy())
    group = Units(units(d, p), flip=flip)
    found = UnitGap(group, Refused()).estimate(posterior, 20, generator=generator)
    assert group.log_order - saturation_tolerance(group.log_order) < found.value <= group.log_order


def test_wide_overlapping_layers_are_estimated(generator):
    """Two units alike among 70 far ones: log 2 is missing, no certificate can be had."""
    d, p = 72, 3
    loc, scale = spread_units(d, p, 50.0)
    loc[p : 2 * p], scale[p : 2 * p] = loc[:p], scale[:p]
    posterior = MeanFieldGaussian(loc.numpy(), 1e-2 * scale.numpy())
    group = Units(units(d, p))
    with pytest.raises(AssertionError, match="certified"):
        UnitGap(group, Refused()).estimate(posterior, 20, generator=generator)
    found = UnitGap(group, Importance(16)).estimate(posterior, 20, generator=generator)
    assert abs(group.log_order - log(2.0) - found.value) < 0.05


# log K - E log(1 + Binomial(K - 1, 1/d!)): what iid InfoNCE says of separated units
@pytest.mark.parametrize(
    ("d", "k", "expected"), [(2, 2, 0.346574), (3, 5, 1.192231), (5, 20, 2.889307)]
)
def test_saturated_infonce_iid(d, k, expected, generator):
    loc, one = 100.0 * torch.arange(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64)
    gap = UnitGap(Units(units(d)), InfoNCE(k))
    noise = torch.randn(500, d, generator=generator).double()
    assert_mean(gap.values(loc, one, noise, generator=generator), expected)


@pytest.mark.parametrize("n_permutations", [1, 2, 16])
def test_equal_weights_leave_nothing_to_estimate(n_permutations, generator):
    """Every assignment counts alike, so any number of them says the same: ``log d!``."""
    d = 4
    weights = torch.full((3, d, d), 0.7, dtype=torch.float64)
    expected = torch.full((3,), log(factorial(d)) + 0.7 * d, dtype=torch.float64)
    for estimate in (Importance, InfoNCE):
        found = estimate(n_permutations)(weights, generator=generator)
        assert_close(found, expected, atol=1e-6, rtol=0.0)


def test_sides_are_kept_apart():
    with pytest.raises(ValueError, match="exact or upper"):
        UnitGap(Units(units(3, 2)), Soules(), "upper")
