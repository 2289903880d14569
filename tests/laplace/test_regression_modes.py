"""Searches of numbers and labels: exact cases, planted functions, endings, copies of modes."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from laplace.classification_problems import class_data, class_problem, held, repeated
from scipy import stats
from sklearn.linear_model import LogisticRegression

from skbayes_sym import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.laplace import evidence_problem, mode_finding
from skbayes_sym.laplace.evidence_problem import (
    CategoricalEvidence,
    GaussianEvidence,
    Hyperparameters,
)
from skbayes_sym.laplace.gauss_newton import INITIAL_DAMPING
from skbayes_sym.laplace.mode_finding import (
    EvidenceSearch,
    concatenate_searches,
    draw_initial_weights,
    find_copies,
    map_tensors,
    merge_copies,
)
from skbayes_sym.laplace.posterior import LinearisedModes
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import ARD, GroupScalePrior, LayerScales


def starts(problem, n=2):
    return draw_initial_weights(problem.network, n, generator=torch.Generator().manual_seed(0))


@pytest.mark.long
@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"])
def test_a_linear_mode_is_logistic_regressions(n_outputs, n_classes):
    data, _ = repeated(class_data(n_classes=n_classes))
    problem = class_problem(data, n_outputs=n_outputs)
    # scikit-learn leaves intercepts alone; so does a prior this wide.
    hyper = torch.tensor([2.0, 1e-7], dtype=torch.float64).log()
    problem = replace(problem, prior=replace(problem.prior, hyper=hyper))
    modes = EvidenceSearch(60, tol=None).search(held(problem), starts(problem)).modes
    reference = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)
    reference.fit(data.x.numpy(), data.y.numpy(), sample_weight=data.weight.numpy())
    for theta in modes.theta:
        weight, bias = problem.network.layers(theta)[0]
        np.testing.assert_allclose(weight, reference.coef_, atol=1e-4)
        shift = 0.0 if n_outputs == 1 else bias.mean()
        np.testing.assert_allclose(bias - shift, reference.intercept_, atol=1e-4)
    assert torch.equal(modes.hyper, hyper.expand(2, -1))


@pytest.mark.long
def test_learned_scales_are_where_mackays_step_stands_still():
    problem = class_problem(class_data())
    modes = EvidenceSearch(80, tol=None).search(problem, starts(problem)).modes
    torch.testing.assert_close(modes.theta, modes.theta[:1].expand(2, -1), atol=1e-5, rtol=0.0)
    variance = modes.covariance.diagonal(dim1=1, dim2=2)
    again = problem.prior.evidence_step(modes.theta, variance, modes.hyper, 1.0)
    torch.testing.assert_close(again, modes.hyper, atol=1e-4, rtol=0.0)


def test_searches_end_early_and_keep_the_best():
    problem = class_problem(class_data(), (4,))
    search = EvidenceSearch(60, tol=1e-3 / 40).search(problem, starts(problem))
    assert search.stop_reason == "tol"
    assert int(search.modes.n_iter.max()) < 60
    for value, curve in zip(search.modes.log_evidence, search.curves, strict=True):
        torch.testing.assert_close(value, curve[8:].max())


def test_exchanging_classes_exchanges_outputs():
    data, order = class_data(n=20), torch.tensor([2, 0, 1])
    exchanged = data._replace(y=order.argsort()[data.y])
    problem, other = class_problem(data, (3,)), class_problem(exchanged, (3,))
    start = starts(problem, 1)
    params = problem.network.layout.unflatten(start)
    moved = {**params, "W2": params["W2"][:, order], "b2": params["b2"][:, order]}
    search = EvidenceSearch(12)
    found = search.search(problem, start).modes
    mirror = search.search(other, problem.network.layout.flatten(moved)).modes
    torch.testing.assert_close(found.log_evidence, mirror.log_evidence)
    logits = problem.network.forward(found.theta[0], data.x)[:, order]
    torch.testing.assert_close(other.network.forward(mirror.theta[0], data.x), logits)


def test_damping_begins_anew_where_doubt_ends(monkeypatch):
    """What labels that hardly count allow is far too little for labels that do."""
    dampings, original = [], mode_finding.step

    def spy(misfit, theta, expansion, precision, damping, **how):
        dampings.append(float(damping))
        return original(misfit, theta, expansion, precision, damping, **how)

    monkeypatch.setattr(mode_finding, "step", spy)
    problem = class_problem(class_data(), (4,))
    EvidenceSearch(12, tol=None).search(problem, starts(problem, 1), torch.tensor([True]))
    first = problem.schedule.first_hyper_step
    assert dampings[0] == dampings[first] == INITIAL_DAMPING
    assert dampings[first - 1] < INITIAL_DAMPING


def test_many_weights_update_scales_in_one_step_of_three(monkeypatch):
    problem = class_problem(class_data(n=10), (4,))
    search = EvidenceSearch(12, tol=None)
    assert len(search.search(problem, starts(problem, 1)).curves[0]) == 4
    few = replace(problem.schedule, large_n_params=20)
    monkeypatch.setattr(type(problem), "schedule", few)
    assert len(search.search(problem, starts(problem, 1)).curves[0]) == 2


def test_restarts_of_labels_in_one_batch_are_those_one_after_the_other():
    problem, start = class_problem(class_data(), (3,)), starts(class_problem(class_data(), (3,)))
    high_noise = torch.tensor([False, True])
    together = EvidenceSearch(25).search(problem, start, high_noise)
    apart = concatenate_searches([
        EvidenceSearch(25).search(problem, *one)
        for one in zip(start.split(1), high_noise.split(1), strict=True)
    ])  # fmt: skip
    for one, other in zip(apart.modes, together.modes, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    for one, other in zip(apart.curves, together.curves, strict=True):
        torch.testing.assert_close(one, other)


def test_searches_that_are_joined_stopped_for_the_gravest_reason():
    problem = class_problem(class_data(n=10))
    search = EvidenceSearch(2).search(problem, starts(problem, 1))
    both = concatenate_searches([search.with_stop_reason("tol"), search])
    assert (both.stopped, both.stop_reason) == (["tol", "max_iter"], "max_iter")
    assert both.select(torch.tensor([0])).stop_reason == "tol"


def test_starting_points_give_logits_of_order_one():
    network = MLP(50, (30, 40), 3, TANH)
    theta = draw_initial_weights(network, 100, generator=torch.Generator().manual_seed(0))
    x = torch.randn(20, 50, generator=torch.Generator().manual_seed(1)).double()
    assert 0.3 < network.forward(theta, x).std() < 1.0
    assert not network.layers(theta)[-1][1].any()


NETWORK = MLP(2, (3,), 1, TANH)


def problem_of_kind(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x[:, :1]).sin() + 0.1 * torch.randn(40, 1, generator=generator)
    y = y if kind is GaussianEvidence else (y[:, 0] > 0.0).long()
    return kind(NETWORK, Data(x, y, torch.ones(40, dtype=torch.float64)),
                LayerScales().bind(NETWORK.layout))  # fmt: skip


@pytest.mark.parametrize("kind", [GaussianEvidence, CategoricalEvidence])
def test_copies_are_alike_and_nothing_else_is(kind):
    """Restarts 0, 1, 2 and copies of them; 6 has another scale, 7 another noise."""
    problem, generator = problem_of_kind(kind), torch.Generator().manual_seed(1)
    theta = torch.randn(3, NETWORK.layout.n_params, generator=generator, dtype=torch.float64)
    group = NETWORK.symmetry()
    copies = group.act(group.sample((3,), generator=generator), theta)
    theta = torch.cat([theta, copies, theta[:2]])
    log_precision = torch.zeros(8, len(problem.prior.sizes), dtype=torch.float64)
    noise = torch.ones(8, 1 if kind is GaussianEvidence else 0, dtype=torch.float64)
    log_precision[6, 0] += 1.0
    noise[7:], log_precision[7:] = 2.0, log_precision[7:] + (kind is CategoricalEvidence)
    hyper = Hyperparameters(log_precision, noise)
    assert find_copies(problem, theta, hyper) == [0, 1, 2, 0, 1, 2, 6, 7]
    shares = torch.ones(8, 40, dtype=torch.float64)  # of the rows that each learns from
    assert find_copies(replace(problem, weight_factor=shares), theta, hyper) == list(range(8))


def test_a_restart_that_joins_another_ends_with_its_mode():
    """The second start is a copy of the first, a little away; without a tolerance none ends."""
    problem, generator = problem_of_kind(GaussianEvidence), torch.Generator().manual_seed(2)
    start = mode_finding.draw_initial_weights(NETWORK, 1, generator=generator)
    group = NETWORK.symmetry()
    copy = group.act(group.sample((1,), generator=generator), start) + 1e-3
    both = torch.cat([start, copy])
    search = EvidenceSearch(60, tol=1e-12).search(problem, both)
    assert torch.equal(search.modes.theta[1], search.modes.theta[0])
    assert merge_copies(problem, search).modes.n_restarts.tolist() == [2]
    never = EvidenceSearch(40, tol=None).search(problem, both)
    assert never.modes.n_iter.tolist() == [40, 40]


def test_two_units_have_one_mode_which_predicts_what_its_copies_did(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (30, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 0] ** 2 + 0.1 * rng.standard_normal(30)
    model = LaplaceRegressor((2,), random_state=0).fit(X, y)
    assert model.n_modes_ == len(model.posterior_.loc) == 1
    assert model.multiplicity_modes_.tolist() == [10]
    monkeypatch.setattr(mode_finding, "find_copies", lambda _, theta, hyper: [*range(len(theta))])
    all_ten = LaplaceRegressor((2,), random_state=0).fit(X, y)
    assert all_ten.n_modes_ == 10
    grid = np.linspace(-3.0, 3.0, 20)[:, None]
    mean, std = model.predict(grid, return_std=True)
    theirs, width = all_ten.predict(grid, return_std=True)
    np.testing.assert_allclose((mean - theirs) / width, 0.0, atol=0.02)
    np.testing.assert_allclose(std, width, rtol=0.02)


def test_modes_count_for_the_restarts_that_ended_there():
    """A mixture of modes with multiplicities is that of all restarts, written out."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 2))
    y = X[:, 0] * X[:, 1] + 0.3 * rng.standard_normal(60) > 0.0
    model = LaplaceClassifier((2,), random_state=0).fit(X, y)
    counts = model.multiplicity_modes_
    assert counts.sum() >= len(counts) == model.n_modes_
    weighted = model.predict_proba(X[:5])
    every, q = deepcopy(model), model.posterior_
    every.posterior_ = type(q)(*(np.repeat(part, counts, axis=0) for part in (q.loc, q.factor)))
    np.testing.assert_allclose(every.predict_proba(X[:5]), weighted, rtol=1e-9)


