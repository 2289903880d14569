"""Members of a stack that model the logarithm of positive targets."""

import pickle

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.exceptions import FitFailedWarning

import skbayes_sym as sk
from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.positive_targets import PositiveTargets
from skbayes_sym.models.predictive_mixtures import LinearPool, NormalMixture

LOC = torch.tensor([[0.5, -1.0], [0.0, -0.5]], dtype=torch.float64).unsqueeze(-1)
STD = torch.tensor([[0.6, 0.3], [0.2, 0.9]], dtype=torch.float64).unsqueeze(-1)
WEIGHTS = torch.tensor([0.4, 0.6], dtype=torch.float64)
MAX_LOG = 1.0


def make_normals():
    return NormalMixture(LOC, 0.3 * STD.square(), 0.7 * STD.square(), WEIGHTS.log())


def make_log_targets():
    return LogTargets(make_normals(), MAX_LOG)


def column(values):
    return torch.as_tensor(values, dtype=torch.float64).reshape(-1, 1)


def lognormal_density(y, row):
    """Density of the mixture of lognormal distributions by SciPy."""
    parts = zip(WEIGHTS, LOC[:, row, 0], STD[:, row, 0], strict=True)
    return sum(
        float(w) * stats.lognorm(float(s), scale=np.exp(float(m))).pdf(y) for w, m, s in parts
    )


@pytest.mark.long
def test_density_cdf_and_quantiles_are_those_of_lognormal_distributions():
    distribution = make_log_targets()
    for row in (0, 1):
        alone = distribution.take(np.array([row]))
        for y in (0.1, 0.9, 4.0):
            log_prob = float(alone.log_prob(column([y])))
            np.testing.assert_allclose(np.exp(log_prob), lognormal_density(y, row), rtol=1e-12)
            cdf = integrate.quad(lognormal_density, 0.0, y, args=(row,), epsabs=1e-12)[0]
            np.testing.assert_allclose(float(alone.cdf(column([y]))), cdf, atol=1e-9)
    assert bool((distribution.cdf(column([0.0, -1.0])) == 0.0).all())
    assert bool(distribution.log_prob(column([0.0, -1.0])).isneginf().all())
    for level in (0.01, 0.5, 0.99):
        np.testing.assert_allclose(distribution.cdf(distribution.quantile(level)), level, rtol=1e-9)


@pytest.mark.long
def test_moments_count_larger_targets_as_the_largest():
    distribution = make_log_targets()
    cap = np.exp(MAX_LOG)

    def moment(power, row):
        inside = integrate.quad(
            lambda y: y**power * lognormal_density(y, row), 0.0, cap, epsabs=1e-12
        )[0]
        beyond = integrate.quad(lambda y: lognormal_density(y, row), 0.0, cap, epsabs=1e-12)[0]
        return inside + cap**power * (1.0 - beyond)

    for row in (0, 1):
        np.testing.assert_allclose(float(distribution.mean()[row]), moment(1, row), rtol=1e-8)
        variance = moment(2, row) - moment(1, row) ** 2
        np.testing.assert_allclose(
            float(distribution.uncertainty().total[row]), variance, rtol=1e-7
        )


def test_samples_and_scaling():
    distribution = make_log_targets()
    samples = distribution.sample(2000, np.random.default_rng(0))[:, 1, 0].numpy()
    alone = distribution.take(np.array([1]))
    u = [float(alone.cdf(column([y]))) for y in samples[:300]]
    assert stats.kstest(u, "uniform").pvalue > 1e-4

    mean = torch.tensor([-3.0], dtype=torch.float64)
    scale = torch.tensor([2.0], dtype=torch.float64)
    moved = distribution.rescale(mean, scale)
    np.testing.assert_allclose(moved.mean(), -3.0 + 2.0 * distribution.mean())
    np.testing.assert_allclose(moved.std(), 2.0 * distribution.std())
    y = column([0.5, 0.7])
    expected = distribution.log_prob(y) - np.log(2.0)
    np.testing.assert_allclose(moved.log_prob(-3.0 + 2.0 * y), expected)
    assert moved.rescale(-mean / scale, 1.0 / scale).location == 0.0


def test_a_normal_variable_is_added_as_a_factor():
    far = LogTargets(make_normals(), 50.0)
    zero = column([0.0, 0.0])
    unchanged = far.add_normal(zero, zero)
    np.testing.assert_allclose(unchanged.quantile(0.3), far.quantile(0.3))

    # Small amounts: the median moves by the drift, and the variance is that of its factor.
    drift = column([0.01, -0.02])
    moved = far.add_normal(drift, zero)
    np.testing.assert_allclose(moved.quantile(0.5) - far.quantile(0.5), drift, rtol=1e-6)
    wide = far.add_normal(zero, column([1e-4, 1e-4]))
    added = (wide.base.variance - far.base.variance)[0] * far.quantile(0.5).square()
    np.testing.assert_allclose(added, 1e-4, rtol=1e-3)

    # A drift can't make targets negative.
    low = far.add_normal(column([-1e3, -1e3]), zero)
    assert bool((low.quantile(0.01) > 0.0).all())
    draws = far.shift(torch.tensor([0.1, -1e3], dtype=torch.float64).reshape(2, 1, 1))
    expected = LOC[0].exp() + 0.1
    np.testing.assert_allclose(draws.base.loc[0].exp(), expected)
    assert bool(draws.base.loc.isfinite().all())


