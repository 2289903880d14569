"""Bounds of whole fits against the evidence of 2 x 2 matrices, by quadrature."""

import numpy as np
import pytest
import torch
from inference.factorization.factorization_problems import complete
from scipy import stats
from scipy.special import logsumexp

from skbayes_sym.inference.factorization.likelihoods import Normal, Ordinal, StudentT
from skbayes_sym.inference.factorization.problem import SCATTER, Factorisation, FactorProblem
from skbayes_sym.inference.solvers import VI
from skbayes_sym.symmetry.orthogonal import Orthogonal

NUMBERS = torch.tensor([[1.8, -0.9], [-1.1, 0.7]], dtype=torch.float64)
LABELS = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
NOISE = 0.25


def solved(model, matrix, symmetrise=True):
    data = complete(matrix)
    group = Orthogonal(torch.arange(4).view(4, 1)) if symmetrise else None
    problem = FactorProblem(data, data, model, group, 400, 1e-7, 0)
    with torch.no_grad():
        return VI().solve(problem, lambda posterior, elbo: False)


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


def log_entry(likelihood, state, value, f):
    s = state.variance**0.5
    if hasattr(likelihood, "labels"):
        edges = np.concatenate([[-np.inf], state.cuts.numpy(), [np.inf]])
        c = int(value)
        mass = stats.norm.cdf((edges[c + 1] - f) / s) - stats.norm.cdf((edges[c] - f) / s)
        return np.log(np.maximum(mass, 1e-300))
    if hasattr(likelihood, "df"):
        return stats.t.logpdf(value, likelihood.df, f, s)
    return stats.norm.logpdf(value, f, s)


def evidence_of_factors(matrix, likelihood, state):
    """Standard normal factors: over v_1 and v_2 on a grid, and over each u_i within."""
    x, w = grid(161, 7.0)
    prior = stats.norm.logpdf(x) + w
    rows = []
    for i in (0, 1):
        by_u = [
            log_entry(likelihood, state, float(matrix[i, j]), x[:, None] * x[None, :])
            for j in (0, 1)
        ]  # (u, v_j)
        both = prior[:, None, None] + by_u[0][:, :, None] + by_u[1][:, None, :]
        rows.append(logsumexp(both, axis=0))
    return logsumexp(rows[0] + rows[1] + prior[:, None] + prior[None, :])


CASES = {
    "normal": (Normal(), NUMBERS),
    "student-t": (StudentT(4.0), NUMBERS),
    "ordinal": (Ordinal((1.0, 2.0, 3.0)), LABELS),
}


@pytest.mark.long
@pytest.mark.parametrize(("likelihood", "matrix"), CASES.values(), ids=CASES)
def test_the_bound_is_below_the_evidence(likelihood, matrix):
    """Whatever the likelihood; and the symmetrised one is above the plain one."""
    model = Factorisation(1, 1.0, NOISE, None, likelihood=likelihood)
    found, plain = (solved(model, matrix, s) for s in (True, False))
    bounds = [f.bounds.mean_field + f.bounds.gap.value for f in (plain, found)]
    evidence = evidence_of_factors(matrix, likelihood, found.posterior.noise)
    assert evidence - 1.5 < bounds[1] < evidence + 1e-9
    at_plain = evidence_of_factors(matrix, likelihood, plain.posterior.noise)
    assert bounds[0] < at_plain
    if likelihood.is_normal:  # the same model, then
        assert bounds[0] < bounds[1]


def test_the_bound_of_learned_priors_is_below_the_evidence():
    """Mean and scale of both sides integrated out: t densities with one degree of freedom."""
    found = solved(Factorisation(1, "learn", NOISE, None), NUMBERS)
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
    # Sum over u_1 and u_2 by a matrix product at every (v_1, v_2), in units of the largest term.
    peaks = [r.max(axis=0, keepdims=True) for r in row]
    first, second = (np.exp(r - p).reshape(61, -1) for r, p in zip(row, peaks, strict=True))
    inner = np.log(np.einsum("ua,uw,wa->a", first, np.exp(pair), second, optimize=True))
    total = inner + sum(p.reshape(-1) for p in peaks) + pair.reshape(-1)
    evidence = logsumexp(total)
    bound = found.bounds.mean_field + found.bounds.gap.value
    assert evidence - 6.0 < bound < evidence


def test_the_bound_with_offsets_is_below_the_evidence():
    """Row offsets a with learned mean and variance; u integrated out in closed form."""
    model = Factorisation(1, 1.0, NOISE, None, offsets=(True, False))
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
    peaks = [r.max(axis=0, keepdims=True) for r in rows]
    first, second = (np.exp(r - p).reshape(81, -1) for r, p in zip(rows, peaks, strict=True))
    inner = np.log(np.einsum("ua,uw,wa->a", first, np.exp(pair), second, optimize=True))
    prior = (stats.norm.logpdf(v1) + stats.norm.logpdf(v2) + wv[:, None] + wv[None, :]).reshape(-1)
    evidence = logsumexp(inner + sum(p.reshape(-1) for p in peaks) + prior)
    bound = found.bounds.mean_field + found.bounds.gap.value
    assert evidence - 4.0 < bound < evidence
