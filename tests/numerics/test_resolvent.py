import torch
from torch.testing import assert_close

from skbayes_sym.numerics.resolvent import resolvent


def problem(generator, batch=(2,), n=4, j=2, h=3):
    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    root = normal(*batch, n, n)
    return root @ root.mT, normal(h).exp(), normal(*batch, n, j, h)


def test_equals_one_solve_a_gain(generator):
    matrix, gain, right = problem(generator)
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


def test_gradient(generator):
    matrix, gain, right = problem(generator)
    root = torch.linalg.cholesky(matrix)
    leaves = [t.clone().requires_grad_() for t in (root, gain, right)]
    assert torch.autograd.gradcheck(through_root, leaves)


def test_gradient_at_ties_and_zeros(generator):
    """Equal eigenvalues and rank 1: derivatives of eigenvectors would be infinite."""
    _, gain, right = problem(generator)
    for root in (torch.eye(4), torch.zeros(4, 4), torch.ones(4, 1)):
        expanded = root.double().expand(2, *root.shape).clone()
        leaves = [t.clone().requires_grad_() for t in (expanded, gain, right)]
        assert torch.autograd.gradcheck(through_root, leaves)


def test_float32(generator):
    arguments = problem(generator)
    exact, solved = resolvent(*arguments), resolvent(*(t.float() for t in arguments))
    for value, expected in zip(solved, exact, strict=True):
        assert_close(value, expected.float(), rtol=1e-4, atol=1e-4)
