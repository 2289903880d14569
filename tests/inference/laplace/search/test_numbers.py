"""Evidence-trained modes against Bayesian linear regression, weights, and planted functions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from skbayes_sym.inference.laplace.laplace_posterior import LinearisedModes
from skbayes_sym.inference.laplace.search import evidence_problem as problem_module
from skbayes_sym.inference.laplace.search.evidence_problem import (
    NumbersEvidence,
    SearchHyper,
    evaluated,
)
from skbayes_sym.inference.laplace.search.mode_search import EvidenceSearch
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import ARD, LayerScales, ScalesByGroup


def table(x, y):
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(len(x)))))


def linear_data(n=40, n_targets=1):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3))
    y = x @ rng.standard_normal((3, n_targets)) + 0.4 * rng.standard_normal((n, n_targets))
    return table(x, y)


def problem_of(data, widths=(), prior=None):
    network = MLP(data.x.shape[1], widths, data.y.shape[1], TANH)
    return NumbersEvidence(network, data, (prior or LayerScales()).bind(network.layout))


def updated(problem, theta, hyper):
    """Log evidences, and the hyperparameters that they lead to."""
    rows = problem.expansion(theta)
    value, system = evaluated(problem, theta, rows, hyper)
    return value, problem.update(theta, rows, hyper, system)


def exact_log_evidence(problem, hyper):
    """Log density of a linear network's target: a multivariate normal."""
    x = torch.cat([problem.data.x, torch.ones(len(problem.data.x), 1, dtype=torch.float64)], 1)
    variance = (-hyper.log_precision[0]).exp()[problem.prior.group]
    cov = (x * variance) @ x.T
    cov.diagonal().add_(1.0 / hyper.noise_precision[0, 0])
    y = problem.data.y[:, 0].numpy()
    return stats.multivariate_normal(np.zeros(len(y)), cov.numpy()).logpdf(y)


