"""Bounds from a few rows: equality at all of them, the side by enumeration, gradients."""

from dataclasses import replace
from itertools import combinations, product

import pytest
import torch
from inference.laplace.laplace_problems import problem
from inference.laplace.test_marginal_likelihood import PROBLEMS, learned, value
from torch.testing import assert_close

from skbayes_sym.inference.laplace.curvature import Diagonal, Full
from skbayes_sym.inference.laplace.jacobian import ExactDirections
from skbayes_sym.inference.laplace.marginal_likelihood import LaplaceEvidence
from skbayes_sym.inference.laplace.subset import DrawnColumns, SubsetEvidence
from skbayes_sym.inference.laplace.tangent_kernel import TangentKernel

BOUNDING = {"tangent": TangentKernel, "full": Full, "diagonal": Diagonal}


def whole(p, kind="tangent"):
    structure = BOUNDING[kind](p.model.layers, p.model.network.layout)
    return LaplaceEvidence(p.model, p.data, structure, ExactDirections(), 100)


def subset(p, size, n_columns=None, kind="tangent"):
    return SubsetEvidence(whole(p, kind), size, n_columns)


@pytest.mark.parametrize("kind", BOUNDING)
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_rows_and_columns_are_the_evidence(name, kind):
    p = PROBLEMS[name]
    everything = subset(p, 100, kind=kind)
    assert_close(value(everything, p, p.hyper), value(whole(p, kind), p, p.hyper))
    assert everything.row_scale == 1.0


class Given:
    """Columns named one by one, (N,): what a draw could have been."""

    def __init__(self, chosen):
        self.chosen = chosen

    def columns(self, likelihood, outputs, y, *, generator):
        root = likelihood.hessian_root(outputs, y)
        return root[self.chosen, torch.arange(len(outputs))].unsqueeze(0)


def bounds_of_every_draw(p, size, kind):
    """The bound's two parts for every set of rows and one column each."""
    bound = subset(p, size, 1, kind)
    likelihoods, values = [], []
    for rows in combinations(range(len(p.data.x)), size):
        part = bound.part(torch.tensor(rows))
        for chosen in product(range(p.model.network.n_outputs), repeat=size):
            sums = replace(part, directions=Given(torch.tensor(chosen))).one_pass(
                p.theta, p.hyper, 3
            )
            log_lik = bound.row_scale * sums.log_likelihood
            terms, _ = bound.evidence(p.theta, p.hyper, log_lik, bound.spectrum(sums.factors))
            likelihoods.append(float(log_lik))
            values.append(terms.value)
    return torch.tensor(likelihoods, dtype=torch.float64), torch.tensor(values)


@pytest.mark.parametrize("kind", BOUNDING)
def test_mean_over_every_draw_lies_below_the_evidence(kind):
    """Enumerated: rows times one column each; the data's term averages to the data's term."""
    p = problem("classes", n=4, rotate=False)
    evidence = whole(p, kind)
    exact = value(evidence, p, p.hyper)
    log_lik = float(evidence.one_pass(p.theta, p.hyper, 3).log_likelihood)
    means = []
    for size in (1, 2, 3):
        likelihoods, values = bounds_of_every_draw(p, size, kind)
        assert_close(float(likelihoods.mean()), log_lik)
        means.append(float(values.double().mean()))
    assert means[0] < means[1] < means[2] < exact


@pytest.mark.parametrize("kind", BOUNDING)
@pytest.mark.parametrize("name", PROBLEMS)
def test_gradient_by_differences(name, kind):
    p = PROBLEMS[name]
    bound = subset(p, 3, 1, kind)
    sums = bound.one_pass(p.theta, p.hyper, 3)
    spectrum = bound.spectrum(sums.factors)
    gradient = bound.gradient(p.theta, p.hyper, 3, spectrum)
    _, slope = bound.evidence(p.theta, p.hyper, sums.log_likelihood, spectrum)
    every = torch.cat([gradient[: len(learned(p))], slope.to(gradient)])
    for i in range(len(p.hyper)):
        step = torch.zeros_like(p.hyper)
        step[i] = 1e-5
        difference = value(bound, p, p.hyper + step) - value(bound, p, p.hyper - step)
        # Central differences of a value of order 100: rounding of order 1e-8.
        assert_close(float(every[i]), difference / 2e-5, rtol=1e-5, atol=1e-5)


def test_draws_are_without_replacement_and_uniform():
    p = problem("classes", n=6)
    bound = subset(p, 2)
    counts = torch.zeros(6)
    for seed in range(300):
        rows = bound.rows(seed)
        assert len(rows.unique()) == 2
        counts[rows] += 1
    # Binomial(300, 1/3): standard deviation 8.2.
    assert bool(((counts - 100).abs() < 33).all())


def test_drawn_columns_are_the_roots(generator):
    p = problem("classes", n=5)
    outputs = torch.randn(5, 3, dtype=torch.float64, generator=generator)
    root = p.model.likelihood.hessian_root(outputs, p.data.y)
    every = DrawnColumns(3).columns(p.model.likelihood, outputs, p.data.y, generator=generator)
    squares = [torch.einsum("kno,knp->nop", r, r) for r in (root, every)]
    assert_close(*squares)
