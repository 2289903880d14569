"""Learned priors of rows: densities in closed form, draws, and coefficients of features."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, multivariate_t

from skbayes_sym.factorization.hyperpriors import Features, Hyperprior, PriorBlock

N, LIKE = 6, torch.zeros(1, dtype=torch.float64)


def known(given=None, is_centred=False):
    return Features.build(N, is_centred=is_centred, like=LIKE, columns=given)


def points(generator, d):
    """Rows without spread."""
    rows = torch.randn(N, d, generator=generator, dtype=torch.float64)
    return rows, torch.zeros(d, d, dtype=torch.float64)


def features(generator, h=2):
    return torch.randn(N, h, generator=generator, dtype=torch.float64)


def test_one_coordinate_has_a_student_t_density(generator):
    """Mean and precision integrated out: t with one degree of freedom, all rows jointly."""
    prior = Hyperprior((PriorBlock((0,)),), known(), 0.3)
    rows, none = points(generator, 1)
    value = prior.optimise(prior.row_statistics(rows, none), prior.initial_row_prior(1.0))[1]
    shape = 0.3 * (np.eye(N) + np.ones((N, N)))
    assert value == pytest.approx(multivariate_t(np.zeros(N), shape, df=1).logpdf(rows[:, 0]))


def test_blocks_of_one_are_independent(generator):
    rows, none = points(generator, 3)
    blocks = tuple(PriorBlock((i,)) for i in range(3))
    prior = Hyperprior(blocks, known(), 0.3)
    one = Hyperprior((PriorBlock((0,)),), known(), 0.3)
    parts = [
        one.optimise(one.row_statistics(rows[:, [i]], none[:1, :1]), one.initial_row_prior(1.0))[1]
        for i in range(3)
    ]
    assert prior.optimise(prior.row_statistics(rows, none), prior.initial_row_prior(1.0))[
        1
    ] == pytest.approx(sum(parts))


def test_a_block_is_a_matrix_t(generator):
    """By sequential predictive densities: row after row a multivariate t, the same in any order."""
    d, w = 2, 0.3
    prior = Hyperprior((PriorBlock((0, 1)),), known(), w)
    rows, none = points(generator, d)
    value = prior.optimise(prior.row_statistics(rows, none), prior.initial_row_prior(1.0))[1]
    total, x = 0.0, rows.numpy()
    for i in range(N):  # normal-Wishart updates, Murphy (2007), eqs. 232 to 236
        beta, nu = 1.0 + i, d + i
        mean = x[:i].sum(0) / beta
        scatter = w * np.eye(d) + x[:i].T @ x[:i] - beta * np.outer(mean, mean)
        df = nu - d + 1
        shape = scatter * (beta + 1) / (beta * df)
        total += multivariate_t(mean, shape, df=df).logpdf(x[i])
    assert value == pytest.approx(total)


def test_a_rotation_of_a_block_changes_nothing(generator):
    rows, none = points(generator, 3)
    q, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    for blocks, same in (
        ((PriorBlock((0, 1, 2)),), True),
        (tuple(PriorBlock((i,)) for i in range(3)), False),
    ):
        prior = Hyperprior(blocks, known(), 0.3)
        values = [
            prior.optimise(prior.row_statistics(r, none), prior.initial_row_prior(1.0))[1]
            for r in (rows, rows @ q)
        ]
        assert (abs(values[0] - values[1]) < 1e-10) == same


def test_given_scales_and_features_are_a_normal_density(generator):
    """theta = F b + e with b ~ N(0, s^2 / lambda): the covariance in full."""
    given, scale, shrinkage = features(generator), 0.7, 2.5
    prior = Hyperprior((PriorBlock((0,), scale),), known(given, is_centred=True), 0.3)
    row_prior = prior.initial_row_prior(1.0)._replace(shrinkage=shrinkage)
    rows, none = points(generator, 1)
    cov = scale**2 * (np.eye(N) + (given @ given.T).numpy() / shrinkage)
    expected = multivariate_normal(np.zeros(N), cov).logpdf(rows[:, 0])
    assert prior.optimise(prior.row_statistics(rows, none), row_prior)[1] == pytest.approx(expected)


def test_shrinkage_is_learned_uphill(generator):
    given = features(generator)
    prior = Hyperprior((PriorBlock((0, 1)),), known(given), 0.3)
    rows, cov = points(generator, 2)
    moments, row_prior, values = (
        prior.row_statistics(rows + given, cov),
        prior.initial_row_prior(1.0),
        [],
    )
    for _ in range(30):
        row_prior, value = prior.optimise(moments, row_prior)
        values.append(value)
    assert min(np.diff(values)) > -1e-9
    assert values[-1] > values[0] + 1e-3


def test_draws_have_the_expected_moments(generator):
    """Mean precision and coefficients of many draws, within five standard errors."""
    given = features(generator)
    prior = Hyperprior((PriorBlock((0, 1)),), known(given), 0.3)
    rows, cov = points(generator, 2)
    moments, start = prior.row_statistics(rows, cov), prior.initial_row_prior(1.0)
    expected, _ = prior.optimise(moments, start)
    drawn = [prior.sample(moments, start, generator) for _ in range(500)]
    for name in ("precision", "coefficients"):
        values = torch.stack([getattr(row_prior, name) for row_prior in drawn])
        error = 5.0 * values.std(0) / len(drawn) ** 0.5
        assert bool(((values.mean(0) - getattr(expected, name)).abs() < error).all()), name
