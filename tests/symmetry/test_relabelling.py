"""Relabelling of draws: planted labels come back, optima are optima, margins mean what they say."""

from itertools import permutations, product
from math import inf

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.inference.reference.svm_knn import greedy_labels, relabel_svm_knn, separating_plane
from skbayes_sym.models.networks.activations import RELU, TANH
from skbayes_sym.models.networks.mlp import MLP
from skbayes_sym.numerics.assignment import best_assignment, can_exchange, runner_up_loss
from skbayes_sym.symmetry.reference import (
    Places,
    estimate_places,
    improve_labels,
    kind_mean_square,
    margin_of_labels,
)
from skbayes_sym.symmetry.relabelling import (
    anchored_columns,
    canonical_element,
    label_margin,
    label_objective,
    relabel,
    signed_group,
)
from skbayes_sym.symmetry.units import units_of

NETWORKS = {
    "3": MLP(1, (3,), 1, TANH),
    "6": MLP(2, (6,), 2, TANH),
    "5-4": MLP(3, (5, 4), 1, TANH),
    "relu-6": MLP(2, (6,), 1, RELU),
    "relu-3-5": MLP(3, (3, 5), 1, RELU),
    "one-unit": MLP(2, (1,), 1, TANH),
    "linear": MLP(2, (), 1, TANH),
}
every_network = pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)


def layers_of(network):
    return [factor.index for factor in network.symmetry().factors]


def planted(network, n, noise, generator):
    """Draws around one network, before and after a random group element each."""
    n_params = network.layout.n_params
    base = torch.randn(n_params, generator=generator, dtype=torch.float64)
    spread = torch.randn(n, n_params, generator=generator, dtype=torch.float64)
    theta, group = base + noise * spread, network.symmetry()
    return theta, group.act(group.sample((n,), generator=generator), theta)


def run(network, draws, n_starts=4, max_sweeps=100, seed=0):
    return relabel(
        draws,
        layers_of(network),
        signed=network.activation.is_odd,
        n_starts=n_starts,
        max_sweeps=max_sweeps,
        generator=torch.Generator().manual_seed(seed),
    )


def scatter(network, theta):
    """Mean variance of the entries of hidden units."""
    entries = torch.cat([index.flatten() for index in layers_of(network)]).unique()
    return float(theta[:, entries].var(dim=0, correction=0).mean())


def in_order(network, theta):
    layers, signed = layers_of(network), network.activation.is_odd
    return signed_group(layers).act(canonical_element(theta, layers, signed=signed), theta)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
def test_best_assignment_and_runner_up_by_enumeration(d, generator):
    similarity = torch.randn(30, d, d, generator=generator, dtype=torch.float64)
    table = torch.tensor(list(permutations(range(d))))
    totals = similarity[:, torch.arange(d), table].sum(dim=-1).sort(dim=-1, descending=True)
    best = best_assignment(similarity)
    gained = similarity.gather(-1, best.unsqueeze(-1)).sum(dim=(-2, -1))
    assert_close(gained, totals.values[:, 0])
    aligned = similarity.gather(-1, best.unsqueeze(-2).expand_as(similarity))
    expected = totals.values[:, 0] - totals.values[:, 1] if d > 1 else torch.full((30,), inf)
    assert_close(runner_up_loss(aligned), expected.double(), rtol=0, atol=1e-12)
    assert not bool(can_exchange(aligned, 1e-12).any())


def test_assignments_of_no_draws():
    assert best_assignment(torch.zeros(0, 6, 6)).shape == (0, 6)
    assert best_assignment(torch.zeros(0, 2, 2)).shape == (0, 2)


def test_a_cycle_may_gain_where_no_exchange_does():
    gain = torch.tensor([[0.0, 1.0, -9.0], [-9.0, 0.0, 1.0], [1.0, -9.0, 0.0]])
    assert not bool(can_exchange(gain))
    assert best_assignment(gain).tolist() == [1, 2, 0]


@pytest.mark.parametrize("signed", [True, False])
def test_labels_and_margin_by_enumeration_of_the_group(signed, generator):
    """Of 384 (24) elements the labels are the best, and the margin is the gap to the second."""
    n, d, p = 25, 4, 3
    units = torch.randn(n, d, p, generator=generator, dtype=torch.float64)
    places = Places(
        torch.randn(d, p, generator=generator, dtype=torch.float64),
        torch.rand(d, p, generator=generator, dtype=torch.float64) + 0.2,
    )
    density = torch.distributions.Normal(places.mean, places.variance.sqrt())
    signs = list(product([1.0, -1.0], repeat=d)) if signed else [(1.0,) * d]
    fits = [
        density.log_prob(units[:, list(pi)] * torch.tensor(s).unsqueeze(-1)).sum(dim=(-2, -1))
        for pi in permutations(range(d))
        for s in signs
    ]
    ranked = torch.stack(fits, dim=-1).sort(dim=-1, descending=True).values
    for thorough in (True, False):
        g, moved = improve_labels(units, places, signed=signed, thorough=thorough)
        group = signed_group([torch.arange(d * p).reshape(d, p)])
        aligned = group.act((g,), units.flatten(1)).unflatten(1, (d, p))
        reached = density.log_prob(aligned).sum(dim=(-2, -1))
        before = density.log_prob(units).sum(dim=(-2, -1))
        assert bool((reached >= before - 1e-12).all())
        assert_close(moved, reached > before + 1e-6)
        if thorough:
            assert_close(reached, ranked[:, 0])
            margin = margin_of_labels(aligned, places, signed=signed)
            assert_close(margin, ranked[:, 0] - ranked[:, 1], rtol=0, atol=1e-10)
            shortfall = margin_of_labels(units, places, signed=signed)[moved]
            assert_close(shortfall, (before - reached)[moved], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("noise", "slack"), [(0.3, 0.10), (0.5, 0.25)])
