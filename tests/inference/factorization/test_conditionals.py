"""Conditionals that can't be had."""

import pytest
import torch
from inference.factorization.factorization_problems import fit, incomplete
from torch.testing import assert_close

from skbayes_sym.inference.factorization.conditionals import Noise, row_conditionals
from skbayes_sym.inference.factorization.covariance import FullCovariance
from skbayes_sym.inference.factorization.hyperpriors import RowLaw
from skbayes_sym.inference.factorization.incidence import packed_second_moments, sums_over_entries
from skbayes_sym.numerics.linalg import NotPositiveDefiniteError


def test_singular_precisions_name_a_remedy(generator):
    """Fewer entries than components and next to no noise, in single precision."""
    data = incomplete(generator)
    single = data._replace(
        by_row=data.by_row._replace(value=data.by_row.value.float()),
        by_column=data.by_column._replace(value=data.by_column.value.float()),
    )
    with pytest.raises(NotPositiveDefiniteError, match=r"noise_std.*float64"):
        fit(single, 9, FullCovariance(), None, noise=1e-12)


def test_conditionals_are_bayesian_regressions(generator):
    """A row given the others is regressed on them, over ``sqrt(k)``: dense algebra, row by row."""
    data, k, noise = incomplete(generator, (5, 7), k=3).by_row, 3, 0.4
    others = torch.randn(7, k, generator=generator, dtype=torch.float64)
    prior_means = torch.randn(5, k, generator=generator, dtype=torch.float64)
    root = torch.randn(k, k, generator=generator, dtype=torch.float64)
    law = RowLaw(root @ root.mT + torch.eye(k), root.new_zeros(0, k))
    packed = packed_second_moments(others, root.new_zeros(1, 1, 1).expand(7, k, k))
    sums = sums_over_entries(data, packed, others)
    factor, precision, target = row_conditionals(sums, law, prior_means, Noise(k, noise))
    for i in range(5):
        seen = data.row == i
        design = others[data.other[seen]] / k**0.5
        expected = design.mT @ design / noise + law.precision
        assert_close(precision[i], expected)
        assert_close(factor[i] @ factor[i].mT, expected)
        pull = design.mT @ data.value[seen] / noise + law.precision @ prior_means[i]
        assert_close(target[i], pull)
