"""Sites of linear models against closed forms, generic optimisers and quadrature."""

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from inference.linear.linear_problems import class_data, fit, linear_data, problem, softmax
from scipy import optimize, stats
from torch.testing import assert_close

from skbayes_sym.inference.linear.sites import (
    Sites,
    converge,
    first_sites,
    full_covariance,
    mean_field,
    solve,
    update,
)
from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.likelihood import ScalarSites
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT
from skbayes_sym.numerics.optimise import AndersonMixing


def gaussian(noise_variance):
    log_noise = 0.5 * torch.as_tensor([noise_variance], dtype=torch.float64).log()
    return ScalarSites(Gaussian(log_noise, learn=False))


# Three rows, four weights with their own prior variances (absorbed into X), noise variance 0.25.
LINEAR_X = np.array([[1.0, 2.0, -1.0, 0.5], [0.0, 1.0, 1.0, -2.0], [0.5, -1.0, 2.0, 1.0]])
LINEAR_Y = np.array([[1.0], [-0.5], [2.0]])
PRIOR_SCALE = np.sqrt([1.0, 0.5, 2.0, 1.0])


def test_gaussian_oracle_in_one_update():
    data, likelihood = linear_data(LINEAR_X * PRIOR_SCALE, LINEAR_Y), gaussian(0.25)
    one = torch.ones((), dtype=torch.float64)
    empty = Sites(torch.zeros(3, 1).double(), torch.zeros(3, 1, 1).double())  # the prior
    state = update(data, solve(data, empty, one, likelihood)).state
    location = state.sites.shift[:, 0] / state.sites.precision[:, 0, 0]
    assert_close(location, data.y[:, 0], rtol=1e-12, atol=0)
    assert_close(1 / state.sites.precision.flatten(), torch.full((3,), 0.25).double())
    coef = [0.6447578499201697, 0.24720596061734995, 0.583288983501863, 0.6620542841937204]
    variance = [0.584752527940394, 0.1874667376263971, 0.09686003193187871, 0.13810537519957428]
    np.testing.assert_allclose(state.loc[0].numpy() * PRIOR_SCALE, coef, rtol=1e-9)
    got = state.covariance.diagonal().numpy() * PRIOR_SCALE**2
    np.testing.assert_allclose(got, variance, rtol=1e-9)
    assert float(state.elbo) == pytest.approx(-6.103691982552147, abs=1e-9)
    again = update(data, state)
    assert again.change < 1e-12
    family = mean_field(data.features)
    independent = converge(
        data, solve(data, state.sites, one, likelihood, family), family, tol=1e-12, max_iter=10
    ).state
    assert float(independent.elbo) == pytest.approx(-6.9645095010847635, abs=1e-9)


def test_logistic_oracle():
    X = [[1.0, 0.5], [-1.0, 2.0], [0.3, -1.0], [2.0, 1.0], [-0.5, -0.5], [1.5, -2.0]]
    data = linear_data(X, np.array([1, 0, 1, 1, 0, 1]))
    state = fit(data, ScalarSites(Bernoulli()), 2.0)
    assert float(state.elbo) == pytest.approx(-2.8029370525398725, abs=1e-6)
    np.testing.assert_allclose(
        state.loc[0].numpy(), [1.889139066916685, -0.5547202423011295], atol=1e-6
    )
    covariance = [[0.847697329635758, 0.0590631087340388], [0.0590631087340388, 0.747482930938967]]
    np.testing.assert_allclose(state.covariance.numpy(), covariance, atol=1e-6)
    precision = [
        0.14074597558373747, 0.07698530415445398, 0.17442208237996554, 0.07143965813774936,
        0.2091342807145855, 0.05098905570634968,
    ]  # fmt: skip
    np.testing.assert_allclose(state.sites.precision.flatten().numpy(), precision, atol=1e-6)
    independent = fit(data, ScalarSites(Bernoulli()), 2.0, mean_field(data.features))
    assert float(independent.elbo) == pytest.approx(-2.8056618024528994, abs=1e-6)
    np.testing.assert_allclose(
        independent.loc[0].numpy(), [1.887513051339404, -0.5718543729388442], atol=1e-6
    )


