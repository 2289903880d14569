"""Bounds of whole fits against the evidence of 2 x 2 matrices, by quadrature."""

import numpy as np
import pytest
import torch
from factorization.factorization_problems import complete, model_of
from scipy import stats
from scipy.special import logsumexp

from skbayes_sym.factorization.entry_sites import format_targets, is_normal
from skbayes_sym.factorization.factor_model import FactorProblem
from skbayes_sym.factorization.hyperpriors import SCATTER
from skbayes_sym.factorization.solvers import VI
from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.counts import NegativeBinomial, Poisson
from skbayes_sym.models.likelihoods.noise import Gaussian, StudentT
from skbayes_sym.models.likelihoods.ordinal import Ordinal
from skbayes_sym.symmetry.orthogonal import Orthogonal

NUMBERS = torch.tensor([[1.8, -0.9], [-1.1, 0.7]], dtype=torch.float64)
LABELS = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
NOISE = 0.25


def solved(model, matrix, symmetrise=True):
    data = complete(matrix)
    group = Orthogonal(torch.arange(4).view(4, 1)) if symmetrise else None
    problem = FactorProblem(data, data, model, 400, 1e-7)
    with torch.no_grad():
        return VI(symmetry=group).solve(problem, lambda posterior, elbo: False)


def grid(n, reach, stretch=0.0):
    """Nodes and log weights; stretched by sinh for heavy tails."""
    t = np.linspace(-reach, reach, n)
    if stretch == 0.0:
        return t, np.full(n, np.log(t[1] - t[0]))
    return np.sinh(t) * stretch, np.log(np.cosh(t) * stretch * (t[1] - t[0]))


def log_t_pair(x, y):
    """Two numbers of a side whose mean and precision are integrated out."""
    shape = SCATTER * np.array([[2.0, 1.0], [1.0, 2.0]])
    return stats.multivariate_t(np.zeros(2), shape, df=1).logpdf(np.stack([x, y], -1))


def evidence_of_factors(matrix, likelihood):
    """Standard normal factors: over v_1 and v_2 on a grid, and over each u_i within."""
    x, w = grid(161, 7.0)
    prior, rows = stats.norm.logpdf(x) + w, []
    products = torch.as_tensor(x[:, None] * x[None, :]).reshape(-1, 1, 1)
    for i in (0, 1):
        by_u = [
            likelihood.log_prob(products, format_targets(likelihood, matrix[i, j : j + 1]))
            .reshape(161, 161)
            .numpy()
            for j in (0, 1)
        ]  # (u, v_j)
        both = prior[:, None, None] + by_u[0][:, :, None] + by_u[1][:, None, :]
        rows.append(logsumexp(both, axis=0))
    return logsumexp(rows[0] + rows[1] + prior[:, None] + prior[None, :])


def summed(rows, pair):
    """Log sum over u_1 and u_2 at every (v_1, v_2): a matrix product, in units of the peaks."""
    n = len(pair)
    peaks = [r.max(axis=0, keepdims=True) for r in rows]
    first, second = (np.exp(r - p).reshape(n, -1) for r, p in zip(rows, peaks, strict=True))
    inner = np.log(np.einsum("ua,uw,wa->a", first, np.exp(pair), second, optimize=True))
    return inner + sum(p.reshape(-1) for p in peaks)


LOG_NOISE = torch.tensor([0.5 * np.log(NOISE)])
CASES = {
    "normal": (Gaussian(LOG_NOISE, learn=False), NUMBERS),
    "student-t": (StudentT(LOG_NOISE, 4.0, learn=False), NUMBERS),
    "ordinal": (Ordinal(torch.tensor([-0.3, 0.0]).double(), NOISE**0.5), LABELS),
    "poisson": (Poisson(), LABELS),
    "negative-binomial": (NegativeBinomial(torch.tensor([-0.7]), learn=False), LABELS),
    "bernoulli": (Bernoulli(), (LABELS > 0.0).double()),
}


@pytest.mark.long
@pytest.mark.parametrize(("likelihood", "matrix"), CASES.values(), ids=CASES)
def test_the_bound_is_below_the_evidence(likelihood, matrix):
    """Whatever the likelihood; and the symmetrised one is above the plain one."""
    model = model_of(1, likelihood=likelihood)
    found, plain = (solved(model, matrix, s) for s in (True, False))
    bounds = [f.bounds.mean_field + f.bounds.gap.value for f in (plain, found)]
    evidence = evidence_of_factors(matrix, found.posterior.likelihood)
    assert evidence - 1.5 < bounds[1] < evidence + 1e-9
    assert bounds[0] < evidence_of_factors(matrix, plain.posterior.likelihood)
    if is_normal(likelihood):  # the same model, then
        assert bounds[0] < bounds[1]


def test_the_bound_of_learned_priors_is_below_the_evidence():
    """Mean and scale of both sides integrated out: t densities with one degree of freedom."""
    found = solved(model_of(1, "learn", NOISE), NUMBERS)
    x, w = grid(61, 6.5, 0.25)
    pair = log_t_pair(*np.meshgrid(x, x, indexing="ij")) + w[:, None] + w[None, :]
    product = x[:, None] * x[None, :]  # (u, v)
    row = [
        sum(
            stats.norm.logpdf(float(NUMBERS[i, j]), product, NOISE**0.5).reshape(shape)
            for j, shape in enumerate([(61, 61, 1), (61, 1, 61)])
        )
        for i in (0, 1)
    ]  # (u_i, v_1, v_2)
    evidence = logsumexp(summed(row, pair) + pair.reshape(-1))
    bound = found.bounds.mean_field + found.bounds.gap.value
    assert evidence - 6.0 < bound < evidence


def test_the_bound_with_offsets_is_below_the_evidence():
    """Row offsets a with learned mean and variance; u integrated out in closed form."""
    model = model_of(1, noise=NOISE, offsets=(True, False))
    found = solved(model, NUMBERS + torch.tensor([[1.0], [-0.5]], dtype=torch.float64))
    matrix = NUMBERS.numpy() + np.array([[1.0], [-0.5]])
    (v, wv), (a, wa) = grid(81, 7.0), grid(81, 6.5, 0.25)
    v1, v2 = np.meshgrid(v, v, indexing="ij")
    det = NOISE * (NOISE + v1**2 + v2**2)
    rows = []
    for i in (0, 1):
        r1, r2 = matrix[i, 0] - a[:, None, None], matrix[i, 1] - a[:, None, None]
        square = (r1**2 + r2**2) / NOISE
        square = square - (r1 * v1 + r2 * v2) ** 2 / (NOISE * (NOISE + v1**2 + v2**2))
        rows.append(-0.5 * (square + np.log(det)) - np.log(2.0 * np.pi))  # (a_i, v_1, v_2)
    pair = log_t_pair(*np.meshgrid(a, a, indexing="ij")) + wa[:, None] + wa[None, :]
    prior = (stats.norm.logpdf(v1) + stats.norm.logpdf(v2) + wv[:, None] + wv[None, :]).reshape(-1)
    evidence = logsumexp(summed(rows, pair) + prior)
    bound = found.bounds.mean_field + found.bounds.gap.value
    assert evidence - 4.0 < bound < evidence
