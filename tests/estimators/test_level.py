"""The level of the targets costs no digits, however large it is against their spread."""

import numpy as np
import pytest
from sklearn.base import clone

import skbayes_sym as sk

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LEVEL = 2.0**30
rng = np.random.default_rng(0)
X = rng.standard_normal((64, 2))
# Numbers whose sums are exact, so that targets less their mean are the same numbers at any level.
Y = np.round((np.sin(2.0 * X[:, 0]) + 0.2 * rng.standard_normal(64)) * 2**12) / 2**12
SHORT = {"max_iter": 30, "tol": None, "random_state": 0}

ESTIMATORS = {
    "linear": sk.BayesianLinearRegressor(),
    "student-t": sk.BayesianLinearRegressor(likelihood="student-t"),
    "laplace": sk.LaplaceRegressor((2,), optimizer=sk.GaussNewton(2), max_iter=20, random_state=0),
    "heteroscedastic": sk.LaplaceRegressor((2,), likelihood="heteroscedastic", **SHORT),
    "lila": sk.LILARegressor((2,), invariances=None, **SHORT),
    "pool": sk.BayesianMLPRegressor((2,), n_modes=2, n_members=2, random_state=0),
    "ensemble": sk.DeepEnsembleRegressor((2,), n_members=3, optimizer=sk.Adam(0.03), **SHORT),
    "vi": sk.SymmetrizedVIRegressor((2,), **SHORT),
    "layerwise": sk.LayerwiseVIRegressor((2,), **SHORT),
    "stack": sk.PredictiveStackingRegressor(
        [("line", "linear"), ("smooth", "process"), ("points", sk.BayesianLinearRegressor())],
        random_state=0,
    ),
    "mcmc": sk.MCMCRegressor(
        (2,), n_chains=2, n_draws=8, sampler=sk.Chains(init="prior", n_warmup=10),
        remove_symmetries=sk.ModeWeights("uniform"), random_state=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_predictions_move_with_the_level(name, dtype):
    rows = X.astype(dtype)
    near, far = (clone(ESTIMATORS[name]).fit(rows, Y + level) for level in (0.0, LEVEL))
    mean, std = near.predict(rows, return_std=True)
    shifted, same = far.predict(rows, return_std=True)
    unit = 1e-6 * Y.std()
    np.testing.assert_allclose(shifted - LEVEL, mean, rtol=0, atol=unit)
    np.testing.assert_allclose(same, std, rtol=0, atol=unit)
    np.testing.assert_allclose(far.predict(rows) - LEVEL, near.predict(rows), rtol=0, atol=unit)
    quantiles = far.predict_quantiles(rows) - LEVEL
    np.testing.assert_allclose(quantiles, near.predict_quantiles(rows), rtol=0, atol=2 * unit)
    density = near.log_predictive_density(rows, Y)
    np.testing.assert_allclose(far.log_predictive_density(rows, Y + LEVEL), density, atol=1e-4)
