"""Sums over observed entries, against dense loops."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.factorization.sparse_entries import (
    compute_normal_equations,
    compute_products,
    group_entries,
    pack_second_moments,
)

N, M, K = 7, 5, 3


@pytest.fixture
def problem(generator):
    """A matrix with an empty row, an empty column, and moments of both sides."""
    seen = torch.rand(N, M, generator=generator) < 0.6
    seen[3], seen[:, 1] = False, False
    rows, columns = seen.nonzero(as_tuple=True)
    order = torch.randperm(len(rows), generator=generator)
    rows, columns = rows[order], columns[order]
    values = torch.randn(len(rows), generator=generator, dtype=torch.float64)
    mean = torch.randn(M, K, generator=generator, dtype=torch.float64)
    root = torch.randn(M, K, K, generator=generator, dtype=torch.float64)
    return rows, columns, values, mean, root @ root.mT


def test_sums_are_those_of_a_loop(problem):
    rows, columns, values, mean, cov = problem
    data = group_entries(rows, columns, values, (N, M))
    found = compute_normal_equations(data.by_row, pack_second_moments(mean, cov), mean)
    second, first = torch.zeros(N, K, K).double(), torch.zeros(N, K).double()
    for i, j, r in zip(rows, columns, values, strict=True):
        second[i] += torch.outer(mean[j], mean[j]) + cov[j]
        first[i] += r * mean[j]
    assert_close(found.gram, second, rtol=0, atol=1e-12)
    assert_close(found.rhs, first, rtol=0, atol=1e-12)
    assert (data.n_rows, data.n_columns, data.n_observed) == (N, M, len(values))


def test_blocks_are_parts_of_the_whole(problem):
    rows, columns, values, mean, cov = problem
    data = group_entries(rows, columns, values, (N, M))
    packed = pack_second_moments(mean, cov)
    whole = compute_normal_equations(data.by_row, packed, mean)
    for begin, end in ((0, 2), (2, 4), (3, 4), (4, N)):
        part = compute_normal_equations(data.by_row.slice_rows(begin, end), packed, mean)
        assert_close(part.gram, whole.gram[begin:end], rtol=0, atol=0)
        assert_close(part.rhs, whole.rhs[begin:end], rtol=0, atol=0)


def test_products_and_both_groupings_agree(problem, generator):
    rows, columns, values, mean, _ = problem
    left = torch.randn(N, K, generator=generator, dtype=torch.float64)
    data = group_entries(rows, columns, values, (N, M))
    by_row, by_column = (
        compute_products(left, mean, data.by_row),
        compute_products(mean, left, data.by_column),
    )
    total = (values * (left[rows] * mean[columns]).sum(-1)).sum()
    assert_close((by_row * data.by_row.value).sum(), total, rtol=1e-13, atol=1e-13)
    assert_close((by_column * data.by_column.value).sum(), total, rtol=1e-13, atol=1e-13)


def test_nothing_observed(problem):
    *_, mean, cov = problem
    none = torch.zeros(0, dtype=torch.int64)
    data = group_entries(none, none, torch.zeros(0, dtype=torch.float64), (N, M))
    found = compute_normal_equations(data.by_row, pack_second_moments(mean, cov), mean)
    assert float(found.gram.abs().max()) == float(found.rhs.abs().max()) == 0.0
    assert compute_products(mean[:N], mean, data.by_row).shape == (0,)
