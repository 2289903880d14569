"""Noise integrated out: its posterior by quadrature, mixtures, and what few rows leave open."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.base import clone
from torch.testing import assert_close

from skbayes_sym import (
    BayesianLinearRegressor,
    BayesianMLPRegressor,
    Chains,
    DeepEnsembleRegressor,
    LaplaceRegressor,
    LayerwiseVIRegressor,
    MCMCRegressor,
    PredictiveStackingRegressor,
    SymmetrizedVIRegressor,
    predictive,
)
from skbayes_sym.base.noise_levels import (
    MAX_FREEDOMS,
    PRIOR_SCALE,
    assign_levels,
    at_levels,
    draw_levels,
    level_weights,
    noise_levels,
    noise_prior,
)
from skbayes_sym.models import Gaussian, StudentT
from skbayes_sym.models.predictive_mixtures import NormalMixture


def levels_of(squares, freedoms, spread=1.0, total=8.0, is_constant=False):
    one = torch.ones(1, 1, dtype=torch.float64)
    levels = noise_levels(
        squares * one, freedoms * one, spread * one[0], total, torch.tensor([is_constant])
    )
    return None if levels is None else levels[0, :, 0]


@pytest.mark.parametrize(("squares", "freedoms"), [(0.5, 3.0), (2.0, 6.5), (1e-3, 12.0)])
def test_total_variance_is_that_of_the_posterior(squares, freedoms):
    """Eight rows: Student's t prior of seven degrees on the unbiased standard deviation."""
    scale = PRIOR_SCALE * (8.0 / 7.0) ** 0.5

    def posterior(t):
        prior = t - 4.0 * np.log1p(np.exp(2.0 * t) / scale**2 / 7.0)
        return np.exp(prior - freedoms * t - 0.5 * squares * np.exp(-2.0 * t))

    peak = 0.5 * np.log(squares / freedoms)
    ends = peak - 3.0, peak + 8.0
    total = integrate.quad(posterior, *ends, points=[peak])[0]
    square = integrate.quad(lambda t: np.exp(2.0 * t) * posterior(t), *ends, points=[peak])[0]
    levels = levels_of(squares, freedoms)
    assert float(level_weights() @ levels.square()) == pytest.approx(square / total, rel=5e-3)
    assert float(level_weights().sum()) == pytest.approx(1.0)
    assert bool((levels.diff() < 0.0).all())


def test_many_rows_have_one_level():
    assert levels_of(100.0, MAX_FREEDOMS + 0.1) is None
    levels = levels_of(MAX_FREEDOMS * 0.04, MAX_FREEDOMS, total=60.0)
    assert float(level_weights() @ levels.square()) == pytest.approx(0.04, rel=0.15)


def test_levels_have_the_unit_of_the_targets():
    small, large = levels_of(0.5, 2.0), levels_of(0.5e6, 2.0, spread=1e3)
    assert_close(1e3 * small, large)


def test_after_equal_targets_a_surprise_keeps_its_probability():
    """By Laplace's rule of succession 1 in 9, where without it the noise is next to nothing."""
    levels = levels_of(0.0, 8.0, is_constant=True)
    wide = float(level_weights()[levels > 0.1].sum())
    assert 0.05 < wide < 0.25
    assert float(levels_of(0.0, 8.0).max()) < 0.1


def test_levels_make_up_a_mixture():
    distribution = NormalMixture(
        torch.tensor([0.0, 1.0]).double().reshape(2, 1, 1).expand(2, 3, 1),
        torch.full((2, 1, 1), 0.2).double(),
        torch.ones(2, 1, 1).double(),
        torch.tensor([0.3, 0.7]).double().log(),
    )
    levels = torch.rand(2, 9, 1, generator=torch.Generator().manual_seed(0)).double() + 0.5
    y = torch.tensor([[-1.0], [0.5], [4.0]]).double()
    density = sum(
        w * share * torch.distributions.Normal(m, (0.2 + s**2) ** 0.5).log_prob(y).exp()
        for m, w, each in zip((0.0, 1.0), (0.3, 0.7), levels[..., 0].tolist(), strict=True)
        for s, share in zip(each, level_weights().tolist(), strict=True)
    )
    assert_close(at_levels(distribution, levels).log_prob(y).exp(), density[:, 0])
    drawn = draw_levels(levels, torch.ones(40_000).long(), generator=torch.Generator())
    assert float(drawn.mean()) == pytest.approx(
        float(level_weights() @ levels[1, :, 0].square()), rel=0.02
    )


