"""Matrices, and fits of them, that the tests of the factorisation share."""

from math import sqrt

import pytest
import torch

from skbayes_sym.inference.factorization.covariance import (
    DiagonalCovariance,
    FullCovariance,
    IsotropicCovariance,
    RowCovariance,
)
from skbayes_sym.inference.factorization.data import entries
from skbayes_sym.inference.factorization.problem import Factorisation, FactorProblem
from skbayes_sym.inference.factorization.vi import fit_factors

FAMILIES = {
    "isotropic": IsotropicCovariance(),
    "row": RowCovariance(),
    "diag": DiagonalCovariance(),
    "full": FullCovariance(),
}

every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def noisy_matrices():
    """The paper's: 40 x 40, rank 20, noise 2."""
    g = torch.Generator().manual_seed(0)
    u, v, noise = (
        torch.randn(80, 40, width, generator=g, dtype=torch.float64) for width in (20, 20, 40)
    )
    return u @ v.mT / sqrt(20) + 2.0 * noise


def complete(matrix):
    n, m = matrix.shape
    rows, columns = torch.cartesian_prod(torch.arange(n), torch.arange(m)).T
    return entries(rows, columns, matrix.flatten(), (n, m))


def incomplete(generator, shape=(14, 9), k=3, share=0.6, noise=0.5):
    u, v = (torch.randn(n, k, generator=generator, dtype=torch.float64) for n in shape)
    rows, columns = (torch.rand(shape, generator=generator) < share).nonzero(as_tuple=True)
    values = (u[rows] * v[columns]).sum(-1) / sqrt(k)
    values = values + noise * torch.randn(len(rows), generator=generator, dtype=torch.float64)
    return entries(rows, columns, values, shape)


def problem_of(data, k, *, noise=0.25, noise_range=None, prior_scale=1.0, seed=0, **settings):
    """What a solver gets: nothing scaled, no group, 500 sweeps."""
    settings = {"max_iter": 500, "tol": 1e-7} | settings
    model = Factorisation(k, prior_scale, noise, noise_range)
    return FactorProblem(data, data, model, None, seed=seed, **settings)


def fit(data, k, family, gap, *, on_step=lambda s, i: False, **settings):
    problem = problem_of(data, k, **settings)
    return fit_factors(problem, problem.start, family, gap=gap, on_step=on_step)
