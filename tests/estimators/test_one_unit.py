"""One tanh unit under likelihoods that aren't normal, against quadrature over all its parameters.

Given the unit's own weight and bias the model is a line in what the unit says: Gauss-Hermite nodes
at the mode of its weights and of what the likelihood learns. The unit's own two are on a grid, on
which sums of smooth functions converge faster than any power of its spacing.
"""

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit
from torch import Tensor

import skbayes_sym as sk
from skbayes_sym import Adam, Chains, ModeWeights

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),  # of torch.func itself
]

rng = np.random.default_rng(3)
X = rng.uniform(-2.0, 2.0, (40, 1))
BEND = np.tanh(2.0 * X[:, 0] - 1.0)
COUNTS = rng.poisson(np.exp(0.8 + BEND)).astype(float)
LABELS = (rng.uniform(size=40) < expit(2.0 * BEND)).astype(int)
HEAVY = 0.5 + BEND + 0.3 * rng.standard_t(4.0, 40)
SPREAD = 0.5 + BEND + np.exp(-1.0 + 0.8 * BEND) * rng.standard_normal(40)
OVERDISPERSED = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(1.0 + BEND))).astype(float)
NEW = np.array([-1.5, 0.0, 1.5])
PLAIN = {"standardize": False, "prior": 1.0, "random_state": 0}


# Of outputs f (..., N, K) and the logarithm (..., 1) of what the likelihood learns itself.
def poisson(f, _, y):
    return y * f[..., 0] - f[..., 0].exp() - torch.lgamma(y + 1.0)


def bernoulli(f, _, y):
    return y * f[..., 0] - torch.nn.functional.softplus(f[..., 0])


def heavy_tails(f, log_scale, y):
    z = (y - f[..., 0]) * (-log_scale).exp()
    law = torch.distributions.StudentT(torch.tensor(4.0).double())
    return law.log_prob(z) - log_scale


def two_heads(f, _, y):
    z = (y - f[..., 0]) * (-f[..., 1]).exp()
    return -0.5 * z**2 - f[..., 1] - 0.5 * np.log(2.0 * np.pi)


def counts(f, log_dispersion, y):
    size, log_mean = (-log_dispersion).exp(), f[..., 0]
    ways = torch.lgamma(y + size) - torch.lgamma(size) - torch.lgamma(y + 1.0)
    of_zero = size * torch.nn.functional.softplus(log_mean + log_dispersion)
    return ways - of_zero - y * torch.nn.functional.softplus(-log_mean - log_dispersion)


class Case(NamedTuple):
    estimators: tuple  # sampled, variational
    settings: dict
    y: np.ndarray
    log_prob: object
    mean: object  # of outputs
    n_outputs: int = 1
    own: object = None  # logarithm of what a fitted likelihood learned

    @property
    def n_inner(self) -> int:
        """Weights and offsets of the outputs, and what the likelihood learns."""
        return 2 * self.n_outputs + (self.own is not None)


REGRESSORS = sk.MCMCRegressor, sk.SymmetrizedVIRegressor
CLASSIFIERS = sk.MCMCClassifier, sk.SymmetrizedVIClassifier
CASES = {
    "poisson": Case(REGRESSORS, PLAIN, COUNTS, poisson, lambda f: f[..., 0].exp()),
    "bernoulli": Case(CLASSIFIERS, PLAIN, LABELS, bernoulli, lambda f: f[..., 0].sigmoid()),
    "student_t": Case(
        REGRESSORS, PLAIN, HEAVY, heavy_tails, lambda f: f[..., 0],
        own=lambda found: float(found.noise_scale.log()),
    ),
    "heteroscedastic": Case(
        REGRESSORS, PLAIN, SPREAD, two_heads, lambda f: f[..., 0], n_outputs=2
    ),
    "negative_binomial": Case(
        REGRESSORS, PLAIN, OVERDISPERSED, counts, lambda f: f[..., 0].exp(),
        own=lambda found: float(found.dispersion.log()),
    ),
}  # fmt: skip
# Lines of every likelihood are judged in test_likelihood_oracles.py at each run.
SLOW = "student_t", "heteroscedastic", "negative_binomial"
every_case = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES]
)


