"""Sites of linear models, and scales learned at them, against closed forms and other optimisers."""

import numpy as np
import pytest
import torch
from cases import LaplaceNoise
from scipy import optimize, stats
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from skbayes_sym import BayesianLinearClassifier
from skbayes_sym.linear import hyperparameters
from skbayes_sym.linear.hyperparameters import (
    ElboAtSites,
    LearnedRanges,
    Range,
    StoppingRule,
    fit_sites,
)
from skbayes_sym.linear.sites import (
    LinearData,
    Sites,
    SiteSums,
    converge_sites,
    full_covariance,
    initial_sites,
    mean_field,
    solve_sites,
    sum_sites,
    update_sites,
)
from skbayes_sym.models.likelihoods.categorical import Bernoulli, Categorical, SoftmaxSites
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.likelihood import ScalarSites
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT
from skbayes_sym.numerics.gaussian import sobol_normal
from skbayes_sym.numerics.optimise import AndersonMixing


def linear_data(X, y, *, n_outputs=1, fit_intercept=False, weight=None):
    X = torch.as_tensor(X, dtype=torch.float64)
    weight = torch.ones(len(X)) if weight is None else torch.as_tensor(weight)
    return LinearData(X, torch.as_tensor(y), weight.double(), n_outputs, X.shape[1], fit_intercept)


def fit(data, likelihood, prior_variance, family=full_covariance, tol=1e-11):
    """The fixed point, starting at a constant function."""
    variance = torch.as_tensor(prior_variance, dtype=torch.float64)
    sites = initial_sites(data, likelihood, torch.zeros(data.n_outputs, dtype=torch.float64))
    state = solve_sites(data, sites, variance, likelihood, family)
    return converge_sites(data, state, family, tol=tol, max_iter=300).state


def problem(n=25, k=3):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, k))
    return X, X @ rng.normal(size=k), rng


def class_data():
    X, f, rng = problem()
    return linear_data(X, (f + rng.logistic(size=25) > 0).astype(np.int64))


def softmax(n_outputs=3, n_points=256):
    return SoftmaxSites(sobol_normal(n_points, n_outputs - 1, seed=0))


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
    state = update_sites(data, solve_sites(data, empty, one, likelihood)).state
    location = state.sites.shift[:, 0] / state.sites.precision[:, 0, 0]
    assert_close(location, data.y[:, 0], rtol=1e-12, atol=0)
    assert_close(1 / state.sites.precision.flatten(), torch.full((3,), 0.25).double())
    coef = [0.6447578499201697, 0.24720596061734995, 0.583288983501863, 0.6620542841937204]
    variance = [0.584752527940394, 0.1874667376263971, 0.09686003193187871, 0.13810537519957428]
    np.testing.assert_allclose(state.loc[0].numpy() * PRIOR_SCALE, coef, rtol=1e-9)
    got = state.covariance.diagonal().numpy() * PRIOR_SCALE**2
    np.testing.assert_allclose(got, variance, rtol=1e-9)
    assert float(state.elbo) == pytest.approx(-6.103691982552147, abs=1e-9)
    again = update_sites(data, state)
    assert again.change < 1e-12
    family = mean_field(data.features)
    independent = converge_sites(
        data,
        solve_sites(data, state.sites, one, likelihood, family),
        family,
        tol=1e-12,
        max_iter=10,
    ).state
    assert float(independent.elbo) == pytest.approx(-6.9645095010847635, abs=1e-9)


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


@every_model
def test_every_update_raises_the_elbo(data, likelihood):
    variance = torch.tensor(1.5, dtype=torch.float64)
    sites = initial_sites(data, likelihood, torch.zeros(1, dtype=torch.float64))
    state, acceleration = solve_sites(data, sites, variance, likelihood), AndersonMixing()
    for _ in range(12):
        after = update_sites(data, state, acceleration=acceleration).state
        assert float(after.elbo) >= float(state.elbo) - 1e-10
        state = after


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
    assert solve_sites(data, sites, torch.ones(()).double(), gaussian(1.0)) is None


