"""Predictions of classes: refined laws, refitted members, probabilities, rows truly left out."""

import pytest
import torch
from laplace.classification_problems import (
    class_data,
    class_problem,
    gaussian_bound,
    grid_log_evidence,
    held,
    mixture_at,
    repeated,
)

from skbayes_sym.laplace import class_predictive, predict
from skbayes_sym.laplace.class_predictive import (
    RefittedMembers,
    choose_variance_scale,
    leave_one_out_by_mode,
    refine,
    refit,
)
from skbayes_sym.laplace.mode_finding import EvidenceSearch, draw_initial_weights
from skbayes_sym.laplace.predict import RefittedPredictor
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.normal_logits import (
    VARIANCE_SCALES,
    LeaveOneOutLogits,
    SoftmaxExpectations,
    symmetric_root,
)
from skbayes_sym.models.priors import GroupScalePrior, LayerScales


def modes_of(problem, n=1, max_iter=60, tol="auto"):
    start = draw_initial_weights(problem.network, n, generator=torch.Generator().manual_seed(0))
    return EvidenceSearch(max_iter, tol).search(problem, start).modes


def separated(n=12):
    x = torch.linspace(-2.0, 2.0, n, dtype=torch.float64)
    return Data(x[:, None], (x > 0.0).long(), torch.ones(n, dtype=torch.float64))


@pytest.mark.parametrize("separate", [False, True], ids=["overlapping", "separated"])
def test_the_bound_is_below_the_evidence_and_close(separate):
    data = separated() if separate else class_data(n=15, n_inputs=1, n_classes=2)
    problem = held(class_problem(data, n_outputs=1))
    modes = modes_of(problem)
    reach = 6.0 * (-0.5 * modes.hyper[0]).exp()
    exact = grid_log_evidence(problem, modes.hyper[0], (0.0, 0.0), reach, n=301)
    refined = refine(problem, modes, n_steps=20)
    bound = gaussian_bound(problem, refined.theta[0], modes.hyper[0], refined.factor[0])
    assert exact - 0.15 < bound < exact
    laplace = gaussian_bound(problem, modes.theta[0], modes.hyper[0], modes.factor[0])
    assert laplace < bound  # Laplace's law is a normal law too, and a worse one
    for shift in (-0.3, 0.3):
        moved = gaussian_bound(problem, refined.theta[0] + shift, modes.hyper[0], refined.factor[0])
        wider = gaussian_bound(
            problem, refined.theta[0], modes.hyper[0], (1.0 + shift) * refined.factor[0]
        )
        assert max(moved, wider) < bound


@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"])
def test_of_a_linear_model_the_law_is_a_fixed_point(n_outputs, n_classes):
    problem = held(class_problem(class_data(n_classes=n_classes), n_outputs=n_outputs))
    modes = modes_of(problem)
    refined = refine(problem, modes, n_steps=25)
    again = refine(problem, modes, n_steps=26)
    torch.testing.assert_close(again.theta, refined.theta, atol=1e-5, rtol=0.0)
    torch.testing.assert_close(again.covariance, refined.covariance, atol=1e-5, rtol=1e-4)


def test_separated_classes_become_confident_again():
    """Where the softmax is flat Laplace leaves logits the prior's variance."""
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Data(x, x[:, :3].argmax(1), torch.ones(30, dtype=torch.float64))
    problem = held(class_problem(data, (4,), prior=LayerScales(8.0, 64.0)))
    modes = modes_of(problem, n=2)
    refined = refine(problem, modes)
    laplace, bounds = (
        [
            gaussian_bound(problem, *distribution)
            for distribution in zip(q.theta, q.hyper, q.factor, strict=True)
        ]
        for q in (modes, refined)
    )
    assert bounds[0] > laplace[0]
    assert bounds[1] > laplace[1]
    losses = []
    for distribution in (modes, refined):
        mixture = mixture_at(problem, distribution, 1.0)
        losses.append(-mixture.mean()[torch.arange(30), data.y].log().mean())
    assert losses[1] < 0.5 * losses[0]


KINDS = pytest.mark.parametrize(
    ("n_outputs", "n_classes"), [(1, 2), (3, 3)], ids=["logistic", "softmax"]
)


@KINDS
@pytest.mark.parametrize("variance_scale", VARIANCE_SCALES)
def test_probabilities_and_weights_sum_to_one(n_outputs, n_classes, variance_scale):
    problem = class_problem(class_data(n_classes=n_classes), (3,), n_outputs)
    distributions = modes_of(problem, n=2, max_iter=10)
    mixture = mixture_at(problem, distributions, variance_scale)
    total = mixture.log_probs.logsumexp(-1)
    torch.testing.assert_close(total, torch.zeros_like(total))
    one = torch.ones((), dtype=torch.float64)
    torch.testing.assert_close(mixture.log_weights.exp().sum(), one)
    assert mixture.mean().shape == (40, n_classes)


def test_without_variance_it_is_the_mean_of_the_modes():
    problem = class_problem(class_data(), (3,))
    distributions = modes_of(problem, n=2, max_iter=10)
    mixture = mixture_at(problem, distributions, 0.0)
    outputs = problem.network.forward(distributions.theta, problem.data.x)
    torch.testing.assert_close(mixture.mean(), outputs.softmax(-1).mean(0))


