"""Predictive distributions of positive targets."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from sklearn.preprocessing import FunctionTransformer

import skbayes_sym as sk
from skbayes_sym.base.distributions import TensorPredictive
from skbayes_sym.base.transformed_distribution import transformed_predictive
from skbayes_sym.models.likelihoods.noise import StudentT
from skbayes_sym.models.log_targets import LogTargets
from skbayes_sym.models.positive_targets import PositiveTargets, choose_mass_below
from skbayes_sym.models.predictive_mixtures import LinearPool, NormalMixture, TargetMixture

MAX_MASS = 0.004
# Rows well above zero, near it, and below it.
LOC = torch.tensor([[9.0, 1.0, 0.3, -1.5], [8.0, 2.0, 0.1, -2.0]], dtype=torch.float64)
SCALE = torch.tensor([[0.5, 0.6, 0.7, 0.5], [1.0, 0.4, 0.5, 0.6]], dtype=torch.float64)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)


def make_normals():
    loc = LOC.unsqueeze(-1)
    variance = SCALE.square().unsqueeze(-1)
    return NormalMixture(loc, 0.25 * variance, 0.75 * variance, WEIGHTS.log())


def make_pool():
    tails = StudentT(torch.zeros(1, dtype=torch.float64), df=5.0)
    student = TargetMixture(tails, LOC.unsqueeze(-1))
    return LinearPool([make_normals(), student], [0.6, 0.4])


BASES = {"normals": make_normals, "pool": make_pool}


def column(values):
    return torch.as_tensor(values, dtype=torch.float64).reshape(-1, 1)


@pytest.mark.parametrize("name", BASES)
def test_density_cdf_and_quantiles_agree(name):
    base = BASES[name]()
    restricted = PositiveTargets(base, 0.0, MAX_MASS)
    mass = base.cdf(column(np.zeros(4)))[:, 0].numpy()
    is_changed = mass > MAX_MASS
    assert is_changed[1:].all()
    below = restricted.cdf(column(np.zeros(4)))[:, 0].numpy()
    np.testing.assert_allclose(below, np.where(is_changed, MAX_MASS, mass), rtol=1e-9)

    for row in range(4):
        alone = restricted.take(np.array([row]))

        def density(y, alone=alone):
            return float(alone.log_prob(column([y])).exp())

        for low, high in [(-3.0, 0.0), (0.0, 0.7), (0.7, 4.0)]:
            integral = integrate.quad(density, low, high, epsabs=1e-10)[0]
            ends = [float(alone.cdf(column([y]))) for y in (low, high)]
            np.testing.assert_allclose(integral, ends[1] - ends[0], atol=1e-8)

    for level in (0.001, 0.05, 0.5, 0.999):
        np.testing.assert_allclose(restricted.cdf(restricted.quantile(level)), level, rtol=1e-6)

    # The density at a positive target never decreases.
    y = column([0.5, 0.5, 0.5, 0.5])
    assert bool((restricted.log_prob(y) >= base.log_prob(y) - 1e-12).all())


@pytest.mark.parametrize("name", BASES)
def test_moments_are_integrals_of_the_density(name):
    restricted = PositiveTargets(BASES[name](), 0.0, MAX_MASS)
    mean = restricted.mean()[:, 0]
    variance = restricted.uncertainty().total[:, 0]
    for row in (1, 2, 3):
        alone = restricted.take(np.array([row]))

        def moment(power, alone=alone):
            def integrand(y):
                return y**power * float(alone.log_prob(column([y])).exp())

            pieces = [(-400.0, -8.0), (-8.0, 0.0), (0.0, 8.0), (8.0, 400.0)]
            return sum(integrate.quad(integrand, *piece, limit=200)[0] for piece in pieces)

        np.testing.assert_allclose(mean[row], moment(1), rtol=1e-3)
        np.testing.assert_allclose(variance[row], moment(2) - moment(1) ** 2, rtol=2e-2)


@pytest.mark.parametrize("name", BASES)
def test_samples_have_the_distribution(name):
    restricted = PositiveTargets(BASES[name](), 0.0, MAX_MASS)
    n_samples = 4000
    samples = restricted.sample(n_samples, np.random.default_rng(0))[..., 0].numpy()
    for row in range(4):
        alone = restricted.take(np.array([row]))
        u = np.sort([float(alone.cdf(column([y]))) for y in samples[:300, row]])
        assert stats.kstest(u, "uniform").pvalue > 1e-4
        n_below = (samples[:, row] <= 0.0).sum()
        assert stats.binomtest(int(n_below), n_samples, MAX_MASS).pvalue > 1e-4 or row == 0


def test_rows_without_mass_below_are_unchanged():
    base = make_normals()
    restricted = PositiveTargets(base, 0.0, MAX_MASS)
    first = np.array([0])
    y = column([7.0])
    for method in ("log_prob", "cdf"):
        expected = getattr(base.take(first), method)(y)
        assert torch.equal(getattr(restricted.take(first), method)(y), expected)
    assert torch.equal(restricted.mean()[0], base.mean()[0])
    assert torch.equal(restricted.quantile(0.3)[0], base.quantile(0.3)[0])
    assert torch.equal(restricted.uncertainty().epistemic[0], base.uncertainty().epistemic[0])


def test_far_below_zero_predictions_are_finite():
    loc = torch.tensor([-10.0, -30.0, -200.0], dtype=torch.float64).reshape(1, 3, 1)
    base = NormalMixture(loc, 0.0 * loc, torch.ones_like(loc))
    restricted = PositiveTargets(base, 0.0, MAX_MASS)
    quantiles = torch.cat([restricted.quantile(level) for level in (0.05, 0.5, 0.95)], dim=1)
    assert bool((quantiles >= 0.0).all() and quantiles.isfinite().all())
    # Far in the tail the restricted normal is nearly exponential with the rate -loc.
    np.testing.assert_allclose(quantiles[:2, 1], np.log(2.0) / np.array([10.0, 30.0]), rtol=0.02)
    assert bool(restricted.log_prob(column([0.1, 0.1, 0.1])).isfinite().all())
    assert bool((restricted.sample(50, np.random.default_rng(0)) > -201.0).all())


def test_scaling_commutes():
    restricted = PositiveTargets(make_normals(), 0.0, MAX_MASS)
    mean = torch.tensor([3.0], dtype=torch.float64)
    scale = torch.tensor([2.0], dtype=torch.float64)
    moved = restricted.rescale(mean, scale)
    np.testing.assert_allclose(moved.quantile(0.2), 3.0 + 2.0 * restricted.quantile(0.2))
    np.testing.assert_allclose(moved.mean(), 3.0 + 2.0 * restricted.mean())
    assert moved.rescale(-mean / scale, 1.0 / scale).origin == 0.0


def test_mass_below_follows_the_rule_of_succession():
    assert choose_mass_below(998.0) == 0.001
    assert choose_mass_below(20.0) == 0.005
    assert choose_mass_below(7.0) == 0.005
    assert choose_mass_below(2.0) == 0.25


def make_positive_data(n_rows=120):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n_rows, 3))
    y = np.exp(X[:, 0] + 0.5 * rng.normal(size=n_rows))
    return X, y


def test_intervals_of_a_stack_are_positive(tmp_path):
    X, y = make_positive_data()
    model = sk.PredictiveStackingRegressor([("linear", "linear")], random_state=0).fit(X, y)
    distribution = sk.predictive(model, X)
    assert (distribution.cdf(0.0) <= choose_mass_below(len(y)) + 1e-9).all()
    assert (model.predict_interval(X, 0.98) > 0.0).all()
    assert np.isfinite(distribution.crps(y)).all()
    draws = model.sample_y(X, 500, random_state=0)
    assert (draws <= 0.0).mean() < 0.01
    mean, std = model.predict(X, return_std=True)
    np.testing.assert_allclose(draws.mean(1), mean, atol=6.0 * std.max() / 500**0.5)

    sk.save(model, tmp_path / "model")
    for copy in (sk.load(tmp_path / "model"), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(copy.predict_interval(X), model.predict_interval(X))


def test_targets_that_are_not_all_positive_are_as_before():
    X, y = make_positive_data()
    model = sk.PredictiveStackingRegressor([("linear", "linear")], random_state=0)
    shifted = model.fit(X, y - 1.0)
    assert shifted.has_normal_components
    assert (sk.predictive(shifted, X).cdf(0.0) > 0.01).any()
    # A zero is no positive target.
    y[0] = 0.0
    assert model.fit(X, y).has_normal_components


def test_the_density_of_a_stack_is_at_least_that_of_its_members_without_the_rule():
    X, y = make_positive_data()
    model = sk.PredictiveStackingRegressor([("linear", "linear")], random_state=0)
    positive = model.fit(X, y).log_predictive_density(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The same fit in units in which one more target would be negative.
        shifted = model.fit(X, y - 2.0 * y.max()).log_predictive_density(X, y - 2.0 * y.max())
    assert (positive >= shifted - 1e-9).all()
    assert positive.mean() > shifted.mean() + 0.05


def test_draws_of_positive_targets_average_over_unknown_levels():
    rng = np.random.default_rng(0)
    town = rng.integers(3, size=120)
    X = pd.DataFrame({"town": np.array(["a", "b", "c"])[town], "x": rng.normal(size=120)})
    y = np.exp(town + 0.1 * rng.normal(size=120))
    members = [("linear", "linear"), ("trees", "trees"), ("log_linear", "log_linear")]
    model = sk.PredictiveStackingRegressor(members, random_state=0).fit(X, y)
    new = X[:2].assign(town="d")
    with pytest.warns(UserWarning, match="levels that fit hasn't seen"):
        draws = model.sample_y(new, 3000, random_state=0)
    with pytest.warns(UserWarning, match="levels that fit hasn't seen"):
        mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(draws.mean(axis=-1), mean, atol=5.0 * std.max() / 3000**0.5)
    np.testing.assert_allclose(draws.std(axis=-1), std, rtol=0.1)
    assert draws.min() > -0.5


def make_logarithms():
    """Pool with a model of the logarithm, as stacks of positive targets use."""
    z = LOC.unsqueeze(-1).clamp(-0.5, 1.5)
    logarithms = LogTargets(NormalMixture(z, 0.0 * z, 0.04 * torch.ones_like(z)), max_log=9.0)
    return LinearPool([make_normals(), logarithms], [0.6, 0.4])


def integrate_density(distribution, function):
    """Mean and standard deviation of a function of every target by many small panels."""
    nodes, node_weights = np.polynomial.legendre.leggauss(12)
    edges = np.concatenate([np.linspace(-9.0, 0.0, 600), np.linspace(0.0, 24.0, 1600)[1:]])
    half = 0.5 * np.diff(edges)
    z = (edges[:-1, None] + half[:, None] * (1.0 + nodes)).ravel()
    width = (half[:, None] * node_weights).ravel()
    means = []
    deviations = []
    for row in range(distribution.n_rows):
        repeated = distribution.take(np.full(len(z), row))
        probability = width * repeated.log_prob(column(z)).exp().numpy()
        values = function(z)
        mean = probability @ values
        means.append(mean)
        deviations.append(np.sqrt(probability @ np.square(values - mean)))
    return np.array(means), np.array(deviations)


FUNCTIONS = {
    np.square: np.square,
    np.sqrt: lambda z: np.sqrt(np.maximum(z, 0.0)),
    np.expm1: np.expm1,
    np.arcsinh: np.arcsinh,
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("make_base", [make_normals, make_logarithms])
def test_moments_of_transformations_are_integrals(make_base, function):
    """Of distributions made of normals they are sums over the normals, without a density."""
    if make_base is make_logarithms and function is np.expm1:
        return  # no finite moments
    restricted = PositiveTargets(make_base(), 0.0, MAX_MASS).take(np.arange(3))
    transformer = FunctionTransformer(inverse_func=function)
    transformed = transformed_predictive(
        TensorPredictive([restricted]), transformer, 1, is_flat=True
    )
    mean, std = integrate_density(restricted, FUNCTIONS[function])
    assert (np.abs(transformed.mean() - mean) < 1e-5 * std).all()
    np.testing.assert_allclose(transformed.std(), std, rtol=1e-4)


def test_moments_of_transformations_far_below_zero():
    """The probability lies in the far tail of the normals, where they have no nodes."""
    loc = torch.tensor([-9.0, 2.0], dtype=torch.float64).reshape(1, 2, 1)
    base = NormalMixture(loc, 0.0 * loc, torch.ones_like(loc))
    restricted = PositiveTargets(base, 0.0, MAX_MASS)
    transformed = transformed_predictive(
        TensorPredictive([restricted]), FunctionTransformer(inverse_func=np.square), 1, is_flat=True
    )
    square = restricted.uncertainty().total + restricted.mean().square()
    np.testing.assert_allclose(transformed.mean(), square[:, 0], rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("function", [np.square, np.absolute, np.sqrt, np.reciprocal])
@pytest.mark.parametrize("make_base", [make_normals, make_pool])
def test_scores_and_quantiles_of_transformations_agree_with_the_distribution_function(
    make_base, function
):
    restricted = PositiveTargets(make_base(), 0.0, MAX_MASS).take(np.arange(3))
    distribution = transformed_predictive(
        TensorPredictive([restricted]), FunctionTransformer(inverse_func=function), 1, is_flat=True
    )
    levels = np.array([0.05, 0.5, 0.9])
    quantiles = distribution.quantile(levels)
    for level, y in zip(levels, quantiles.T, strict=True):
        np.testing.assert_allclose(distribution.cdf(y), level, rtol=1e-9)
    if function is np.reciprocal:  # without a finite mean
        return
    y = quantiles[:, 2] + 0.1
    ends = distribution.quantile([1e-9, 1.0 - 1e-9])
    nodes, node_weights = np.polynomial.legendre.leggauss(12)
    for row, target in enumerate(y):
        below = np.linspace(ends[row, 0], target, 400)
        above = target + (ends[row, 1] - target) * np.linspace(0.0, 1.0, 400) ** 3
        score = 0.0
        for edges, step in ((below, 0.0), (above, 1.0)):
            half = 0.5 * np.diff(edges)
            x = (edges[:-1, None] + half[:, None] * (1.0 + nodes)).ravel()
            cdf = distribution[np.full(len(x), row)].cdf(x)
            score += (half[:, None] * node_weights).ravel() @ np.square(cdf - step)
        error = abs(distribution[row].crps(target)[0] - score)
        assert error < 2e-4 * score


def test_rows_far_beyond_the_training_data_have_wide_distributions():
    """A column with a thousand times its values, such as an amount in cents of another currency."""
    rng = np.random.default_rng(0)
    amount = np.exp(rng.normal(8.0, 1.0, 300))
    frame = pd.DataFrame({"amount": amount, "z": rng.normal(size=300)})
    y = np.exp(3.0 + 0.3 * frame["z"] - amount / amount.max() + 0.3 * rng.normal(size=300))
    stack = sk.PredictiveStackingRegressor(random_state=0).fit(frame, y)
    far = frame[:2].assign(amount=[1e9, 1e13])
    with pytest.warns(UserWarning, match="column 'amount' of X is far outside"):
        low, high = sk.predictive(stack, far).interval(0.9).T
    assert np.isfinite([low, high]).all()
    near = sk.predictive(stack, frame[:2]).interval(0.9)
    assert (high - low > 3.0 * np.diff(near).ravel()).all()
