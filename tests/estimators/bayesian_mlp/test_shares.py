"""Which kinds of networks count, by left-out rows of known densities."""

import pytest
import torch

from skbayes_sym.estimators.bayesian_mlp.shares import (
    Shares,
    equal_shares,
    shared,
    shared_by_classes,
)

WEIGHT = torch.ones(40, dtype=torch.float64)
NONE = torch.zeros(0, 40, dtype=torch.float64)


def rows(n, value):
    """``n`` networks whose log density of every row is about ``value`` nats."""
    generator = torch.Generator().manual_seed(n)
    noise = torch.randn(40, generator=generator, dtype=torch.float64)
    return value + 0.1 * (noise - noise.mean()).expand(n, -1)


def test_kinds_that_gain_alike_count_alike():
    found = shared(rows(1, -3.0)[0], rows(2, -1.0), rows(3, -1.2), WEIGHT)
    assert found == pytest.approx((0.0, 0.4, 0.6), abs=1e-9)


def test_a_kind_that_gains_clearly_less_doesn_t_count():
    assert shared(rows(1, -3.0)[0], rows(2, -1.0), rows(3, -1.5), WEIGHT) == (0.0, 1.0, 0.0)
    assert shared(rows(1, -3.0)[0], rows(2, -1.5), rows(3, -1.0), WEIGHT) == (0.0, 0.0, 1.0)


def test_where_no_kind_gains_the_linear_model_is_all():
    assert shared(rows(1, -1.0)[0], rows(2, -1.5), rows(3, -2.0), WEIGHT)[0] == 1.0


def test_a_tie_is_shared_with_the_linear_model():
    generator = torch.Generator().manual_seed(0)
    linear, modes = torch.randn(2, 40, generator=generator, dtype=torch.float64)
    found = shared(linear, modes[None], NONE, WEIGHT)
    assert 0.0 < found.linear < 1.0
    assert found.members == 0.0
    assert sum(found) == pytest.approx(1.0)


def test_the_linear_model_counts_for_what_the_evidence_gives_it():
    by_rows = Shares(0.2, 0.6, 0.2)
    assert by_rows.with_evidence(-100.0, -20.0) == by_rows
    even = by_rows.with_evidence(-100.0, -100.0)
    assert even == pytest.approx((0.5, 0.375, 0.125))
    assert by_rows.with_evidence(-10.0, -1000.0) == pytest.approx((1.0, 0.0, 0.0))
    assert by_rows.with_evidence(-1e6, 0.0) == by_rows


def test_without_left_out_rows_all_networks_count_alike():
    assert equal_shares(3, 1) == (0.0, 0.75, 0.25)
    assert equal_shares(0, 2) == (0.0, 0.0, 1.0)


def test_classes_share_by_what_is_expected_after_left_out_rows():
    much, little = torch.full((40,), -0.1, dtype=torch.float64), torch.full((40,), -0.5).double()
    assert shared_by_classes(None, much, much, WEIGHT) == pytest.approx((0.0, 0.5, 0.5))
    clear = shared_by_classes(None, much, little, WEIGHT)
    assert 0.9 < clear.modes < 1.0
    few = shared_by_classes(None, much[:3], little[:3], WEIGHT[:3])
    assert 0.5 < few.modes < 0.7


def test_classes_are_stacked_with_the_linear_model():
    much, little = torch.full((40,), -0.1, dtype=torch.float64), torch.full((40,), -0.5).double()
    assert shared_by_classes(much, little, little, WEIGHT) == (1.0, 0.0, 0.0)
    assert shared_by_classes(little, much, None, WEIGHT) == (0.0, 1.0, 0.0)
    assert shared_by_classes(little, None, much, WEIGHT) == (0.0, 0.0, 1.0)
