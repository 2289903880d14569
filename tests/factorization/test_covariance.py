"""Families of covariances: each projection is the best of its family."""

import pytest
import torch
from factorization.factorization_problems import FAMILIES, every_family
from torch.distributions import MultivariateNormal
from torch.testing import assert_close

from skbayes_sym.factorization.coordinate_ascent import CovarianceFamily, row_entropy


def precisions(generator, n=5, k=3):
    root = torch.randn(n, k, k, generator=generator, dtype=torch.float64)
    return root @ root.mT + 0.5 * torch.eye(k, dtype=torch.float64)


def projected(family, precision):
    cov = family.project(precision, torch.linalg.cholesky(precision))
    return cov * family.pooling_ratio(cov)[:, None, None]


def objective(precision, cov):
    """What a projection maximises, summed over the rows."""
    return float((0.5 * torch.logdet(cov) - 0.5 * (precision * cov).sum((-2, -1))).sum())


MOVES = {  # relative changes of a covariance that stay within the family
    "isotropic": lambda cov, g: cov * (1.0 + 0.1 * torch.randn(1, generator=g)),
    "row": lambda cov, g: cov * (1.0 + 0.1 * torch.randn(len(cov), 1, 1, generator=g)),
    "diag": lambda cov, g: cov * (1.0 + 0.1 * torch.randn(cov.shape[:2], generator=g))[..., None],
    "full": lambda cov, g: cov + 0.01 * precisions(g, *cov.shape[:2]),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_no_member_of_the_family_is_better(name, generator):
    precision = precisions(generator)
    best = projected(FAMILIES[name], precision)
    for _ in range(20):
        assert objective(precision, MOVES[name](best, generator)) < objective(precision, best)


@every_family
def test_what_a_family_says_of_itself(family, generator):
    cov = projected(family, precisions(generator))
    diagonal = torch.diag_embed(cov.diagonal(dim1=-2, dim2=-1))
    assert family.is_elementwise == torch.equal(cov, diagonal)
    level = cov[:, :1, :1] * torch.eye(3, dtype=torch.float64)
    assert family.is_isotropic == torch.equal(cov, level)


def test_the_entropy_of_rows(generator):
    cov = precisions(generator)
    expected = MultivariateNormal(torch.zeros(3).double(), cov).entropy().sum()
    assert row_entropy(cov) == pytest.approx(float(expected), rel=1e-12)


def test_a_point_mass_has_neither_spread_nor_entropy(generator):
    cov = projected(CovarianceFamily("none"), precisions(generator))
    assert_close(cov, torch.zeros_like(cov), rtol=0, atol=0)
    assert CovarianceFamily("none").entropy(cov.diagonal(dim1=-2, dim2=-1), 0.0) == 0.0


@every_family
def test_a_family_knows_the_entropy_of_its_projections(family, generator):
    precision = precisions(generator)
    cov = projected(family, precision)
    found = family.entropy(cov.diagonal(dim1=-2, dim2=-1), float(precision.logdet().sum()))
    assert found == pytest.approx(row_entropy(cov), rel=1e-12)


@every_family
def test_an_offset_beside_the_factors(family, generator):
    """Full: one matrix. Else: an offset's variance is its own, whatever that of the factors."""
    precision = precisions(generator, k=4)
    root = torch.linalg.cholesky(precision)
    cov = family.project_with_offsets(precision, root, 3)
    if not family.is_elementwise:
        assert_close(cov, torch.linalg.inv(precision))
        return
    assert_close(cov[:, 3, 3], 1.0 / precision[:, 3, 3])
    assert float(cov[:, 3, :3].abs().max()) == float(cov[:, :3, 3].abs().max()) == 0.0
    factors = precision[:, :3, :3]
    assert_close(cov[:, :3, :3], family.project(factors, torch.linalg.cholesky(factors)))
