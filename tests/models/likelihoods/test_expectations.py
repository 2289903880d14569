"""Score, curvature and data term by autograd: against finite differences and faster members."""

import numpy as np
import pytest
import torch
from cases import LIKELIHOODS, LaplaceNoise
from torch.testing import assert_close

from skbayes_sym.models.likelihoods.categorical import Bernoulli
from skbayes_sym.models.likelihoods.counts import NegativeBinomial
from skbayes_sym.models.likelihoods.likelihood import (
    _LOGISTIC_NODES,
    N_NODES,
    Likelihood,
    choose_n_nodes,
    expect_by_autograd,
    expect_by_quadrature,
)
from skbayes_sym.models.likelihoods.noise import StudentT

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
def test_root_squares_to_the_curvature(case, generator):
    outputs, y = problem(case, generator)
    expected = curvature(case, outputs, y)
    roots = [Likelihood.hessian_root(case.likelihood, outputs, y)]
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
        root = Likelihood.hessian_root(case.likelihood, f, y)
        return (torch.einsum("kno,knp->nop", root, root) * towards).sum()

    def exact(f):
        total = torch.func.grad(lambda g: case.likelihood.log_prob(g, y).sum())
        hessian = torch.func.jacrev(total)(f)
        rows = torch.stack([-hessian[n, :, n] for n in range(5)])
        return (rows * towards).sum()

    found = torch.autograd.grad(squared(outputs.requires_grad_()), outputs)[0]
    assert_close(found, torch.func.grad(exact)(outputs.detach()), rtol=1e-8, atol=1e-10)


@every_likelihood
def test_inference_mode_is_no_obstacle(case, generator):
    """The training loop runs in it, and autograd can't keep its tensors."""
    outputs, y = problem(case, generator)
    variance, noise = torch.ones_like(outputs), torch.zeros_like(outputs)
    plain = case.likelihood.expected_log_prob(outputs, variance, y, noise)
    with torch.inference_mode():
        inside = case.likelihood.expected_log_prob(outputs + 0.0, variance + 0.0, y + 0, noise)
    for a, b in zip(inside, plain, strict=True):
        assert_close(a, b)


def test_the_number_of_draws_is_asked_of_the_likelihood():
    assert LIKELIHOODS["own-softmax"].likelihood.n_noise(3) == 3
    assert LIKELIHOODS["own-softmax"].likelihood.n_noise(1) == 0
    assert LaplaceNoise(torch.zeros(2)).n_noise(2) == 0


@pytest.mark.parametrize("requires_grad", [False, True])
def test_graphs_are_kept_where_asked_for(requires_grad):
    mean = torch.zeros(1, 1, dtype=torch.float64, requires_grad=requires_grad)
    one = torch.ones(1, 1, dtype=torch.float64)
    likelihood = LaplaceNoise(torch.zeros(1, dtype=torch.float64))
    found = likelihood.expected_log_prob(mean, one, one, torch.empty(1, 0))
    assert found.value.requires_grad == requires_grad
    assert found.d_mean.requires_grad == requires_grad


@pytest.mark.parametrize("distribution", [Bernoulli(), StudentT()])
def test_an_output_without_variance_is_a_number(distribution):
    """Where a quadrature's derivative by the variance would be 0 / 0; there it is ``l'' / 2``."""
    mean = torch.tensor([[0.3], [-1.0]], dtype=torch.float64)
    y = torch.tensor([1, 0]) if isinstance(distribution, Bernoulli) else mean + 0.4
    zero = torch.zeros_like(mean)
    found = distribution.expected_log_prob(mean, zero, y, mean.new_empty(2, 0))
    assert_close(found.value, distribution.log_prob(mean, y))
    step = 1e-4
    high, middle, low = (distribution.log_prob(mean + s * step, y) for s in (1, 0, -1))
    curvature = (high - 2.0 * middle + low) / step**2
    assert_close(found.d_variance[:, 0], 0.5 * curvature, atol=1e-5, rtol=0.0)
    slopes = expect_by_autograd(distribution, mean, zero, y, mean.new_empty(2, 0))
    assert all(part.isfinite().all() for part in slopes)


def logistic_by_sums(mean, sd):
    """Value and slopes of ``E[log s(f)]`` by 8,001 equidistant points: exact to rounding."""
    z = torch.linspace(-9.5, 9.5, 8001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * z * z, 0)
    f = mean.unsqueeze(-1) + sd * z
    slope = torch.sigmoid(-f)
    value = torch.nn.functional.logsigmoid(f)
    return value @ weights, slope @ weights, (slope * z) @ weights / (2.0 * sd)


@pytest.mark.parametrize("sd", [*_LOGISTIC_NODES, 0.01, 1.5])
def test_logistic_expectations_are_exact_to_rounding_whatever_their_width(sd):
    """As many nodes as the widest output asks for, value and slopes from one sigmoid."""
    mean = torch.cat([torch.linspace(-40.0, 40.0, 81), torch.tensor([0.3, -700.0])]).double()
    variance = torch.full_like(mean, sd**2).unsqueeze(-1)
    y = torch.ones(len(mean), dtype=torch.int64)
    found = Bernoulli().expected_log_prob(mean.unsqueeze(-1), variance, y, variance[:, :0])
    value, by_mean, by_variance = logistic_by_sums(mean, sd)
    tol = {"rtol": 1e-12, "atol": 1e-12}
    assert_close(found.value, value, **tol)
    assert_close(found.d_mean[:, 0], by_mean, **tol)
    assert_close(found.d_variance[:, 0], by_variance, **tol)


def test_wide_outputs_ask_for_the_most_nodes():
    """Of fewer the error of an output this wide would be seen: 7e-4 nats by 12."""
    assert choose_n_nodes(torch.tensor([[0.5**2], [3.0**2]])) == N_NODES
    mean, wide = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), 9.0).double()
    y, no_noise = torch.ones(1, dtype=torch.int64), wide[:, :0]
    most = Bernoulli().expected_log_prob(mean, wide, y, no_noise).value
    exact = logistic_by_sums(mean[0], 3.0)[0]
    few = expect_by_quadrature(
        lambda f: (torch.nn.functional.logsigmoid(f), torch.sigmoid(-f)), mean, wide, n_nodes=12
    ).value
    assert_close(most, exact, rtol=0.0, atol=1e-6)
    assert abs(float(few - exact)) > 1e-4


@pytest.mark.parametrize("log_dispersion", [-25.0, -2.0, 4.0])
@pytest.mark.parametrize("learn", [True, False])
def test_negative_binomial_slopes_in_closed_form(log_dispersion, learn):
    """The bound of entries has the value and the slopes of the quadrature that autograd makes."""
    rng = np.random.default_rng(0)
    mean, y = torch.as_tensor(rng.normal(size=(60, 1))), torch.as_tensor(rng.poisson(3.0, (60, 1)))
    likelihood = NegativeBinomial(torch.tensor([log_dispersion]).double(), learn=learn)
    for sd in (0.05, 0.6, 2.0):
        variance = torch.full_like(mean, sd**2)
        bound = likelihood.approximate_expected_log_prob(mean, variance, y.double())
        noise = mean.new_empty(60, 0)
        expected = expect_by_autograd(likelihood, mean, variance, y.double(), noise)
        for part, reference in zip(bound, expected, strict=True):
            assert_close(part, reference, rtol=1e-10, atol=1e-10)
