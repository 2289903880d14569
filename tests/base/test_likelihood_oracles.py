"""Posteriors of lines with every likelihood, against adaptive quadrature over all parameters."""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import gammaln, logsumexp

import skbayes_sym as sk
from skbayes_sym import Adam, Chains, EvidenceAdam, Updates, models

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

LINE = {"hidden_layer_sizes": (), "standardize": False, "random_state": 0}
rng = np.random.default_rng(0)
X = rng.uniform(-1.5, 1.5, (80, 1))
SLOPE = X[:, 0]
Y = 0.5 + SLOPE + np.exp(-0.5 + 0.7 * SLOPE) * rng.standard_normal(80)
COUNTS = rng.negative_binomial(3.0, 3.0 / (3.0 + np.exp(1.0 + 0.5 * SLOPE))).astype(float)
RARE = rng.poisson(np.exp(0.5 + 0.5 * SLOPE)).astype(float)
HEAVY = 0.5 + SLOPE + 0.4 * rng.standard_t(4.0, 80)
NEW = np.array([[-1.0], [0.0], [1.0]])


# Log likelihoods, means and variances of a target at parameters (*B, D), columns (*B, 1): slopes,
# then offsets as the network has them, then the logarithm that the likelihood learns itself.
def line(p, first, second, x):
    """a x + b, (*B, N)."""
    return p[..., first, None] * x[:, 0] + p[..., second, None]


def log_normal(y, mean, log_sd):
    return -0.5 * ((y - mean) * np.exp(-log_sd)) ** 2 - log_sd - 0.5 * np.log(2 * np.pi)


def two_heads(p, x, y):
    return log_normal(y, line(p, 0, 2, x), line(p, 1, 3, x)).sum(-1)


def natural_heads(p, x, y):
    first, precision = line(p, 0, 2, x), np.exp(line(p, 1, 3, x))
    return log_normal(y, first / precision, -0.5 * np.log(precision)).sum(-1)


def one_noise(p, x, y):
    return log_normal(y, line(p, 0, 1, x), p[..., 2, None]).sum(-1)


def heavy_tails(p, x, y):
    z = (y - line(p, 0, 1, x)) * np.exp(-p[..., 2, None])
    return (stats.t.logpdf(z, 4.0) - p[..., 2, None]).sum(-1)


def poisson(p, x, y):
    log_mean = line(p, 0, 1, x)
    return (y * log_mean - np.exp(log_mean) - gammaln(y + 1)).sum(-1)


def counts(p, x, y):
    size, mean = np.exp(-p[..., 2, None]), np.exp(line(p, 0, 1, x))
    ways = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
    return (ways - size * np.log1p(mean / size) - y * np.log1p(size / mean)).sum(-1)


def moments_of_heads(p, x):
    return line(p, 0, 2, x), np.exp(2 * line(p, 1, 3, x))


def moments_of_natural_heads(p, x):
    variance = np.exp(-line(p, 1, 3, x))
    return line(p, 0, 2, x) * variance, variance


def moments_of_normal(p, x):
    mean = line(p, 0, 1, x)
    return mean, np.exp(2 * p[..., 2, None]) + 0 * mean


def moments_of_t(p, x):
    mean, variance = moments_of_normal(p, x)
    return mean, 2.0 * variance  # of four degrees of freedom


def moments_of_poisson(p, x):
    mean = np.exp(line(p, 0, 1, x))
    return mean, mean


def moments_of_counts(p, x):
    mean = np.exp(line(p, 0, 1, x))
    return mean, mean + np.exp(p[..., 2, None]) * mean**2


class Case(NamedTuple):
    likelihood: object
    y: np.ndarray
    log_likelihood: Callable
    moments: Callable
    n_weights: int
    own: Callable | None = None  # what a fitted likelihood learned, as a logarithm
    evidence_error: float = 0.25  # of Laplace's, which is off by O(1/N): third derivatives


