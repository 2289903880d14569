"""Stacking weights, noise shapes, calibration of classes, and pooled distributions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributions import Normal
from torch.testing import assert_close

from skbayes_sym.base import stacking_weights as module
from skbayes_sym.base.calibration import Calibration, fit_calibration
from skbayes_sym.base.noise_shape import (
    NoisePrior,
    NoiseShape,
    ShapedPredictor,
    _location_and_scale,
    _ShapeProblem,
    fit_noise_shape,
)
from skbayes_sym.base.predictor import BasePredictor
from skbayes_sym.base.stacking_weights import (
    PooledPredictor,
    fit_baseline_weight,
    leave_one_out,
    mixture,
    select_components,
    stacking_weights,
)
from skbayes_sym.models.predictive_mixtures import CategoricalMixture, NormalMixture

ROWS = torch.ones(40, dtype=torch.float64)


def first_weight(first, second, weight):
    return float(stacking_weights(torch.stack([first, second]), weight)[0])


def test_stacking_weight_has_the_best_score_of_a_grid(generator):
    first, second = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    weight = torch.rand(50, generator=generator, dtype=torch.float64)
    share = first_weight(first, second, weight)
    grid = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:, None]
    score = (weight * (grid * first.exp() + (1 - grid) * second.exp()).log()).sum(1)
    assert abs(share - float(grid[score.argmax()])) < 2e-4


@pytest.mark.parametrize(("gain", "weight"), [(0.1, 1.0), (-0.1, 0.0), (800.0, 1.0), (-800.0, 0.0)])
def test_a_model_that_is_better_in_every_row_has_all_the_weight(gain, weight):
    second = torch.linspace(-3.0, 0.0, 5, dtype=torch.float64)
    assert first_weight(second + gain, second, torch.ones(5, dtype=torch.float64)) == weight


@pytest.mark.parametrize("prior", [0.0, 0.5, [0.0, 1.0, 0.3, 2.0, 0.3]])
def test_stacking_weights_satisfy_the_optimality_conditions(prior, generator):
    """Gradients are equal where a weight is positive, and no larger elsewhere."""
    log_density = torch.randn(5, 60, generator=generator, dtype=torch.float64)
    log_density[2:4] -= 0.4
    weight = torch.rand(60, generator=generator, dtype=torch.float64)
    pull = torch.zeros(5).double() + torch.tensor(prior)
    p = stacking_weights(log_density, weight, prior=pull)
    density = log_density.exp()
    slopes = density @ (weight / (p @ density)) + pull / p.clamp_min(1e-300)
    total = float(weight.sum() + pull.sum())
    assert float(p.sum()) == pytest.approx(1.0)
    np.testing.assert_allclose(slopes[p > 0.0], total, rtol=1e-4)
    assert bool((density @ (weight / (p @ density)) <= total * (1.0 + 1e-9)).all())
    assert bool((p == 0.0).any()) == (prior == 0.0)
    assert bool((p[pull > 0.0] > 0.0).all())


def test_poor_predictors_with_a_prior_keep_a_small_weight():
    log_density = torch.tensor([[0.0], [-5.0], [-50.0]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    p = stacking_weights(log_density, one, prior=log_density[:, 0].exp())
    assert float(p[0]) > 0.99
    assert bool((p > 0.0).all())


def test_components_with_clearly_lower_scores_are_dropped():
    def kept(modes, members):
        kinds = {"modes": modes * ROWS, "members": members * ROWS}
        return select_components(-3.0 * ROWS, kinds, ROWS, 0.85)

    assert kept(-1.0, -1.2) == ["modes", "members"]
    assert kept(-1.0, -1.5) == ["modes"]
    assert kept(-1.5, -1.0) == ["members"]
    assert kept(-3.5, -4.0) == ["modes"]  # none gains: the one that loses least


def test_the_baseline_is_stacked_with_the_mixture_of_the_other_components():
    kinds = {"modes": -1.0 * ROWS, "members": -1.2 * ROWS}
    inner = {"modes": 0.4, "members": 0.6}
    assert fit_baseline_weight(-3.0 * ROWS, kinds, inner, ROWS) == 0.0
    assert fit_baseline_weight(-0.5 * ROWS, kinds, inner, ROWS) == 1.0
    assert fit_baseline_weight(None, kinds, inner, ROWS) == 0.0
    generator = torch.Generator().manual_seed(0)
    linear, modes = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    assert 0.0 < fit_baseline_weight(linear, {"modes": modes}, {"modes": 1.0}, ROWS) < 1.0


@pytest.mark.parametrize("weights", [[1.0], [1.0, 2.0, 10.0]], ids=["ones", "repetitions"])
def test_leave_one_out_densities_agree_with_refits(weights, generator):
    """The refits are Bayesian linear models without all repetitions of a row."""
    weight = torch.tensor(weights, dtype=torch.float64).repeat(9 // len(weights))
    x = torch.randn(9, 3, generator=generator, dtype=torch.float64)
    y = torch.randn(9, 2, generator=generator, dtype=torch.float64)
    noise = torch.tensor([0.3, 0.8], dtype=torch.float64)  # variances of two targets

    def posterior(rows, t):
        weighted = (weight[rows, None] * x[rows]).T / noise[t]
        precision = weighted @ x[rows] + torch.eye(3).double()
        return torch.linalg.solve(precision, weighted @ y[rows, t]), precision.inverse()

    expected = torch.zeros(9, dtype=torch.float64)
    fitted, leverage = torch.empty_like(y), torch.empty_like(y)
    for t in range(2):
        mean, covariance = posterior(list(range(9)), t)
        fitted[:, t] = x @ mean
        leverage[:, t] = (x @ covariance * x).sum(1) / noise[t]
        for n in range(9):
            mean, covariance = posterior([m for m in range(9) if m != n], t)
            scale = (x[n] @ covariance @ x[n] + noise[t]).sqrt()
            expected[n] += torch.distributions.Normal(x[n] @ mean, scale).log_prob(y[n, t])
    distribution = NormalMixture(fitted[None], (leverage * noise)[None], noise)
    assert_close(leave_one_out(distribution, y, weight).log_prob(y), expected)


X = torch.linspace(-1.0, 1.0, 7, dtype=torch.float64).unsqueeze(1)


class Lines(BasePredictor):
    """Two lines of a slope, each with a noise."""

    def __init__(self, slope, noise_std):
        self.slopes = slope + torch.tensor([0.0, 0.1], dtype=torch.float64).reshape(2, 1, 1)
        self.noise_std = noise_std

    def distribution(self, x):
        noise = torch.full((2, 1, 1), self.noise_std**2, dtype=torch.float64)
        return NormalMixture(self.slopes * x, 0.0 * noise, noise)

    def sample_conditionals(self, x, n, *, generator):
        distribution, which = self.distribution(x), torch.randint(2, (n,), generator=generator)
        return NormalMixture(
            distribution.loc[which],
            distribution.variance[which],
            distribution.noise_variance[which],
        )


class Unused:
    pass


PARTS = {"flat": Lines(0.0, 0.1), "none": Unused(), "steep": Lines(2.0, 0.5)}
WEIGHTS = {"flat": 0.25, "none": 0.0, "steep": 0.75}
SHAPE = NoiseShape(*(np.array([v]) for v in (0.1, 0.4, 0.0, 1.0, -1.0, 1.0)), 0.2, 9.0, np.ones(1))


def test_the_pooled_density_is_the_weighted_mean_of_densities():
    distribution, y = PooledPredictor(PARTS, WEIGHTS).distribution(X), torch.zeros(7, 1).double()
    densities = [w * PARTS[k].distribution(X).log_prob(y).exp() for k, w in WEIGHTS.items() if w]
    assert_close(distribution.log_prob(y).exp(), sum(densities))


@pytest.mark.parametrize("noise", [None, SHAPE])
def test_sampled_functions_have_the_moments_of_the_distribution(noise):
    pool, n = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), noise), 20_000
    drawn, distribution = (
        pool.sample_conditionals(X, n, generator=torch.Generator().manual_seed(0)),
        pool.distribution(X),
    )
    _, epistemic, aleatoric = distribution.uncertainty()
    assert_close(pool.mean(X), distribution.mean())
    away = (drawn.loc.mean(0) - distribution.mean()).abs()
    assert bool((away <= 4.5 * (epistemic / n).sqrt() + 1e-12).all())  # one row has no spread
    assert_close(drawn.loc.var(0), epistemic, rtol=0.05, atol=1e-9)
    assert_close(drawn.noise_variance.mean(0), aleatoric, rtol=0.05, atol=0.0)


def test_sampled_targets_have_the_quantiles_of_the_distribution():
    pool, n = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), SHAPE), 20_000
    drawn = pool.sample_conditionals(X, n, generator=torch.Generator().manual_seed(0))
    targets, distribution = drawn.sample_per_draw(np.random.default_rng(0)), pool.distribution(X)
    for probability in (0.02, 0.5, 0.98):
        below = (targets <= distribution.quantile(probability)).double().mean(0)
        error = (probability * (1.0 - probability) / n) ** 0.5
        assert_close(below, torch.full_like(below, probability), rtol=0.0, atol=4.5 * error)


def test_sampled_functions_do_not_depend_on_the_other_rows():
    pool = ShapedPredictor(PooledPredictor(PARTS, WEIGHTS), SHAPE)
    whole, half = (
        pool.sample_conditionals(x, 9, generator=torch.Generator().manual_seed(3))
        for x in (X, X[:4])
    )
    assert_close(whole.loc[:, :4], half.loc)


def test_functions_of_pooled_noise_shapes_do_not_depend_on_the_other_rows():
    # Noise states are drawn per row. They must not advance the generator of the next part.
    parts = {name: ShapedPredictor(PARTS[name], SHAPE) for name in ("flat", "steep")}
    pool = PooledPredictor(parts, WEIGHTS)
    all_rows = pool.sample_conditionals(X, 9, generator=torch.Generator().manual_seed(3))
    subset = pool.sample_conditionals(X[:4], 9, generator=torch.Generator().manual_seed(3))
    assert_close(all_rows.loc[:, :4], subset.loc)


def test_class_probabilities_are_weighted_means():
    rng = torch.Generator().manual_seed(0)
    one, other = (
        CategoricalMixture(torch.randn(n, 4, 3, generator=rng).double().log_softmax(-1), weights)
        for n, weights in ((2, None), (3, torch.tensor([0.5, 0.3, 0.2]).double().log()))
    )
    found = mixture([one, other], [1.0, 3.0]).mean()
    assert_close(found, 0.25 * one.mean() + 0.75 * other.mean())


def leave_one_out_rows(noise, n=600, n_targets=1, n_models=3, seed=0):
    """Leave-one-out predictions that are right except for the noise, whose std is taken as 1."""
    rng = np.random.default_rng(seed)
    f = rng.standard_normal((n, n_targets))
    off = 0.05 * rng.standard_normal((n_models, n, n_targets))
    y = torch.as_tensor(f + noise(f, rng))
    distribution = NormalMixture(
        torch.as_tensor(f + off),
        torch.full((n_models, n, n_targets), 0.05**2).double(),
        torch.ones(n_models, 1, n_targets).double(),
        torch.tensor([0.5, 0.3, 0.2]).double().log(),
    )
    return distribution, y, torch.ones(n).double()


def growing(f, rng):
    return np.exp(0.4 * np.arcsinh(f)) * rng.standard_normal(f.shape)


def heavy(f, rng):
    wide = rng.random((len(f), 1)) < 0.1
    return np.where(wide, 2.7, 0.55) * rng.standard_normal(f.shape)  # of variance 1


def test_the_slope_of_growing_noise_is_recovered():
    found = fit_noise_shape(*leave_one_out_rows(growing, n=3000)).shape
    assert float(found.slope[0]) == pytest.approx(0.4, abs=0.05)
    mean = torch.tensor([[-1.0], [1.0]]).double()
    assert_close(found.factor(mean).log(), 0.4 * mean.asinh(), rtol=0.0, atol=0.06)


def test_location_and_scale_are_those_of_a_normal_whatever_a_few_means_are():
    normal = Normal(2.0, 3.0).icdf(torch.linspace(0.0005, 0.9995, 1000).double())
    mean = torch.stack([normal, normal.where(normal < 9.0, 1e6)], 1)
    location, scale = _location_and_scale(mean, torch.ones(1000).double())
    assert_close(location, torch.full((2,), 2.0).double(), rtol=0.0, atol=0.02)
    assert_close(scale, torch.full((2,), 3.0).double(), rtol=0.0, atol=0.02)
    ones = torch.tensor([[1.0], [1.0], [1.0], [1.0], [1.0], [1.0], [3.0]]).double()
    location, scale = _location_and_scale(ones, torch.ones(7).double())
    assert float(location) == 1.0
    assert float(scale) == pytest.approx(float(ones.std(correction=0)))
    weight = torch.arange(1000).double().div(250.0).floor() + 1.0
    repeated = mean.repeat_interleave(weight.long(), 0)
    for weighted, twice in zip(
        _location_and_scale(mean, weight),
        _location_and_scale(repeated, torch.ones(len(repeated)).double()),
        strict=True,
    ):
        assert_close(weighted, twice)


def test_noise_of_the_largest_means_is_of_their_size():
    """Skewed targets: an exponential function of the mean would exceed them a thousandfold."""
    rng = np.random.default_rng(2)
    mean = np.exp(1.5 * rng.normal(size=300))
    y = torch.as_tensor(mean * np.exp(0.3 * rng.normal(size=300)))[:, None]
    small = torch.full((1, 300, 1), 1e-4).double()
    distribution = NormalMixture(torch.as_tensor(mean)[None, :, None], small, small[:, :1])
    found = fit_noise_shape(distribution, y, torch.ones(300).double(), is_free=True).shape
    std = found.shaped(distribution).std()[:, 0].numpy()
    assert std.max() < 2.0 * mean.max()


def test_the_tails_of_contaminated_noise_are_recovered():
    found = fit_noise_shape(*leave_one_out_rows(heavy, n=3000)).shape
    variance, share = found.states
    assert found.wide_weight == pytest.approx(0.1, abs=0.03)
    assert found.wide_ratio == pytest.approx(24.1, rel=0.3)
    assert float(share @ variance) == pytest.approx(1.0)
    total = float(np.exp(2.0 * found.offset[0]))
    assert total == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("n_params", [2, 6])
@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("is_dependent", [True, False])
def test_gradients_of_noise_shapes_are_exact(n_params, is_free, is_dependent):
    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    generator = torch.Generator().manual_seed(0)
    root = normal(3, 20, 2, 2)
    covariance = root @ root.mT if is_dependent else torch.diag_embed(root[..., 0].square())
    distribution = NormalMixture(
        normal(3, 20, 2),
        covariance.diagonal(dim1=-2, dim2=-1),
        normal(3, 1, 2).exp(),
        normal(3),
        covariance if is_dependent else None,
    )
    weight = normal(20).exp()
    level = normal(20, 2)
    problem = _ShapeProblem(distribution, normal(20, 2), weight, level, NoisePrior(), is_free)
    position = normal(n_params).requires_grad_()
    value, gradient = problem.loss(position, 0.3)
    assert_close(gradient, *torch.autograd.grad(value, position))


@pytest.mark.parametrize("seed", range(5))
def test_constant_noise_has_no_shape(seed):
    """Also if its level, 0.7, differs from the models', 1."""
    rows = leave_one_out_rows(lambda f, rng: 0.7 * rng.standard_normal(f.shape), n=200, seed=seed)
    assert fit_noise_shape(*rows).shape is None


