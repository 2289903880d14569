"""Steps of the coordinate descent: elements and draws agree, and no step fits worse."""

import pytest
import torch
from symmetry.planted import CASES, Case, in_order, planted, product_of
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, TANH
from skbayes_sym.symmetry.relabelling import (
    Labelling,
    estimate_reference,
    label_margin,
    labelling_margin,
    orbit_mean_square,
    relabel,
)
from skbayes_sym.symmetry.units import gather_units, unit_layers

every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_draws_are_where_their_elements_lead(case, generator):
    _, draws = planted(case, 30, 0.5, generator)
    given = Labelling.from_draws(draws, case.group)
    assert_close(given.theta, draws, rtol=0, atol=0)
    reference = given.reference()
    anew = given.label_forward(reference)
    mask = torch.rand(30, generator=generator) < 0.5
    for labelling in (anew, anew.descend(reference, 10), anew.select(mask, given)):
        moved = product_of(case).act(labelling.elements, draws)
        assert_close(labelling.theta, moved, rtol=0, atol=0)


@every_case
@pytest.mark.parametrize("thorough", [True, False])
def test_every_draw_fits_at_least_as_well(case, thorough, generator):
    _, draws = planted(case, 30, 0.5, generator)
    given = Labelling.from_draws(draws, case.group)
    reference = given.reference()
    improved, moved = given.improve(reference, thorough=thorough)
    before, after = given.log_prob(reference), improved.log_prob(reference)
    assert bool((after[moved] > before[moved]).all())
    assert_close(improved.theta[~moved], draws[~moved], rtol=0, atol=0)


@every_case
def test_planted_labels_come_back_from_the_planted_reference(case, generator):
    theta, draws = planted(case, 30, 0.02, generator)
    reference = Labelling.from_draws(theta, case.group).reference()
    given = Labelling.from_draws(draws, case.group)
    assert_close(given.label_forward(reference).descend(reference, 10).theta, theta, rtol=0, atol=0)


def case_of(*network):
    network = MLP(*network)
    return Case(network, network.symmetry())


def run(case, draws, n_starts=4, max_sweeps=100, seed=0):
    return relabel(
        draws, case.group, n_starts=n_starts, max_sweeps=max_sweeps,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def scatter(case, theta):
    """Mean variance of the entries of hidden units."""
    entries = torch.cat([layer.index.flatten() for layer in unit_layers(case.group)]).unique()
    return float(theta[:, entries].var(dim=0, correction=0).mean())


@pytest.mark.long
@pytest.mark.parametrize(("noise", "slack"), [(0.3, 0.10), (0.5, 0.25)])
def test_planted_labels_of_a_deep_net_come_back(noise, slack):
    """The targets for 3 x 16 units and 5 inputs; from one start, too."""
    case = case_of(5, (16, 16, 16), 1, TANH)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        theta, draws = planted(case, 200, noise, generator)
        found = run(case, draws, n_starts=1)
        assert found.n_changing == 0
        assert scatter(case, found.theta) == pytest.approx(scatter(case, theta), rel=slack)
        assert scatter(case, draws) > 2 * scatter(case, theta)


@pytest.mark.long
def test_draws_stuck_between_layers_are_labelled_anew():
    """One input anchors 16 units badly: layer by layer alone ends at a scatter of .094."""
    case, generator = case_of(1, (16, 16, 16), 1, TANH), torch.Generator().manual_seed(0)
    theta, draws = planted(case, 200, 0.3, generator)
    found = run(case, draws, n_starts=1)
    assert_close(found.theta, in_order(case, theta), rtol=0, atol=0)


@every_case
def test_well_separated_draws_come_back_exactly(case):
    theta, draws = planted(case, 60, 0.02, torch.Generator().manual_seed(1))
    found = run(case, draws)
    assert_close(found.theta, in_order(case, theta), rtol=0, atol=0)
    moved = product_of(case).act(found.elements, draws)
    assert_close(found.theta, moved, rtol=0, atol=0)


@pytest.mark.kept("0.1-relu-3-5", "0.1-6", "0.6-mixed", "0.6-3")
@every_case
@pytest.mark.parametrize("noise", [0.1, 0.6])
def test_other_copies_of_the_draws_give_the_same_result(case, noise, generator):
    """Whichever copy a sampler visited, each draw its own or all the same one."""
    _, draws = planted(case, 80, noise, generator)
    group, expected = case.group, run(case, draws).theta
    for shape in [(), (80,)]:
        copies = group.act(group.sample(shape, generator=generator), draws)
        assert_close(run(case, copies).theta, expected, rtol=0, atol=0)
    assert_close(run(case, expected).theta, expected, rtol=0, atol=0)  # idempotent


def test_units_of_measurement_do_not_matter(generator):
    case = CASES["6"]
    _, draws = planted(case, 80, 0.3, generator)
    scales = case.network.layout.flatten(
        {
            "W1": torch.tensor([1e-3, 50.0]).expand(6, 2),
            "b1": torch.full((6,), 7.0),
            "W2": torch.tensor([[1e5], [0.3]]).expand(2, 6),
            "b2": torch.ones(2),
        }
    ).double()
    expected, found = run(case, draws), run(case, draws * scales)
    units = gather_units(found.theta / scales, case.group.factors[0].index)
    for g in gather_units(expected.theta, case.group.factors[0].index).sum(-1).abs().T:
        gaps = (units.sum(-1).abs() - g.unsqueeze(-1)).abs().amax(dim=0)
        assert float(gaps.min()) < 1e-12  # the same units of every draw sit together


@pytest.mark.long
def test_signs_stay_where_they_are_not_free(generator):
    case = CASES["relu-3-5"]
    _, draws = planted(case, 60, 1.0, generator)
    assert all(bool((g.sign == 1).all()) for g in run(case, draws).elements)
    _, draws = planted(CASES["mixed"], 60, 1.0, generator)
    first, second = run(CASES["mixed"], draws).elements
    assert bool((first.sign == -1).any())
    assert bool((second.sign == 1).all())
    _, draws = planted(CASES["flips-only"], 60, 1.0, generator)
    (flips,) = run(CASES["flips-only"], draws).elements
    assert bool((flips.permutation == torch.arange(4)).all())


def test_no_single_change_of_labels_lowers_the_cost(generator):
    case = CASES["6"]
    _, draws = planted(case, 150, 1.0, generator)
    found = run(case, draws, max_sweeps=1000)
    assert found.n_changing == 0
    assert bool((label_margin(found.theta, case.group) >= 0).all())


def test_margins_tell_separated_from_duplicated_units(generator):
    case, index = CASES["6"], CASES["6"].group.factors[0].index
    theta, _ = planted(case, 60, 0.02, generator)
    assert float(label_margin(theta, case.group).min()) > 10.0
    theta[7, index[2]] = theta[7, index[4]]  # a draw with two equal units
    theta[8, index[3]] = 0.0  # ... and one with a unit that is its own negative
    found = run(case, theta)
    margin = label_margin(found.theta, case.group)
    assert_close(margin[[7, 8]], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    others = torch.ones(60, dtype=torch.bool)
    others[[7, 8]] = False
    assert float(margin[others].min()) > 1.0


def test_margin_is_that_of_the_least_decided_layer(generator):
    case = CASES["5-4"]
    theta, _ = planted(case, 50, 0.3, generator)
    reference = estimate_reference(theta, orbit_mean_square(theta, case.group))
    each = [labelling_margin(theta, layer, reference) for layer in case.group.factors]
    margin = label_margin(theta, case.group)
    assert_close(margin, torch.minimum(*each))