CASES = {
    "heads": Case(models.Heteroscedastic(), Y, two_heads, moments_of_heads, 4),
    "natural": Case(models.NaturalHeteroscedastic(), Y, natural_heads, moments_of_natural_heads, 4),
    "counts": Case(
        models.NegativeBinomial(), COUNTS, counts, moments_of_counts, 2,
        lambda found: float(found.dispersion.log()), 0.03,
    ),
    "poisson": Case(models.Poisson(), RARE, poisson, moments_of_poisson, 2, None, 0.03),
    "normal": Case(
        models.Gaussian(), HEAVY, one_noise, moments_of_normal, 2,
        lambda found: float(found.noise_scale.log()), 1e-4,
    ),
    "tails": Case(
        models.StudentT(), HEAVY, heavy_tails, moments_of_t, 2,
        lambda found: float(found.noise_scale.log()), 0.05,
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("name", CASES)


class Quadrature:
    """Gauss-Hermite nodes laid over the mode by the curvature there (Naylor & Smith 1982).

    Over the weights and what the likelihood learns; over the weights alone where that is given, as
    methods have it that maximise over it.
    """

    def __init__(self, name, own=None, n_nodes=7):
        self.case, self.own = CASES[name], own
        n = self.case.n_weights + (self.case.own is not None and own is None)
        found = optimize.minimize(lambda p: -self.log_joint(p), np.zeros(n), method="BFGS")
        hessian = np.zeros((n, n))
        h = 1e-3 * np.eye(n)
        for i, j in product(range(n), repeat=2):
            signs = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
            values = [a * b * self.log_joint(found.x + a * h[i] + b * h[j]) for a, b in signs]
            hessian[i, j] = -sum(values) / 4e-6
        root = np.linalg.cholesky(np.linalg.inv(hessian))
        z, w = np.polynomial.hermite_e.hermegauss(n_nodes)
        nodes = np.array(list(product(z, repeat=n)))
        log_w = np.log(np.array(list(product(w, repeat=n)))).sum(1)
        self.points = self.whole(found.x + nodes @ root.T)
        log_values = self.log_joint(found.x + nodes @ root.T)
        terms = log_values + log_w + 0.5 * (nodes**2).sum(1) + np.log(np.diag(root)).sum()
        self.log_evidence = logsumexp(terms)
        self.weights = np.exp(terms - self.log_evidence)

    def whole(self, p):
        if self.own is None:
            return p
        return np.concatenate([p, np.full((*p.shape[:-1], 1), self.own)], -1)

    def log_joint(self, p):
        n, whole = self.case.n_weights, self.whole(p)
        log_prior = stats.norm.logpdf(p[..., :n]).sum(-1)
        if p.shape[-1] > n:  # half-normal, as a density of its logarithm
            log_prior += stats.halfnorm.logpdf(np.exp(p[..., n])) + p[..., n]
        return log_prior + self.case.log_likelihood(whole, X, self.case.y)

    def predicted(self):
        """Mean, epistemic and aleatoric variance at the new rows."""
        mean, variance = self.case.moments(self.points, NEW)
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


@every_case
def test_quadrature_has_converged(name, quadrature):
    finer = Quadrature(name, n_nodes=11)
    assert finer.log_evidence == pytest.approx(quadrature(name).log_evidence, abs=2e-3)
    for a, b in zip(finer.predicted(), quadrature(name).predicted(), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-3)


def at_what_was_learned(name, quadrature, fitted):
    own = CASES[name].own
    return quadrature(name) if own is None else Quadrature(name, own(fitted.likelihood_))


@pytest.mark.long
@every_case
def test_laplace_evidence(name, quadrature):
    """At the likelihood's own parameter, if it has one, which is where that evidence is highest."""
    case = CASES[name]
    reg = sk.LaplaceRegressor(
        **LINE,
        likelihood=case.likelihood,
        prior=1.0,
        optimizer=EvidenceAdam(
            curvature="full", learning_rate=0.1, updates=Updates(n=5 if case.own is None else 60)
        ),
        max_iter=200 * case.n_weights,
        tol=None,
    ).fit(X, case.y)
    exact = at_what_was_learned(name, quadrature, reg)
    assert reg.log_evidence_ == pytest.approx(exact.log_evidence, abs=case.evidence_error)
    if case.own is not None:
        learned = case.own(reg.likelihood_)
        beside = [Quadrature(name, learned + d).log_evidence for d in (-0.15, 0.15)]
        assert exact.log_evidence > max(beside)
    mean, epistemic, aleatoric = exact.predicted()
    parts = reg.predict_uncertainty(NEW)
    np.testing.assert_allclose(reg.predict(NEW), mean, atol=0.5 * np.sqrt(epistemic).max())
    np.testing.assert_allclose(parts.aleatoric, aleatoric, rtol=0.2)
    np.testing.assert_allclose(parts.epistemic, epistemic, rtol=0.5)


@pytest.mark.long
@every_case
def test_elbo_is_below_the_evidence(name, quadrature):
    case = CASES[name]
    reg = sk.SymmetrizedVIRegressor(
        **LINE, likelihood=case.likelihood, max_iter=1500 if case.n_weights == 4 else 600, tol=None,
        optimizer=Adam(learning_rate=0.03),
    ).fit(X, case.y)  # fmt: skip
    below = at_what_was_learned(name, quadrature, reg).log_evidence - reg.elbo_
    # A diagonal normal of correlated parameters loses what their correlation says.
    assert -3.0 * reg.elbo_std_error_ - 2e-3 < below < 1.5


@pytest.mark.slow
@every_case
def test_chains_sample_the_posterior(name, quadrature):
    case = CASES[name]
    reg = sk.MCMCRegressor(
        **LINE, likelihood=case.likelihood, n_chains=16, n_draws=200,
        sampler=Chains(init="prior", n_warmup=300, thinning=2), prior=1.0,
    ).fit(X, case.y)  # fmt: skip
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
