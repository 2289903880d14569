"""One tanh unit under likelihoods that aren't normal, against quadrature over all its parameters.

Given the unit's own weight and bias the model is a line in what the unit says: Gauss-Hermite nodes
at the mode of its weights. The unit's own two are on a grid, on which sums of smooth functions
converge faster than any power of its spacing. `test_likelihood_oracles` has the other likelihoods.
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
NEW = np.array([-1.5, 0.0, 1.5])
PLAIN = {"standardize": False, "prior": 1.0, "random_state": 0}


# Of outputs f (..., N).
def poisson(f, y):
    return y * f - f.exp() - torch.lgamma(y + 1.0)


def bernoulli(f, y):
    return y * f - torch.nn.functional.softplus(f)


class Case(NamedTuple):
    estimators: tuple  # sampled, variational
    y: np.ndarray
    log_prob: object
    mean: object  # of outputs


CASES = {
    "poisson": Case(
        (sk.MCMCRegressor, sk.SymmetrizedVIRegressor), COUNTS, poisson, lambda f: f.exp()
    ),
    "bernoulli": Case(
        (sk.MCMCClassifier, sk.SymmetrizedVIClassifier), LABELS, bernoulli, lambda f: f.sigmoid()
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


class Inner(NamedTuple):
    """The model given the unit's own weight and bias: a line in what it says."""

    case: Case

    def log_joint(self, p: Tensor, hidden: Tensor) -> Tensor:
        """(*B, 2), (*B, N) -> (*B,)."""
        outputs = hidden * p[..., :1] + p[..., 1:]
        log_prior = -0.5 * (p**2).sum(-1) - np.log(2.0 * np.pi)
        return log_prior + self.case.log_prob(outputs, torch.as_tensor(self.case.y).double()).sum(
            -1
        )

    def modes(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Modes (G, 2) by damped Newton steps, and roots (G, 2, 2) of the covariance there."""
        slope_of = torch.func.vmap(torch.func.grad(self.log_joint))
        check_curvature = torch.func.vmap(torch.func.hessian(self.log_joint))
        at = torch.zeros(len(hidden), 2).double()
        lengths = torch.tensor([1.0, 0.3, 0.1, 0.01]).double()[:, None, None]
        for _ in range(60):
            slope = slope_of(at, hidden)
            if slope.abs().max() < 1e-8:
                break
            values, axes = torch.linalg.eigh(-check_curvature(at, hidden))
            step = (axes.mT @ slope[..., None])[..., 0] / values.abs().clamp(min=0.5)
            tried = at + lengths * (axes @ step[..., None])[..., 0]
            best = self.log_joint(tried, hidden).argmax(0)
            at = tried[best, torch.arange(len(at))]
        assert slope.abs().max() < 1e-6
        return at, torch.linalg.cholesky(torch.linalg.inv(-check_curvature(at, hidden)))


@cache
def quadrature(name, n_grid=45, n_nodes=5):
    """Log evidence and the predicted mean at the new rows, all priors N(0, 1)."""
    case, grid = CASES[name], torch.linspace(-5.0, 5.0, n_grid).double()
    inner = Inner(case)
    unit = torch.cartesian_prod(grid, grid)  # weight, bias
    hidden = torch.tanh(unit[:, :1] * torch.as_tensor(X[:, 0]) + unit[:, 1:])  # (G, N)
    new = torch.tanh(unit[:, :1] * torch.as_tensor(NEW) + unit[:, 1:])
    at, root = inner.modes(hidden)
    z, w = hermegauss(n_nodes)
    nodes = torch.tensor(list(product(z, repeat=2)))
    log_w = torch.tensor(list(product(np.log(w), repeat=2))).sum(1)
    log_w = log_w + 0.5 * (nodes**2).sum(1)
    prior = -0.5 * (unit**2).sum(1) - np.log(2.0 * np.pi)
    log_area = root.diagonal(dim1=1, dim2=2).log().sum(1) + 2.0 * (grid[1] - grid[0]).log()
    terms, means = [], []
    for g in torch.arange(len(unit)).split(max(1, 20_000 // len(nodes))):
        p = at[g].unsqueeze(1) + nodes @ root[g].mT  # (g, M, n)
        joint = inner.log_joint(p, hidden[g].unsqueeze(1).expand(-1, len(nodes), -1))
        terms.append(joint + (prior + log_area)[g].unsqueeze(1) + log_w)
        means.append(case.mean(new[g].unsqueeze(1) * p[..., :1] + p[..., 1:]))
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
    used, beside = quadrature(name), quadrature(name, 33, 4)
    assert used[0] == pytest.approx(beside[0], abs=3e-3)
    np.testing.assert_allclose(used[1], beside[1], rtol=1e-3)


@pytest.mark.long
@every_case
def test_elbo_is_below_the_evidence(name):
    """By what one diagonal normal in a bent posterior loses, its two signs counted."""
    case = CASES[name]
    model = case.estimators[1](
        (1,), "tanh", likelihood=name, max_iter=600, tol=None, optimizer=Adam(0.03), **PLAIN
    ).fit(X, case.y)
    exact, mean = quadrature(name)
    assert -3.0 * model.elbo_std_error_ < exact - model.elbo_ < 2.5
    np.testing.assert_allclose(predicted(model), mean, rtol=0.15, atol=0.1)


@pytest.mark.slow
@every_case
def test_chains_sample_the_posterior(name):
    case, (exact, mean) = CASES[name], quadrature(name)
    model = case.estimators[0](
        (1,), "tanh", likelihood=name, n_chains=32, n_draws=150, **PLAIN,
        sampler=Chains(init="prior", n_warmup=300, thinning=2),
        remove_symmetries=ModeWeights("evidence"),
    ).fit(X, case.y)  # fmt: skip
    assert abs(model.log_evidence_ - exact) < 4.0 * model.log_evidence_std_error_ + 0.02
    np.testing.assert_allclose(predicted(model), mean, rtol=0.03, atol=0.02)
