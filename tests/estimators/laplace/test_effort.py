"""Units and restarts by the number of rows."""

import numpy as np
import pytest
from sklearn.base import clone

from skbayes_sym import LaplaceRegressor
from skbayes_sym.estimators.laplace import effort
from skbayes_sym.estimators.laplace.effort import (
    MOST_WORK,
    USUAL_WORK,
    affordable_modes,
    automatic_width,
    work,
)
from skbayes_sym.models import MLP, TANH
from skbayes_sym.models.learned_scales import LayerScales


def test_width_follows_the_number_of_rows():
    assert automatic_width(1000, 5, 1) == 20
    assert automatic_width(1001, 5, 1) == 40
    assert automatic_width(10**6, 5, 1) == 20


@pytest.mark.parametrize("n_rows", [100, 3000, 30_000, 10**6])
def test_modes_take_seconds_or_are_left_out(n_rows):
    network = MLP(5, (20,), 1, TANH)
    n_modes = affordable_modes(10, n_rows, network)
    each = work(1, 100, n_rows, network.layout.n_params)
    if n_modes == 0:
        assert 3 * each > MOST_WORK
    else:
        assert 3 <= n_modes <= 10
        assert n_modes * each <= max(USUAL_WORK, 3 * each)
        assert n_modes == 10 or (n_modes + 1) * each > USUAL_WORK
    assert affordable_modes(2, 100, network) == 2


def rows(n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2))
    return X, np.sin(2.0 * X[:, 0]) + 0.1 * rng.standard_normal(n)


pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def test_more_rows_take_forty_units_and_a_scale_a_column():
    reg = LaplaceRegressor(n_restarts=1, max_iter=2, tol=None, random_state=0)
    small, large = clone(reg).fit(*rows(100)), clone(reg).fit(*rows(1001))
    assert small.network_.hidden_layer_sizes == (20,)
    assert not hasattr(small, "relevance_")
    assert large.network_.hidden_layer_sizes == (40,)
    assert large.relevance_.shape == (1, 2)


def test_what_is_given_stays():
    own = LaplaceRegressor((20,), n_restarts=1, max_iter=2, tol=None, random_state=0)
    found = clone(own).fit(*rows(1001))
    assert found.network_.hidden_layer_sizes == (20,)
    assert not hasattr(found, "relevance_")
    of_layers = clone(own).set_params(hidden_layer_sizes="auto", prior=LayerScales())
    assert not hasattr(of_layers.fit(*rows(1001)), "relevance_")
    adam = LaplaceRegressor(optimizer="adam", max_iter=2, n_hyper_updates=1, random_state=0)
    assert adam.fit(*rows(1001)).network_.hidden_layer_sizes == (20,)


def test_restarts_by_rows(monkeypatch):
    reg = LaplaceRegressor((3,), max_iter=1, random_state=0)
    assert len(clone(reg).fit(*rows(30)).log_evidence_modes_) == 10
    monkeypatch.setattr(effort, "USUAL_WORK", 1.0)
    assert len(clone(reg).fit(*rows(30)).log_evidence_modes_) == 3