def test_a_kink_starts_no_worse_than_knowing_nothing():
    """Seen from nearby, straight flanks have slopes and no curvature."""
    X, y, _ = problem(n=10)
    data = linear_data(X, y[:, None] / y.std())
    sites = ScalarSites(LaplaceNoise(torch.zeros(1, dtype=torch.float64)))
    one, none = torch.ones((), dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    empty = Sites(data.y.new_zeros(10, 1), data.y.new_zeros(10, 1, 1))
    start = solve_sites(data, initial_sites(data, sites, none), one, sites)
    assert float(start.elbo) > float(solve_sites(data, empty, one, sites).elbo)


def random_moments(n_outputs=3, n=4):
    rng = np.random.default_rng(7)
    root = rng.normal(size=(n, n_outputs, n_outputs))
    covariance = torch.as_tensor(root @ root.transpose(0, 2, 1))
    mean = torch.as_tensor(rng.normal(size=(n, n_outputs)))
    return mean, covariance, torch.as_tensor(rng.integers(0, n_outputs, n))


def test_softmax_derivatives_equal_autograd():
    mean, covariance, y = random_moments()
    leaves = mean.requires_grad_(), covariance.requires_grad_()
    terms = softmax()(mean.detach(), covariance.detach(), y)
    value = softmax().value(*leaves, y)
    assert_close(terms.value, value.detach(), rtol=1e-12, atol=1e-13)
    gradient, by_covariance = torch.autograd.grad(value.sum(), leaves)
    assert_close(terms.gradient, gradient, rtol=1e-10, atol=1e-12)
    # autograd takes the entries as free: only the symmetric part means something.
    symmetric = 0.5 * (by_covariance + by_covariance.mT)
    assert_close(terms.curvature, -2 * symmetric, rtol=1e-8, atol=1e-10)


def test_softmax_expectation_equals_monte_carlo(generator):
    mean, covariance, y = random_moments()
    draws = torch.randn(100_000, 4, 3, generator=generator, dtype=torch.float64)
    f = mean + torch.einsum("ncd,snd->snc", torch.linalg.cholesky(covariance), draws)
    samples = f.log_softmax(-1).gather(-1, y.expand(100_000, 4).unsqueeze(-1)).squeeze(-1)
    got = softmax(n_points=8192).value(mean, covariance, y)
    assert bool(((got - samples.mean(0)).abs() < 5 * samples.std(0) / 100_000**0.5).all())


def test_two_classes_by_softmax_are_logistic():
    """Two rows of weights of variance v are a logistic model of variance 2 v."""
    data = class_data()
    logistic = fit(data, ScalarSites(Bernoulli()), 3.0)
    two = fit(data._replace(n_outputs=2), softmax(2, n_points=4096), 1.5)
    # Free direction of both rows together stays at the prior: its KL is 0.
    assert float(two.elbo) == pytest.approx(float(logistic.elbo), abs=2e-3)
    assert_close(two.loc[1] - two.loc[0], logistic.loc[0], rtol=0, atol=3e-3)


WIDE = Range(-20.0, 20.0)


def learn(data, likelihood, start=0.0, tol=1e-9, prior=WIDE):
    sites = initial_sites(data, likelihood, torch.zeros(data.n_outputs, dtype=torch.float64))
    return fit_sites(
        data,
        likelihood,
        sites,
        start,
        LearnedRanges(prior, WIDE),
        StoppingRule(tol, 300, lambda state: False),
    )


def make(n=40, k=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, k))
    return X, X @ rng.normal(scale=0.7, size=k), rng


def learned_noise(log_noise=0.0, learn=True):
    return ScalarSites(Gaussian(torch.tensor([log_noise], dtype=torch.float64), learn=learn))


