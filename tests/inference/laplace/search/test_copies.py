"""Restarts that are symmetric copies of one mode: found, ended and counted together."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from skbayes_sym import LaplaceClassifier, LaplaceRegressor
from skbayes_sym.inference.laplace.search import mode_search
from skbayes_sym.inference.laplace.search.evidence_problem import NumbersEvidence, SearchHyper
from skbayes_sym.inference.laplace.search.labels import LabelsEvidence
from skbayes_sym.inference.laplace.search.mode_search import (
    EvidenceSearch,
    distinct,
    first_alike,
    mapped,
)
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.model import Data
from skbayes_sym.models.priors import LayerScales

NETWORK = MLP(2, (3,), 1, TANH)


def problem_of(kind):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    y = (2.0 * x[:, :1]).sin() + 0.1 * torch.randn(40, 1, generator=generator)
    y = y if kind is NumbersEvidence else (y[:, 0] > 0.0).long()
    return kind(NETWORK, Data(x, y, torch.ones(40, dtype=torch.float64)),
                LayerScales().bind(NETWORK.layout))  # fmt: skip


@pytest.mark.parametrize("kind", [NumbersEvidence, LabelsEvidence])
def test_copies_are_alike_and_nothing_else_is(kind):
    """Restarts 0, 1, 2 and copies of them; 6 has another scale, 7 another noise."""
    problem, generator = problem_of(kind), torch.Generator().manual_seed(1)
    theta = torch.randn(3, NETWORK.layout.n_params, generator=generator, dtype=torch.float64)
    group = NETWORK.symmetry()
    copies = group.act(group.sample((3,), generator=generator), theta)
    theta = torch.cat([theta, copies, theta[:2]])
    log_precision = torch.zeros(8, len(problem.prior.sizes), dtype=torch.float64)
    noise = torch.ones(8, 1 if kind is NumbersEvidence else 0, dtype=torch.float64)
    log_precision[6, 0] += 1.0
    noise[7:], log_precision[7:] = 2.0, log_precision[7:] + (kind is LabelsEvidence)
    hyper = SearchHyper(log_precision, noise)
    assert first_alike(problem, theta, hyper) == [0, 1, 2, 0, 1, 2, 6, 7]
    shares = torch.ones(8, 40, dtype=torch.float64)  # of the rows that each learns from
    assert first_alike(replace(problem, share=shares), theta, hyper) == list(range(8))


def test_a_restart_that_joins_another_ends_with_its_mode():
    """The second start is a copy of the first, a little away; without a tolerance none ends."""
    problem, generator = problem_of(NumbersEvidence), torch.Generator().manual_seed(2)
    start = mode_search.starting_points(NETWORK, 1, generator=generator)
    group = NETWORK.symmetry()
    copy = group.act(group.sample((1,), generator=generator), start) + 1e-3
    both = torch.cat([start, copy])
    search = EvidenceSearch(60, tol=1e-12).search(problem, both)
    assert torch.equal(search.modes.theta[1], search.modes.theta[0])
    assert distinct(problem, search).modes.n_restarts.tolist() == [2]
    never = EvidenceSearch(40, tol=None).search(problem, both)
    assert never.modes.n_iter.tolist() == [40, 40]


def test_two_units_have_one_mode_which_predicts_what_its_copies_did(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (30, 1))
    y = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 0] ** 2 + 0.1 * rng.standard_normal(30)
    model = LaplaceRegressor((2,), random_state=0).fit(X, y)
    assert model.n_modes_ == len(model.posterior_.loc) == 1
    assert model.multiplicity_modes_.tolist() == [10]
    monkeypatch.setattr(mode_search, "first_alike", lambda _, theta, hyper: [*range(len(theta))])
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
    problem, generator = problem_of(NumbersEvidence), torch.Generator().manual_seed(3)
    start = mode_search.starting_points(NETWORK, 1, generator=generator)
    search = EvidenceSearch(60).search(problem, start)
    lower = search._replace(
        modes=mapped(lambda t: t, search.modes)._replace(
            log_evidence=search.modes.log_evidence - 1.0, theta=search.modes.theta + 1e-6
        )
    )
    for order in ([search, lower], [lower, search]):
        kept = distinct(problem, mode_search.joined(order)).modes
        assert kept.n_restarts.tolist() == [2]
        assert torch.equal(kept.theta, search.modes.theta)
