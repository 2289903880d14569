"""One tanh unit under likelihoods that aren't normal, against quadrature over all four weights.

Given the unit's own weight and bias the model is a generalised linear one of two weights, whose
posterior is log-concave: Gauss-Hermite nodes at its mode. The other two are on a grid, on which
sums of smooth functions converge faster than any power of its spacing.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import expit, gammaln, logsumexp

import skbayes_sym as sk

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

rng = np.random.default_rng(3)
X = rng.uniform(-2.0, 2.0, (40, 1))
BEND = np.tanh(2.0 * X[:, 0] - 1.0)
COUNTS = rng.poisson(np.exp(0.8 + BEND)).astype(float)
LABELS = (rng.uniform(size=40) < expit(2.0 * BEND)).astype(int)
NEW = np.array([-1.5, 0.0, 1.5])
PLAIN = {"standardize": False, "prior_scale": 1.0, "random_state": 0}


class Case(NamedTuple):
    estimators: tuple  # sampled, variational
    y: np.ndarray
    log_prob: object  # of outputs, by row
    mean: object
    variance: object  # minus the second derivative by an output


CASES = {
    "poisson": Case(
        (sk.MCMCRegressor, sk.SymmetrizedVIRegressor), COUNTS,
        lambda f: COUNTS * f - np.exp(f) - gammaln(COUNTS + 1.0), np.exp, np.exp,
    ),
    "bernoulli": Case(
        (sk.MCMCClassifier, sk.SymmetrizedVIClassifier), LABELS,
        lambda f: LABELS * f - np.logaddexp(0.0, f), expit, lambda f: expit(f) * expit(-f),
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize("name", CASES)


@cache
def quadrature(name, n_grid=61, n_nodes=7):
    """Log evidence and the predicted mean at the new rows, all priors N(0, 1)."""
    case, grid = CASES[name], np.linspace(-5.0, 5.0, n_grid)
    inner = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)  # weight, bias
    hidden = np.tanh(inner[:, :1] * X[:, 0] + inner[:, 1:])  # (G, N)
    design = np.stack([hidden, np.ones_like(hidden)], -1)
    at = np.zeros((len(inner), 2))
    for _ in range(30):
        f = np.einsum("gnk,gk->gn", design, at)
        slope = np.einsum("gnk,gn->gk", design, case.y - case.mean(f)) - at
        curvature = np.einsum("gnk,gn,gnl->gkl", design, case.variance(f), design) + np.eye(2)
        at = at + np.linalg.solve(curvature, slope[..., None])[..., 0]
    assert np.abs(slope).max() < 1e-8
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    z, w = hermegauss(n_nodes)
    nodes = np.stack(np.meshgrid(z, z), -1).reshape(-1, 2)
    log_w = np.log(np.outer(w, w)).ravel() + 0.5 * (nodes**2).sum(1)
    theta = at[:, None] + np.einsum("gkl,ml->gmk", root, nodes)  # (G, M, 2)
    f = np.einsum("gnk,gmk->gmn", design, theta)
    prior = -0.5 * (theta**2).sum(-1) - 0.5 * (inner**2).sum(-1)[:, None] - 2 * np.log(2 * np.pi)
    area = np.log(np.diagonal(root, axis1=1, axis2=2)).sum(1) + 2 * np.log(grid[1] - grid[0])
    terms = case.log_prob(f).sum(-1) + prior + log_w + area[:, None]
    log_evidence = logsumexp(terms)
    new = np.tanh(inner[:, :1] * NEW + inner[:, 1:])  # (G, 3)
    mean = case.mean(new[:, None] * theta[..., :1] + theta[..., 1:])
    return log_evidence, np.einsum("gm,gmj->j", np.exp(terms - log_evidence), mean)


def predicted(model):
    if hasattr(model, "classes_"):
        return model.predict_proba(NEW[:, None])[:, 1]
    return model.predict(NEW[:, None])


@every_case
def test_quadrature_has_converged(name):
    coarse, fine = quadrature(name, 45, 5), quadrature(name)
    assert coarse[0] == pytest.approx(fine[0], abs=3e-4)
    np.testing.assert_allclose(coarse[1], fine[1], rtol=2e-4)


@every_case
def test_elbo_is_below_the_evidence(name):
    """By what one diagonal normal in a bent posterior loses, its two signs counted."""
    case, (exact, mean) = CASES[name], quadrature(name)
    model = case.estimators[1](
        (1,), "tanh", likelihood=name, max_iter=600, tol=None, learning_rate=0.03, **PLAIN
    ).fit(X, case.y)
    assert -3.0 * model.elbo_std_error_ < exact - model.elbo_ < 2.5
    np.testing.assert_allclose(predicted(model), mean, rtol=0.15)


@pytest.mark.slow
@every_case
def test_chains_sample_the_posterior(name):
    case, (exact, mean) = CASES[name], quadrature(name)
    model = case.estimators[0](
        (1,), "tanh", likelihood=name, init="prior", n_chains=32, n_warmup=300, n_draws=150,
        thinning=2, mode_weights="evidence", **PLAIN,
    ).fit(X, case.y)  # fmt: skip
    assert abs(model.log_evidence_ - exact) < 4.0 * model.log_evidence_std_error_ + 0.02
    np.testing.assert_allclose(predicted(model), mean, rtol=0.03)