@pytest.mark.parametrize(("n_classes", "n_outputs"), [(2, 1), (3, 3)])
def test_few_rows_and_single_modes_have_the_same_probabilities(n_classes, n_outputs, monkeypatch):
    problem = class_problem(class_data(n_classes=n_classes), (3,), n_outputs)
    distributions = modes_of(problem, n=3, max_iter=10)
    rows = problem.data.x
    together = mixture_at(problem, distributions, 1.0)
    alone = [mixture_at(problem, distributions, 1.0, row[None]).log_probs for row in rows]
    torch.testing.assert_close(torch.cat(alone, 1), together.log_probs, rtol=1e-8, atol=1e-8)
    monkeypatch.setattr(predict, "_MAX_LOG_PROBABILITIES", 1)
    by_mode = mixture_at(problem, distributions, 1.0)
    torch.testing.assert_close(by_mode.log_probs, together.log_probs)
    torch.testing.assert_close(by_mode.log_weights, together.log_weights)


@pytest.mark.parametrize(("variance_scale", "atol"), [(0.0, 1e-12), (1.0, 0.02)])
def test_exchanging_classes_exchanges_probabilities(variance_scale, atol):
    """Exactly but for the points, which treat the classes alike to quasi-Monte Carlo error."""
    problem, order = class_problem(class_data(), (3,)), torch.tensor([2, 0, 1])
    distributions, layout = modes_of(problem, max_iter=10), problem.network.layout
    places = layout.unflatten(torch.arange(layout.n_params))
    moved = {**places, "W2": places["W2"][order], "b2": places["b2"][order]}
    index = layout.flatten(moved)
    covariance = distributions.covariance[:, index][:, :, index]
    factor = torch.linalg.cholesky(torch.linalg.inv(covariance))
    exchanged = distributions._replace(theta=distributions.theta[:, index], factor=factor)
    found = [
        mixture_at(problem, these, variance_scale).mean() for these in (distributions, exchanged)
    ]
    torch.testing.assert_close(found[0][:, order], found[1], atol=atol, rtol=0.0)


@pytest.mark.long
@pytest.mark.kept("refined-softmax", "mode-logistic")
@KINDS
@pytest.mark.parametrize("averaged", [False, True], ids=["mode", "refined"])
def test_leaving_out_is_near_to_fitting_without_the_row(n_outputs, n_classes, averaged):
    data = class_data(n=15, n_classes=n_classes)
    data = data._replace(weight=1.0 + torch.arange(15, dtype=torch.float64) % 2)

    def distribution(rows):
        problem = class_problem(rows, n_outputs=n_outputs)
        modes = modes_of(held(problem), max_iter=12)
        return problem, refine(problem, modes, 15) if averaged else modes

    problem, distributions = distribution(data)
    theta, (approximate,) = distributions.theta[0], leave_one_out_by_mode(problem, distributions)
    log_p = SoftmaxExpectations(*approximate).log_likelihood(data.y)
    within = SoftmaxExpectations(problem.network.forward(theta, data.x)).log_likelihood(data.y)
    exact = []
    for row in range(15):
        kept = torch.arange(15) != row
        _, found = distribution(Data(*(t[kept] for t in data)))
        probabilities = mixture_at(problem, found, 1.0, data.x).mean()
        exact.append(probabilities[row, data.y[row]].log())
    exact = torch.stack(exact)
    assert (log_p - exact).abs().mean() < 0.1
    assert (log_p - exact).abs().mean() < 0.35 * (within - exact).abs().mean()


def test_the_scale_with_the_least_loss_is_chosen():
    problem = class_problem(class_data(n=12), (3,))
    found = choose_variance_scale(problem, modes_of(problem, n=2, max_iter=8))
    assert found.factor == VARIANCE_SCALES[int(found.log_losses.argmin())]


def test_all_repetitions_of_a_row_are_left_out():
    """A row that repeats would otherwise be predicted by a model that has seen it."""
    weighted, rows = repeated(class_data(n=12))
    held_out = []
    for data in (weighted, rows):
        problem = class_problem(data, (3,))
        (distribution,) = leave_one_out_by_mode(problem, modes_of(problem, n=1, max_iter=8))
        held_out.append(SoftmaxExpectations(*distribution).log_likelihood(data.y))
    n_repeated = weighted.weight.long()
    twin = held_out[1][n_repeated.cumsum(0) - 1]
    once = n_repeated == 1
    torch.testing.assert_close(held_out[0][once], twin[once])
    assert bool((held_out[0][~once] < twin[~once]).all())


def test_a_row_thrown_far_away_does_not_decide(monkeypatch):
    problem = class_problem(class_data())
    far = torch.zeros(40, 3, dtype=torch.float64)
    far[torch.arange(40), problem.data.y] = 8.0
    far[0] *= -1e6
    distribution = LeaveOneOutLogits(far, torch.eye(3, dtype=torch.float64).expand(40, 3, 3))
    monkeypatch.setattr(class_predictive, "leave_one_out_by_mode", lambda *_: [distribution])
    found = choose_variance_scale(problem, modes_of(problem, max_iter=1))
    assert found.factor == VARIANCE_SCALES[0]  # as 39 of 40 rows say
    assert found.log_losses.max() < 1.0


