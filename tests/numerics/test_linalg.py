"""Cholesky factors, and what is said where there is none."""

from math import log, pi

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.numerics.linalg import (
    NotPositiveDefiniteError,
    RidgePosterior,
    add_to_diagonal,
    cholesky,
    deferred_cholesky,
    layer_outputs,
    log_det,
    resolvent,
    shrink_to_diagonal,
    try_cholesky,
    weight_gradient,
)


def matrices(generator, shape=(2, 3, 4, 4)):
    root = torch.randn(shape, generator=generator, dtype=torch.float64)
    return add_to_diagonal(root @ root.mT, 1.0)


def test_factors_give_the_matrix_and_its_determinant(generator):
    matrix = matrices(generator)
    factor = cholesky(matrix, name="It", remedy="None needed.")
    assert_close(factor @ factor.mT, matrix, rtol=1e-12, atol=1e-12)
    assert_close(log_det(factor), torch.logdet(matrix), rtol=1e-12, atol=1e-12)
    assert torch.equal(factor, try_cholesky(matrix))


@pytest.mark.parametrize("value", [-100.0, float("nan")])
def test_one_bad_matrix_of_many_is_an_error_with_its_remedy(value, generator):
    matrix = matrices(generator)
    matrix[1, 2, 3, 3] = value
    assert try_cholesky(matrix) is None
    with pytest.raises(NotPositiveDefiniteError, match=r"^The Hessian isn't.* Add a ridge\.$"):
        cholesky(matrix, name="The Hessian", remedy="Add a ridge.")


def test_adding_to_the_diagonal_is_in_place():
    matrix = torch.zeros(2, 3, 3)
    assert add_to_diagonal(matrix, 2.0) is matrix
    assert_close(matrix, 2.0 * torch.eye(3).expand(2, 3, 3))


def test_shrinking_keeps_variances_and_makes_full_rank(generator):
    draws = torch.randn((2, 3, 5), generator=generator, dtype=torch.float64)  # 3 draws, rank 2
    covariance = torch.stack([d.mT.cov() for d in draws])
    shrunk = shrink_to_diagonal(covariance, 0.02)
    assert torch.equal(*(c.diagonal(dim1=-2, dim2=-1) for c in (shrunk, covariance)))
    assert_close(shrunk.tril(-1), 0.98 * covariance.tril(-1))
    assert try_cholesky(shrunk) is not None


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2)])
def test_a_deferred_factor_is_an_error_here_and_nan_on_a_gpu(shape, cuda):
    words = {"name": "A matrix", "remedy": "Another one."}
    good = torch.eye(2).expand(shape).contiguous()
    bad = good.clone()
    bad[..., 0, 0].view(-1)[:1] = -1.0
    torch.testing.assert_close(deferred_cholesky(good.cuda(), **words).cpu(), good)
    with pytest.raises(NotPositiveDefiniteError, match=r"A matrix isn't .* Another one"):
        deferred_cholesky(bad, **words)
    found = deferred_cholesky(bad.cuda(), **words).cpu()
    assert found.isnan().flatten(-2).all(-1).sum() == 1  # of the bad one only


@pytest.mark.parametrize("n_rows", [7, 700])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 9), (9, 2), (40, 3), (40, 1), (1, 1), (5, 5)])
def test_equals_the_textbook_product(n_rows, n_in, n_out, generator):
    h, gradient = (
        torch.randn(2, n_rows, n, generator=generator, dtype=torch.float64) for n in (n_in, n_out)
    )
    d_weight = torch.empty(2, n_out, n_in).double()
    weight_gradient(gradient, h, d_weight)
    assert_close(d_weight, torch.einsum("rno,rni->roi", gradient, h), rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("n_rows", [1, 7, 150])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 9), (99, 3), (100, 31), (100, 16), (300, 1)])
def test_a_layer_equals_the_textbook_product(n_rows, n_in, n_out, generator):
    x, weight, bias = (
        torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        for shape in ((n_rows, n_in), (n_out, n_in), (n_out,))
    )
    out = torch.full((2, n_rows, n_out), torch.nan).double()
    assert layer_outputs(x, weight, bias, out) is out
    expected = torch.einsum("rni,roi->rno", x, weight) + bias[:, None]
    assert_close(out, expected, rtol=1e-13, atol=1e-12)