@pytest.mark.parametrize("k", [5, 60], ids=["K<N", "K>N"])
def test_gaussian_is_the_maximum_of_the_evidence(k):
    X, f, rng = make(k=k)
    y = f + 0.8 * rng.standard_normal(40)
    fit = learn(linear_data(X, y[:, None]), learned_noise(), tol=1e-6)

    def minus_evidence(logs):
        covariance = np.exp(logs[0]) * X @ X.T + np.exp(2 * logs[1]) * np.eye(40)
        return -stats.multivariate_normal(np.zeros(40), covariance).logpdf(y)

    best = optimize.minimize(
        minus_evidence, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-11}
    )
    assert float(fit.state.elbo) == pytest.approx(-best.fun, abs=1e-7)
    got = [float(fit.state.prior_variance.log()), float(fit.state.likelihood.params)]
    np.testing.assert_allclose(got, best.x, atol=1e-4)
    assert (fit.n_iter, fit.stopped) == (2, "tol")


def test_only_what_may_be_learned_is():
    X, f, rng = make()
    data = linear_data(X, (f + rng.standard_normal(40))[:, None])
    fixed = learn(data, learned_noise(-0.5, learn=False), start=0.3, prior=None)
    assert float(fixed.state.prior_variance.log()) == pytest.approx(0.3)
    assert float(fixed.state.likelihood.noise_scale.log()) == pytest.approx(-0.5)
    assert fixed.n_iter == 1
    noise_only = learn(data, learned_noise(), start=0.3, prior=None)
    assert float(noise_only.state.prior_variance.log()) == pytest.approx(0.3)
    assert float(noise_only.state.elbo) > float(fixed.state.elbo)


def hard_cases():
    X, f, rng = make()
    heavy = f + 0.3 * rng.standard_t(2.0, size=40)
    classes = np.digitize(f + rng.logistic(size=40), [-1.0, 1.0])
    zero = torch.zeros(1, dtype=torch.float64)
    softmax = SoftmaxSites(sobol_normal(256, 2, seed=0))
    return {
        "poisson": (
            linear_data(X, rng.poisson(np.exp(f))[:, None].astype(float)),
            ScalarSites(Poisson()),
        ),
        "bernoulli": (
            linear_data(X, (f + rng.logistic(size=40) > 0).astype(np.int64)),
            ScalarSites(Bernoulli()),
        ),
        "student-t": (linear_data(X, heavy[:, None]), ScalarSites(StudentT(zero, df=3.0))),
        "multinomial": (linear_data(X, classes, n_outputs=3), softmax),
    }


CASES = hard_cases()


@pytest.mark.parametrize(("data", "likelihood"), CASES.values(), ids=CASES)
def test_other_likelihoods_end_where_the_converged_elbo_is_flat(data, likelihood):
    """The ELBO, converged afresh at scales around the learned ones, is highest at these."""
    fit = learn(data, likelihood, tol=1e-7)
    assert fit.stopped == "tol"
    log_variance, params = fit.state.prior_variance.log(), fit.state.likelihood.params

    def converged(step_prior, step_noise):
        at = fit.state.likelihood.at(params + step_noise)
        state = solve_sites(data, fit.state.sites, (log_variance + step_prior).exp(), at)
        return float(converge_sites(data, state, tol=1e-10, max_iter=200).state.elbo)

    top = converged(0.0, 0.0)
    steps = [(0.1, 0.0), (-0.1, 0.0)] + [(0.0, 0.05), (0.0, -0.05)] * len(params)
    values = [converged(*step) for step in steps]
    assert max(values) < top
    for up, down in zip(values[::2], values[1::2], strict=True):
        slope, curvature = (up - down) / 2, up + down - 2 * top
        assert abs(slope) < 0.05 * abs(curvature) + 1e-6  # of a parabola with its top within 5 %


def test_no_finite_start_is_an_error():
    data = linear_data(np.full((2, 1), 1e200), np.array([[1e10], [0.0]]))
    likelihood = ScalarSites(Poisson())
    sites = initial_sites(data, likelihood, torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ArithmeticError, match="standardize"):
        fit_sites(
            data,
            likelihood,
            sites,
            0.0,
            LearnedRanges(None, WIDE),
            StoppingRule(1e-6, 5, lambda state: False),
        )


