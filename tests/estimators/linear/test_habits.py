"""What the linear models keep beside the habits of all estimators."""

import numpy as np
import pytest
from habits import LINEAR, Watch, data, every
from sklearn.base import clone
from sklearn.callback import ScoringMonitor
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from skbayes_sym.inference.linear import hyperparameters as site_learning

UPDATED = {name: estimator for name, estimator in LINEAR.items() if name != "linear-gaussian"}


@pytest.mark.kept("linear-gaussian", "linear-student-t")
@every(LINEAR)
def test_sites_of_weighted_rows_are_those_of_repetitions(estimator):
    X, y = data(estimator)
    rng = np.random.default_rng(1)
    weight = rng.integers(0, 4, size=len(y))
    repeated = rng.permutation(np.repeat(np.arange(len(y)), weight))
    weighted = clone(estimator).fit(X, y, sample_weight=weight)
    again = clone(estimator).fit(X[repeated], y[repeated])
    kept = weight > 0
    first = [np.flatnonzero(repeated == i)[0] for i in np.flatnonzero(kept)]
    assert np.array_equal(weighted.site_location_[kept], again.site_location_[first])
    assert np.isnan(weighted.site_location_[~kept]).all()
    assert np.isinf(weighted.site_variance_[~kept]).all()


@pytest.mark.kept("linear-gaussian", "linear-student-t")
@every(LINEAR)
def test_float32_follows_the_data(estimator):
    X, y = data(estimator)
    fitted = clone(estimator).fit(X.astype(np.float32), y)
    assert fitted.dtype_ == "float32"
    spread = fitted.predict_uncertainty(X.astype(np.float32)).total
    assert spread.dtype == np.float32
    rounded = clone(estimator).fit(X.astype(np.float32).astype(float), y)
    assert fitted.elbo_ == rounded.elbo_  # the fit itself is in float64


@pytest.mark.kept("linear-student-t")
@every(UPDATED)
def test_callbacks_see_every_update_and_stop(estimator):
    X, y = data(estimator)
    stop = Watch(2)
    fitted = clone(estimator).set_callbacks(stop).fit(X, y)
    assert (fitted.stop_reason_, fitted.n_iter_) == ("callback", 2)
    assert stop.begun == stop.ended == 3
    scoring = "accuracy" if hasattr(estimator, "predict_proba") else "r2"
    monitor = ScoringMonitor(scoring=scoring)
    fitted = clone(estimator).set_callbacks(monitor).fit(X, y)
    *_, last = [row[scoring] for row in monitor.get_logs().data]
    assert last == pytest.approx(fitted.score(X, y))


@every(UPDATED)
def test_interrupt_keeps_a_marked_usable_model(estimator, monkeypatch):
    original, calls = site_learning.update, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args, **kwargs)

    monkeypatch.setattr(site_learning, "update", interrupted)
    X, y = data(estimator)
    model = clone(estimator)
    with (
        pytest.warns(ConvergenceWarning, match="interrupted after 1 steps"),
        pytest.raises(KeyboardInterrupt),
    ):
        model.fit(X, y)
    assert (model.stop_reason_, model.n_iter_) == ("interrupted", 1)
    assert np.isfinite(model.elbo_)
    assert model.predict(X).shape == y.shape


@every(LINEAR)
def test_unfitted(estimator):
    with pytest.raises(NotFittedError):
        clone(estimator).predict(np.zeros((2, 3)))
    with pytest.raises(NotFittedError):
        _ = clone(estimator).coef_cov_
