"""The process against dense normals, its gradient, refits without a row, and its own moments."""

from functools import partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.models.model import Data
from skbayes_sym.stacking.members import gaussian_process
from skbayes_sym.stacking.members.gaussian_process import (
    GaussianProcessDefaults,
    TableKernel,
    condition,
    fit_gaussian_process,
    log_evidence,
)

LOG_SCALES = torch.tensor([0.3, 0.5, -0.2, 0.1, 0.2, -0.5, -0.7], dtype=torch.float64)


@pytest.fixture
def rows(generator):
    x, y = (torch.randn(30, n, generator=generator, dtype=torch.float64) for n in (4, 2))
    return Data(x, y, 0.5 + torch.rand(30, generator=generator, dtype=torch.float64))


def test_evidence_is_the_dense_normals_and_its_gradient_is_right(rows):
    kernel = TableKernel.from_log_scales(LOG_SCALES)
    covariance = kernel(rows.x, rows.x) + torch.diag(kernel.noise.square() / rows.weight)
    normal = torch.distributions.MultivariateNormal(torch.zeros(30).double(), covariance)
    value, gradient = log_evidence(LOG_SCALES, rows)
    assert_close(value, normal.log_prob(rows.y.T).sum())
    steps = 1e-6 * torch.eye(7, dtype=torch.float64)
    slopes = [
        (log_evidence(LOG_SCALES + s, rows)[0] - log_evidence(LOG_SCALES - s, rows)[0]) / 2e-6
        for s in steps
    ]
    assert_close(gradient, torch.stack(slopes), rtol=1e-5, atol=1e-5)


def test_kernel_is_matern_and_linear():
    x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
    r = 5.0**0.5 * 2.0 / 3.0
    kernel = TableKernel(*(torch.tensor(v, dtype=torch.float64) for v in ([3.0], 0.7, 0.2, 1.0)))
    expected = 0.49 * (1.0 + r + r * r / 3.0) * np.exp(-r)
    assert float(kernel(x, x)[0, 1]) == pytest.approx(expected)
    assert_close(kernel(x, x).diagonal(), kernel.variance(x))
    assert float(kernel.variance(x)[1]) == pytest.approx(0.49 + 0.04 * 4.0)


def test_left_out_rows_are_those_of_refits(rows):
    """At the same scales; the centre is the mean of the other rows."""
    rows = rows._replace(y=rows.y + 3.0)
    distribution = condition(LOG_SCALES, rows).leave_one_out()
    for n in (0, 7, 29):
        rest = torch.arange(30) != n
        refit = condition(LOG_SCALES, Data(*(t[rest] for t in rows))).distribution(
            rows.x[n : n + 1]
        )
        assert_close(distribution.loc[0, n], refit.loc[0, 0])
        assert_close(distribution.variance[0, n], refit.variance[0, 0])


def test_sampled_functions_have_the_exact_mean_and_variance(rows, monkeypatch):
    """Within five standard errors, even with four frequencies, as each function has its own."""
    few_features = partial(GaussianProcessDefaults, n_features=4)
    monkeypatch.setattr(gaussian_process, "GaussianProcessDefaults", few_features)
    n_functions = 1500
    x = torch.cat([rows.x[:6] + 0.4, 3.0 * rows.x[:4]])
    process = condition(LOG_SCALES, rows)
    distribution = process.distribution(x)
    generator = torch.Generator().manual_seed(0)
    functions = process.sample_conditionals(x, n_functions, generator=generator).loc
    error = functions - distribution.loc
    squares = error.square()
    root_n = n_functions**0.5
    assert bool((error.mean(0).abs() < 5.0 * error.std(0) / root_n).all())
    assert bool(
        ((squares.mean(0) - distribution.variance[0]).abs() < 5.0 * squares.std(0) / root_n).all()
    )


def test_sampled_functions_are_the_same_at_other_rows_and_for_other_counts(rows):
    process, x = condition(LOG_SCALES, rows), rows.x[:6] + 0.4
    sample = partial(process.sample_conditionals, n=20)
    functions = sample(x, generator=torch.Generator().manual_seed(0)).loc
    again = sample(x[2:], generator=torch.Generator().manual_seed(0)).loc
    assert_close(again, functions[:, 2:])
    fewer = process.sample_conditionals(x, 5, generator=torch.Generator().manual_seed(0)).loc
    assert_close(fewer, functions[:5])


def test_columns_that_say_nothing_are_switched_off(generator):
    x = torch.randn(200, 6, generator=generator, dtype=torch.float64)
    y = torch.sin(2.0 * x[:, :1]) + 0.05 * torch.randn(200, 1, generator=generator).double()
    process, distribution = fit_gaussian_process(Data(x, y, torch.ones(200).double()), 0, 1.5)
    kernel = process.kernel
    assert float(kernel.length[1:].min()) > 5.0 * float(kernel.length[0])
    assert float(kernel.noise) == pytest.approx(0.05, rel=0.4)
    assert float((distribution.loc[0] - y).std()) < 0.1


def test_rows_beyond_the_most_are_predicted_by_the_others(generator):
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = x[:, :1] + 0.1 * torch.randn(60, 1, generator=generator).double()
    effort = GaussianProcessDefaults(max_hyperparameter_rows=30, max_rows=40)
    process, distribution = fit_gaussian_process(
        Data(x, y, torch.ones(60).double()), 0, 1.5, effort
    )
    assert process.x.shape == (40, 2)
    beyond = [n for n in range(60) if not (process.x == x[n].numpy()).all(axis=1).any()]
    assert len(beyond) == 20
    assert_close(distribution.loc[:, beyond], process.distribution(x[beyond]).loc)


@pytest.mark.parametrize(
    ("n_rows", "log_noise", "dtype"),
    [(1000, -1.8, torch.float32), (1000, -5.0, torch.float64), (900, -1.8, torch.float64)],
)
def test_variances_given_many_noisy_rows_are_computed_in_single_precision(
    n_rows, log_noise, dtype, generator
):
    x = torch.randn(n_rows, 4, generator=generator, dtype=torch.float64)
    log_scales = LOG_SCALES.clone()
    log_scales[-1] = log_noise
    process = condition(log_scales, Data(x, x[:, :1], torch.ones(n_rows).double()))
    assert process.variance_factor.dtype == dtype
    new = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    root = torch.linalg.solve_triangular(process.factor, process.kernel(x, new), upper=False)
    expected = process.kernel.variance(new) - root.square().sum(0)
    distribution = process.distribution(new)
    noise = float(distribution.noise_variance)
    assert_close(distribution.variance[0, :, 0], expected, rtol=0.0, atol=1e-4 * noise)
