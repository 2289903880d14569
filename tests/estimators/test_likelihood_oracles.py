"""Posteriors of lines with every likelihood, against adaptive quadrature over all parameters."""

from itertools import product

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from scipy.special import logsumexp

import skbayes_sym as sk
from skbayes_sym.models import Heteroscedastic, NaturalHeteroscedastic, NegativeBinomial

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LINE = {"hidden_layer_sizes": (), "standardize": False, "normalize_y": False, "random_state": 0}
rng = np.random.default_rng(0)
X = rng.uniform(-1.5, 1.5, (80, 1))
SLOPE = X[:, 0]
Y = 0.5 + SLOPE + np.exp(-0.5 + 0.7 * SLOPE) * rng.standard_normal(80)
COUNTS = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(1.0 + 0.5 * SLOPE))).astype(float)
NEW = np.array([[-1.0], [0.0], [1.0]])


def line(p, x):
    """(a, b) -> a x + b."""
    return p[0] * x[:, 0] + p[1]


# Each: targets, log likelihood at parameters (slopes, then offsets as the network has them), the
# mean and variance of a target, and the half-normal prior of what the likelihood learns itself.
def two_heads(p, x, y):
    return stats.norm.logpdf(y, line(p[[0, 2]], x), np.exp(line(p[[1, 3]], x))).sum()


def natural_heads(p, x, y):
    first, precision = line(p[[0, 2]], x), np.exp(line(p[[1, 3]], x))
    return stats.norm.logpdf(y, first / precision, precision**-0.5).sum()


def counts(p, x, y):
    alpha, mean = np.exp(p[2]), np.exp(line(p[:2], x))
    return stats.nbinom.logpmf(y, 1 / alpha, 1 / (1 + alpha * mean)).sum()


def moments(name, p, x):
    if name == "counts":
        mean = np.exp(line(p[:2], x))
        return mean, mean + np.exp(p[2]) * mean**2
    second = line(p[[1, 3]], x)
    if name == "heads":
        return line(p[[0, 2]], x), np.exp(2 * second)
    return line(p[[0, 2]], x) * np.exp(-second), np.exp(-second)


CASES = {
    "heads": (Heteroscedastic(), Y, two_heads, 4),
    "natural": (NaturalHeteroscedastic(), Y, natural_heads, 4),
    "counts": (NegativeBinomial(), COUNTS, counts, 3),
}
every_case = pytest.mark.parametrize("name", CASES)
HEADS = pytest.mark.parametrize("name", ["heads", "natural"])


def log_joint(name, p):
    _, y, log_lik, n = CASES[name]
    log_prior = stats.norm.logpdf(p[:n] if name != "counts" else p[:2]).sum()
    if name == "counts":  # half-normal, as a density of its logarithm
        log_prior += stats.halfnorm.logpdf(np.exp(p[2])) + p[2]
    return log_prior + log_lik(p, X, y)


class Quadrature:
    """Gauss-Hermite nodes laid over the mode by the curvature there (Naylor & Smith 1982)."""

    def __init__(self, name, n_nodes=7):
        self.name, n = name, CASES[name][3]
        found = optimize.minimize(lambda p: -log_joint(name, p), np.zeros(n), method="BFGS")
        hessian = np.zeros((n, n))
        h = 1e-3 * np.eye(n)
        for i, j in product(range(n), repeat=2):
            signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
            values = [a * b * log_joint(name, found.x + a * h[i] + b * h[j]) for a, b in signs]
            hessian[i, j] = -sum(values) / 4e-6
        root = np.linalg.cholesky(np.linalg.inv(hessian))
        z, w = np.polynomial.hermite_e.hermegauss(n_nodes)
        nodes = np.array(list(product(z, repeat=n)))
        log_w = np.log(np.array(list(product(w, repeat=n)))).sum(1)
        self.points = found.x + nodes @ root.T
        log_values = np.array([log_joint(name, p) for p in self.points])
        terms = log_values + log_w + 0.5 * (nodes**2).sum(1) + np.log(np.diag(root)).sum()
        self.log_evidence = logsumexp(terms)
        self.weights = np.exp(terms - self.log_evidence)

    def predicted(self):
        """Mean, epistemic and aleatoric variance at the new rows."""
        found = [moments(self.name, p, NEW) for p in self.points]
        mean, variance = (np.array([f[i] for f in found]) for i in range(2))
        average = self.weights @ mean
        return average, self.weights @ (mean - average) ** 2, self.weights @ variance


