"""Size moves between the sides as the joint density says, and no product of factors changes."""

import numpy as np
import pytest
import torch
from inference.factorization.factorization_problems import incomplete, model_of
from scipy import stats
from torch.testing import assert_close

from skbayes_sym.inference.factorization.factor_model import FactorProblem
from skbayes_sym.inference.factorization.shared_size import balancing, draw_shared, moved

K = 3
NOTHING = (torch.zeros(K, K, dtype=torch.float64),) * 2  # told by the other side


def problem_of(generator, prior="learn", offsets=(True, False)):
    data = incomplete(generator, (12, 9), k=K)
    model = model_of(K, prior, 0.3, offsets=offsets)
    return FactorProblem(data, data, model, 10)


def drawn_laws(problem, generator):
    """Rows of both sides (free coordinates), and laws given them."""
    sides = problem.model.network.sides
    own = [
        torch.randn(n, len(side.free), generator=generator, dtype=torch.float64)
        for n, side in zip(problem.shape, sides, strict=True)
    ]
    laws = [
        prior.learned(
            prior.moments(rows, rows.new_zeros(rows.shape[1], rows.shape[1])), law, generator
        )[0]
        for prior, rows, law in zip(problem.priors, own, problem.laws(problem.start), strict=True)
    ]
    return own, tuple(laws)


def log_joint(prior, rows, law):
    """Of rows, coefficients (the mean alone) and the precision of one side, by scipy."""
    total = 0.0
    for block in prior.blocks:
        at = list(block.coordinates)
        precision = law.precision[at][:, at].numpy()
        b, cov, mean = len(at), np.linalg.inv(precision), law.coefficients[0, at].numpy()
        total += stats.wishart(b, np.eye(b) / prior.scatter).logpdf(precision)
        total += stats.multivariate_normal(np.zeros(b), cov).logpdf(mean)
        total += stats.multivariate_normal(mean, cov).logpdf(rows[:, at].numpy()).sum()
    return total


@pytest.mark.parametrize("prior", ["learn", "ard"])
def test_the_law_of_sizes_is_that_of_the_joint_density(prior, generator):
    """Along an orbit, with the Jacobian of every coordinate that moves, exactly."""
    problem = problem_of(generator, prior)
    own, laws = drawn_laws(problem, generator)
    rows, columns = problem.priors

    def density(c):
        """Joint density along the orbit, under d log(c): all Jacobians are powers of c."""
        total = 0.0
        for prior, values, law, by in zip(problem.priors, own, laws, (c, 1.0 / c), strict=True):
            d = values.shape[1]
            scales = torch.cat([by, torch.ones(d - K, dtype=torch.float64)])
            a = by.diag()
            total += log_joint(prior, values * scales, moved(law, a, by.reciprocal().diag()))
            blocks = [set(block.coordinates) for block in prior.blocks]
            shared = torch.tensor([sum(len(b) for b in blocks if p in b) for p in range(K)])
            # Rows and means, then the b (b + 1) / 2 numbers of a precision.
            total += float(((len(values) + 1.0 - shared - 1.0) * by.log()).sum())
        return total

    ones = torch.ones(K, dtype=torch.float64)
    c = torch.tensor([1.7, 0.6, 1.1], dtype=torch.float64)
    t_rows, t_columns = (
        prior.scatter * law.precision.diagonal()[:K]
        for prior, law in zip(problem.priors, laws, strict=True)
    )
    p = 0.5 * (columns.factor_dof(K) - rows.factor_dof(K))
    assert p == (-0.5 if prior == "learn" else 0.0)  # rows have an offset, columns none
    scale, shape = (t_rows / t_columns).sqrt(), (t_rows * t_columns).sqrt()

    def law(c):
        x = (c.square() / scale).numpy()
        return float((stats.geninvgauss(p, shape.numpy()).logpdf(x) + np.log(x)).sum())

    assert density(c) - density(ones) == pytest.approx(law(c) - law(ones), rel=1e-9)


@pytest.mark.long
def test_draws_have_that_law(generator):
    """Means of log s beside quadrature, four standard errors."""
    problem = problem_of(generator, "ard", (True, True))
    _, laws = drawn_laws(problem, generator)
    draws = torch.stack(
        [
            draw_shared(problem.priors, laws, NOTHING, torch.float64, generator).a.diagonal()
            for _ in range(500)
        ]
    )
    t = [
        prior.scatter * law.precision.diagonal()[:K]
        for prior, law in zip(problem.priors, laws, strict=True)
    ]
    u = torch.linspace(-30.0, 30.0, 6001, dtype=torch.float64)[:, None]  # log s
    weight = torch.softmax(-0.5 * (t[0] * (-u).exp() + t[1] * u.exp()), dim=0)
    mean = (weight * u).sum(0)
    spread = ((weight * u.square()).sum(0) - mean.square()).sqrt()
    error = (2.0 * draws.log()).mean(0) - mean
    assert (error.abs() < 4.0 * spread / len(draws) ** 0.5).all()


