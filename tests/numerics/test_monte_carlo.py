"""Mean and standard error of draws."""

from math import isnan

import pytest
import torch

from skbayes_sym.numerics.monte_carlo import mean_and_error


def test_of_known_numbers():
    found = mean_and_error(torch.tensor([1.0, 2.0, 3.0, 6.0]))
    assert found.value == 3.0
    assert found.standard_error == pytest.approx((14 / 3 / 4) ** 0.5, rel=1e-15)


def test_the_error_is_that_of_the_mean(generator):
    """The means of many sets of draws spread as each set says."""
    draws = torch.randn(2000, 25, generator=generator)
    found = [mean_and_error(row) for row in draws]
    spread = torch.tensor([f.value for f in found]).std()
    claimed = torch.tensor([f.standard_error**2 for f in found]).mean().sqrt()
    assert float(claimed) == pytest.approx(0.2, rel=0.02)  # 1 / sqrt(25)
    assert float(spread) == pytest.approx(0.2, rel=0.08)  # 5 standard errors of a deviation


def test_is_in_double_precision():
    found = mean_and_error(torch.full((1 << 20,), 0.1, dtype=torch.float32))
    assert found.value == pytest.approx(float(torch.tensor(0.1)), rel=1e-14)


def test_one_draw_knows_no_error():
    found = mean_and_error(torch.tensor([2.0]))
    assert found.value == 2.0
    assert isnan(found.standard_error)