def test_each_target_has_its_own_slope():
    def noise(f, rng):
        return np.exp([0.5, -0.5] * np.arcsinh(f)) * rng.standard_normal(f.shape)

    found = fit_noise_shape(*leave_one_out_rows(noise, n=2000, n_targets=2)).shape
    assert found is not None
    np.testing.assert_allclose(found.slope, [0.5, -0.5], atol=0.08)


def test_weights_of_noise_shapes_equal_repetitions():
    distribution, y, weight = leave_one_out_rows(growing, n=100)
    loc, variance = (t.repeat(1, 2, 1) for t in (distribution.loc, distribution.variance))
    twice = replace(distribution, loc=loc, variance=variance)
    one = fit_noise_shape(twice, y.repeat(2, 1), weight.repeat(2)).shape
    other = fit_noise_shape(distribution, y, 2.0 * weight).shape
    np.testing.assert_allclose(one.slope, other.slope)
    assert one.wide_ratio == pytest.approx(other.wide_ratio)


def test_a_shaped_normal_is_a_mixture_of_two_normals():
    f = torch.linspace(-2.0, 2.0, 50).double().unsqueeze(1)
    quarter = torch.full((1, 1, 1), 0.25).double()
    distribution = NormalMixture(f[None], 0.0 * quarter, quarter)
    nothing = np.zeros(1)
    shape = NoiseShape(nothing, nothing + 0.3, nothing, nothing + 1.0, nothing - 1.2,
                       nothing + 1.2, 0.2, 4.0, nothing + 1.0)  # fmt: skip
    variance, share = shape.states
    width = (0.3 * f[:, 0].asinh().clamp(-1.2, 1.2)).exp() * 0.5
    normals = [torch.distributions.Normal(f[:, 0], width * v.sqrt()) for v in variance]
    pairs = list(zip(share, normals, strict=True))
    shaped, y = shape.shaped(distribution), f + 0.3
    assert_close(shaped.log_prob(y).exp(), sum(p * n.log_prob(y[:, 0]).exp() for p, n in pairs))
    assert_close(shaped.cdf(y)[:, 0], sum(p * n.cdf(y[:, 0]) for p, n in pairs))
    assert_close(shaped.std()[:, 0], width)