@pytest.fixture(scope="module")
def quadrature():
    made = {}

    def of(name):
        if name not in made:
            made[name] = Quadrature(name)
        return made[name]

    return of


@pytest.mark.slow
@every_case
def test_quadrature_has_converged(name, quadrature):
    finer = Quadrature(name, 11)
    assert finer.log_evidence == pytest.approx(quadrature(name).log_evidence, abs=2e-3)
    for a, b in zip(finer.predicted(), quadrature(name).predicted(), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-3)


@HEADS
def test_laplace_evidence_of_two_heads(name, quadrature):
    """Off by O(1/N): the third derivatives that a normal doesn't have."""
    likelihood, y, _, _ = CASES[name]
    reg = sk.LaplaceRegressor(
        **LINE, likelihood=likelihood, prior_scale=1.0, curvature="full", max_iter=800,
        learning_rate=0.1,
        n_hyper_updates=5, tol=None,
    ).fit(X, y)  # fmt: skip
    exact = quadrature(name)
    assert reg.log_evidence_ == pytest.approx(exact.log_evidence, abs=0.25)
    mean, epistemic, aleatoric = exact.predicted()
    parts = reg.predict_uncertainty(NEW)
    np.testing.assert_allclose(reg.predict(NEW), mean, atol=0.5 * np.sqrt(epistemic).max())
    np.testing.assert_allclose(parts.aleatoric, aleatoric, rtol=0.2)
    np.testing.assert_allclose(parts.epistemic, epistemic, rtol=0.5)


@HEADS
def test_elbo_is_below_the_evidence(name, quadrature):
    likelihood, y, _, _ = CASES[name]
    reg = sk.SymmetrizedVIRegressor(
        **LINE, likelihood=likelihood, max_iter=1500, tol=None, learning_rate=0.03
    ).fit(X, y)
    below = quadrature(name).log_evidence - reg.elbo_
    # A diagonal normal of correlated parameters loses what their correlation says.
    assert -3.0 * reg.elbo_std_error_ < below < 1.5


@pytest.mark.slow
@every_case
def test_chains_sample_the_posterior(name, quadrature):
    likelihood, y, _, _ = CASES[name]
    reg = sk.MCMCRegressor(
        **LINE, likelihood=likelihood, n_chains=16, n_warmup=300, n_draws=200, thinning=2
    ).fit(X, y)
    exact = quadrature(name)
    mean, epistemic, aleatoric = exact.predicted()
    # 3,200 draws, of which a quarter are worth an independent one.
    error = np.sqrt(epistemic / 800)
    assert (np.abs(reg.predict(NEW) - mean) < 4 * error + 5e-3 * np.abs(mean)).all()
    parts = reg.predict_uncertainty(NEW)
    np.testing.assert_allclose(parts.aleatoric, aleatoric, rtol=0.05)
    np.testing.assert_allclose(parts.epistemic, epistemic, rtol=0.2)
    apart = abs(reg.log_evidence_ - exact.log_evidence)
    assert apart < 4 * reg.log_evidence_std_error_ + 0.02


@pytest.mark.slow
@every_case
def test_simulation_based_calibration(name):
    """Ranks of true predictions among draws are uniform (Talts et al. 2018)."""
    likelihood, _, _, _ = CASES[name]
    own, n_sets, ranks = np.random.default_rng(1), 60, []
    for seed in range(n_sets):
        p = own.standard_normal(CASES[name][3])
        if name == "counts":
            p[2] = np.log(np.abs(p[2]))
        mean, variance = moments(name, p, X[:25])
        if name == "counts":
            y = own.poisson(own.gamma(np.exp(-p[2]), np.exp(p[2]) * mean)).astype(float)
        else:
            y = mean + np.sqrt(variance) * own.standard_normal(25)
        reg = sk.MCMCRegressor(
            **{**LINE, "random_state": seed}, likelihood=likelihood, n_chains=8, n_warmup=200,
            n_draws=25, thinning=4, mode_weights="uniform",
        ).fit(X[:25], y)  # fmt: skip
        law = reg.likelihood_
        theta = torch.as_tensor(reg.samples_).double().flatten(0, -2)
        outputs = reg.network_.forward(theta, torch.as_tensor(NEW[:1]))
        drawn = [law.mean(outputs), law.variance(outputs)]
        true = moments(name, p, NEW[:1])
        ranks.append(
            [float((d.flatten() < t[0]).double().mean()) for d, t in zip(drawn, true, strict=True)]
        )
    for column in np.array(ranks).T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