def test_of_copies_the_one_of_the_highest_score_stays():
    problem, generator = problem_of_kind(GaussianEvidence), torch.Generator().manual_seed(3)
    start = mode_finding.draw_initial_weights(NETWORK, 1, generator=generator)
    search = EvidenceSearch(60).search(problem, start)
    lower = search._replace(
        modes=map_tensors(lambda t: t, search.modes)._replace(
            log_evidence=search.modes.log_evidence - 1.0, theta=search.modes.theta + 1e-6
        )
    )
    for order in ([search, lower], [lower, search]):
        kept = merge_copies(problem, mode_finding.concatenate_searches(order)).modes
        assert kept.n_restarts.tolist() == [2]
        assert torch.equal(kept.theta, search.modes.theta)


def table(x, y):
    return Data(*(torch.as_tensor(a) for a in (x, y, np.ones(len(x)))))


def linear_data(n=40, n_targets=1):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, 3))
    y = x @ rng.standard_normal((3, n_targets)) + 0.4 * rng.standard_normal((n, n_targets))
    return table(x, y)


def problem_of(data, widths=(), prior=None):
    network = MLP(data.x.shape[1], widths, data.y.shape[1], TANH)
    return GaussianEvidence(network, data, (prior or LayerScales()).bind(network.layout))


