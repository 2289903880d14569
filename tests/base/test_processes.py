"""The same bits from one process and from two, and fits that are told to end between them."""

import numpy as np
import pytest
import torch
from habits import Watch
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym import (
    BayesianMLPClassifier,
    BayesianMLPRegressor,
    LaplaceClassifier,
    LaplaceRegressor,
)
from skbayes_sym.base.optimizers import GaussNewton
from skbayes_sym.base.progress import FitProgress
from skbayes_sym.laplace.evidence_problem import GaussianEvidence
from skbayes_sym.laplace.mode_finding import EvidenceSearch, draw_initial_weights
from skbayes_sym.models import MLP, TANH, LayerScales
from skbayes_sym.models.model import Data
from skbayes_sym.numerics.runtime import run_parallel

MANY = make_friedman1(2000, n_features=10, noise=1.0, random_state=0)
FLOWERS = load_iris(return_X_y=True)
FEW = FLOWERS[0][::2] + np.random.default_rng(0).normal(size=(75, 4)), FLOWERS[1][::2]
FITS = {
    "restarts": (
        LaplaceRegressor(20, optimizer=GaussNewton(3), max_iter=12, tol=None, random_state=0),
        MANY,
    ),
    "labels": (LaplaceClassifier(3, optimizer=GaussNewton(3), random_state=0), FEW),
    "one start": (LaplaceClassifier(3, optimizer=GaussNewton(1), random_state=0), FEW),
    "members": (BayesianMLPClassifier(n_modes=0, n_members=2, random_state=0), FEW),
}


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.kept("restarts", "labels")
@pytest.mark.parametrize("name", FITS)
def test_processes_change_no_bit(name):
    model, rows = FITS[name]
    one, two = (clone(model).set_params(n_jobs=n).fit(*rows) for n in (None, 2))
    predict = [getattr(m, "predict_proba", m.predict)(rows[0][:20]) for m in (one, two)]
    np.testing.assert_array_equal(*predict)
    assert one.n_iter_ == two.n_iter_


@pytest.fixture(scope="module")
def large():
    x, y = (torch.as_tensor(a) for a in MANY)
    network = MLP(10, (20,), 1, TANH)
    data = Data(x - x.mean(0), ((y - y.mean()) / y.std()).unsqueeze(1), torch.ones_like(y))
    return GaussianEvidence(network, data, LayerScales().bind(network.layout))


@pytest.mark.long
@pytest.mark.parametrize("n", [300, 1500])
def test_widths_that_are_validated_at_once_change_no_bit(n, monkeypatch):
    """Up to 1,000 rows two priors are compared, and with more a pilot estimates the noise."""
    X, y = make_friedman1(n, n_features=5, noise=1.0, random_state=0)
    model = BayesianMLPRegressor(n_modes=2, n_members=0, random_state=0)
    validated = []

    def run(jobs, n_jobs, **hints):
        validated.append(len(jobs))
        return run_parallel(jobs, n_jobs, **hints)

    monkeypatch.setattr("skbayes_sym.laplace.gauss_newton_regression.run_parallel", run)
    one, two = (clone(model).set_params(n_jobs=n).fit(X, y) for n in (None, 2))
    assert validated == [3]
    np.testing.assert_array_equal(one.width_scores_, two.width_scores_)
    np.testing.assert_array_equal(one.predict(X), two.predict(X))


def test_a_callback_ends_a_fit_at_widths_that_were_validated_at_once():
    X, y = make_friedman1(60, n_features=5, noise=1.0, random_state=0)
    watch = Watch(1)
    model = BayesianMLPRegressor(n_members=0, n_jobs=2, random_state=0).set_callbacks(watch)
    model.fit(X, y)
    assert watch.begun == watch.ended == 2
    assert model.stop_reason_ == "callback"
    assert model.network_.hidden_layer_sizes == (3,)


def searched(problem, which, on_step=None):
    theta = draw_initial_weights(problem.network, 3, generator=torch.Generator().manual_seed(0))
    return EvidenceSearch(3, tol=None).search(problem, theta[which], on_step=on_step)


def test_restarts_of_a_large_problem_are_searched_alone(large):
    together, alone = searched(large, [0, 1, 2]), searched(large, [1])
    assert torch.equal(together.modes.theta[1:2], alone.modes.theta)
    assert torch.equal(together.modes.factor[1:2], alone.modes.factor)


def test_told_to_end_it_gives_those_that_had_begun(large):
    seen = []

    def stop(step, so_far):
        seen.append(len(so_far().modes.theta))
        return len(seen) == 3

    search = searched(large, [0, 1, 2], stop)
    # Every third step of a restart, and its end: twice one mode, then two.
    assert seen == [1, 1, 2]
    assert search.stopped == ["max_iter", "callback"]


def interrupted(_):
    raise KeyboardInterrupt


@pytest.mark.processes
def test_modes_of_labels_from_other_processes_are_heard_and_kept(monkeypatch):
    model, rows = FITS["labels"]
    watch, ended = Watch(1), clone(model).set_params(n_jobs=2)
    ended.set_callbacks(watch).fit(*rows)
    assert watch.begun == watch.ended == 2  # a block, and the fit
    assert (ended.stop_reason_, ended.n_modes_) == ("callback", 1)
    monkeypatch.setattr(FitProgress, "end_block", interrupted)
    kept = clone(model).set_params(n_jobs=2)
    with pytest.raises(KeyboardInterrupt), pytest.warns(ConvergenceWarning, match="interrupted"):
        kept.fit(*rows)
    np.testing.assert_array_equal(kept.log_evidence_modes_, ended.log_evidence_modes_)