def count_data():
    X, f, rng = problem()
    return linear_data(X, rng.poisson(np.exp(0.5 * f)).astype(float)[:, None])


def heavy_data():
    X, f, rng = problem()
    y = f + 0.3 * rng.standard_normal(25)
    y[::6] += 6.0  # outliers: negative curvature
    return linear_data(X, y[:, None])


STUDENT = ScalarSites(StudentT(torch.tensor([np.log(0.3)]), df=3.0, learn=False))
MODELS = {
    "poisson": (count_data(), ScalarSites(Poisson())),
    "student-t": (heavy_data(), STUDENT),
    "bernoulli": (class_data(), ScalarSites(Bernoulli())),
}
every_model = pytest.mark.parametrize(("data", "likelihood"), MODELS.values(), ids=MODELS)


def elbo_of(data, likelihood, v, loc, factor):
    """ELBO of N(loc, factor factor') for one output, from its definition."""
    mean = data.features @ loc
    variance = ((data.features @ factor) ** 2).sum(1)
    value = likelihood.value(mean[:, None], variance[:, None, None], data.y) @ data.weight
    trace = (factor**2).sum() + loc @ loc
    log_det = 2 * factor.diagonal().abs().log().sum()
    return value - 0.5 * (trace / v - len(loc) + len(loc) * np.log(v) - log_det)


@every_model
@pytest.mark.parametrize("diagonal", [False, True], ids=["full", "mean-field"])
def test_fixed_point_is_the_best_gaussian(data, likelihood, diagonal):
    """Against L-BFGS over mean and Cholesky factor, which knows nothing of sites."""
    k, v = data.features.shape[1], 1.5
    rows, cols = (np.diag_indices(k) if diagonal else np.tril_indices(k))[:2]

    def loss(params):
        at = torch.tensor(params, requires_grad=True)
        factor = torch.zeros(k, k, dtype=torch.float64).index_put(
            (torch.as_tensor(rows), torch.as_tensor(cols)), at[k:]
        )
        value = -elbo_of(data, likelihood, v, at[:k], factor)
        (gradient,) = torch.autograd.grad(value, at)
        return value.item(), gradient.numpy()

    state = fit(data, likelihood, v, mean_field(data.features) if diagonal else full_covariance)
    start = np.concatenate([np.zeros(k), 0.3 * (rows == cols)])
    best = optimize.minimize(loss, start, jac=True, options={"gtol": 1e-9})
    assert float(state.elbo) == pytest.approx(-best.fun, abs=1e-8)
    np.testing.assert_allclose(state.loc[0].numpy(), best.x[:k], atol=1e-5)


def test_outliers_have_negative_sites():
    state = fit(heavy_data(), STUDENT, 1.5)
    assert bool((state.sites.precision[::6].flatten() < 0).any())


@every_model
def test_every_update_raises_the_elbo(data, likelihood):
    variance = torch.tensor(1.5, dtype=torch.float64)
    sites = first_sites(data, likelihood, torch.zeros(1, dtype=torch.float64))
    state, acceleration = solve(data, sites, variance, likelihood), AndersonMixing()
    for _ in range(12):
        after = update(data, state, acceleration=acceleration).state
        assert float(after.elbo) >= float(state.elbo) - 1e-10
        state = after


@every_model
def test_elbo_is_below_the_evidence(data, likelihood):
    """One weight: the evidence by quadrature on a grid."""
    data = data._replace(features=data.features[:, :1], n_weights=1)
    grid = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    outputs = grid[:, None, None] * data.features
    log_lik = likelihood.likelihood.log_prob(outputs, data.y).sum(-1)
    joint = log_lik + torch.as_tensor(stats.norm.logpdf(grid.numpy(), scale=1.5**0.5))
    evidence = float(joint.logsumexp(0)) + np.log(16 / 4000)
    elbo = float(fit(data, likelihood, 1.5).elbo)
    assert evidence - 0.5 < elbo < evidence


