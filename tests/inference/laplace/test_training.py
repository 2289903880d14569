"""Sums gathered from training steps, against passes of their own."""

from dataclasses import dataclass, replace

import pytest
import torch
from inference.laplace.laplace_problems import image_problem, problem
from inference.laplace.test_marginal_likelihood import evidence_of
from torch.testing import assert_close

from skbayes_sym.inference.laplace.marginal_likelihood import AveragedNetwork
from skbayes_sym.inference.laplace.online_training import OnlineEvidence, recorded_steps
from skbayes_sym.models.networks.network import Convolution, Dense

PROBLEMS = {
    "classes": problem("classes"),
    "numbers": problem("numbers", hidden=(3, 2)),
    "images": image_problem(hidden=True),
}


@dataclass(frozen=True, eq=False)
class FixedNoise(AveragedNetwork):
    """Transforms its rows by the same noise every time."""

    drawn: torch.Tensor = None

    def noise(self, n_rows, like, generator):
        return self.drawn


def fixed(p, kind, directions):
    m = p.model
    model = FixedNoise(m.network, m.augmentation, m.likelihood, m.n_samples, drawn=p.noise)
    return replace(evidence_of(p, kind, directions), model=model)


@pytest.mark.parametrize("directions", ["exact", "sketch"])
@pytest.mark.parametrize("kind", ["kronecker", "diagonal", "full"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_batch_of_all_rows_gives_the_exact_update(name, kind, directions):
    p = PROBLEMS[name]
    evidence = fixed(p, kind, directions)
    exact = evidence.one_pass(p.theta, p.hyper, 3)
    precision = evidence.precision(exact.factors, p.hyper)
    gradient = evidence.gradient(p.theta, p.hyper, 3, precision)

    online = OnlineEvidence(evidence)
    theta = p.theta.clone().requires_grad_()
    recorded = online.record(theta, p.hyper, p.data, p.noise)
    loss = -p.model.likelihood.log_prob(recorded.averaged, p.data.y).sum()
    torch.autograd.grad(loss, theta, retain_graph=True)
    with torch.no_grad():  # as estimators train
        online.gather(recorded, torch.Generator().manual_seed(3))
    sums, _, found = online.collect(p.hyper)

    assert_close(sums.log_likelihood, exact.log_likelihood.detach())
    for own, expected in zip(sums.factors, exact.factors, strict=True):
        assert_close(own, expected)
    assert_close(found, gradient)
    assert torch.count_nonzero(found) > 0


def test_later_batches_use_the_spectrum_of_the_update_before():
    """Without noise and with weights at rest, halves of the data sum to the whole."""
    p = problem("numbers", n=8, rotate=False)
    evidence = evidence_of(p)
    exact = evidence.one_pass(p.theta, p.hyper, 3)
    gradient = evidence.gradient(p.theta, p.hyper, 3, evidence.precision(exact.factors, p.hyper))
    online = OnlineEvidence(evidence)
    for update in range(2):
        for rows in (slice(0, 3), slice(3, 8)):
            batch = type(p.data)(*(t[rows] for t in p.data))
            recorded = online.record(p.theta, p.hyper, batch, p.noise[rows])
            online.gather(recorded, torch.Generator())
        _, _, found = online.collect(p.hyper)
        assert (found is None) == (update == 0)
    assert_close(found, gradient)


DENSE = [Dense("W", "b")]
CONVOLUTION = Convolution("K", None, (3, 3), (1, 1), (1, 1), (1, 1))


def test_recorded_steps_see_the_data_once_at_most():
    assert recorded_steps(10, 1, DENSE) == 1  # all the data a step: one is enough
    assert recorded_steps(30, 7, DENSE) == 7
    assert recorded_steps(1, 50, DENSE) == 1  # an update has to rest on something


@pytest.mark.parametrize(
    ("layers", "eight"), [(DENSE, 6), ([CONVOLUTION, *DENSE], 2)], ids=["dense", "convolution"]
)
def test_recording_adds_less_than_half_to_training(layers, eight):
    assert recorded_steps(8, 8, layers) == eight
    cost = max(layer.recording_cost for layer in layers)
    for n_between in range(4, 100):
        assert recorded_steps(n_between, 1000, layers) * cost < 0.5 * n_between


def test_precisions_alone_take_no_gradient():
    """Theirs is in closed form: the sums are the same, and no graph is kept."""
    p = PROBLEMS["classes"]
    evidence = fixed(p, "kronecker", "exact")
    exact = evidence.one_pass(p.theta, p.hyper, 3)
    online = OnlineEvidence(evidence, needs_gradient=False)
    for _ in range(2):
        recorded = online.record(p.theta, p.hyper, p.data, p.noise)
        assert not recorded.hyper.requires_grad
        with torch.no_grad():
            online.gather(recorded, torch.Generator().manual_seed(3))
        sums, _, gradient = online.collect(p.hyper)
        assert gradient is None
        for own, expected in zip(sums.factors, exact.factors, strict=True):
            assert_close(own, expected)