def test_prior_is_that_of_the_noise():
    """A density of sigma is one of log sigma after multiplication by sigma."""
    log_std = torch.tensor([-0.7, 0.4], dtype=torch.float64)
    scale = PRIOR_SCALE * np.array([0.5, 3.0])
    prior = noise_prior(torch.tensor([0.5, 3.0]), 4.0)

    def log_density(t):
        return stats.t.logpdf(np.exp(t), 3.0, scale=scale) + t

    t = log_std.numpy()
    density = prior.log_density(log_std) - prior.log_density(torch.zeros(2).double())
    np.testing.assert_allclose(density, log_density(t) - log_density(np.zeros(2)), rtol=1e-10)


def test_every_level_is_assigned_as_often_as_it_is_probable():
    levels = torch.rand(4000, 9, 2, generator=torch.Generator().manual_seed(0)).double() + 1.0
    assigned = assign_levels(levels, generator=torch.Generator().manual_seed(1))
    is_level = assigned.unsqueeze(1) == levels
    assert bool((is_level.sum(1) == 1).all())
    shares = level_weights()
    assert_close(is_level.double().mean(0), shares.unsqueeze(1).expand(9, 2), atol=3e-4, rtol=0)
    chance = float(shares.square().sum())  # that two targets have the same level
    assert float((is_level[..., 0] & is_level[..., 1]).sum() / 4000) == pytest.approx(
        chance, abs=0.03
    )


MODELS = {
    "linear": BayesianLinearRegressor(),
    "gaussian_process": PredictiveStackingRegressor(
        [("process", "gaussian_process")], random_state=0
    ),
    "laplace": LaplaceRegressor(random_state=0),
    "pool": BayesianMLPRegressor(random_state=0),
    "stack": PredictiveStackingRegressor(random_state=0),
    "ensemble": DeepEnsembleRegressor(random_state=0),
}
FEW_ROW_MODELS = MODELS | {
    "adam": LaplaceRegressor(optimizer="adam", random_state=0),
    "vi": SymmetrizedVIRegressor(random_state=0),
    "mcmc": MCMCRegressor((5,), n_chains=8, random_state=0),
}
QUICK = ("linear", "gaussian_process")
DEFAULTS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in MODELS]


