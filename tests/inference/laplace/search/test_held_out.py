"""Cross-validated modes against fits of the other rows, one by one."""

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.inference.laplace.laplace_posterior import LinearisedModes
from skbayes_sym.inference.laplace.search.beginnings import (
    alternating,
    cross_validated,
    folds,
    is_better,
    unexplained_share,
)
from skbayes_sym.inference.laplace.search.evidence_problem import NumbersEvidence
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch, starting_points
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import LayerScales


def data_of(n=23):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (n, 2))
    y = np.stack([np.sin(2.0 * x[:, 0]), x[:, 1]], 1) + 0.3 * rng.standard_normal((n, 2))
    return Data(*(torch.as_tensor(a) for a in (x, y, rng.integers(1, 3, n).astype(float))))


def test_folds_are_parts_of_nearly_equal_size_drawn_at_random():
    fold = folds(23, 5, generator=torch.Generator().manual_seed(0))
    assert sorted(fold.bincount().tolist()) == [4, 4, 5, 5, 5]
    assert not torch.equal(fold, fold.sort().values)
    again = folds(23, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(fold, again)


def test_rows_held_out_are_predicted_by_modes_of_the_others():
    data, network = data_of(), MLP(2, (4,), 2, TANH)
    problem = NumbersEvidence(network, data, LayerScales().bind(network.layout))
    fold = folds(23, 3, generator=torch.Generator().manual_seed(1))
    start = network.init(6, generator=torch.Generator().manual_seed(2))
    how = EvidenceSearch(15, tol=None)
    found = cross_validated(how, problem, start, fold)
    # Where a fit begins depends on the spread of all targets: the same for one that sees some.
    for k in range(3):
        own = fold == k
        weight = torch.where(own, 0.0, data.weight)
        alone = NumbersEvidence(network, data._replace(weight=weight), problem.prior)
        two = start[2 * k : 2 * k + 2]
        modes = how.search(alone, two, alternating(2, two)).modes
        mean, covariance = LinearisedModes(
            network, modes.theta, modes.factor, modes.shares
        ).outputs(data.x[own])
        variance = covariance.diagonal(dim1=-2, dim2=-1) + 1.0 / modes.noise_precision[:, None]
        density = stats.norm(mean, variance.sqrt()).pdf(data.y[own]).prod(-1).mean(0)
        np.testing.assert_allclose(found.rows.log_density[own], np.log(density), rtol=1e-6)
        np.testing.assert_allclose(found.rows.mean[own], mean.mean(0), rtol=1e-6, atol=1e-9)


def test_a_search_goes_on_from_modes_that_leave_out_a_fold():
    """Farther in a dozen steps than one of its own; the scales and the noise come along."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (120, 2))
    y = np.sin(2 * x[:, :1]) + 0.1 * rng.standard_normal((120, 1))
    data = Data(*(torch.as_tensor(a) for a in (x, y, np.ones(120))))
    network = MLP(2, (8,), 1, TANH)
    problem = NumbersEvidence(network, data, LayerScales().bind(network.layout))
    start = starting_points(network, 10, generator=torch.Generator().manual_seed(0))
    fold = folds(120, 5, generator=torch.Generator().manual_seed(1))
    begun = cross_validated(EvidenceSearch(40, 1e-3), problem, start, fold).search.modes
    cold = EvidenceSearch(12, None).search(problem, start).modes
    warm = EvidenceSearch(32, None).resumed(problem, begun).modes  # twenty count as made
    assert warm.n_iter.tolist() == 10 * [12]
    assert warm.log_evidence.median() > cold.log_evidence.median() + 10.0
    whole = EvidenceSearch(60, None).search(problem, start).modes
    assert warm.log_evidence.median() > whole.log_evidence.median() - 10.0
    still = EvidenceSearch(1, None).resumed(problem, begun).modes
    torch.testing.assert_close(still.noise_precision, begun.noise_precision, rtol=0.3, atol=0.0)


def test_a_stopped_validation_says_nothing():
    data, network = data_of(), MLP(2, (3,), 2, TANH)
    problem = NumbersEvidence(network, data, LayerScales().bind(network.layout))
    fold = folds(23, 2, generator=torch.Generator().manual_seed(1))
    start = network.init(4, generator=torch.Generator().manual_seed(2))
    found = cross_validated(EvidenceSearch(), problem, start, fold, lambda step, _: step == 3)
    assert found.rows is None
    assert found.search.modes.n_iter.tolist() == [3] * 4


def test_better_is_by_half_a_standard_error():
    rng = np.random.default_rng(3)
    gain = rng.standard_normal(400)
    gain -= gain.mean()
    error = gain.std() / 20.0
    other, weight = torch.zeros(400).double(), torch.ones(400).double()
    for share, expected in ((0.4, False), (0.6, True), (-3.0, False)):
        assert is_better(torch.as_tensor(gain + share * error), other, weight) is expected
    # Weights are repetitions.
    values = torch.as_tensor(gain[:50])
    counts = torch.as_tensor(rng.integers(1, 4, 50))
    for shift in np.linspace(-0.2, 0.3, 11):
        moved = values + shift
        apart = is_better(moved, other[:50], counts.double())
        repeated = moved.repeat_interleave(counts)
        assert apart is is_better(repeated, torch.zeros_like(repeated), torch.ones_like(repeated))


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1.0), (1.0, 0.0), (0.5, 0.25)])
def test_what_predictions_leave_unexplained(share, expected):
    y = torch.tensor([[1.0, 5.0], [3.0, 1.0], [2.0, 9.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 1.0, 2.0], dtype=torch.float64)
    middle = weight @ y / weight.sum()
    np.testing.assert_allclose(
        unexplained_share(middle + share * (y - middle), y, weight), expected
    )