@pytest.mark.parametrize("prior", ["learn", "ard"])
def test_products_and_priors_of_rows_stay(prior, generator):
    problem = problem_of(generator, prior)
    (rows, columns), laws = drawn_laws(problem, generator)
    a, inverse = draw_shared(problem.priors, laws, NOTHING, torch.float64, generator)
    assert float((a - torch.eye(K)).abs().max()) > 0.01
    assert_close((rows[:, :K] @ a) @ (columns[:, :K] @ inverse).mT, rows[:, :K] @ columns[:, :K].mT)
    # What a row deviates from its mean by, in units of the prior, is the same.
    for values, law, by, back in ((rows, laws[0], a, inverse), (columns, laws[1], inverse, a)):
        after, there = values.clone(), moved(law, by, back)
        after[:, :K] = after[:, :K] @ by
        off, off_there = values - law.coefficients, after - there.coefficients
        squares = torch.einsum("ni,ij,nj->n", off, law.precision, off)
        assert_close(torch.einsum("ni,ij,nj->n", off_there, there.precision, off_there), squares)


@pytest.mark.long
@pytest.mark.kept("learn")
@pytest.mark.parametrize("prior", ["learn", "ard"])
def test_balanced_factors_are_equally_large(prior, generator):
    """Whatever size they had: of an orbit one representative, up to rotations."""
    problem = problem_of(generator, prior)
    rows, columns = (
        torch.randn(n, K, generator=generator, dtype=torch.float64) for n in (4000, 3000)
    )
    columns = columns * torch.tensor([5.0, 0.2, 1.0])
    mix = torch.tensor([[1.0, 0.0, 0.0], [0.4, 2.0, 0.0], [0.0, -0.3, 0.5]], dtype=torch.float64)
    if prior == "ard":
        mix = mix.diagonal().diag()
    sizes = []
    for by in (torch.eye(K, dtype=torch.float64), mix):
        left, right = rows @ by, columns @ torch.linalg.inv(by).mT
        a, inverse = balancing(problem.priors, left, right)
        left, right = left @ a, right @ inverse
        assert_close(left @ right.mT, rows @ columns.mT)
        first, second = (x.mT @ x / len(x) for x in (left, right))
        if prior == "ard":
            first, second = first.diagonal().diag(), second.diagonal().diag()
        assert_close(first, second, rtol=0.02, atol=0.01)
        sizes.append(torch.linalg.eigvalsh(first))
    assert_close(sizes[0], sizes[1], rtol=0.02, atol=0.01)


def test_given_scales_share_nothing(generator):
    problem = problem_of(generator, 1.0)
    laws = problem.laws(problem.start)
    assert draw_shared(problem.priors, laws, NOTHING, torch.float64, generator) is None
    rows, columns = torch.randn(12, K), torch.randn(9, K)
    assert balancing(problem.priors, rows, columns) is None


def test_no_draw_leaves_priors_that_rows_cannot_be_drawn_from(generator):
    """Laws so flat that nearly all shares are extreme: those drawn are the others, or none."""
    problem = problem_of(generator, "learn", (False, False))
    flat = torch.diag(torch.tensor([1e-12, 1e-13, 1e-12], dtype=torch.float64))
    laws = tuple(law._replace(precision=flat) for law in problem.laws(problem.start))
    conditions = []
    for _ in range(50):
        shared = draw_shared(problem.priors, laws, NOTHING, torch.float64, generator)
        if shared is None:
            continue
        for law, a, inverse in ((laws[0], *shared), (laws[1], shared.inverse, shared.a)):
            conditions.append(float(torch.linalg.cond(moved(law, a, inverse).precision)))
    assert len(conditions) > 10
    assert 1e3 < max(conditions) < 1e8
    single = draw_shared(problem.priors, laws, NOTHING, torch.float32, generator)
    if single is not None:
        assert float(torch.linalg.cond(moved(laws[0], *single).precision)) < 1e4


@pytest.mark.long
def test_nor_what_rows_are_told(generator):
    """Far from balanced, rows that are seen whole could be drawn under few shares only."""
    problem = problem_of(generator, "learn", (False, False))
    law = problem.laws(problem.start)[0]._replace(precision=torch.eye(K, dtype=torch.float64))
    told = [torch.diag(torch.tensor(x, dtype=torch.float64)) for x in ([1e9, 1, 1], [1, 1, 1])]
    arguments = problem.priors, (law, law), tuple(told), torch.float64, generator
    drawn = [shared for shared in (draw_shared(*arguments) for _ in range(100)) if shared]
    assert drawn
    for _, inverse in drawn:
        assert float(torch.linalg.cond(inverse @ (law.precision + told[0]) @ inverse)) < 1e8
