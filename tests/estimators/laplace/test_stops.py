"""Laplace and LILA fits that are watched, stopped or interrupted."""

import numpy as np
import pytest
from habits import LAPLACE, Watch, data, every
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning

from skbayes_sym.inference.map import MapObjective


@pytest.mark.kept("lila-classifier", "laplace-regressor")
@every(LAPLACE)
def test_scoring_monitor_sees_the_model_of_the_moment(estimator):
    X, y = data(estimator)
    scoring = "accuracy" if hasattr(estimator, "predict_proba") else "r2"
    monitor = ScoringMonitor(scoring=scoring)
    fitted = clone(estimator).set_params(keep_best=False).set_callbacks(monitor).fit(X, y)
    whole, *blocks = [row[scoring] for row in monitor.get_logs().data]
    assert len(blocks) == 8
    assert blocks[-1] == whole == pytest.approx(fitted.score(X, y))


@pytest.mark.kept("lila-classifier", "laplace-regressor")
@every(LAPLACE)
def test_callback_stops_the_fit(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).set_params(burn_in=0.25).set_callbacks(Watch(7)).fit(X, y)
    assert (fitted.stop_reason_, fitted.n_iter_) == ("callback", 35)
    assert len(fitted.log_evidence_curve_) in {0, 5}  # after a burn-in of 2 blocks
    assert np.isfinite(fitted.log_evidence_)


@pytest.mark.kept("lila-classifier", "laplace-regressor")
@every(LAPLACE)
def test_interrupt_keeps_a_marked_usable_model(estimator, monkeypatch):
    original = MapObjective.__call__

    def call(self, n):
        if n == 33:
            raise KeyboardInterrupt
        return original(self, n)

    monkeypatch.setattr(MapObjective, "__call__", call)
    X, y = data(estimator)
    model = clone(estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 33 steps"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 33)
    assert np.isfinite(model.log_evidence_)
    assert model.predict(X).shape == y.shape
