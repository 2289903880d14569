"""Score, curvature and data term by autograd: against finite differences and faster members."""

import pytest
import torch
from cases import LIKELIHOODS
from torch.testing import assert_close

from skbayes_sym.models.likelihoods import derivatives
from skbayes_sym.models.likelihoods.derivatives import AutogradTerm

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS.values(), ids=LIKELIHOODS)


def problem(case, generator, n=5):
    outputs = torch.randn(n, case.n_outputs, generator=generator, dtype=torch.float64)
    return outputs, case.targets(n, generator)


def curvature(case, outputs, y):
    """Minus the Hessian of every row, negative eigenvalues cut off."""
    hessian = torch.func.jacrev(torch.func.grad(lambda f: case.likelihood.log_prob(f, y).sum()))(
        outputs
    )
    rows = torch.stack([-hessian[n, :, n] for n in range(len(outputs))])
    value, vectors = torch.linalg.eigh(rows)
    return vectors @ value.clamp_min(0.0).diag_embed() @ vectors.mT


@every_likelihood
def test_score_by_finite_differences(case, generator):
    outputs, y = problem(case, generator)
    h = 1e-6
    for k in range(case.n_outputs):
        step = h * torch.eye(case.n_outputs, dtype=torch.float64)[k]
        ends = [case.likelihood.log_prob(outputs + s, y) for s in (step, -step)]
        expected = (ends[0] - ends[1]) / (2 * h)
        # h^2 times third derivatives, and 1e-15 / h of rounding
        assert_close(case.likelihood.score(outputs, y)[:, k], expected, rtol=1e-6, atol=1e-8)


@every_likelihood
def test_root_squares_to_the_curvature(case, generator):
    outputs, y = problem(case, generator)
    expected = curvature(case, outputs, y)
    roots = [derivatives.hessian_root(case.likelihood, outputs, y)]
    if case.curvature == "observed":
        roots.append(case.likelihood.hessian_root(outputs, y))
    for root in roots:
        assert_close(torch.einsum("kno,knp->nop", root, root), expected, rtol=1e-9, atol=1e-12)


def test_a_heavy_tail_counts_as_flat():
    """Beyond sqrt(df) scales a Student-t density isn't log-concave."""
    case = LIKELIHOODS["student-t"]
    y = torch.tensor([[0.1], [30.0]], dtype=torch.float64)
    root = case.likelihood.hessian_root(torch.zeros(2, 1, dtype=torch.float64), y)
    assert root[0, 0, 0] > 0.0
    assert root[0, 1, 0] == 0.0


@pytest.mark.parametrize("name", ["poisson", "categorical", "own-softmax"])
def test_the_root_is_differentiable_where_the_curvature_is(name, generator):
    case = LIKELIHOODS[name]
    outputs, y = problem(case, generator)
    towards = torch.randn(5, *(case.n_outputs,) * 2, generator=generator, dtype=torch.float64)
    towards = towards + towards.mT

    def squared(f):
        root = derivatives.hessian_root(case.likelihood, f, y)
        return (torch.einsum("kno,knp->nop", root, root) * towards).sum()

    def exact(f):
        total = torch.func.grad(lambda g: case.likelihood.log_prob(g, y).sum())
        hessian = torch.func.jacrev(total)(f)
        rows = torch.stack([-hessian[n, :, n] for n in range(5)])
        return (rows * towards).sum()

    found = torch.autograd.grad(squared(outputs.requires_grad_()), outputs)[0]
    assert_close(found, torch.func.grad(exact)(outputs.detach()), rtol=1e-8, atol=1e-10)


@every_likelihood
def test_data_terms_agree(case, generator):
    """The likelihood's own, and the one by autograd, value and gradient."""
    n, c = 6, 3
    y = case.targets(n, generator)
    weight = torch.rand(n, generator=generator, dtype=torch.float64)
    outputs = torch.randn(c, case.n_outputs, n, generator=generator, dtype=torch.float64)
    shape = (c, case.likelihood.n_params)
    params = torch.randn(shape, generator=generator, dtype=torch.float64)
    own = case.likelihood.given(y, weight, case.n_outputs)
    default = AutogradTerm(case.likelihood, y, weight)
    found = []
    for term in (own, default):
        out = torch.empty_like(outputs)
        value, d_params = term.gradient(outputs.clone(), params, out)
        assert_close(term.value(outputs.clone(), params), value)
        found.append((value, d_params, out))
    for mine, theirs in zip(*found, strict=True):
        assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@every_likelihood
def test_inference_mode_is_no_obstacle(case, generator):
    """The training loop runs in it, and autograd can't keep its tensors."""
    outputs, y = problem(case, generator)
    variance, noise = torch.ones_like(outputs), torch.zeros_like(outputs)
    plain = case.likelihood.expected_log_prob(outputs, variance, y, noise)
    with torch.inference_mode():
        inside = case.likelihood.expected_log_prob(outputs + 0.0, variance + 0.0, y + 0, noise)
        assert_close(case.likelihood.score(outputs + 0.0, y + 0), case.likelihood.score(outputs, y))
    for a, b in zip(inside, plain, strict=True):
        assert_close(a, b)
