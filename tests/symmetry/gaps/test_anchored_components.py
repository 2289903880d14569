"""Signed permutations of correlated components, enumerated."""

from itertools import permutations, product
from math import factorial, log

import pytest
import torch
from gap_oracle import Rows
from torch.testing import assert_close

from skbayes_sym.symmetry.gaps.anchored_components import AnchoredComponentGap
from skbayes_sym.symmetry.units import Units


def group_of(n, k, *, permute=True):
    return Units(torch.arange(n * k).view(n, k).mT, permute=permute, flip=True)


def elements(k, *, permute=True):
    """Matrices (|G|, k, k) of the group."""
    orders = list(permutations(range(k))) if permute else [tuple(range(k))]
    eye = torch.eye(k, dtype=torch.float64)
    signs = [torch.tensor(s, dtype=torch.float64) for s in product([1.0, -1.0], repeat=k)]
    return torch.stack([s[:, None] * eye[list(order)] for order in orders for s in signs])


def correlated(n, k, generator, scale=0.4):
    mean = torch.randn(n, k, generator=generator, dtype=torch.float64)
    root = scale * torch.randn(n, k, k, generator=generator, dtype=torch.float64)
    return Rows(mean, root @ root.mT + scale**2 * torch.eye(k, dtype=torch.float64))


def log_density(rows, x):
    """Of draws (S, n, k) under independent normal rows, (S,)."""
    law = torch.distributions.MultivariateNormal(rows.mean, rows.cov)
    return law.log_prob(x).sum(-1)


def enumerated(rows, permute, n_draws, generator):
    """The gap by the definition, with its standard error."""
    noise = torch.randn(n_draws, *rows.mean.shape, 1, generator=generator, dtype=torch.float64)
    x = rows.mean + (torch.linalg.cholesky(rows.cov) @ noise).squeeze(-1)
    group = elements(rows.mean.shape[1], permute=permute)
    copies = torch.stack([log_density(rows, x @ g) for g in group])
    values = log_density(rows, x) - copies.logsumexp(0) + log(len(group))
    return float(values.mean()), float(values.std()) / n_draws**0.5


@pytest.mark.parametrize("permute", [True, False])
def test_values_are_averages_over_the_group(permute, generator):
    inner = torch.randn(5, 3, 3, generator=generator, dtype=torch.float64)
    group = elements(3, permute=permute)
    each = torch.einsum("bij,gij->gb", inner, group)
    expected = inner.diagonal(dim1=-2, dim2=-1).sum(-1) - each.logsumexp(0) + log(len(group))
    assert_close(AnchoredComponentGap(group_of(4, 3, permute=permute)).values(inner), expected)


@pytest.mark.kept("0.6-True", "1.5-False", "0.2-True")
@pytest.mark.parametrize("permute", [True, False])
@pytest.mark.parametrize("scale", [0.2, 0.6, 1.5])
def test_bound_lies_below_the_enumerated_gap(permute, scale, generator):
    rows = correlated(6, 2, generator, scale)
    found = AnchoredComponentGap(group_of(6, 2, permute=permute)).estimate(
        rows, 2000, generator=generator
    )
    exact, error = enumerated(rows, permute, 4000, generator)
    rounding = 1e-12
    assert found.value <= exact + 4.0 * (error + found.standard_error) + rounding
    assert found.value > 0.0  # and says something


@pytest.mark.parametrize("permute", [True, False])
def test_far_modes_give_the_order_of_the_group(permute, generator):
    mean = torch.zeros(12, 3, dtype=torch.float64)
    mean[torch.arange(12), torch.arange(12) % 3] = 30.0
    root = 0.3 * torch.randn(12, 3, 3, generator=generator, dtype=torch.float64)
    rows = Rows(mean, root @ root.mT + 0.1 * torch.eye(3, dtype=torch.float64))
    gap = AnchoredComponentGap(group_of(12, 3, permute=permute))
    order = log(8 * (factorial(3) if permute else 1))
    assert gap.estimate(rows, generator=generator).value == pytest.approx(order, abs=1e-9)
    assert float(gap.value_and_gradients(rows, generator=generator).value) == pytest.approx(order)
