"""Why an evidence is not to be trusted: each reason with its figure and a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from skbayes_sym.estimators.mcmc.trust import why_not, why_not_weigh
from skbayes_sym.inference.multimodal.modes import Modes, ModeWeights
from skbayes_sym.inference.multimodal.weights import Pool, Weighing
from skbayes_sym.models.networks.activations import TANH
from skbayes_sym.models.networks.mlp import MLP


def weighing(counts=(100, 40), heights=(-5.0, 0.0), std_error=0.1, spread=0.2):
    """Two modes with so many draws each, of so high a log density."""
    counts = torch.tensor(counts)
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    values = torch.tensor(heights, dtype=torch.float64)[labels]
    n = len(labels)
    pool = Pool(torch.zeros(n, 8).double(), values, torch.arange(n), torch.zeros(n).long())
    weights = ModeWeights(torch.tensor([0.1, 0.9]), torch.tensor([0.1, 0.1]), -3.0, std_error)
    return Weighing(pool, Modes(labels, None, counts), [], weights, spread)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"counts": (100, 39)}, "39 draws of 8 parameters in the highest mode, fewer than 5 a"),
        ({"std_error": 1.26}, "its standard error is 1.3 nats: raise n_draws"),
        ({"std_error": np.nan}, "its standard error is nan nats"),
        (
            {"spread": 12.4},
            "chains and replicates put it 12 nats apart: raise n_draws or n_particles",
        ),
    ],
)
def test_each_reason_with_its_figure(change, reason):
    assert why_not(weighing(), 8) == []
    (found,) = why_not(weighing(**change), 8)
    assert reason in found


def test_one_source_has_no_spread():
    assert why_not(weighing(spread=np.nan), 8) == []


def test_all_reasons_are_given():
    assert len(why_not(weighing(std_error=2.0, spread=2.0), 8)) == 2


@pytest.mark.parametrize(
    ("hidden_layer_sizes", "figure"),
    [((4, 3), "e^9.8 elements"), ((16, 16), "e^83.5 elements"), ((3, 3), None), ((128,), None)],
)
def test_groups_that_cant_be_bridged(hidden_layer_sizes, figure):
    """4! 2^4 3! 2^3 = 18,432 elements are too many, (3! 2^3)^2 = 2,304 aren't; nor is one layer."""
    found = why_not_weigh(MLP(1, hidden_layer_sizes, 1, TANH).symmetry(), None)
    assert [figure in reason for reason in found] == ([] if figure is None else [True])


def test_chains_that_never_moved():
    group = MLP(1, (2,), 1, TANH).symmetry()
    stuck = np.array([True, True, True, False])
    (found,) = why_not_weigh(group, SimpleNamespace(stuck=stuck))
    assert "3 of 4 chains never moved" in found
    assert why_not_weigh(group, SimpleNamespace(stuck=~stuck)) == []
