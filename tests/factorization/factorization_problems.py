"""Matrices, and fits of them, that the tests of the factorisation share."""

from math import log, sqrt

import pytest
import torch

from skbayes_sym.factorization.coordinate_ascent import CovarianceFamily
from skbayes_sym.factorization.factor_model import FactorModel, FactorProblem
from skbayes_sym.factorization.hyperpriors import FactorPrior
from skbayes_sym.factorization.sparse_entries import Coordinates, group_entries
from skbayes_sym.factorization.vi import fit_factors
from skbayes_sym.models.likelihoods.noise import Gaussian

FAMILIES = {kind: CovarianceFamily(kind) for kind in ("isotropic", "row", "diag", "full")}

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
    return group_entries(rows, columns, matrix.flatten(), (n, m))


def incomplete(generator, shape=(14, 9), k=3, share=0.6, noise=0.5):
    u, v = (torch.randn(n, k, generator=generator, dtype=torch.float64) for n in shape)
    rows, columns = (torch.rand(shape, generator=generator) < share).nonzero(as_tuple=True)
    values = (u[rows] * v[columns]).sum(-1) / sqrt(k)
    values = values + noise * torch.randn(len(rows), generator=generator, dtype=torch.float64)
    return group_entries(rows, columns, values, shape)


def model_of(k, prior=1.0, noise=1.0, noise_range=None, offsets=(False, False), **parts):
    """Normal entries unless ``likelihood`` is given; the noise is learned within a range."""
    log_noise = torch.tensor([0.5 * log(noise)], dtype=torch.float64)
    likelihood = parts.pop("likelihood", Gaussian(log_noise, learn=noise_range is not None))
    range_of_noise = {} if noise_range is None else {"noise_range": noise_range}
    return FactorModel(
        Coordinates(k, *offsets), likelihood, FactorPrior(prior, **parts), **range_of_noise
    )


def problem_of(data, k, *, noise=0.25, noise_range=None, prior=1.0, seed=0, **settings):
    """What a solver gets: nothing scaled, no group, 500 sweeps."""
    settings = {"max_iter": 500, "tol": 1e-7} | settings
    return FactorProblem(data, data, model_of(k, prior, noise, noise_range), seed=seed, **settings)


def swept(problem, family, gap=None, start=None, on_sweep=lambda posterior, elbo: False):
    start = problem.initial_state if start is None else start
    return fit_factors(problem, start, family, gap=gap, on_sweep=on_sweep)


def fit(data, k, family, gap, **settings):
    return swept(problem_of(data, k, **settings), family, gap)