def few_rows(seed, n_rows, n_columns):
    """Rows under noise that is normal or of Student's t, and new ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n_rows + 200, n_columns))
    along = x @ rng.standard_normal(n_columns) / n_columns**0.5
    noise = rng.standard_normal(len(x)) if seed % 2 else rng.standard_t(3, len(x)) / 3.0**0.5
    y = (along if seed % 4 < 2 else 1.4 * np.sin(2.0 * along)) + 0.5 * noise
    return x[:n_rows], y[:n_rows], x[n_rows:], y[n_rows:]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", DEFAULTS)
def test_five_rows_give_wide_predictions(name):
    """Of few draws, coverage of 90 % intervals has an error of .04; it was .59 to .80."""
    coverage, density = [], []
    for seed in range(8):
        x, y, new, targets = few_rows(seed, 5, 1 if seed < 4 else 4)
        reg = MODELS[name].fit(x, y)
        low, high = reg.predict_interval(new, 0.9).T
        coverage.append(((low <= targets) & (targets <= high)).mean())
        density.append(reg.log_predictive_density(new, targets).mean())
    assert np.mean(coverage) > 0.8
    assert min(density) > -10.0


def few_row_cases():
    for name in FEW_ROW_MODELS:
        for n_rows in (1, 2):
            marks = [] if name in QUICK else [pytest.mark.slow]
            yield pytest.param(name, n_rows, marks=marks)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "n_rows"), list(few_row_cases()))
def test_one_or_two_rows_give_wide_predictions(name, n_rows):
    """Coverage of 90 % intervals was 0.6 to 0.8 and 0, and densities fell below -1e5."""
    coverage = []
    density = []
    for seed in range(40, 60):
        x, y, new, targets = few_rows(seed, n_rows, 1 if seed < 50 else 4)
        reg = FEW_ROW_MODELS[name].fit(x, y)
        low, high = reg.predict_interval(new, 0.9).T
        coverage.append(((low <= targets) & (targets <= high)).mean())
        density.append(reg.log_predictive_density(new, targets).mean())
    assert np.mean(coverage) > 0.75  # the standard error of 20 draws is 0.05
    assert min(density) > -20.0


@pytest.mark.filterwarnings("ignore:.*(X has one distinct row|y is constant|lower end|end of its)")
@pytest.mark.parametrize("unit", [1.0, 1e-6])
@pytest.mark.parametrize("name", DEFAULTS)
def test_equal_targets_are_known_to_their_own_size_at_most(name, unit):
    """One row, two of equal targets, and six: the density of a surprise is finite."""
    x = np.random.default_rng(0).standard_normal((6, 2))
    for n in (1, 2, 6):
        reg = MODELS[name].fit(x[:n], unit * np.full(n, 7.0))
        distribution = predictive(reg, x[:1] + 1.0)
        assert 0.3 * unit < distribution.std()[0] < 700.0 * unit
        surprise = distribution.log_prob(unit * np.array([14.0]))[0] + np.log(unit)
        assert surprise > -12.0, n


@pytest.mark.parametrize("reg", [
    BayesianLinearRegressor(), LaplaceRegressor((2,), random_state=0),
], ids=["linear", "laplace"])  # fmt: skip
def test_draws_of_few_rows_have_the_moments_that_are_predicted(reg):
    x, y, new, _ = few_rows(1, 6, 1)
    draws = reg.fit(x, y).sample_y(new[:3], 20_000, random_state=0)
    std = reg.predict(new[:3], return_std=True)[1]
    quantiles = reg.predict_quantiles(new[:3], (0.1, 0.5, 0.9))
    below = (draws[:, :, None] <= quantiles[:, None]).mean(1)
    np.testing.assert_allclose(below, np.tile([0.1, 0.5, 0.9], (3, 1)), atol=0.01)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.25)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_layers_that_interpolate_leave_noise():
    """The bound of three rows rises as the noise falls, and ended at its lower limit."""
    x = np.array([[-1.0], [0.2], [0.8]])
    reg = LayerwiseVIRegressor((5,), "tanh", max_iter=300, tol=None, random_state=0).fit(x, x[:, 0])
    assert reg.noise_std_ > 0.02


@pytest.mark.filterwarnings("ignore")
def test_chains_of_few_rows_predict_with_noise_given_the_weights():
    """Also if the chains hardly move, and their own noise with them."""
    x, y, new, _ = few_rows(1, 4, 1)
    sampler = Chains(init="prior", n_warmup=1)
    reg = MCMCRegressor((2,), sampler=sampler, n_chains=4, n_draws=200, random_state=0).fit(x, y)
    theta = torch.as_tensor(reg.samples_).double().flatten(0, 1)
    rows = torch.as_tensor((x - reg.x_mean_) / reg.x_scale_)
    residual = y - reg.y_mean_ - reg.y_scale_ * reg.network_.forward(theta, rows)[..., 0].numpy()
    square = np.square(residual).sum(1)
    levels = noise_levels(
        torch.as_tensor(square)[:, None], torch.full((800, 1), 4.0).double(),
        torch.as_tensor([y.std()]), 4.0, torch.tensor([False]),
    )  # fmt: skip
    variance = float((level_weights() @ levels.square()[..., 0].T).mean())
    assert reg.predict_uncertainty(new[:2])["aleatoric"] == pytest.approx(variance, rel=0.4)
    drawn = np.log(reg._fitted_noise_std().ravel()[:, None] / levels[..., 0].numpy())
    assert (np.abs(drawn).min(1) < 1e-6).all()


def small_vi(**settings):
    return SymmetrizedVIRegressor((2,), max_iter=100, tol=None, random_state=0, **settings)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:the learned")
def test_variational_noise_of_few_rows_is_integrated_over():
    """The optimal factor of the noise for the weights' posterior, and draws from it."""
    x, y, new, _ = few_rows(1, 6, 1)
    reg = small_vi(n_predict_samples=2000).fit(x, y)
    draws = torch.as_tensor(reg.posterior_.sample(20_000, generator=torch.Generator()).double())
    rows = torch.as_tensor((x - reg.x_mean_) / reg.x_scale_)
    residual = y - reg.y_mean_ - reg.y_scale_ * reg.network_.forward(draws, rows)[..., 0].numpy()
    square = float(np.square(residual).sum(1).mean())
    scale = PRIOR_SCALE * y.std(ddof=1)

    def posterior(t):  # five degrees of freedom of the prior, six rows
        prior = t - 3.0 * np.log1p(np.exp(2.0 * t) / scale**2 / 5.0)
        return np.exp(prior - 6.0 * t - 0.5 * square * np.exp(-2.0 * t))

    peak = 0.5 * np.log(square / 6.0)
    total = integrate.quad(posterior, peak - 3.0, peak + 6.0, points=[peak])[0]
    mean = integrate.quad(lambda t: np.exp(2.0 * t) * posterior(t), peak - 3.0, peak + 6.0)[0]
    noise = reg.predict_uncertainty(new[:2])["aleatoric"]
    np.testing.assert_allclose(noise, mean / total, rtol=0.03)

    sample = reg.sample_y(new[:2], 20_000, random_state=0)
    quantiles = reg.predict_quantiles(new[:2], (0.1, 0.5, 0.9))
    below = (sample[:, :, None] <= quantiles[:, None]).mean(1)
    np.testing.assert_allclose(below, np.tile([0.1, 0.5, 0.9], (2, 1)), atol=0.015)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:the learned")