def test_planted_labels_of_a_deep_net_come_back(noise, slack):
    """The targets for 3 x 16 units and 5 inputs; from one start, too."""
    network = MLP(5, (16, 16, 16), 1, TANH)
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        theta, draws = planted(network, 200, noise, generator)
        found = run(network, draws, n_starts=1)
        assert found.n_changing == 0
        assert scatter(network, found.theta) == pytest.approx(scatter(network, theta), rel=slack)
        assert scatter(network, draws) > 2 * scatter(network, theta)


def test_draws_stuck_between_layers_are_labelled_anew():
    """One input anchors 16 units badly: layer by layer alone ends at a scatter of .094."""
    network, generator = MLP(1, (16, 16, 16), 1, TANH), torch.Generator().manual_seed(0)
    theta, draws = planted(network, 200, 0.3, generator)
    found = run(network, draws, n_starts=1)
    assert_close(found.theta, in_order(network, theta), rtol=0, atol=0)


@every_network
def test_well_separated_draws_come_back_exactly(network):
    theta, draws = planted(network, 60, 0.02, torch.Generator().manual_seed(1))
    found = run(network, draws)
    assert_close(found.theta, in_order(network, theta), rtol=0, atol=0)
    group = signed_group(layers_of(network))
    assert_close(found.theta, group.act(found.elements, draws), rtol=0, atol=0)
    assert found.objective == pytest.approx(label_objective(found.theta, layers_of(network)))


@every_network
@pytest.mark.parametrize("noise", [0.1, 0.6])
def test_other_copies_of_the_draws_give_the_same_result(network, noise, generator):
    """Whichever copy a sampler visited, each draw its own or all the same one."""
    _, draws = planted(network, 80, noise, generator)
    group, expected = network.symmetry(), run(network, draws).theta
    for shape in [(), (80,)]:
        copies = group.act(group.sample(shape, generator=generator), draws)
        assert_close(run(network, copies).theta, expected, rtol=0, atol=0)
    assert_close(run(network, expected).theta, expected, rtol=0, atol=0)  # idempotent


def test_units_of_measurement_do_not_matter(generator):
    network = NETWORKS["6"]
    _, draws = planted(network, 80, 0.3, generator)
    scales = network.layout.flatten(
        {
            "W1": torch.tensor([1e-3, 50.0]).expand(6, 2),
            "b1": torch.full((6,), 7.0),
            "W2": torch.tensor([[1e5], [0.3]]).expand(2, 6),
            "b2": torch.ones(2),
        }
    ).double()
    expected, found = run(network, draws), run(network, draws * scales)
    units = units_of(found.theta / scales, layers_of(network)[0])
    for g in units_of(expected.theta, layers_of(network)[0]).sum(-1).abs().T:
        gaps = (units.sum(-1).abs() - g.unsqueeze(-1)).abs().amax(dim=0)
        assert float(gaps.min()) < 1e-12  # the same units of every draw sit together


def test_huge_and_tiny_draws(generator):
    network = NETWORKS["3"]
    theta, draws = planted(network, 40, 0.05, generator)
    for scale in (1e-300, 1e300):
        found = run(network, draws * scale)
        assert_close(found.theta, in_order(network, theta) * scale, rtol=1e-14, atol=0)
    assert_close(run(network, 0.0 * draws).theta, 0.0 * draws)


def test_permutation_only_for_relu(generator):
    network = NETWORKS["relu-3-5"]
    _, draws = planted(network, 60, 1.0, generator)
    assert all(bool((g.sign == 1).all()) for g in run(network, draws).elements)


def test_no_single_change_of_labels_lowers_the_cost(generator):
    network = NETWORKS["6"]
    _, draws = planted(network, 150, 1.0, generator)
    found = run(network, draws, max_sweeps=1000)
    assert found.n_changing == 0
    assert bool((label_margin(found.theta, layers_of(network), signed=True) >= 0).all())


