"""What the linear models keep beside the habits of all estimators."""

import numpy as np
import pytest
from habits import LINEAR, data, every
from sklearn.base import clone
from sklearn.exceptions import NotFittedError


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


@every(LINEAR)
def test_unfitted(estimator):
    with pytest.raises(NotFittedError):
        clone(estimator).predict(np.zeros((2, 3)))
    with pytest.raises(NotFittedError):
        _ = clone(estimator).coef_cov_
