"""Warnings about the evidence: each has a reason, a number and a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from skbayes_sym.mcmc.bridge import NOT_ESTIMATED
from skbayes_sym.mcmc.config import SamplingDefaults
from skbayes_sym.mcmc.diagnostics import describe_missing_evidence
from skbayes_sym.mcmc.mode_evidence import DrawPool, EvidenceSummary, ModeAssignment, ModeEvidence
from skbayes_sym.mcmc.mode_weights import (
    evidence_warnings,
    find_evidence_obstacles,
    robust_weights,
)
from skbayes_sym.models.networks.mlp import MLP, TANH

MOVING = SimpleNamespace(stuck=np.zeros(4, dtype=bool))


def weighing(counts=(100, 40), heights=(-5.0, 0.0), std_error=0.1, evidences=(-5.0, -3.0)):
    """Two modes with given numbers of draws, mean log densities and evidences."""
    counts = torch.tensor(counts)
    labels = torch.arange(len(counts)).repeat_interleave(counts)
    values = torch.tensor(heights, dtype=torch.float64)[labels]
    n = len(labels)
    pool = DrawPool(torch.zeros(n, 8).double(), values, torch.arange(n))
    share = torch.tensor(evidences, dtype=torch.float64).nan_to_num(-np.inf).softmax(0)
    weights = EvidenceSummary(share, -3.0, std_error)
    errors = [std_error if np.isfinite(e) else np.nan for e in evidences]
    estimates = [NOT_ESTIMATED._replace(log_evidence=e, standard_error=s)
                 for e, s in zip(evidences, errors, strict=True)]  # fmt: skip
    return ModeEvidence(pool, ModeAssignment(labels, None, counts), estimates, weights)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"counts": (100, 39)}, "39 draws of 8 parameters in the highest mode, fewer than 5 a"),
        ({"std_error": 1.26}, "its standard error is 1.3 nats: raise n_draws"),
        ({"std_error": np.nan}, "its standard error is nan nats"),
    ],
)
def test_each_reason_with_its_figure(change, reason):
    assert evidence_warnings(weighing(), 8, SamplingDefaults()) == []
    (found,) = evidence_warnings(weighing(**change), 8, SamplingDefaults())
    assert reason in found


@pytest.mark.parametrize(
    ("known", "weights"),
    [
        ({}, [0.1192, 0.8808]),
        ({"std_error": 2.0}, None),  # the weights change by more than 0.1
        (
            {"evidences": (-30.0, -3.0), "std_error": 2.0},
            [0.0, 1.0],
        ),  # 27 nats ahead
        ({"evidences": (np.nan, -3.0)}, None),  # the other mode may have the mass
        ({"evidences": (np.nan, np.nan), "heights": (-110.0, 0.0)}, [0.0, 1.0]),
        ({"heights": (-110.0, 0.0), "std_error": 2.0}, [0.0, 1.0]),  # airfoil
    ],
)
def test_weights_are_decided_where_no_doubt_changes_them(known, weights):
    found = robust_weights(weighing(**known), SamplingDefaults())
    if weights is None:
        assert found is None
    else:
        np.testing.assert_allclose(found.numpy(), weights, atol=1e-4)


def test_the_warning_says_what_becomes_of_the_weights():
    (kept,) = describe_missing_evidence(("it is late",), has_robust_weights=True)
    (votes,) = describe_missing_evidence(("it is late",), has_robust_weights=False)
    (open_,) = describe_missing_evidence((), has_robust_weights=False)
    (shared,) = describe_missing_evidence((), has_robust_weights=False, is_reallocated=True)
    assert describe_missing_evidence((), has_robust_weights=True) == []
    assert "it is late. So log_evidence_ is nan and the modes keep their weights" in kept
    assert "it is late. So log_evidence_ is nan and all chains have equal weights" in votes
    assert "too uncertain to weight them: raise n_draws. So all chains have equal weights" in open_
    assert shared.endswith("in proportion to how many chains found each.")


@pytest.mark.parametrize(
    ("hidden_layer_sizes", "figure"),
    [((4, 3), "e^9.8 elements"), ((16, 16), "e^83.5 elements"), ((3, 3), None), ((128,), None)],
)
def test_groups_that_cant_be_bridged(hidden_layer_sizes, figure):
    """4! 2^4 3! 2^3 = 18,432 elements are too many, (3! 2^3)^2 = 2,304 aren't; nor is one layer."""
    found = find_evidence_obstacles(
        MLP(1, hidden_layer_sizes, 1, TANH).symmetry(), MOVING, SamplingDefaults()
    )
    assert [figure in reason for reason in found] == ([] if figure is None else [True])


def test_chains_that_never_moved():
    group = MLP(1, (2,), 1, TANH).symmetry()
    stuck = np.array([True, True, True, False])
    (found,) = find_evidence_obstacles(group, SimpleNamespace(stuck=stuck), SamplingDefaults())
    assert "3 of 4 chains never moved" in found
    assert find_evidence_obstacles(group, SimpleNamespace(stuck=~stuck), SamplingDefaults()) == []
