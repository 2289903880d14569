"""Work by the gradients made, whatever the machine."""

import torch

from skbayes_sym.inference.allowance import Allowance


def test_chains_of_a_block_share_their_calls():
    """10 and 30 calls of 2 and 3 chains, one of which made only 20 of its gradients."""
    ledger = Allowance(1e6)
    made = torch.tensor([10, 10, 30, 30, 20])
    calls, gradients = 40, 10 + 10 + 30 + 30 + 20
    expected = ledger.work(calls, 0.0) + gradients * 1e6
    assert ledger.of_moves(made, 2 + 0) == ledger.work(10 + 30 + 20, 0.0) + gradients * 1e6
    blocks = torch.tensor([10, 10, 10, 30, 30, 20])
    assert ledger.of_moves(blocks, 3) == expected + 10 * 1e6


def test_a_sum_that_shrinks():
    allowance = Allowance(1.0, 100.0)
    assert allowance.affords(100.0)
    allowance.spend(70.0)
    assert not allowance.affords(31.0)
    assert allowance.part(0.5) == 15.0
    allowance.spend(70.0)
    assert allowance.part(0.5) == 0.0
    assert Allowance(1.0).affords(1e30)