class Inner(NamedTuple):
    """The model given the unit's own weight and bias."""

    case: Case
    own: float | None  # what the likelihood learned, where it is not integrated over

    @property
    def n(self) -> int:
        return self.case.n_inner - (self.own is not None)

    def outputs(self, p: Tensor, hidden: Tensor) -> Tensor:
        """(*B, n), (*B, N) -> (*B, N, K)."""
        k = self.case.n_outputs
        return hidden[..., None] * p[..., None, :k] + p[..., None, k : 2 * k]

    def log_joint(self, p: Tensor, hidden: Tensor) -> Tensor:
        k = 2 * self.case.n_outputs
        log_prior = -0.5 * (p[..., :k] ** 2).sum(-1) - 0.5 * k * np.log(2.0 * np.pi)
        own = torch.tensor([0.0 if self.own is None else self.own]).double()
        if self.n > k:  # half-normal, as a density of its logarithm
            own = p[..., k:]
            log_prior = log_prior + 0.5 * np.log(2.0 / np.pi) - 0.5 * (2.0 * own[..., 0]).exp()
            log_prior = log_prior + own[..., 0]
        y = torch.as_tensor(self.case.y).double()
        return log_prior + self.case.log_prob(self.outputs(p, hidden), own, y).sum(-1)

    def modes(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Modes (G, n) by damped Newton steps, and roots (G, n, n) of the covariance there."""
        slope_of = torch.func.vmap(torch.func.grad(self.log_joint))
        curvature_of = torch.func.vmap(torch.func.hessian(self.log_joint))
        at = torch.zeros(len(hidden), self.n).double()
        lengths = torch.tensor([1.0, 0.3, 0.1, 0.01]).double()[:, None, None]
        for _ in range(60):
            slope = slope_of(at, hidden)
            if slope.abs().max() < 1e-8:
                break
            values, axes = torch.linalg.eigh(-curvature_of(at, hidden))
            step = (axes.mT @ slope[..., None])[..., 0] / values.abs().clamp(min=0.5)
            tried = at + lengths * (axes @ step[..., None])[..., 0]
            best = self.log_joint(tried, hidden).argmax(0)
            at = tried[best, torch.arange(len(at))]
        assert slope.abs().max() < 1e-6
        return at, torch.linalg.cholesky(torch.linalg.inv(-curvature_of(at, hidden)))


@cache
def quadrature(name, own=None, n_grid=45, n_nodes=5):
    """Log evidence and the predicted mean at the new rows, all priors N(0, 1)."""
    case, grid = CASES[name], torch.linspace(-5.0, 5.0, n_grid).double()
    inner = Inner(case, own)
    unit = torch.cartesian_prod(grid, grid)  # weight, bias
    hidden = torch.tanh(unit[:, :1] * torch.as_tensor(X[:, 0]) + unit[:, 1:])  # (G, N)
    new = torch.tanh(unit[:, :1] * torch.as_tensor(NEW) + unit[:, 1:])
    at, root = inner.modes(hidden)
    z, w = hermegauss(n_nodes)
    nodes = torch.tensor(list(product(z, repeat=inner.n)))
    log_w = torch.tensor(list(product(np.log(w), repeat=inner.n))).sum(1)
    log_w = log_w + 0.5 * (nodes**2).sum(1)
    prior = -0.5 * (unit**2).sum(1) - np.log(2.0 * np.pi)
    log_area = root.diagonal(dim1=1, dim2=2).log().sum(1) + 2.0 * (grid[1] - grid[0]).log()
    terms, means = [], []
    for g in torch.arange(len(unit)).split(max(1, 20_000 // len(nodes))):
        p = at[g].unsqueeze(1) + nodes @ root[g].mT  # (g, M, n)
        joint = inner.log_joint(p, hidden[g].unsqueeze(1).expand(-1, len(nodes), -1))
        terms.append(joint + (prior + log_area)[g].unsqueeze(1) + log_w)
        outputs = inner.outputs(p, new[g].unsqueeze(1).expand(-1, len(nodes), -1))
        means.append(case.mean(outputs))
    terms = torch.cat(terms)
    log_evidence = terms.logsumexp((0, 1))
    mean = torch.einsum("gm,gmj->j", (terms - log_evidence).exp(), torch.cat(means))
    return float(log_evidence), mean.numpy()


def predicted(model):
    if hasattr(model, "classes_"):
        return model.predict_proba(NEW[:, None])[:, 1]
    return model.predict(NEW[:, None])


@pytest.mark.long
@every_case
def test_quadrature_has_converged(name):
    other = (61, 7) if name in SLOW else (33, 4)
    used, beside = quadrature(name), quadrature(name, None, *other)
    assert used[0] == pytest.approx(beside[0], abs=3e-3)
    np.testing.assert_allclose(used[1], beside[1], rtol=1e-3)


@pytest.mark.long
@every_case
def test_elbo_is_below_the_evidence(name):
    """By what one diagonal normal in a bent posterior loses, its two signs counted.

    Both are at what the likelihood learned, over which this method maximises.
    """
    case = CASES[name]
    model = case.estimators[1](
        (1,), "tanh", likelihood=name, max_iter=600, tol=None, optimizer=Adam(0.03), **case.settings
    ).fit(X, case.y)
    exact, mean = quadrature(name, case.own and case.own(model.likelihood_))
    assert -3.0 * model.elbo_std_error_ < exact - model.elbo_ < 2.5
    np.testing.assert_allclose(predicted(model), mean, rtol=0.15, atol=0.1)


@pytest.mark.slow
@every_case
def test_chains_sample_the_posterior(name):
    case, (exact, mean) = CASES[name], quadrature(name)
    model = case.estimators[0](
        (1,), "tanh", likelihood=name, n_chains=32, n_draws=150, **case.settings,
        sampler=Chains(init="prior", n_warmup=300, thinning=2),
        remove_symmetries=ModeWeights("evidence"),
    ).fit(X, case.y)  # fmt: skip
    assert abs(model.log_evidence_ - exact) < 4.0 * model.log_evidence_std_error_ + 0.02
    np.testing.assert_allclose(predicted(model), mean, rtol=0.03, atol=0.02)
