"""Which kinds of networks count, by left-out rows of known densities."""

import pytest
import torch

from skbayes_sym.estimators.bayesian_mlp.shares import equal_shares, shared

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


def test_without_left_out_rows_all_networks_count_alike():
    assert equal_shares(3, 1) == (0.0, 0.75, 0.25)
    assert equal_shares(0, 2) == (0.0, 0.0, 1.0)
