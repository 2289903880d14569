"""Families of covariances: each projection is the best of its family."""

import pytest
import torch
from inference.factorization.factorization_problems import FAMILIES, every_family
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from skbayes_sym.inference.factorization.covariance import PointMass, kl_from_prior


def precisions(generator, n=5, k=3):
    root = torch.randn(n, k, k, generator=generator, dtype=torch.float64)
    return root @ root.mT + 0.5 * torch.eye(k, dtype=torch.float64)


def projected(family, precision):
    cov = family.project(precision, torch.linalg.cholesky(precision))
    return cov * family.pool(cov)[:, None, None]


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


def test_kl_from_the_prior(generator):
    mean = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    cov = precisions(generator)
    prior = MultivariateNormal(torch.zeros(3).double(), 1.7**2 * torch.eye(3).double())
    expected = kl_divergence(MultivariateNormal(mean, cov), prior).sum()
    assert kl_from_prior(mean, cov, 1.7) == pytest.approx(float(expected), rel=1e-12)


def test_a_point_mass_costs_its_log_prior(generator):
    mean = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    cov = projected(PointMass(), precisions(generator))
    assert_close(cov, torch.zeros_like(cov), rtol=0, atol=0)
    log_prior = torch.distributions.Normal(0.0, 1.7).log_prob(mean).sum()
    assert PointMass().cost(mean, cov, 1.7) == pytest.approx(-float(log_prior), rel=1e-6)