def many_rows(n=200):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(n, 3))
    scores = X @ rng.normal(size=(3, 3)) + rng.gumbel(size=(n, 3))
    return linear_data(X, scores.argmax(1), n_outputs=3)


def test_sums_of_sites_replace_the_sites_of_many_rows():
    """The sums determine the same posterior, and mixing them ends at the same optimum."""
    data, likelihood = many_rows(), softmax(n_points=16)
    variance = torch.tensor(2.0, dtype=torch.float64)
    sites = initial_sites(data, likelihood, torch.zeros(3, dtype=torch.float64))
    state = solve_sites(data, sites, variance, likelihood)
    assert isinstance(state.sites, SiteSums)
    assert sum(tensor.numel() for tensor in state.sites) < 200
    optimum = converge_sites(data, state, tol=1e-10, max_iter=100).state
    product = sum_sites(data, optimum.target_sites())
    for found, expected in zip(optimum.sites, product, strict=True):
        assert_close(found, expected, rtol=0, atol=1e-7)


def test_the_elbo_at_sites_is_the_same_in_blocks_of_rows(monkeypatch):
    """Value and gradient, of one output and of three."""
    one_output = count_data()
    for data, likelihood in (
        (many_rows(), softmax(n_points=16)),
        (one_output, ScalarSites(Poisson())),
    ):
        constant = torch.zeros(data.n_outputs, dtype=torch.float64)
        sites = initial_sites(data, likelihood, constant)
        state = solve_sites(data, sites, torch.tensor(2.0, dtype=torch.float64), likelihood)

        def evaluate(data=data, state=state):
            log_variance = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
            elbo = ElboAtSites(data, state)
            value = elbo(log_variance, state.likelihood.params)
            value.backward()
            return len(elbo._blocks), value.detach(), log_variance.grad

        n_blocks, value, slope = evaluate()
        assert n_blocks == 1
        monkeypatch.setattr(hyperparameters, "_BASIS_ELEMENTS", 50)
        n_blocks, *blocked = evaluate()
        monkeypatch.undo()
        assert n_blocks > 1
        assert_close(torch.stack(blocked), torch.stack([value, slope]), rtol=1e-12, atol=1e-12)


class Largest(TorchDispatchMode):
    """Number of entries of the largest tensor that an operation makes."""

    entries = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.entries = max(self.entries, result.numel())
        return result


def test_no_array_of_many_rows_is_larger_than_their_sites(monkeypatch):
    """Neither the history of the acceleration nor the outputs along eigenvectors."""
    n_rows = 3000
    monkeypatch.setattr(hyperparameters, "_BASIS_ELEMENTS", 1 << 14)
    data = many_rows(n_rows)
    likelihood = softmax(n_points=4)
    variance = torch.tensor(2.0, dtype=torch.float64)
    acceleration = AndersonMixing()
    with Largest() as largest:
        sites = initial_sites(data, likelihood, torch.zeros(3, dtype=torch.float64))
        state = solve_sites(data, sites, variance, likelihood)
        for _ in range(5):
            state = update_sites(data, state, acceleration=acceleration).state
        leaf = variance.log().requires_grad_()
        ElboAtSites(data, state)(leaf, state.likelihood.params).backward()
    # The blocks of quasi-Monte Carlo points have a limit of their own.
    assert largest.entries == n_rows * max(9, 3 * 4)


def test_few_points_are_as_accurate_with_many_rows_as_many_points():
    """Their second moments are exact. The bound is that of 4,096 points to 0.01 nats."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(600, 4))
    y = (X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(600, 3))).argmax(1)
    few, many = (BayesianLinearClassifier(Categorical(n_points=n)).fit(X, y) for n in (128, 4096))
    rule = Categorical().site_likelihood(3, seed=0, rows_per_weight=120.0)
    assert rule.points.shape == (128, 2)
    assert Categorical().site_likelihood(3, seed=0, rows_per_weight=10.0).points.shape == (1024, 2)
    assert Categorical().site_likelihood(30, seed=0, rows_per_weight=99.0).points.shape[0] == 1024
    assert few.elbo_ == pytest.approx(many.elbo_, abs=0.01)