def test_variational_noise_of_many_rows_has_one_level():
    x, y, new, _ = few_rows(1, 40, 1)
    reg = small_vi().fit(x, y)
    noise = reg.predict_uncertainty(new[:2])["aleatoric"]
    np.testing.assert_allclose(noise, reg.noise_std_**2, rtol=1e-4)
    assert small_vi(noise_std=0.3).fit(x[:5], y[:5]).predict_uncertainty(new[:1])[
        "aleatoric"
    ] == pytest.approx(0.09, rel=1e-4)


ONE_SCALE = {
    "laplace": LaplaceRegressor((2,), max_iter=3),
    "vi": SymmetrizedVIRegressor((2,), max_iter=5, tol=None),
    "ensemble": DeepEnsembleRegressor((2,), max_iter=5),
    "mcmc": MCMCRegressor(
        (1,), sampler=Chains(init="prior", n_warmup=5), n_chains=2, n_draws=4,
        remove_symmetries=False,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("likelihood", [Gaussian, StudentT])
@pytest.mark.parametrize("name", ONE_SCALE)
def test_one_scale_stands_for_all_targets(name, likelihood):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(20, 3)), rng.normal(size=(20, 2))
    fits = [
        clone(ONE_SCALE[name])
        .set_params(likelihood=likelihood(log_noise=torch.zeros(n_scales)), random_state=0)
        .fit(X, Y)
        for n_scales in (1, 2)
    ]
    one, two = (model.predict(X, return_std=True) for model in fits)
    np.testing.assert_array_equal(one, two)

    with pytest.raises(ValueError, match=r"shape \(3,\): for 2 target\(s\)"):
        clone(fits[0]).set_params(likelihood=likelihood(log_noise=torch.zeros(3))).fit(X, Y)