def test_equal_means_have_no_noise_shape():
    distribution = NormalMixture(*(torch.ones(1, 9, 1).double() for _ in range(3)))
    fit = fit_noise_shape(distribution, torch.zeros(9, 1).double(), torch.ones(9).double())
    assert fit.shape is None


def test_calibration_recovers_a_temperature(generator):
    scores = 1.5 * torch.randn(4000, 3, generator=generator, dtype=torch.float64)
    y = torch.multinomial(scores.softmax(1), 1, generator=generator)[:, 0]
    calibration = fit_calibration(4.0 * scores, y, torch.ones(4000).double())
    assert np.exp(calibration.log_slope) == pytest.approx(0.25, rel=0.1)
    assert calibration.frequency_weight < 0.05
    probs = calibration.log_probs(4.0 * scores).exp()
    assert_close(probs.sum(1), torch.ones(4000).double())


def test_uninformative_scores_become_half_class_frequencies(generator):
    """Half is the upper bound of the weight of frequencies."""
    scores = torch.randn(2000, 2, generator=generator, dtype=torch.float64)
    y = (torch.rand(2000, generator=generator) < 0.1).long()
    calibration = fit_calibration(scores, y, torch.ones(2000).double())
    log_probs = calibration.log_probs(scores)[torch.arange(2000), y]
    share = float(y.double().mean())
    half = share * np.log(0.25 + 0.5 * share) + (1.0 - share) * np.log(0.75 - 0.5 * share)
    assert float(log_probs.mean()) > half - 0.005
    assert float(log_probs.min()) > float(fit_raw(scores)[torch.arange(2000), y].min())