@pytest.mark.parametrize("loc", [-2e5, -800.0, 800.0, 2e5])
def test_adding_to_medians_beyond_the_range_of_floats(loc):
    """A hundred times the range of training may have medians of exp(-200,000)."""
    base = NormalMixture(
        torch.full((1, 1, 1), loc).double(), torch.zeros(1, 1, 1), torch.ones(1, 1, 1), None
    )
    distribution = LogTargets(base, max_log=5.0)
    amount = torch.full((1, 1), 2.0).double()
    for drift in (amount, 0.0 * amount, -amount):
        for moved in (distribution.add_normal(drift, 4.0 * amount), distribution.shift(drift)):
            assert torch.isfinite(moved.base.loc).all()
            assert torch.isfinite(moved.base.variance).all()
            assert not moved.means.isnan().any()
    # Beside a tiny median the amount is all that remains.
    if loc < 0.0:
        assert float(distribution.shift(amount).base.loc) == pytest.approx(np.log(2.0))
    else:
        assert float(distribution.shift(amount).base.loc) == loc


def test_moments_of_a_restricted_pool_are_sums_over_its_components():
    pool = LinearPool([make_normals(), make_log_targets()], [0.5, 0.5])
    restricted = PositiveTargets(pool, 0.0, 0.005)
    normals = PositiveTargets(make_normals(), 0.0, 0.005)
    below = restricted.cdf(column([0.0, 0.0]))
    np.testing.assert_allclose(below, 0.005, rtol=1e-9)
    # The part above zero of the normals, by their own restricted mean.
    mass = 1.0 - make_normals().cdf(column([0.0, 0.0]))
    mean_below = make_normals().mean() - normals._moments_above(normals.base)[0]
    above = 0.5 * normals._moments_above(normals.base)[0] + 0.5 * make_log_targets().mean()
    expected = 0.005 * mean_below / (1.0 - mass) + 0.995 * above / (0.5 * mass + 0.5)
    np.testing.assert_allclose(restricted.mean(), expected, rtol=1e-8)


def make_data(seed, n_rows=150):
    """Return inputs and targets with multiplicative noise."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3))
    return X, np.exp(X[:, 0] + 0.4 * rng.normal(size=n_rows))


CHEAP = [("linear", "linear"), ("log_linear", "log_linear")]


@pytest.mark.long
def test_the_logarithm_wins_where_noise_is_multiplicative(tmp_path):
    X, y = make_data(0, 300)
    train = slice(0, 150)
    test = slice(150, 300)
    model = sk.PredictiveStackingRegressor(CHEAP, random_state=0).fit(X[train], y[train])
    assert model.weights_["log_linear"] > 0.8
    truth = stats.lognorm(0.4, scale=np.exp(X[test, 0])).logpdf(y[test])
    assert model.log_predictive_density(X[test], y[test]).mean() > truth.mean() - 0.1
    left_out, error = model.leave_one_out_log_density_["log_linear"]
    assert abs(left_out - truth.mean()) < 0.1 + 4.0 * error

    # Units don't matter.
    scaled = sk.PredictiveStackingRegressor(CHEAP, random_state=0).fit(X[train], 1e6 * y[train])
    intervals = model.predict_interval(X[test])
    np.testing.assert_allclose(scaled.predict_interval(X[test]), 1e6 * intervals, rtol=1e-5)

    sk.save(model, tmp_path / "model")
    for copy in (sk.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copy.predict_interval(X), model.predict_interval(X))
    draws = model.sample_y(X[test], 400, random_state=0)
    mean, std = model.predict(X[test], return_std=True)
    assert np.median(np.abs(draws.mean(1) - mean) / std) < 4.0 / 400**0.5


def test_the_logarithm_is_left_out_where_it_gains_nothing():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(150, 3))
    y = 20.0 + X[:, 0] + 0.5 * rng.normal(size=150)
    with_log = sk.PredictiveStackingRegressor(CHEAP, random_state=0).fit(X, y)
    without = sk.PredictiveStackingRegressor(CHEAP[:1], random_state=0).fit(X, y)
    assert list(with_log.weights_) == ["linear"]
    assert "the logarithm of the targets doesn't raise the score" in with_log.summary_
    np.testing.assert_array_equal(with_log.predict_interval(X), without.predict_interval(X))
    draws = with_log.sample_y(X, 5, random_state=0)
    np.testing.assert_array_equal(draws, without.sample_y(X, 5, random_state=0))


def test_networks_are_probed_next_to_members_of_the_logarithm():
    """Networks gain 0.05 to 0.1 nats here over members of the targets, and nothing over theirs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(250, 2))
    y = np.exp(1.5 * X[:, 0] + X[:, 1] + 0.1 * rng.normal(size=250))
    stack = sk.PredictiveStackingRegressor(random_state=0).fit(X, y)
    assert "networks (probe=probe of networks): skipped" in stack.summary_
    assert sum(w for name, w in stack.weights_.items() if name.startswith("log")) > 0.9


def test_the_logarithm_needs_positive_targets():
    X, y = make_data(2)
    y[0] = -1.0
    with pytest.warns(FitFailedWarning, match="log_linear.*needs positive targets"):
        model = sk.PredictiveStackingRegressor(CHEAP, random_state=0).fit(X, y)
    assert list(model.weights_) == ["linear"]
    with pytest.raises(ValueError, match="no member of the default list"):
        sk.PredictiveStackingClassifier(CHEAP[1:]).fit(X, y > 1.0)


@pytest.mark.long
def test_default_stacks_add_the_logarithm_to_positive_targets_only():
    X, y = make_data(3)
    positive = sk.PredictiveStackingRegressor(random_state=0).fit(X, y)
    assert any(name.startswith("log_") for name in positive.weights_)
    assert positive.estimators_["log_trees"].predict(X).shape == y.shape
    mixed = sk.PredictiveStackingRegressor(random_state=0).fit(X, np.log(y))
    assert not any(name.startswith("log_") for name in mixed.weights_)
    assert "log_" not in mixed.summary_