def gain_problem(generator, batch=(2,), n=4, j=2, h=3):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    root = normal(*batch, n, n)
    return root @ root.mT, normal(h).exp(), normal(*batch, n, j, h)


def test_equals_one_solve_a_gain(generator):
    matrix, gain, right = gain_problem(generator)
    solved = resolvent(matrix, gain, right)
    for h, a in enumerate(gain):
        dense = torch.eye(4, dtype=torch.float64) + a * matrix
        expected = torch.linalg.solve(dense, right[..., h])
        assert_close(solved.solution[..., h], expected, rtol=1e-12, atol=1e-13)
        inverse = torch.linalg.inv(dense)
        trace = inverse.diagonal(dim1=-2, dim2=-1).sum(-1)
        assert_close(solved.trace[..., h], trace, rtol=1e-12, atol=0)
        assert_close(solved.log_det[..., h], torch.logdet(dense), rtol=1e-12, atol=1e-13)


def through_root(root, gain, right):
    """Symmetric by construction, as gradcheck's steps aren't."""
    return tuple(resolvent(root @ root.mT, gain, right))


def test_gradient_of_the_resolvent(generator):
    matrix, gain, right = gain_problem(generator)
    root = torch.linalg.cholesky(matrix)
    leaves = [t.clone().requires_grad_() for t in (root, gain, right)]
    assert torch.autograd.gradcheck(through_root, leaves)


def test_gradient_at_ties_and_zeros(generator):
    """Equal eigenvalues and rank 1: derivatives of eigenvectors would be infinite."""
    _, gain, right = gain_problem(generator)
    for root in (torch.eye(4), torch.zeros(4, 4), torch.ones(4, 1)):
        expanded = root.double().expand(2, *root.shape).clone()
        leaves = [t.clone().requires_grad_() for t in (expanded, gain, right)]
        assert torch.autograd.gradcheck(through_root, leaves)


shapes = pytest.mark.parametrize("shape", [(2, 4, 3), (2, 4, 4), (4, 7), (3, 2, 5, 1), (1, 3)])


def problem(shape, generator):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return normal(*shape), normal(shape[-2]).exp(), normal(shape[-2])


def log_evidence(features, scale, y):
    return RidgePosterior(features, scale, y).log_evidence()


def dense(features, scale, y):
    """The posterior of the weights, by inverting the precision."""
    design = scale.unsqueeze(-1) * features
    eye = torch.eye(features.shape[-1], dtype=torch.float64)
    covariance = torch.linalg.inv(eye + design.mT @ design)
    mean = (covariance @ design.mT @ y.unsqueeze(-1)).squeeze(-1)
    return MultivariateNormal(mean, 0.5 * (covariance + covariance.mT))


@shapes
def test_evidence_is_the_dense_density(shape, generator):
    features, scale, y = problem(shape, generator)
    design = scale.diag() @ features
    covariance = torch.eye(len(y), dtype=torch.float64) + design @ design.mT
    expected = MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y)
    value = log_evidence(features, scale, y) - 0.5 * len(y) * log(2 * pi)
    assert_close(value, expected, rtol=1e-12, atol=1e-12)


@shapes
def test_gradient_of_the_evidence(shape, generator):
    leaves = [t.requires_grad_() for t in problem(shape, generator)]
    assert torch.autograd.gradcheck(log_evidence, leaves)


@pytest.mark.parametrize("d", [2, 7])
def test_gradient_where_targets_share_the_features(d, generator):
    """Scales and targets (T, n) of features (S, 1, n, d)."""
    leaves = [
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((2, 1, 4, d), (3, 4), (3, 4))
    ]
    assert log_evidence(*leaves).shape == (2, 3)
    assert torch.autograd.gradcheck(log_evidence, leaves)


def test_an_overwhelming_design_names_remedies():
    features = torch.full((3, 2), float("nan"))
    with pytest.raises(NotPositiveDefiniteError, match=r"ridge regression.*noise_std.*float64"):
        log_evidence(features, torch.ones(3), torch.ones(3))
