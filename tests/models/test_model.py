"""Batches: every row as often as any other, weights of the whole data set."""

import pytest
import torch
from torch.testing import assert_close

from skbayes_sym.models.model import Batches, Data


def rows(n=7):
    x = torch.arange(n, dtype=torch.float64)
    return Data(x[:, None], 10.0 * x[:, None], 1.0 + x)


def test_an_epoch_sees_each_row_once_and_drops_the_rest(generator):
    batches = Batches(rows(), 3, generator)
    for _ in range(20):
        seen = torch.cat([batches.next().x.flatten() for _ in range(2)])
        assert len(seen.unique()) == 6


def test_rows_stay_together_and_weights_add_up_to_the_whole(generator):
    data, batches = rows(6), Batches(rows(6), 2, generator)
    epoch = [batches.next() for _ in range(3)]
    for x, y, weight in epoch:
        assert_close(y, 10.0 * x)
        assert_close(weight, 3.0 * (1.0 + x.flatten()))
    assert_close(torch.stack([b.weight.sum() for b in epoch]).mean(), data.weight.sum())


@pytest.mark.parametrize("batch_size", [7, 100])
def test_full_batches_are_the_data_and_draw_nothing(batch_size, generator):
    before = generator.get_state()
    batches = Batches(rows(), batch_size, generator)
    assert batches.batch_size == 7
    for got, expected in zip(batches.next(), rows(), strict=True):
        assert_close(got, expected, rtol=0, atol=0)
    assert bool((generator.get_state() == before).all())


def test_the_stream_decides(generator):
    one, two = (Batches(rows(), 3, torch.Generator().manual_seed(5)) for _ in range(2))
    for _ in range(5):
        assert_close(one.next().x, two.next().x, rtol=0, atol=0)