@pytest.mark.long
@pytest.mark.kept("prior1")
@pytest.mark.parametrize("prior", [LayerScales(), ARD(shape=2.0)])
def test_of_a_linear_model_the_evidence_is_exact_and_at_its_maximum_in_the_scales(prior):
    problem = problem_of(linear_data(), prior=prior)
    start = problem.network.init(2, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(200, tol=None).search(problem, start).modes
    hyper = SearchHyper(modes.hyper[:1], modes.noise_precision[:1])
    exact = exact_log_evidence(problem, hyper)
    np.testing.assert_allclose(modes.log_evidence[0].item(), exact, rtol=1e-10)
    for group in range(problem.prior.n_groups):
        slopes = []
        for shift in (1e-4, -1e-4):
            moved = hyper.log_precision.clone()
            moved[0, group] += shift
            at = hyper._replace(log_precision=moved)
            log_hyperprior = float(problem.log_hyperprior(at)[0])
            slopes.append(exact_log_evidence(problem, at) + log_hyperprior)
        assert abs(slopes[0] - slopes[1]) / 2e-4 < 1e-4


@pytest.mark.long
def test_restarts_agree_on_a_convex_problem_and_stop():
    problem = problem_of(linear_data(n_targets=2))
    start = problem.network.init(3, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(200, tol=None).search(problem, start).modes
    torch.testing.assert_close(modes.theta, modes.theta[:1].expand(3, -1), atol=1e-6, rtol=0.0)
    torch.testing.assert_close(modes.log_evidence, modes.log_evidence[:1].expand(3))
    stopped = EvidenceSearch(500).search(problem, start)
    assert stopped.stop_reason == "tol"
    assert stopped.modes.n_iter.tolist() == [8 + len(curve) for curve in stopped.curves]
    assert int(stopped.modes.n_iter.max()) < 500


def test_weights_are_repetitions():
    data = linear_data(n=12)
    weight = torch.tensor([1.0, 2.0, 3.0] * 4, dtype=torch.float64)
    repeated = Data(*(t.repeat_interleave(weight.long(), 0) for t in data))
    found = []
    for rows in (data._replace(weight=weight), repeated._replace(weight=torch.ones(24).double())):
        problem = problem_of(rows, widths=(3,))
        start = problem.network.init(2, generator=torch.Generator().manual_seed(1))
        noise = torch.full((2, 1), 4.0, dtype=torch.float64)
        value, hyper = updated(
            problem, start, SearchHyper(problem.prior.hyper.expand(2, -1), noise)
        )
        found.append((value, *hyper))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_planted_function_its_noise_and_its_column_are_found():
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, (200, 2))
    y = np.sin(2 * x[:, :1]) + 0.1 * rng.standard_normal((200, 1))
    problem = problem_of(table(x, y), widths=(10,), prior=ARD())
    start = problem.prior.sample(4, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(60).search(problem, start).modes
    outputs, variance = LinearisedModes(
        problem.network, modes.theta, modes.factor, modes.shares
    ).outputs(problem.data.x)
    error = (outputs.mean(0)[:, 0] - torch.sin(2 * problem.data.x[:, 0])).square().mean().sqrt()
    assert error < 0.05
    assert torch.all(variance > 0)
    noise = modes.noise_precision.rsqrt().mean()
    assert abs(noise - 0.1) < 0.015
    relevance = (-0.5 * modes.hyper[:, :2]).exp().mean(0)
    assert relevance[0] > 1.5 * relevance[1]  # the second column says nothing


@pytest.mark.parametrize(("noise", "goes_on"), [(0.0, True), (0.3, False)])
def test_a_search_goes_on_while_there_is_less_and_less_noise(noise, goes_on):
    rng = np.random.default_rng(1)
    x = rng.uniform(-2, 2, (150, 2))
    y = np.sin(1.5 * x[:, :1]) * x[:, 1:] + noise * rng.standard_normal((150, 1))
    problem = problem_of(table(x, y), (8,))
    start = problem.network.init(2, generator=torch.Generator().manual_seed(0))
    searches = [EvidenceSearch(30, None, more).search(problem, start) for more in (0, 25)]
    usual, longer = (search.modes for search in searches)
    assert longer.n_iter.max() == (55 if goes_on else 30)
    assert searches[1].stop_reason == "max_iter"
    gain = (longer.log_evidence - usual.log_evidence) / 150
    assert gain.max() > 0.25 if goes_on else (gain == 0.0).all()


@pytest.mark.parametrize("n", [9, 40])  # fewer rows than weights, and more
def test_restarts_that_see_different_rows_are_those_of_tables_of_these_rows(n):
    data = linear_data(n)
    whole = problem_of(data, widths=(3,))
    share = torch.stack([torch.arange(n) % 3 != k for k in range(2)]).double()
    start = whole.network.init(2, generator=torch.Generator().manual_seed(2))
    problem = replace(whole, share=share)
    noise = torch.tensor([[4.0], [2.0]], dtype=torch.float64)
    hyper = SearchHyper(problem.prior.hyper.expand(2, -1), noise)
    value, after = updated(problem, start, hyper)
    found = EvidenceSearch(12).search(problem, start).modes
    for k in range(2):
        one = torch.tensor([k])
        # Where a fit begins depends on the spread of all targets.
        alone = replace(whole, data=data._replace(weight=data.weight * share[k]))
        expected, moved = updated(alone, start[one], hyper.of(one))
        torch.testing.assert_close(value[one], expected)
        torch.testing.assert_close(after.noise_precision[one], moved.noise_precision)
        modes = EvidenceSearch(12).search(alone, start[one]).modes
        torch.testing.assert_close(found.theta[one], modes.theta, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.log_evidence[one], modes.log_evidence)
        fewer = replace(whole, data=Data(*(t[share[k] > 0.0] for t in data)))
        torch.testing.assert_close(updated(fewer, start[one], hyper.of(one))[0], expected)


def test_given_noise_stays():
    problem = problem_of(linear_data())
    start = problem.network.init(2, generator=torch.Generator().manual_seed(0))
    given = torch.tensor([2.0], dtype=torch.float64)
    problem = replace(problem, noise_precision=given)
    modes = EvidenceSearch(20).search(problem, start).modes
    assert torch.equal(modes.noise_precision, given.expand(2, 1))


@pytest.mark.long
def test_given_scales_stay_and_have_no_hyperprior():
    data = linear_data()
    network = MLP(3, (), 1, TANH)
    scale = torch.tensor([1.0, 2.0, 0.5, 1.0], dtype=torch.float64)
    problem = NumbersEvidence(network, data, ScalesByGroup.given(scale))
    start = network.init(2, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(150, tol=None).search(problem, start).modes
    torch.testing.assert_close((-0.5 * modes.hyper[0]).exp(), scale)
    exact = exact_log_evidence(problem, SearchHyper(modes.hyper[:1], modes.noise_precision[:1]))
    np.testing.assert_allclose(modes.log_evidence[0].item(), exact, rtol=1e-10)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_few_rows_give_the_modes_of_the_weights_own_space(n_targets, monkeypatch):
    """Eight rows of 25 weights or more: the same steps, hyperparameters and evidence."""
    data = linear_data(n=8, n_targets=n_targets)
    data = data._replace(weight=torch.tensor([1.0, 2.0] * 4, dtype=torch.float64))
    found = []
    for few in (True, False):
        monkeypatch.setattr(problem_module, "are_few", lambda *_, few=few: few)
        problem = problem_of(data, widths=(8,))
        start = problem.network.init(2, generator=torch.Generator().manual_seed(1))
        search = EvidenceSearch(30, tol=None).search(problem, start)
        found.append((*search.modes, torch.stack(search.curves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_of_more_weights_than_rows_the_best_is_kept():
    """A line in noise of 40 rows and 40 columns: scales run away while the evidence falls."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 40))
    y = x[:, :3].sum(1, keepdims=True) + rng.standard_normal((40, 1))
    problem = problem_of(table(x, y / y.std()), widths=(10,))
    assert problem.is_outnumbered
    assert not problem_of(linear_data()).is_outnumbered
    start = problem.network.init(2, generator=torch.Generator().manual_seed(0))
    search = EvidenceSearch(100, tol=1e-9).search(problem, start)
    first = problem.schedule.best_start - 8  # updates before
    for mode, value in enumerate(search.modes.log_evidence):
        counted = search.curves[mode][first:]
        best = len(counted) - 1 - problem.schedule.most_without
        torch.testing.assert_close(value, counted[best])
        assert best >= 0
    assert any(value > curve[-1] + 1.0 for value, curve in zip(
        search.modes.log_evidence, search.curves, strict=True))  # fmt: skip
    assert search.stop_reason == "tol"
