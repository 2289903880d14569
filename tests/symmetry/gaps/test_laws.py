"""What every gap keeps, whatever its posterior and group."""

import pytest
import torch
from cases import COMPACT_GAPS, FINITE_GAPS, GAPS, PATHWISE_GAPS
from gap_oracle import draws_of, log_density_ratio, moved, shifted
from torch.testing import assert_close

from skbayes_sym.base.posteriors import MeanFieldGaussian
from skbayes_sym.symmetry.gaps.unit_gap import Bethe, Exact, Soules, UnitGap
from skbayes_sym.symmetry.group import Trivial
from skbayes_sym.symmetry.units import Units

every_gap = pytest.mark.parametrize("case", GAPS.values(), ids=GAPS)
N_DRAWS = 1000


@pytest.mark.parametrize("permanent", [Exact(), Soules(), Bethe()], ids=repr)
@pytest.mark.parametrize("group", [Trivial(), Units(torch.arange(3).view(1, 3))], ids=repr)
def test_a_trivial_group_has_no_gap(permanent, group, generator):
    gap = UnitGap(group, permanent, "upper" if permanent.side == "upper" else "lower")
    posterior = MeanFieldGaussian([0.3, -1.0, 2.0], [0.1, 1.0, 3.0])
    assert gap.estimate(posterior, generator=generator).value == 0.0
    found = gap.value_and_gradients(posterior, generator=generator)
    for part in found:
        assert_close(part, torch.zeros_like(part), rtol=0, atol=1e-12)


@pytest.mark.parametrize("case", FINITE_GAPS.values(), ids=FINITE_GAPS)
def test_far_modes_give_the_order_of_the_group(case, generator):
    found = case.gap.estimate(shifted(case, 200.0), 50, generator=generator)
    assert found.value == pytest.approx(case.gap.group.log_order, abs=1e-9)


@pytest.mark.parametrize("case", COMPACT_GAPS.values(), ids=COMPACT_GAPS)
def test_the_side_is_true(case, generator):
    """Against an average over the whole group, at draws of its own."""
    noise = torch.randn(N_DRAWS, case.n_params, generator=generator, dtype=torch.float64)
    exact = log_density_ratio(case.gap.group, case.posterior, draws_of(case.posterior, noise))
    found = case.gap.estimate(case.posterior, N_DRAWS, generator=generator)
    slack = 4.0 * float(exact.var() / N_DRAWS + found.standard_error**2) ** 0.5
    difference = found.value - float(exact.mean())
    assert (case.gap.side == "lower") or difference > -slack
    assert (case.gap.side == "upper") or difference < slack
    assert 0.3 < found.value <= case.gap.group.log_order  # there is something to find


@every_gap
def test_the_seed_alone_decides(case, generator):
    first, again = (
        case.gap.estimate(case.posterior, 20, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    other = case.gap.estimate(case.posterior, 20, generator=generator)
    assert first == again
    assert (first.value != other.value) == case.gap.is_random
    assert (first.standard_error > 0.0) == case.gap.is_random


@pytest.mark.parametrize("case", PATHWISE_GAPS.values(), ids=PATHWISE_GAPS)
def test_gradients_are_those_of_the_value(case):
    """Central differences at the same draws: by one mean, and by one variance."""
    h = 1e-5

    def at(posterior):
        return case.gap.value_and_gradients(posterior, generator=torch.Generator().manual_seed(1))

    found = at(case.posterior)
    diagonal = found.added_precision
    if diagonal.shape != found.d_mean.shape:
        diagonal = diagonal.diagonal(dim1=-2, dim2=-1)
    d_mean, added = found.d_mean.flatten(), diagonal.flatten()
    for i in range(0, case.n_params, 2):
        ends = [float(at(case.stepped(i, mean=s)).value) for s in (h, -h)]
        assert float(d_mean[i]) == pytest.approx((ends[0] - ends[1]) / (2 * h), abs=1e-7)
        ends = [float(at(case.stepped(i, variance=s)).value) for s in (h, -h)]
        assert float(added[i]) == pytest.approx(-(ends[0] - ends[1]) / h, abs=1e-6)


@every_gap
def test_the_gap_of_a_moved_posterior_is_the_same(case, generator):
    group = case.gap.group
    # A group without a uniform law has generators.
    g = group.sample((), generator=generator) if group.is_compact else group.generators()[0][1]
    there = moved(case, g)
    found, other = (
        case.gap.estimate(q, N_DRAWS, generator=generator) for q in (case.posterior, there)
    )
    slack = 4.0 * (found.standard_error**2 + other.standard_error**2) ** 0.5
    assert abs(found.value - other.value) < slack + 1e-12