def test_labels_at_random_keep_the_variance_and_a_clear_rule_does_not():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    weight = torch.ones(60, dtype=torch.float64)
    chosen = []
    for y in (torch.randint(0, 2, (60,), generator=generator), (x[:, 0] > 0.0).long()):
        problem = class_problem(Data(x, y, weight), (10,), n_outputs=1)
        modes = modes_of(held(problem))
        chosen.append(choose_variance_scale(problem, modes).factor)
    assert chosen[0] >= 1.0
    assert chosen[1] < 1.0


def refitted(network, data, scale, *, to_the_end=True):
    """A member's law, that of its logits; until nothing moves, along every direction."""
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(network.layout.n_params, generator=generator, dtype=torch.float64)
    how = {"min_variance": 1e-9, "max_iter": 200, "tol": 1e-12} if to_the_end else {}
    return refit(network, theta, scale, data, **how)


def contrasts(values):
    return values[:, 1:] - values[:, :1] if values.shape[1] == 2 else values - values.mean(1, True)


@pytest.mark.parametrize("n", [6, 40], ids=["more weights", "more rows"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_mean_and_covariance_are_stationary(n, n_classes):
    data = class_data(n=n, n_classes=n_classes)
    network = MLP(2, (4,), n_classes, TANH)
    scale = torch.linspace(0.5, 1.5, network.layout.n_params, dtype=torch.float64)
    theta, loc, root, _ = refitted(network, data, scale)[0]
    jacobian = contrasts(torch.func.jacrev(lambda t: network.forward(t, data.x))(theta))
    mean = contrasts(network.forward(theta, data.x)) + jacobian @ (loc - theta)
    covariance = (scale**2).diag() - root @ root.T
    spread = torch.einsum("nkp,pq,njq->nkj", jacobian, covariance, jacobian)
    terms = SoftmaxExpectations(mean, symmetric_root(spread)).derivatives(data.y)
    slope = torch.einsum("nkp,nk->p", jacobian, terms.slope) + loc / scale**2
    torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-6, rtol=0.0)
    system = torch.einsum("nkp,nkj,njq->pq", jacobian, terms.curvature, jacobian)
    precision = system + (scale**-2).diag()
    torch.testing.assert_close(precision @ covariance, torch.eye(len(theta)).double(), atol=1e-6,
                               rtol=0.0)  # fmt: skip


def test_of_a_linear_model_it_is_the_refined_mode():
    """Two outputs of scale s differ by one of scale s sqrt(2)."""
    data = class_data(n=25, n_classes=2)
    two, one = MLP(2, (), 2, TANH), MLP(2, (), 1, TANH)
    scale = torch.full((two.layout.n_params,), 0.7, dtype=torch.float64)
    _, found, _ = refitted(two, data, scale)
    prior = GroupScalePrior.fixed(0.7 * 2**0.5 * torch.ones(one.layout.n_params).double())
    problem = class_problem(data, n_outputs=1, prior=prior)
    start = draw_initial_weights(one, 1, generator=torch.Generator().manual_seed(0))
    modes = EvidenceSearch(60).search(held(problem), start).modes
    refined = refine(problem, modes, 30)
    expected = problem.logits(refined.theta[0], refined.covariance[0])
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-6, rtol=0.0)
    torch.testing.assert_close(found.covariance, expected.covariance, atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_logits_of_the_rows_it_was_fitted_to(n_classes):
    data = class_data(n=30, n_classes=n_classes)
    network = MLP(2, (5,), n_classes, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    member, found, _ = refitted(network, data, scale, to_the_end=False)
    logits = member.logits(network, data.x)
    # But for directions that are left out, of little variance.
    torch.testing.assert_close(logits.mean, found.mean, atol=0.02, rtol=0.0)
    torch.testing.assert_close(logits.covariance, found.covariance, atol=0.02, rtol=0.0)


def test_early_stop_and_fewer_directions_change_little():
    data = class_data(n=30)
    network = MLP(2, (20,), 3, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    x = 2.0 * class_data(n=50, seed=1).x
    found = []
    for to_the_end in (False, True):
        member, *_ = refitted(network, data, scale, to_the_end=to_the_end)
        distributions = RefittedMembers.stack([member]).tensors(x.device)
        found.append(RefittedPredictor(network, distributions, 1.0).distribution(x).mean())
    assert (found[0] - found[1]).abs().max() < 0.01


def test_weights_are_repetitions():
    weighted, rows = repeated(class_data(n=12))
    network = MLP(2, (3,), 3, TANH)
    scale = torch.ones(network.layout.n_params, dtype=torch.float64)
    one, two = (refitted(network, d, scale)[0] for d in (weighted, rows))
    torch.testing.assert_close(one.loc, two.loc, atol=1e-6, rtol=0.0)