def fit_raw(scores):
    return scores.log_softmax(-1)


def test_calibrated_probabilities_mix_scores_and_frequencies():
    calibration = Calibration(np.log(2.0), 0.1, np.array([0.25, 0.75]))
    scores = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    softmax = torch.softmax(2.0 * scores, 1)
    assert_close(
        calibration.log_probs(scores).exp(), 0.9 * softmax + 0.1 * torch.tensor([0.25, 0.75])
    )


def test_weights_of_calibrations_equal_repetitions(generator):
    scores = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (50,), generator=generator)
    two = fit_calibration(scores.repeat(2, 1), y.repeat(2), torch.ones(100).double())
    # Half a row of every class is added to the frequencies either way.
    one = fit_calibration(scores, y, 2.0 * torch.ones(50).double())
    assert one.log_slope == pytest.approx(two.log_slope, abs=1e-4)
    assert one.frequency_weight == pytest.approx(two.frequency_weight, abs=1e-4)


@pytest.mark.parametrize("n", [40, 300])
def test_optimism_of_a_noise_shape_is_its_number_of_parameters(n):
    """It is four, as in Akaike's criterion, if the model is right."""
    distribution, y, weight = leave_one_out_rows(growing, n=n)
    shape, log_density = fit_noise_shape(distribution, y, weight, is_free=True)
    lost = float(weight @ (shape.shaped(distribution).log_prob(y) - log_density))
    assert 1.0 < lost < 8.0  # where little is known of the tails, less than four