def test_more_starts_are_no_worse(generator):
    network = MLP(2, (8, 8), 1, TANH)
    _, draws = planted(network, 200, 0.5, generator)
    # Of the same starts, so the best of four is the best of a longer list.
    assert run(network, draws, n_starts=4).objective <= run(network, draws, n_starts=1).objective


def test_margins_tell_separated_from_duplicated_units(generator):
    network, (index,) = NETWORKS["6"], layers_of(NETWORKS["6"])
    theta, _ = planted(network, 60, 0.02, generator)
    assert float(label_margin(theta, [index], signed=True).min()) > 10.0
    theta[7, index[2]] = theta[7, index[4]]  # a draw with two equal units
    theta[8, index[3]] = 0.0  # ... and one with a unit that is its own negative
    found = run(network, theta)
    margin = label_margin(found.theta, [index], signed=True)
    assert_close(margin[[7, 8]], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    others = torch.ones(60, dtype=torch.bool)
    others[[7, 8]] = False
    assert float(margin[others].min()) > 1.0


def test_margin_is_that_of_the_least_decided_layer(generator):
    network = NETWORKS["5-4"]
    theta, _ = planted(network, 50, 0.3, generator)
    places = estimate_places(theta, kind_mean_square(theta, layers_of(network)))
    each = [
        margin_of_labels(units_of(theta, index), places.at(index), signed=True)
        for index in layers_of(network)
    ]
    margin = label_margin(theta, layers_of(network), signed=True)
    assert_close(margin, torch.minimum(*each))


def test_anchored_entries():
    first, second = anchored_columns(layers_of(NETWORKS["5-4"]))
    assert first.tolist() == [True] * 4 + [False] * 4  # 3 inputs and the bias; not 4 units
    assert second.all()
    assert len(second) == 5 + 1 + 1


def test_kinds_are_pooled_over_units(generator):
    network = NETWORKS["5-4"]
    theta, draws = planted(network, 30, 0.5, generator)
    kinds = network.layout.unflatten(kind_mean_square(theta, layers_of(network)))
    mean_square = network.layout.unflatten(theta.square().mean(dim=0))
    assert_close(kinds["W1"], mean_square["W1"].mean(dim=0).expand(5, 3))
    assert_close(kinds["W2"], mean_square["W2"].mean().expand(4, 5))
    assert_close(kinds["b2"], mean_square["b2"].mean().expand(4))
    assert_close(kind_mean_square(draws, layers_of(network))[:-1], torch.cat(
        [kinds[name].flatten() for name in network.layout.shapes][:-1]
    ))  # fmt: skip


# The paper's algorithms


def paper(network, draws, seed=0, max_sweeps=256):
    return relabel_svm_knn(
        draws,
        layers_of(network),
        signed=network.activation.is_odd,
        n_starts=4,
        n_neighbors=1024,
        max_sweeps=max_sweeps,
        generator=torch.Generator().manual_seed(seed),
    )


@pytest.mark.parametrize("network", [NETWORKS["3"], MLP(2, (3,), 1, RELU)], ids=["tanh", "relu"])
def test_the_papers_algorithm_agrees_on_separated_units(network):
    theta, draws = planted(network, 200, 0.1, torch.Generator().manual_seed(1))
    theirs = paper(network, draws)
    assert theirs.n_changing == 0
    assert_close(theirs.theta, run(network, draws).theta, rtol=0, atol=0)
    assert_close(theirs.theta, in_order(network, theta), rtol=0, atol=0)
    assert_close(paper(network, draws).theta, theirs.theta, rtol=0, atol=0)


@every_network
def test_the_papers_algorithm_acts_by_group_elements(network, generator):
    _, draws = planted(network, 30, 0.5, generator)
    found = paper(network, draws, max_sweeps=5)
    group = signed_group(layers_of(network))
    assert_close(found.theta, group.act(found.elements, draws), rtol=0, atol=0)
    if not network.activation.is_odd:
        assert all(bool((g.sign == 1).all()) for g in found.elements)


def test_plane_avoids_the_points(generator):
    """Clusters at +-m: the plane leaves a gap of 1 on both sides, and m on one side."""
    centre = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
    cluster = centre + 0.2 * torch.randn(100, 3, generator=generator, dtype=torch.float64)
    coin = torch.randint(0, 2, (100, 1), generator=generator) * 2.0 - 1.0
    side = (coin * cluster) @ separating_plane(coin * cluster, 4, generator)
    assert float(side.abs().min()) > 0.9
    assert abs(float((side.sign() * coin.squeeze()).sum())) == 100


def test_greedy_labels_one_at_a_time():
    probability = np.random.default_rng(0).dirichlet(np.ones(5), size=(40, 5))
    for table, labels in zip(probability, greedy_labels(probability), strict=True):
        free_units, free_labels, expected = set(range(5)), set(range(5)), {}
        while free_units:
            pairs = product(free_units, free_labels)
            j, c = max(pairs, key=lambda pair: table[pair])
            expected[j] = c
            free_units.remove(j)
            free_labels.remove(c)
        assert labels.tolist() == [expected[j] for j in range(5)]
