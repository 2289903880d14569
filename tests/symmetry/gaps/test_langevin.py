"""Gaps of Gaussian rows under O(k) and under sign flips."""

import pytest
import torch
from gap_oracle import Rows, log_density_ratio
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.rotations import (
    SecondMoment,
    added_precision,
    anchor_features,
    anchored_inner,
    expand_langevin,
    langevin_gap,
    langevin_gradient,
    learn_mixing,
    plain_anchors,
)
from skbayes_sym.symmetry.orthogonal import Orthogonal

N_ROWS, DRAWS = 12, 4000


def exact_gap(mean, cov, rows):
    """E[log q - log q_G] by quadrature over O(2): values of the draws ``rows`` (D, n, 2)."""
    group = Orthogonal(torch.arange(mean.numel()).view(mean.shape))
    return log_density_ratio(group, Rows(mean, cov), rows.flatten(1))


def covariances(kind, generator):
    def uniform(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    identity = torch.eye(2, dtype=torch.float64)
    if kind == "isotropic":
        return 0.3 * identity.expand(N_ROWS, 2, 2)
    if kind == "row":
        return (0.1 + 0.6 * uniform(N_ROWS))[:, None, None] * identity
    if kind == "diag":
        return torch.diag_embed(0.05 + 0.8 * uniform(N_ROWS, 2))
    wide = torch.randn(N_ROWS, 2, 4, generator=generator, dtype=torch.float64)
    return 0.3 * wide @ wide.mT / 4.0


def setting(kind, generator, scale=0.6):
    mean = scale * torch.randn(N_ROWS, 2, generator=generator, dtype=torch.float64)
    cov = covariances(kind, generator)
    noise = torch.randn(DRAWS, N_ROWS, 2, 1, generator=generator, dtype=torch.float64)
    rows = mean + (torch.linalg.cholesky(cov) @ noise).squeeze(-1)
    anchors = mean / cov.diagonal(dim1=1, dim2=2).mean(-1, keepdim=True)
    return mean, cov, rows, anchors


@pytest.mark.parametrize("kind", ["isotropic", "row"])
def test_row_isotropic_gap_is_exact_draw_by_draw(kind, generator):
    mean, cov, rows, anchors = setting(kind, generator)
    found = langevin_gap(anchored_inner(anchors, rows[:300]))
    assert_close(found, exact_gap(mean, cov, rows[:300]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", ["isotropic", "row"])
def test_shortcut_draws_have_the_law_of_the_rows(kind, generator):
    mean, cov, rows, anchors = setting(kind, generator)
    noise = torch.randn(DRAWS, 2, 2, generator=generator, dtype=torch.float64)
    distance = SecondMoment.from_rows(mean, cov[:, 0, 0])
    short = distance.axes @ distance.sample_inner(noise) @ distance.axes.mT
    long = anchored_inner(anchors, rows)
    for power in (1, 2):
        difference = (short**power).mean(0) - (long**power).mean(0)
        error = ((short**power).var(0) + (long**power).var(0)).sqrt() / DRAWS**0.5
        assert bool((difference.abs() < 5.0 * error).all())
    gaps = langevin_gap(short), langevin_gap(long)
    error = 4.0 * float(gaps[0].std()) * (2.0 / DRAWS) ** 0.5
    assert abs(float(gaps[0].mean() - gaps[1].mean())) < error


@pytest.mark.long
@pytest.mark.kept("3.0-full", "1.0-diag", "0.0-full")
@pytest.mark.parametrize("kind", ["diag", "full"])
@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0, 3.0])
def test_any_anchors_give_a_lower_bound(kind, strength, generator):
    mean, cov, rows, anchors = setting(kind, generator)
    rows = rows[:500]
    difference = exact_gap(mean, cov, rows) - langevin_gap(anchored_inner(strength * anchors, rows))
    error = 3.0 * float(difference.std()) / len(rows) ** 0.5
    assert float(difference.mean()) > -error
    if strength == 0.0:
        zeros = torch.zeros(len(rows), dtype=torch.float64)
        assert_close(langevin_gap(anchored_inner(0.0 * anchors, rows)), zeros, rtol=0, atol=1e-12)


# Means that span all k directions alike; 64 draws by tests/oracles/rotations.py.
@pytest.mark.parametrize(
    ("distance", "expected"), [(1, 9.92), (5, 42.95), (20, 133.26), (100, 276.25), (1000, 496.70)]
)
def test_isotropic_gap_at_twenty_components(distance, expected, generator):
    noise = torch.randn(200, 20, 20, generator=generator, dtype=torch.float64)
    mean = float(distance) ** 0.5 * torch.eye(20, dtype=torch.float64)
    values = langevin_gap(
        SecondMoment.from_rows(mean, torch.ones(20, dtype=torch.float64)).sample_inner(noise)
    )
    error = 4.0 * float(values.std()) * (1 / 200 + 1 / 64) ** 0.5
    assert abs(float(values.mean()) - expected) < error + 0.02 * expected


@pytest.mark.parametrize("k", [1, 2, 3, 5, 8])
def test_gradient_and_added_precision_are_derivatives(k, generator):
    """By central differences in the rows, the draws averaged."""
    n, draws, h = 5, 3, 1e-5
    anchors = torch.randn(n, k, generator=generator, dtype=torch.float64)
    rows = torch.randn(draws, n, k, generator=generator, dtype=torch.float64)

    def slopes(x):
        x = x.clone().requires_grad_()
        value = langevin_gap(anchored_inner(anchors, x)).mean()
        return torch.autograd.grad(value, x)[0].sum(0)

    expansion = expand_langevin(anchored_inner(anchors, rows))
    gradient = langevin_gradient(anchors, anchored_inner(anchors, rows)).d_mean
    assert_close(gradient, slopes(rows), rtol=0, atol=1e-10)
    found = added_precision(anchors, expansion)
    for i in range(n):
        for p in range(k):
            step = torch.zeros_like(rows)
            step[:, i, p] = h
            expected = (slopes(rows - step) - slopes(rows + step))[i] / (2.0 * h)
            assert_close(found[i, p], expected, rtol=0, atol=1e-7)
    assert float(torch.linalg.eigvalsh(found).min()) > -1e-10


def test_learned_anchors_are_better_than_given_ones(generator):
    """On the draws that the mixing is learned from."""
    mean = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    wide = torch.randn(12, 2, 4, generator=generator, dtype=torch.float64)
    cov = 0.2 * wide @ wide.mT
    root = torch.linalg.cholesky(cov)
    noise = torch.randn(500, 12, 2, 1, generator=generator, dtype=torch.float64)
    features = anchor_features(Rows(mean, cov), root)
    inner = anchored_inner(features, mean + (root @ noise).squeeze(-1))
    learned = float(langevin_gap(learn_mixing(inner) @ inner).mean())
    for given in ([1.0, 0.0], [0.0, 1.0], [0.5, 0.5]):
        mixing = torch.cat([w * torch.eye(2, dtype=torch.float64) for w in given], 1)
        assert learned > float(langevin_gap(mixing @ inner).mean())


def test_both_kinds_agree_for_isotropic_rows(generator):
    mean = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    variance = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    cov = variance[:, None, None] * torch.eye(3, dtype=torch.float64)
    rows = Rows(mean, cov)
    first, second = anchor_features(rows, torch.linalg.cholesky(cov)).split(3, dim=1)
    assert_close(first, plain_anchors(rows))
    assert_close(second, mean / variance[:, None])