@pytest.mark.long
def test_influence_agrees_with_refits():
    """Each row is left out in turn. Noise grows with the mean, and its level is free."""
    distribution, y, weight = leave_one_out_rows(growing, n=60)
    weight[::7] = 2.0
    judged = fit_noise_shape(distribution, y, weight, is_free=True)
    expected = []
    for row in range(60):
        rest = torch.arange(60) != row
        some = replace(
            distribution, loc=distribution.loc[:, rest], variance=distribution.variance[:, rest]
        )
        shape = fit_noise_shape(some, y[rest], weight[rest], is_free=True).shape
        alone = replace(
            distribution, loc=distribution.loc[:, [row]], variance=distribution.variance[:, [row]]
        )
        expected.append(shape.shaped(alone).log_prob(y[[row]]))
    expected = torch.cat(expected)
    plain = judged.shape.shaped(distribution).log_prob(y)
    promised = weight @ (plain - expected)
    assert float(promised) > 1.0
    assert abs(float(weight @ (judged.log_density - expected))) < 0.5 * float(promised)


@pytest.mark.parametrize("n_components", [2, 5])
def test_weights_with_priors_need_no_exchange_after_newton_steps(n_components, monkeypatch):
    generator = torch.Generator().manual_seed(n_components)
    density = torch.randn(n_components, 60, generator=generator, dtype=torch.float64)
    weight = torch.rand(60, generator=generator, dtype=torch.float64)
    prior = torch.logspace(-8.0, 0.0, n_components, dtype=torch.float64)
    newton = stacking_weights(density, weight, prior=prior)
    monkeypatch.setattr(module, "_MAX_NEWTON_STEPS", 0)
    assert_close(newton, stacking_weights(density, weight, prior=prior), rtol=1e-4, atol=1e-9)
