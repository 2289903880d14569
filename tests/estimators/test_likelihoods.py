"""Every likelihood by name in every network estimator that takes one."""

import numpy as np
import pytest
from sklearn.base import clone

import skbayes_sym as sk
from skbayes_sym.inference.samplers import HMC

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NET = {"hidden_layer_sizes": (4,), "activation": "tanh", "random_state": 0}
STEPS = {**NET, "max_iter": 300, "tol": None}
TAKES_NUMBERS = {
    "vi": sk.SymmetrizedVIRegressor(**STEPS, learning_rate=0.03),
    "mcmc": sk.MCMCRegressor(
        **NET, sampler=HMC(max_leapfrog=8), n_chains=4, n_warmup=100, n_draws=10,
        mode_weights="uniform",
    ),
    "ensemble": sk.DeepEnsembleRegressor(**STEPS, n_members=3),
    "laplace": sk.LaplaceRegressor(**STEPS, n_hyper_updates=10),
    "lila": sk.LILARegressor(**STEPS, n_hyper_updates=10, invariances=None),
}  # fmt: skip
every_regressor = pytest.mark.parametrize("name", TAKES_NUMBERS)

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (120, 1))
STD = 10.0 * np.exp(X[:, 0] - 1.5)
Y = 5.0 + 10.0 * np.sin(X[:, 0]) + STD * rng.standard_normal(120)


@every_regressor
def test_a_noise_that_changes_with_the_input(name):
    """It is found where it is, in the units of y, and everything predicted follows it."""
    reg = clone(TAKES_NUMBERS[name]).set_params(likelihood="heteroscedastic").fit(X, Y)
    parts = reg.predict_uncertainty(X)
    noise = np.sqrt(parts.aleatoric)
    # 120 rows see each region's standard deviation by about a fifth.
    assert np.abs(np.log(noise / STD)).mean() < 0.35
    assert np.corrcoef(np.log(noise), X[:, 0])[0, 1] > 0.95
    np.testing.assert_allclose(parts.total, parts.aleatoric + parts.epistemic)
    mean, std = reg.predict(X, return_std=True)
    np.testing.assert_allclose(std, np.sqrt(parts.total))
    quiet, loud = X[:, 0] < -1.0, X[:, 0] > 1.0
    width = np.diff(reg.predict_interval(X), axis=1)[:, 0]
    assert width[loud].mean() > 3.0 * width[quiet].mean()
    drawn = reg.sample_y(X, 400, random_state=0)
    assert drawn[loud].std(1).mean() > 3.0 * drawn[quiet].std(1).mean()
    assert np.mean(np.abs(drawn.mean(1) - mean) < 6.0 * std / 20.0 + 0.1 * std) > 0.9
    cdf = reg.predictive_cdf(X, reg.predict_quantiles(X, [0.2])[:, 0])
    np.testing.assert_allclose(cdf, 0.2, atol=1e-6)


@every_regressor
def test_densities_are_of_targets_as_given(name):
    reg = clone(TAKES_NUMBERS[name]).set_params(likelihood="heteroscedastic")
    # By a power of two, so that scaled targets are the same bits and chains the same chains.
    one, eight = reg.fit(X, Y), clone(reg).fit(X, 8.0 * Y)
    shift = one.log_predictive_density(X, Y) - eight.log_predictive_density(X, 8.0 * Y)
    np.testing.assert_allclose(shift, np.log(8.0), rtol=1e-9)
    before, after = one.predict(X, return_std=True)[1], eight.predict(X, return_std=True)[1]
    np.testing.assert_allclose(after, 8.0 * before, rtol=1e-9)


def test_two_targets_have_a_noise_each():
    both = np.column_stack([Y, 2.0 * Y[::-1]])
    reg = clone(TAKES_NUMBERS["ensemble"]).set_params(likelihood="heteroscedastic")
    reg.fit(X, both)
    assert reg.network_.n_outputs == 4
    assert reg.predict_uncertainty(X).aleatoric.shape == (120, 2)
    assert reg.sample_y(X, 3).shape == (120, 2, 3)


def test_a_name_of_the_other_kind_is_refused():
    with pytest.raises(ValueError, match="'categorical' doesn't go with SymmetrizedVIRegressor"):
        sk.SymmetrizedVIRegressor(likelihood="categorical").fit(X, Y)
    with pytest.raises(ValueError, match="'poisson' doesn't go with MCMCClassifier, which takes"):
        sk.MCMCClassifier(likelihood="poisson").fit(X, Y > 5.0)
