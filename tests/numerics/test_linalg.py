"""Cholesky factors, and what is said where there is none."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.numerics.linalg import (
    NotPositiveDefiniteError,
    add_to_diagonal,
    cholesky,
    deferred_cholesky,
    log_det,
    shrink_to_diagonal,
    try_cholesky,
)


def matrices(generator, shape=(2, 3, 4, 4)):
    root = torch.randn(shape, generator=generator, dtype=torch.float64)
    return add_to_diagonal(root @ root.mT, 1.0)


def test_factors_give_the_matrix_and_its_determinant(generator):
    matrix = matrices(generator)
    factor = cholesky(matrix, what="It", remedy="None needed.")
    assert_close(factor @ factor.mT, matrix, rtol=1e-12, atol=1e-12)
    assert_close(log_det(factor), torch.logdet(matrix), rtol=1e-12, atol=1e-12)
    assert torch.equal(factor, try_cholesky(matrix))


@pytest.mark.parametrize("value", [-100.0, float("nan")])
def test_one_bad_matrix_of_many_is_an_error_with_its_remedy(value, generator):
    matrix = matrices(generator)
    matrix[1, 2, 3, 3] = value
    assert try_cholesky(matrix) is None
    with pytest.raises(NotPositiveDefiniteError, match=r"^The Hessian isn't.* Add a ridge\.$"):
        cholesky(matrix, what="The Hessian", remedy="Add a ridge.")


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
    words = {"what": "A matrix", "remedy": "Another one."}
    good = torch.eye(2).expand(shape).contiguous()
    bad = good.clone()
    bad[..., 0, 0].view(-1)[:1] = -1.0
    torch.testing.assert_close(deferred_cholesky(good.cuda(), **words).cpu(), good)
    with pytest.raises(NotPositiveDefiniteError, match=r"A matrix isn't .* Another one"):
        deferred_cholesky(bad, **words)
    found = deferred_cholesky(bad.cuda(), **words).cpu()
    assert found.isnan().flatten(-2).all(-1).sum() == 1  # of the bad one only
