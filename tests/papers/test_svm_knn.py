"""The paper's symmetry removal: planted labels, a plane between clusters, greedy labels by hand."""

from itertools import product

import numpy as np
import pytest
import torch
from svm_knn import greedy_labels, relabel_svm_knn, separating_plane
from symmetry.planted import CASES, Case, in_order, planted, product_of
from torch.testing import assert_close

from skbayes_sym.models.networks.mlp import MLP, RELU
from skbayes_sym.symmetry.relabelling import relabel


def paper(case, draws, seed=0, max_sweeps=256):
    return relabel_svm_knn(
        draws,
        case.group,
        n_starts=4,
        n_neighbors=1024,
        max_sweeps=max_sweeps,
        generator=torch.Generator().manual_seed(seed),
    )


_RELU = MLP(2, (3,), 1, RELU)
SEPARATED = [CASES["3"], CASES["flips-only"], Case(_RELU, _RELU.symmetry())]


@pytest.mark.kept("tanh", "flips-only")
@pytest.mark.parametrize("case", SEPARATED, ids=["tanh", "flips-only", "relu"])
def test_the_papers_algorithm_agrees_on_separated_units(case):
    theta, draws = planted(case, 200, 0.1, torch.Generator().manual_seed(1))
    theirs = paper(case, draws)
    assert theirs.n_changing == 0
    ours = relabel(
        draws, case.group, n_starts=4, max_sweeps=100, generator=torch.Generator().manual_seed(0)
    )
    assert_close(theirs.theta, ours.theta, rtol=0, atol=0)
    assert_close(theirs.theta, in_order(case, theta), rtol=0, atol=0)
    assert_close(paper(case, draws).theta, theirs.theta, rtol=0, atol=0)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_papers_algorithm_acts_by_group_elements(case, generator):
    _, draws = planted(case, 30, 0.5, generator)
    found = paper(case, draws, max_sweeps=5)
    assert_close(found.theta, product_of(case).act(found.elements, draws), rtol=0, atol=0)
    for layer, g in zip(case.group.factors, found.elements, strict=True):
        assert layer.flips or bool((g.sign == 1).all())
        assert layer.permutes or bool((g.permutation == torch.arange(layer.n_units)).all())


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