@every_model
def test_weights_are_repetitions(data, likelihood):
    weight = torch.tensor([2.0, 1.0, 3.0]).repeat(9)[:25]
    repeats = weight.long()
    repeated = data._replace(
        features=data.features.repeat_interleave(repeats, 0),
        y=data.y.repeat_interleave(repeats, 0),
        weight=torch.ones(int(repeats.sum()), dtype=torch.float64),
    )
    weighted = fit(data._replace(weight=weight.double()), likelihood, 1.5)
    again = fit(repeated, likelihood, 1.5)
    assert float(weighted.elbo) == pytest.approx(float(again.elbo), abs=1e-9)
    assert_close(weighted.covariance, again.covariance, rtol=1e-7, atol=1e-9)


@every_model
def test_intercept_is_where_the_elbo_is_flat(data, likelihood):
    data = data._replace(fit_intercept=True)
    state = fit(data, likelihood, 1.5)
    slope = data.weight @ state.terms.gradient
    scale = float((data.weight @ state.terms.curvature.abs().flatten(1)).sqrt())
    assert abs(float(slope)) < 1e-6 * scale
    assert float(state.elbo) > float(fit(data._replace(fit_intercept=False), likelihood, 1.5).elbo)


@every_model
def test_more_weights_than_rows_by_the_row_space(data, likelihood):
    """QR features give the posterior of the outputs that all K weights give."""
    rng = np.random.default_rng(5)
    X = torch.as_tensor(rng.normal(size=(25, 60)) / 8)
    triangle = torch.linalg.qr(X.T)[1].T
    wide, narrow = (fit(data._replace(features=f, n_weights=60), likelihood, 2.0)
                    for f in (X, triangle))  # fmt: skip
    assert float(wide.elbo) == pytest.approx(float(narrow.elbo), abs=1e-8)
    assert_close(wide.mean, narrow.mean, rtol=1e-7, atol=1e-8)
    assert_close(wide.output_covariance, narrow.output_covariance, rtol=1e-7, atol=1e-9)


def test_multinomial_fixed_point_is_stationary():
    """Moving mean or spread of the posterior lowers the bound of the same points."""
    X, f, rng = problem()
    y = np.digitize(f + rng.logistic(size=25), [-1.0, 1.0])
    data, likelihood = linear_data(X, y, n_outputs=3), softmax()
    state = fit(data, likelihood, 1.5)
    factor = torch.linalg.cholesky(state.covariance).requires_grad_()
    loc = state.loc.flatten().requires_grad_()
    wide = torch.stack([torch.kron(torch.eye(3), row) for row in data.features])
    root = wide @ factor
    value = likelihood.value(wide @ loc, root @ root.mT, data.y).sum()
    trace = (factor**2).sum() + loc @ loc
    elbo = value - 0.5 * trace / 1.5 + factor.diagonal().log().sum()
    by_loc, by_factor = torch.autograd.grad(elbo, (loc, factor))
    assert float(by_loc.abs().max()) < 1e-7
    assert float(by_factor.tril().abs().max()) < 1e-7


def test_not_normalisable_sites_are_no_state():
    data = linear_data(np.ones((1, 1)), np.ones((1, 1)))
    sites = Sites(torch.zeros(1, 1).double(), torch.full((1, 1, 1), -2.0).double())
    assert solve(data, sites, torch.ones(()).double(), gaussian(1.0)) is None


def test_a_kink_starts_no_worse_than_knowing_nothing():
    """Seen from nearby, straight flanks have slopes and no curvature."""
    X, y, _ = problem(n=10)
    data = linear_data(X, y[:, None] / y.std())
    sites = ScalarSites(LaplaceNoise(torch.zeros(1, dtype=torch.float64)))
    one, none = torch.ones((), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    empty = Sites(data.y.new_zeros(10, 1), data.y.new_zeros(10, 1, 1))
    start = solve(data, first_sites(data, sites, none), one, sites)
    assert float(start.elbo) > float(solve(data, empty, one, sites).elbo)