def updated(problem, theta, hyper):
    """Log evidences, and the hyperparameters that they lead to."""
    rows = problem.expansion(theta)
    value, system = problem.evaluate(theta, rows, hyper)
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
    hyper = Hyperparameters(modes.hyper[:1], modes.noise_precision[:1])
    exact = exact_log_evidence(problem, hyper)
    np.testing.assert_allclose(modes.log_evidence[0].item(), exact, rtol=1e-10)
    for group in range(problem.prior.n_groups):
        slopes = []
        for shift in (1e-4, -1e-4):
            moved = hyper.log_precision.clone()
            moved[0, group] += shift
            at = hyper._replace(log_precision=moved)
            log_hyperprior = float(problem.prior.log_hyperprior(moved)[0])
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
            problem, start, Hyperparameters(problem.prior.hyper.expand(2, -1), noise)
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
        problem.network, modes.theta, modes.factor, modes.weights
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
    problem = replace(whole, weight_factor=share)
    noise = torch.tensor([[4.0], [2.0]], dtype=torch.float64)
    hyper = Hyperparameters(problem.prior.hyper.expand(2, -1), noise)
    value, after = updated(problem, start, hyper)
    found = EvidenceSearch(12).search(problem, start).modes
    for k in range(2):
        one = torch.tensor([k])
        # Where a fit begins depends on the spread of all targets.
        alone = replace(whole, data=data._replace(weight=data.weight * share[k]))
        expected, moved = updated(alone, start[one], hyper.select(one))
        torch.testing.assert_close(value[one], expected)
        torch.testing.assert_close(after.noise_precision[one], moved.noise_precision)
        modes = EvidenceSearch(12).search(alone, start[one]).modes
        torch.testing.assert_close(found.theta[one], modes.theta, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found.log_evidence[one], modes.log_evidence)
        fewer = replace(whole, data=Data(*(t[share[k] > 0.0] for t in data)))
        torch.testing.assert_close(updated(fewer, start[one], hyper.select(one))[0], expected)


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
    problem = GaussianEvidence(network, data, GroupScalePrior.fixed(scale))
    start = network.init(2, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(150, tol=None).search(problem, start).modes
    torch.testing.assert_close((-0.5 * modes.hyper[0]).exp(), scale)
    exact = exact_log_evidence(problem, Hyperparameters(modes.hyper[:1], modes.noise_precision[:1]))
    np.testing.assert_allclose(modes.log_evidence[0].item(), exact, rtol=1e-10)


@pytest.mark.parametrize("n_targets", [1, 2])
def test_few_rows_give_the_modes_of_the_weights_own_space(n_targets, monkeypatch):
    """Eight rows of 25 weights or more: the same steps, hyperparameters and evidence."""
    data = linear_data(n=8, n_targets=n_targets)
    data = data._replace(weight=torch.tensor([1.0, 2.0] * 4, dtype=torch.float64))
    found = []
    for few in (True, False):
        monkeypatch.setattr(evidence_problem, "is_row_space_smaller", lambda *_, few=few: few)
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
    assert problem.keeps_best
    assert not problem_of(linear_data()).keeps_best
    start = problem.network.init(2, generator=torch.Generator().manual_seed(0))
    search = EvidenceSearch(100, tol=1e-9).search(problem, start)
    first = problem.schedule.first_best_step - 8  # updates before
    for mode, value in enumerate(search.modes.log_evidence):
        counted = search.curves[mode][first:]
        best = len(counted) - 1 - problem.schedule.patience
        torch.testing.assert_close(value, counted[best])
        assert best >= 0
    assert any(value > curve[-1] + 1.0 for value, curve in zip(
        search.modes.log_evidence, search.curves, strict=True))  # fmt: skip
    assert search.stop_reason == "tol"
