"""Prior scale and noise learned at sites: the maximum of the evidence, and of the ELBO."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from skbayes_sym.inference.linear.hyperparameters import Learning, Range, Until, fit_sites
from skbayes_sym.inference.linear.sites import LinearData, converge, first_sites, solve
from skbayes_sym.models.likelihoods.categorical import Bernoulli, SoftmaxSites
from skbayes_sym.models.likelihoods.counts import Poisson
from skbayes_sym.models.likelihoods.likelihood import ScalarSites
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT
from skbayes_sym.numerics.gaussian import sobol_normal

WIDE = Range(-20.0, 20.0)


def learn(data, likelihood, start=0.0, tol=1e-9, prior=WIDE):
    sites = first_sites(data, likelihood, torch.zeros(data.n_outputs, dtype=torch.float64))
    return fit_sites(
        data, likelihood, sites, start, Learning(prior, WIDE), Until(tol, 300, lambda state: False)
    )


def make(n=40, k=5, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, k))
    return X, X @ rng.normal(scale=0.7, size=k), rng


def linear_data(X, y, n_outputs=1):
    X, y = torch.as_tensor(X), torch.as_tensor(y)
    weight = torch.ones(len(X), dtype=torch.float64)
    return LinearData(X, y, weight, n_outputs, X.shape[1], False)


def gaussian(log_noise=0.0, learn=True):
    return ScalarSites(Gaussian(torch.tensor([log_noise], dtype=torch.float64), learn=learn))


@pytest.mark.parametrize("k", [5, 60], ids=["K<N", "K>N"])
def test_gaussian_is_the_maximum_of_the_evidence(k):
    X, f, rng = make(k=k)
    y = f + 0.8 * rng.standard_normal(40)
    fit = learn(linear_data(X, y[:, None]), gaussian(), tol=1e-6)

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
    fixed = learn(data, gaussian(-0.5, learn=False), start=0.3, prior=None)
    assert float(fixed.state.prior_variance.log()) == pytest.approx(0.3)
    assert float(fixed.state.likelihood.noise_scale.log()) == pytest.approx(-0.5)
    assert fixed.n_iter == 1
    noise_only = learn(data, gaussian(), start=0.3, prior=None)
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
        state = solve(data, fit.state.sites, (log_variance + step_prior).exp(), at)
        return float(converge(data, state, tol=1e-10, max_iter=200).state.elbo)

    top = converged(0.0, 0.0)
    steps = [(0.1, 0.0), (-0.1, 0.0)] + [(0.0, 0.05), (0.0, -0.05)] * len(params)
    values = [converged(*step) for step in steps]
    assert max(values) < top
    for up, down in zip(values[::2], values[1::2], strict=True):
        slope, curvature = (up - down) / 2, up + down - 2 * top
        assert abs(slope) < 0.05 * abs(curvature) + 1e-6  # of a parabola with its top within 5 %


def test_callback_and_limit_stop():
    data, likelihood = CASES["bernoulli"]
    sites = first_sites(data, likelihood, torch.zeros(1, dtype=torch.float64))
    seen = []

    def on_step(state):
        seen.append(float(state.elbo))
        return len(seen) == 3

    fit = fit_sites(data, likelihood, sites, 0.0, Learning(WIDE, WIDE), Until(1e-9, 50, on_step))
    assert (fit.stopped, fit.n_iter) == ("callback", 3)
    assert fit.elbo_curve == seen
    limited = fit_sites(
        data, likelihood, sites, 0.0, Learning(WIDE, WIDE), Until(1e-9, 2, lambda state: False)
    )
    assert (limited.stopped, limited.n_iter) == ("max_iter", 2)


def test_no_finite_start_is_an_error():
    data = linear_data(np.full((2, 1), 1e200), np.array([[1e10], [0.0]]))
    likelihood = ScalarSites(Poisson())
    sites = first_sites(data, likelihood, torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ArithmeticError, match="standardize"):
        fit_sites(
            data, likelihood, sites, 0.0, Learning(None, WIDE), Until(1e-6, 5, lambda state: False)
        )
