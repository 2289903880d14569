"""Restarts begun in two ways: in noise doubt is right, at a bend belief."""

import numpy as np
import pytest
import torch

from skbayes_sym.inference.laplace.search import beginnings
from skbayes_sym.inference.laplace.search.beginnings import (
    BELIEVED,
    DOUBTED,
    search_both_ways,
    search_modes,
)
from skbayes_sym.inference.laplace.search.numbers import EvidenceModes, NumbersEvidence
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.data import Data
from skbayes_sym.models.learned_scales import LayerScales

HOW = EvidenceModes(max_iter=60)


def problem_of(x, y, width=8):
    y = (y - y.mean()) / y.std()
    data = Data(*(torch.as_tensor(a) for a in (x, y[:, None], np.ones(len(x)))))
    network = MLP(x.shape[1], (width,), 1, TANH)
    return NumbersEvidence(network, data, LayerScales().bind(network.layout))


def a_line_in_noise():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((120, 6))
    return problem_of(x, x[:, 0] - x[:, 1] + 2.5 * rng.standard_normal(120))


def a_bend():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((80, 2))
    return problem_of(x, np.sin(3.0 * x[:, 0]) + 0.05 * rng.standard_normal(80))


def starts(problem, n):
    generator = torch.Generator().manual_seed(0)
    return LayerScales().bind(problem.network.layout).sample(n, generator=generator)


def evidence(problem, theta, beginning):
    noise = torch.full((1,), beginning, dtype=torch.float64)
    return HOW.search(problem, theta, noise).modes.log_evidence


@pytest.mark.long
@pytest.mark.parametrize(
    ("problem", "right", "wrong"),
    [(a_line_in_noise(), DOUBTED, BELIEVED), (a_bend(), BELIEVED, DOUBTED)],
    ids=["noise", "bend"],
)
def test_every_mode_is_of_the_better_beginning(problem, right, wrong):
    theta = starts(problem, 8)
    found = search_both_ways(HOW, problem, theta).modes.log_evidence
    assert found.shape == (4,)
    assert found.median() > evidence(problem, theta[:4], wrong).max() + 5.0
    assert found.median() > evidence(problem, theta[:4], right).min() - 5.0


@pytest.mark.long
def test_where_both_beginnings_lead_alike_nothing_is_sought_anew():
    problem = a_bend()
    problem.data.y[:] = problem.data.x[:, :1]  # a line without noise
    theta = starts(problem, 8)
    search = search_both_ways(HOW, problem, theta)
    torch.testing.assert_close(search.modes.theta, HOW.search(
        problem, theta[:4], torch.tensor([[BELIEVED], [DOUBTED]] * 2).double()
        / problem.data.y.var(correction=0)).modes.theta)  # fmt: skip


@pytest.mark.long
def test_one_mode_is_the_better_of_two():
    problem = a_line_in_noise()
    theta = starts(problem, 2)
    found = search_both_ways(HOW, problem, theta).modes.log_evidence
    both = [evidence(problem, theta[i : i + 1], b) for i, b in enumerate((BELIEVED, DOUBTED))]
    torch.testing.assert_close(found, torch.cat(both).max().unsqueeze(0))


@pytest.mark.parametrize("last", [20, 70])
def test_stopped_it_gives_the_first_restarts(last):
    problem = a_line_in_noise()
    told = []

    def stop(step, modes):
        told.append(step)
        assert len(modes().theta) == 4 or step < 60
        return step == last

    search = search_both_ways(EvidenceModes(60, tol=None), problem, starts(problem, 8), stop)
    assert told == list(range(1, last + 1))
    assert search.stopped == "callback"
    assert search.modes.theta.shape[0] == search.curves[0].shape[0] == 4


@pytest.mark.long
def test_curves_of_those_sought_anew_stand_beside_the_others():
    problem = a_line_in_noise()
    search = search_both_ways(HOW, problem, starts(problem, 8))
    assert all(curve.shape == (4,) for curve in search.curves)
    last = [np.array([float(c[i]) for c in search.curves]) for i in range(4)]
    ends = [curve[np.isfinite(curve)][-1] for curve in last]
    np.testing.assert_allclose(ends, search.modes.log_evidence, atol=1.0)


def test_a_mode_a_nat_per_row_below_the_best_is_left_out(monkeypatch):
    problem, how = a_bend(), EvidenceModes(max_iter=12)
    theta = starts(problem, 6)
    found = search_both_ways(how, problem, theta)
    for lag, kept in [(0.9, [0, 1, 2]), (1.1, [0, 2])]:
        value = found.modes.log_evidence.max() - 80 * torch.tensor([0.0, lag, 0.5]).double()
        lagging = found._replace(modes=found.modes._replace(log_evidence=value))
        monkeypatch.setattr(beginnings, "search_both_ways", lambda *_, s=lagging: s)
        left = search_modes(how, problem, lambda n: theta[:n], 3)
        torch.testing.assert_close(left.modes.theta, found.modes.theta[kept])
        assert [len(curve) for curve in left.curves] == [len(kept)] * 12
    stopped = lagging._replace(stopped="callback")
    monkeypatch.setattr(beginnings, "search_both_ways", lambda *_: stopped)
    assert len(search_modes(how, problem, lambda n: theta[:n], 3).modes.theta) == 3
